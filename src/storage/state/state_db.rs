//! The applied state: the machine's rows and, under the reserved prefix `0x00`, what Raft keeps beside them.
//!
//! There is no write-ahead log. Applied batches wait in [`Memtables`] with the log id they go up to, and reach RocksDB
//! as one `WriteBatch` in one column family.
//!
//! Invariant: RocksDB holds nothing that the log on disk does not cover. Entries are applied when a majority has them,
//! which may be before this node's own disk has them. After a crash the log would end in what those entries replaced,
//! and contradict the state.
//! Invariant: RocksDB always holds a whole prefix of the applied batches. The log replays the rest after a crash.
//! Invariant: keys that begin with `0x00` are Raft's; the machine's begin with anything else.
//!
//! A snapshot replaces the whole database: `state/` holds numbered databases and `state.current` names the one in use,
//! so the switch is one rename ([`super::generation`]). Readers hold the [`StateDb`], which always shows the current
//! one. See `docs/spec/replication.md`, Storage.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{ReadOptions, WriteBatch};

use super::generation::{self, Generation};
use super::memtable::{Memtable, Memtables, ScanEnd};
use super::sweep::{self, NOTEWORTHY, PUSH_DOWN_WITHIN, Sweeper};
use super::view::{self, Moment, StateView, show_rows};
use crate::base::pulse::{Phase, wait};
use crate::machine::tables::{Backing, Changes};
use crate::storage::database::Database;
use crate::storage::diverged;
use crate::storage::fatal::fatal;
use crate::storage::faults::{self, Step};
use crate::storage::files;
use crate::storage::open_error::OpenError;

/// First byte of the keys that are kept for Raft.
const RESERVED: u8 = 0;

