//! The applied state: rows of the machine and, under the reserved prefix `0x00`, how far it is applied.
//!
//! Without a WAL: applied batches and their marks reach RocksDB as one `WriteBatch` in one column family, so whatever
//! prefix of the batches a flush has put on disk is whole, and the log replays the rest. Until then they wait in
//! [`super::recent`]. Keys that begin with `0x00` belong
//! to Raft; the machine's begin with anything else.
//!
//! A snapshot replaces the whole database: `state/` holds numbered databases and `state.current` names the one
//! in use, so the switch is one rename. Readers hold the [`State`], which always shows the current one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{DB, ReadOptions, WriteBatch};

use super::data_dir::{self, OpenError};
use super::database::Database;
use super::fatal::fatal;
use super::options;
use super::recent::{Layer, Recent};
use crate::machine::tables::{Backing, Changes};

/// First byte of the keys this layer keeps for Raft.
pub const RESERVED: u8 = 0;

/// Rows of the first portion of a scan: many scans want no more than one.
const FIRST_PORTION: usize = 4;

/// Rows of the largest portion.
const LARGEST_PORTION: usize = 1024;

const CURRENT: &str = "state.current";

/// One of the numbered databases.
struct Generation {
    db: Database,
    path: PathBuf,
    number: u64,
    /// Replaced by a snapshot: the files go with the last reader.
    doomed: AtomicBool,
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.doomed.load(Relaxed) {
            // The database must not be open when its files go; closing twice is harmless.
            self.db.cancel_all_background_work(true);
            remove_dir(&self.path);
        }
    }
}

fn remove_dir(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an unused directory was not removed; the next start tries again");
    }
}

/// What the writing thread shares with the state's handle.
struct Shared {
    current: ArcSwap<Generation>,
    recent: Recent,
}

/// The applied state of this node.
pub struct State {
    shared: Arc<Shared>,
    data: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.shared.recent.end();
        if let Some(thread) = self.thread.take() {
            // It panics only where the process ends anyway.
            let _ = thread.join();
        }
    }
}

impl State {
    /// Opens the current database below `data`, creating the first, and removes what an interrupted switch left.
    ///
    /// # Errors
    /// When it can't be read, or RocksDB refuses.
    pub fn open(data: &Path) -> Result<State, OpenError> {
        let root = data.join("state");
        fs::create_dir_all(&root).map_err(|error| OpenError::io(&root, error))?;
        let number = match read_current(data)? {
            Some(number) => number,
            None => {
                write_current(data, 1)?;
                1
            }
        };
        let keep = number.to_string();
        for entry in fs::read_dir(&root).map_err(|error| OpenError::io(&root, error))? {
            let entry = entry.map_err(|error| OpenError::io(&root, error))?;
            if entry.file_name().to_str() != Some(keep.as_str()) {
                remove_dir(&entry.path());
            }
        }
        let shared = Arc::new(Shared {
            current: ArcSwap::from_pointee(open_generation(data, number)?),
            recent: Recent::default(),
        });
        let writing = shared.clone();
        let thread = std::thread::Builder::new()
            .name("state-write".into())
            .spawn(move || writing.recent.run(|layer| writing.write(layer)))
            .map_err(|error| OpenError::io(&root, error))?;
        Ok(State {
            shared,
            data: data.to_owned(),
            thread: Some(thread),
        })
    }

    /// The value of a mark under the reserved prefix.
    pub fn mark(&self, name: &[u8]) -> Option<Bytes> {
        self.get(&reserved(name))
    }

    /// Adds the changes of a batch and `marks`: readers see them at once, and RocksDB gets them whole, later.
    ///
    /// A failed write ends the process.
    pub fn write(&self, changes: Changes, marks: &[(&[u8], &[u8])]) {
        debug_assert!(
            changes.keys().all(|key| key.first() != Some(&RESERVED)),
            "the machine keeps out of the reserved prefix"
        );
        let marks = marks
            .iter()
            .map(|(name, value)| (reserved(name), Bytes::copy_from_slice(value)))
            .collect();
        self.shared.recent.add(changes, marks);
    }

    /// Puts everything written so far on disk.
    pub fn flush(&self) {
        self.shared.recent.settle();
        if let Err(error) = self.shared.current.load_full().db.flush() {
            fatal("flushing the state", &error);
        }
    }

    /// Makes `path` (which must not exist) a copy of the state as it is now, sharing files where it can.
    ///
    /// Must not run while anything is written if the copy is to match marks read beside it.
    ///
    /// # Errors
    /// RocksDB's words.
    pub fn checkpoint(&self, path: &Path) -> Result<(), String> {
        self.shared.recent.settle();
        let generation = self.shared.current.load_full();
        Checkpoint::new(&*generation.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint_with_log_size(path, 0))
            .map_err(|error| error.into_string())
    }