/// A copy of the state could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// RocksDB refused.
    #[error("RocksDB: {0}")]
    Database(#[from] rocksdb::Error),
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the reserved row of a name.
pub type ReservedRows<'a> = dyn Fn(&[u8]) -> Result<Option<Bytes>, OpenError> + 'a;

/// Makes the log durable as far as it was given to the log; `false` when it can't any more, because the node has ended.
pub type Barrier = Box<dyn Fn() -> bool + Send + Sync>;

/// What the threads share with the state's handle.
struct Shared {
    /// Called before rows may become durable.
    barrier: Barrier,
    /// It said that the log has ended: rows that were to be written are not.
    has_ended: AtomicBool,
    current: ArcSwap<Generation>,
    memtables: Memtables,
    sweeper: Arc<Sweeper>,
}

/// The applied state of this node.
pub struct StateDb {
    shared: Arc<Shared>,
    data: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Drop for StateDb {
    fn drop(&mut self) {
        self.shared.memtables.end();
        if let Some(thread) = self.thread.take() {
            // It panics only where the process ends anyway.
            let _ = thread.join();
        }
        // RocksDB may refuse to write from here on.
        self.shared.sweeper.end();
    }
}

impl StateDb {
    /// Opens the current database below `data`, creating the first, and removes what an interrupted switch left.
    ///
    /// # Errors
    /// When it can't be read, or RocksDB refuses.
    pub fn open(data: &Path) -> Result<StateDb, OpenError> {
        StateDb::open_behind(data, Box::new(|| true))
    }

    /// The same for a state that follows a log: `barrier` makes durable what was given to the log. It may block.
    ///
    /// # Errors
    /// As for [`StateDb::open`].
    pub fn open_behind(data: &Path, barrier: Barrier) -> Result<StateDb, OpenError> {
        let root = generation::root(data);
        files::create_dir(&root).map_err(|error| OpenError::io(&root, error))?;
        let number = match generation::read_current(data)? {
            Some(number) => number,
            None => {
                generation::write_current(data, 1)?;
                1
            }
        };
        generation::remove_others(data, number)?;
        let shared = Arc::new(Shared {
            barrier,
            has_ended: AtomicBool::new(false),
            current: ArcSwap::from_pointee(Generation::open(data, number)?),
            memtables: Memtables::default(),
            sweeper: Arc::default(),
        });
        let writing = shared.clone();
        let thread = std::thread::Builder::new()
            .name("state-write".into())
            .spawn(move || writing.memtables.run(|memtable| writing.write(memtable)))
            .map_err(|error| OpenError::io(&root, error))?;
        Ok(StateDb {
            shared,
            data: data.to_owned(),
            thread: Some(thread),
        })
    }

    /// The value of one of Raft's own rows.
    pub fn reserved(&self, name: &[u8]) -> Option<Bytes> {
        self.get(&reserved_key(name))
    }

    /// Adds the changes of a batch and Raft's own rows: readers see them at once, and RocksDB gets them whole, later.
    ///
    /// A failed write ends the process.
    pub fn write(&self, changes: Changes, reserved: &[(&[u8], &[u8])]) {
        debug_assert!(
            changes.keys().all(|key| key.first() != Some(&RESERVED)),
            "the machine keeps out of the reserved prefix"
        );
        let reserved = reserved
            .iter()
            .map(|(name, value)| (reserved_key(name), Bytes::copy_from_slice(value)))
            .collect();
        self.shared.memtables.add(changes, reserved);
    }

    /// Puts everything written so far on disk.
    pub fn flush(&self) {
        self.shared.memtables.drain();
        let generation = self.shared.current.load_full();
        if let Err(error) = flush(generation.db()) {
            fatal("flushing the state", &error);
        }
    }

    /// Makes `path` (which must not exist) a copy of the state as it is now, sharing files where it can.
    ///
    /// Nothing may be written meanwhile if the copy is to match rows that were read beside it.
    ///
    /// # Errors
    /// When RocksDB refuses.
    pub fn checkpoint(&self, path: &Path) -> Result<(), CheckpointError> {
        self.shared.memtables.drain();
        if self.shared.has_ended.load(Acquire) {
            return Err(io::Error::other("the log has ended").into());
        }
        let generation = self.shared.current.load_full();
        faults::step(Step::CheckpointTaking, path)?;
        Checkpoint::new(&**generation.db())?.create_checkpoint_with_log_size(path, 0)?;
        Ok(faults::step(Step::CheckpointTaken, path)?)
    }

    /// Has `work` look at the state as it is now, on a thread of its own: what is written later it does not see.
    /// Returns when that moment is held, and `work` goes on. For the one who writes it is this very moment; for others
    /// it is one between the call and the return.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn look(&self, work: impl FnOnce(&StateView<'_>) + Send + 'static) -> io::Result<()> {
        let shared = self.shared.clone();
        let moment = move || {
            // The rows above RocksDB first: what is written to RocksDB meanwhile is then in both, and not in neither.
            let (recent, epoch) = shared.memtables.freeze();
            let generation = shared.current.load_full();
            let shared = shared.clone();
            Moment {
                generation,
                recent,
                is_whole: Box::new(move || shared.memtables.epoch() == epoch),
            }
        };
        let shared = Arc::downgrade(&self.shared);
        let is_current = move |generation: &Arc<Generation>| {
            let shared = shared.upgrade();
            shared.is_some_and(|shared| Arc::ptr_eq(generation, &shared.current.load()))
        };
        view::look(moment, Box::new(is_current), work)
    }

    /// Notes, durably, that the state differs from that of the other replicas, and ends the process: the node does not
    /// start with this directory any more.
    pub fn give_up(&self, why: &str) -> ! {
        diverged::give_up(&self.data, why)
    }

    /// Replaces the state with the database at `replacement` (whose files must be synced), which is moved.
    ///
    /// After a crash at any point the next start sees either the old state or the new one, whole.
    ///
    /// # Errors
    /// When the replacement can't be moved or opened before the switch; the old state stays then. After the
    /// switch failures end the process.
    pub fn replace(&self, replacement: &Path) -> Result<(), OpenError> {
        self.replace_checked(replacement, |_| Ok(()))
    }

    /// As [`StateDb::replace`], once `check` has passed the replacement by its reserved rows. Returns what it found.
    ///
    /// # Errors
    /// Also when `check` says why the replacement is not wanted; the replacement is removed then.
    pub fn replace_checked<T>(
        &self,
        replacement: &Path,
        check: impl FnOnce(&ReservedRows<'_>) -> Result<T, String>,
    ) -> Result<T, OpenError> {
        let old = self.shared.current.load_full();
        let number = old.number + 1;
        let target = generation::path(&self.data, number);
        files::remove_dir(&target);
        fs::rename(replacement, &target).map_err(|error| OpenError::io(replacement, error))?;
        let renamed = faults::step(Step::Renamed, &target);
        renamed.map_err(|error| OpenError::io(&target, error))?;
        // This makes the new name durable. The old one may be back after a crash: what is in `incoming/` counts for
        // nothing there.
        let new = Generation::open(&self.data, number)?;
        let rows = |name: &[u8]| match new.db().get(reserved_key(name)) {
            Ok(row) => Ok(row.map(Bytes::from)),
            Err(error) => Err(OpenError::database(&target, &error)),
        };
        let found = match check(&rows) {
            Ok(found) => found,
            Err(reason) => {
                new.remove();
                return Err(OpenError::damaged(&target, reason));
            }
        };
        // The log may have given way to the new state.
        if !(self.shared.barrier)() {
            new.remove();
            let ended = io::Error::other("the log has ended");
            return Err(OpenError::io(&target, ended));
        }
        if let Err(error) = generation::write_current(&self.data, number) {
            fatal("switching to a received snapshot", &error);
        }
        // What waits belongs to the old state. Readers may miss it for a moment: a replica that installs a snapshot
        // serves nobody.
        let new = Arc::new(new);
        self.shared
            .memtables
            .replace(|| self.shared.current.store(new));
        self.shared.sweeper.leave(&old);
        old.remove_when_unused();
        Ok(found)
    }
}

impl Shared {
    /// The thread's part: one memtable becomes one atomic batch.
    fn write(&self, memtable: &Memtable) {
        let mut batch = WriteBatch::default();
        for (key, change) in &memtable.rows {
            match change.value() {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        if !(self.barrier)() {
            // Nothing that comes later is written, either: the log has it all.
            self.has_ended.store(true, Release);
            return;
        }
        if let Err(error) = write(self.current.load().db(), batch) {
            fatal("writing the state", &error);
        }
    }

    fn stored(&self, key: &[u8]) -> Option<Bytes> {
        let current = self.current.load();
        match wait(Phase::StateRead, || current.db().get_pinned(key)) {
            Ok(value) => value.map(|value| Bytes::copy_from_slice(&value)),
            Err(error) => fatal("reading the state", &error),
        }
    }

    /// Visits rows until `visit` returns `false`, or until enough for one step was looked at: returns where to go on.
    /// Counts the deletions that wait in a memtable, which it had to pass.
    fn step(
        &self,
        from: &[u8],
        to: &[u8],
        deletions: &mut u64,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> ScanEnd {
        loop {
            let generation = self.current.load_full();
            let (view, mut rows) = self.memtables.view(from, to, |end| {
                let mut read = ReadOptions::default();
                // Not `to`: tombstones behind the end would be passed again by the next step.
                read.set_iterate_upper_bound(end);
                generation.db().raw_iterator_opt(read)
            });
            if !Arc::ptr_eq(&generation, &self.current.load()) {
                // A snapshot was installed meanwhile: rows of both states must not be mixed.
                continue;
            }
            *deletions += view.deletions();
            let end = view.end(to);
            let stored = |show: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
                let stopped_at = show_rows(&mut rows, from, end, show);
                if let Err(error) = rows.status() {
                    fatal("reading the state", &error);
                }
                stopped_at
            };
            return view.scan(from, end, stored, visit);
        }
    }
}

impl Backing for StateDb {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        match self.shared.memtables.get(key) {
            Some(change) => change.value().cloned(),
            None => self.shared.stored(key),
        }
    }

    /// Rows are visited step by step, without a lock, so that a slow visitor holds nobody up, and without a copy of
    /// their values. Each step shows the rows as they were at one moment. Apply, the only writer, sees every row as it
    /// is.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let before = sweep::passed();
        let (mut next, mut deletions, mut stopped_at) = (from.to_vec(), 0, None);
        let mut of_last_step = 0;
        let mut visit = |key: &[u8], value: &[u8]| {
            let goes_on = visit(key, value);
            if !goes_on {
                stopped_at = Some(key.to_vec());
            }
            goes_on
        };
        while next.as_slice() < to {
            deletions += std::mem::take(&mut of_last_step);
            match self.shared.step(&next, to, &mut of_last_step, &mut visit) {
                ScanEnd::Before(key) => next = key,
                ScanEnd::Left => break,
            }
        }
        // Some may be behind the row where the visitor stopped.
        if stopped_at.is_none() {
            deletions += of_last_step;
        }
        let passed = sweep::passed() - before + deletions;
        if passed < NOTEWORTHY {
            return;
        }
        let to = stopped_at.as_deref().unwrap_or(to);
        if let Some(range) = self.shared.sweeper.note(passed, from, to) {
            let shared = Arc::clone(&self.shared);
            let push_down = move || shared.memtables.push_down(PUSH_DOWN_WITHIN);
            let generation = self.shared.current.load_full();
            self.shared.sweeper.sweep(generation, range, push_down);
        }
    }
}

fn write(db: &Database, batch: WriteBatch) -> Result<(), Box<dyn Error>> {
    faults::step(Step::StateWriting, db.path())?;
    db.write_without_wal(batch)?;
    Ok(faults::step(Step::StateWritten, db.path())?)
}

fn flush(db: &Database) -> Result<(), Box<dyn Error>> {
    faults::step(Step::StateFlushing, db.path())?;
    db.flush()?;
    Ok(faults::step(Step::StateFlushed, db.path())?)
}

fn reserved_key(name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(RESERVED);
    key.extend_from_slice(name);
    key
}