    /// Replaces the state with the database at `replacement` (whose files must be synced), which is moved.
    ///
    /// After a crash at any point the next start sees either the old state or the new one, whole.
    ///
    /// # Errors
    /// When the replacement can't be moved or opened before the switch; the old state stays then. After the
    /// switch failures end the process.
    pub fn replace(&self, replacement: &Path) -> Result<(), OpenError> {
        let old = self.shared.current.load_full();
        let number = old.number + 1;
        let target = generation_path(&self.data, number);
        remove_dir(&target);
        fs::rename(replacement, &target).map_err(|error| OpenError::io(replacement, error))?;
        let root = self.data.join("state");
        data_dir::sync_dir(&root).map_err(|error| OpenError::io(&root, error))?;
        let new = open_generation(&self.data, number)?;
        if let Err(error) = write_current(&self.data, number) {
            fatal("switching to a received snapshot", &error);
        }
        // What waits belongs to the old state. Readers may miss it for a moment: whoever installs a snapshot serves nobody.
        self.shared.recent.clear();
        self.shared.current.store(Arc::new(new));
        old.doomed.store(true, Relaxed);
        Ok(())
    }
}

impl Shared {
    /// The thread's part: one layer becomes one atomic batch.
    fn write(&self, layer: &Layer) {
        let mut batch = WriteBatch::default();
        for (key, change) in &layer.rows {
            match change.value() {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        if let Err(error) = self.current.load().db.write_without_wal(batch) {
            fatal("writing the state", &error);
        }
    }

    fn stored(&self, key: &[u8]) -> Option<Bytes> {
        match self.current.load().db.get_pinned(key) {
            Ok(value) => value.map(|value| Bytes::copy_from_slice(&value)),
            Err(error) => fatal("reading the state", &error),
        }
    }

    fn scan_stored(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let generation = self.current.load_full();
        let mut read = ReadOptions::default();
        read.set_iterate_upper_bound(to);
        let mut rows = generation.db.raw_iterator_opt(read);
        rows.seek(from);
        while let Some((key, value)) = rows.item() {
            if !visit(key, value) {
                return;
            }
            rows.next();
        }
        if let Err(error) = rows.status() {
            fatal("reading the state", &error);
        }
    }
}

impl Backing for State {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        match self.shared.recent.get(key) {
            Some(change) => change.value().cloned(),
            None => self.shared.stored(key),
        }
    }

    /// Rows are gathered portion by portion, so that whoever visits them holds nobody up: each is as it was at some moment of
    /// the scan. Apply, which alone changes them, sees them all as they are.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let mut from = from.to_vec();
        let mut portion = FIRST_PORTION;
        while from.as_slice() < to {
            let mut rows: Vec<(Vec<u8>, Bytes)> = Vec::with_capacity(portion);
            self.shared.recent.scan(
                &from,
                to,
                |show| self.shared.scan_stored(&from, to, show),
                &mut |key, value| {
                    rows.push((key.to_vec(), Bytes::copy_from_slice(value)));
                    rows.len() < portion
                },
            );
            if !rows.iter().all(|(key, value)| visit(key, value)) || rows.len() < portion {
                return;
            }
            if let Some((last, _)) = rows.pop() {
                from = last;
                from.push(0);
            }
            portion = (portion * 4).min(LARGEST_PORTION);
        }
    }
}

fn reserved(name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(RESERVED);
    key.extend_from_slice(name);
    key
}

fn generation_path(data: &Path, number: u64) -> PathBuf {
    data.join("state").join(number.to_string())
}

fn open_generation(data: &Path, number: u64) -> Result<Generation, OpenError> {
    let path = generation_path(data, number);
    let db = Database::open(&path, || DB::open(&options::state(), &path))
        .map_err(|error| OpenError::database(&path, &error))?;
    Ok(Generation {
        db,
        path,
        number,
        doomed: AtomicBool::new(false),
    })
}

fn read_current(data: &Path) -> Result<Option<u64>, OpenError> {
    let path = data.join(CURRENT);
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(OpenError::damaged(&path, "holds no number")),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::io(&path, error)),
    }
}

fn write_current(data: &Path, number: u64) -> Result<(), OpenError> {
    let path = data.join(CURRENT);
    data_dir::write_durably(&path, format!("{number}\n").as_bytes())
        .map_err(|error| OpenError::io(&path, error))
}
