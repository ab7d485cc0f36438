//! Complete snapshots.
//!
//! ```text
//! snapshots/ID/db/      a RocksDB checkpoint of the state
//! snapshots/ID/meta     what it covers (opaque here)
//! ```
//!
//! Invariant: a snapshot is complete exactly when its `meta` is there, and `meta` is written last. Anything incomplete
//! is removed at the next start.
//! Invariant: a snapshot that was replaced stays on disk until its last reader is done with it.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use parking_lot::Mutex;

use super::incoming::{Incoming, SnapshotFile};
use crate::storage::files::{
    REMOVED, create_dir, remove_dir, remove_dir_later, sync_dir, sync_file, write_durably,
};
use crate::storage::open_error::OpenError;

/// Files whose checksums are remembered.
const MAX_CHECKSUMS: usize = 16 * 1024;

/// One complete snapshot. Clones share the files.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Tells its content from that of every other snapshot of this data directory.
    pub id: String,
    /// What it covers, as given when it was made.
    pub meta: Bytes,
    dir: Arc<Dir>,
    checksums: Arc<Checksums>,
}

/// Checksums of files that were read whole, of all snapshots: a file is in many of them.
type Checksums = Mutex<HashMap<Content, u32>>;

/// Tells a file's content from every other, on this machine: files of a database are written once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Content {
    name: String,
    bytes: u64,
    inode: u64,
    modified: (i64, i64),
}

impl Content {
    fn of(name: &str, found: &Metadata) -> Content {
        Content {
            name: name.to_owned(),
            bytes: found.len(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
        }
    }
}

#[derive(Debug)]
struct Dir {
    path: PathBuf,
    /// The files go when the last reader is done with them.
    replaced: AtomicBool,
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.replaced.load(Relaxed) {
            // The last reader may be a task.
            remove_dir_later(&self.path);
        }
    }
}

impl Snapshot {
    fn db(&self) -> PathBuf {
        self.dir.path.join("db")
    }

    /// The files, in order of name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn files(&self) -> io::Result<Vec<SnapshotFile>> {
        let mut files = Vec::new();
        let checksums = self.checksums.lock();
        for entry in fs::read_dir(self.db())? {
            let entry = entry?;
            let name = entry.file_name().into_string();
            let name = name.map_err(|_| io::Error::other("a snapshot file's name is not UTF-8"))?;
            let found = entry.metadata()?;
            files.push(SnapshotFile {
                crc: checksums.get(&Content::of(&name, &found)).copied(),
                bytes: found.len(),
                name,
            });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// Notes the checksum of `name`, which was read whole: later snapshots that hold the same file name it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn note_checksum(&self, name: &str, crc: u32) -> io::Result<()> {
        let found = fs::metadata(self.db().join(name))?;
        let mut checksums = self.checksums.lock();
        // The files of some snapshots; what is forgotten is sent again.
        if checksums.len() >= MAX_CHECKSUMS {
            checksums.clear();
        }
        checksums.insert(Content::of(name, &found), crc);
        Ok(())
    }

    /// Up to `length` bytes of `name` from `offset`; fewer only at its end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read(&self, name: &str, offset: u64, length: usize) -> io::Result<Bytes> {
        let mut file = File::open(self.db().join(name))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut data = Vec::with_capacity(length);
        file.take(length as u64).read_to_end(&mut data)?;
        Ok(data.into())
    }

    /// Makes `target` a database with this content. Immutable files are shared, the others copied; all synced.
    ///
    /// # Errors
    /// The operating system's.
    pub fn copy_to(&self, target: &Path) -> io::Result<()> {
        remove_dir(target);
        fs::create_dir_all(target)?;
        for file in self.files()? {
            let (from, to) = (self.db().join(&file.name), target.join(&file.name));
            if file.name.ends_with(".sst") {
                fs::hard_link(from, to)?;
            } else {
                fs::copy(from, &to)?;
                sync_file(&File::open(&to)?, &to)?;
            }
        }
        sync_dir(target)
    }
}

/// The snapshots of one data directory.
#[derive(Debug)]
pub struct Snapshots {
    root: PathBuf,
    incoming: PathBuf,
    current: Mutex<Option<Snapshot>>,
    checksums: Arc<Checksums>,
}

impl Snapshots {
    /// Finds the newest complete snapshot below `data` and removes all others.
    ///
    /// # Errors
    /// When the directories can't be read or made.
    pub fn open(data: &Path) -> Result<Snapshots, OpenError> {
        let (root, incoming) = (data.join("snapshots"), data.join("incoming"));
        for dir in [&root, &incoming] {
            create_dir(dir).map_err(|error| OpenError::io(dir, error))?;
        }
        let mut complete = Vec::new();
        for entry in fs::read_dir(&root).map_err(|error| OpenError::io(&root, error))? {
            let path = entry.map_err(|error| OpenError::io(&root, error))?.path();
            match fs::read(path.join("meta")) {
                _ if path.extension().is_some_and(|found| found == REMOVED) => remove_dir(&path),
                Ok(meta) => complete.push((path, meta)),
                Err(_) => remove_dir(&path),
            }
        }
        complete.sort();
        let newest = complete.pop();
        for (path, _) in &complete {
            remove_dir(path);
        }
        let checksums = Arc::new(Checksums::default());
        let current = newest.and_then(|(path, meta)| {
            let id = path.file_name()?.to_str()?.to_owned();
            Some(Snapshot {
                id,
                meta: meta.into(),
                dir: Arc::new(Dir {
                    path,
                    replaced: AtomicBool::new(false),
                }),
                checksums: Arc::clone(&checksums),
            })
        });
        Ok(Snapshots {
            root,
            incoming,
            current: Mutex::new(current),
            checksums,
        })
    }

    /// The newest complete snapshot.
    pub fn current(&self) -> Option<Snapshot> {
        self.current.lock().clone()
    }

    /// Where to put the checkpoint of a snapshot called `id`; nothing is there yet. A later snapshot's id sorts later.
    /// [`Snapshots::finish`] completes it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn prepare(&self, id: &str) -> io::Result<PathBuf> {
        let dir = self.root.join(id);
        // An earlier attempt may have failed at its very end. What a crash leaves of it must not count as complete.
        let meta = dir.join("meta");
        if meta.exists() {
            fs::remove_file(meta)?;
            sync_dir(&dir)?;
        }
        remove_dir(&dir);
        fs::create_dir_all(&dir)?;
        Ok(dir.join("db"))
    }

    /// Makes the checkpoint prepared as `id` a snapshot, durably, and the current one unless a later one is that
    /// already (a snapshot may be installed while another one is being finished). The other one goes with its last
    /// reader.
    ///
    /// # Errors
    /// The operating system's; the former snapshot stays current.
    pub fn finish(&self, id: &str, meta: Bytes) -> io::Result<Snapshot> {
        let path = self.root.join(id);
        let db = path.join("db");
        for entry in fs::read_dir(&db)? {
            let path = entry?.path();
            sync_file(&File::open(&path)?, &path)?;
        }
        sync_dir(&db)?;
        // The name of the checkpoint, too, before that of `meta`.
        sync_dir(&path)?;
        write_durably(&path.join("meta"), &meta)?;
        sync_dir(&self.root)?;
        let snapshot = Snapshot {
            id: id.to_owned(),
            meta,
            dir: Arc::new(Dir {
                path,
                replaced: AtomicBool::new(false),
            }),
            checksums: Arc::clone(&self.checksums),
        };
        let mut current = self.current.lock();
        let newer = current.take_if(|current| current.id > snapshot.id);
        let (kept, replaced) = match newer {
            Some(newer) => (newer, Some(snapshot.clone())),
            None => (snapshot.clone(), current.take()),
        };
        if let Some(replaced) = &replaced
            && replaced.id != kept.id
        {
            replaced.dir.replaced.store(true, Relaxed);
        }
        *current = Some(kept);
        // Its files may go with `replaced`, which takes its time.
        drop(current);
        Ok(snapshot)
    }

    /// Removes the current snapshot: it is none any more once this returns, also after a crash.
    ///
    /// # Errors
    /// The operating system's.
    pub fn discard(&self) -> io::Result<()> {
        let discarded = self.current.lock().take();
        if let Some(snapshot) = discarded {
            fs::remove_file(snapshot.dir.path.join("meta"))?;
            sync_dir(&snapshot.dir.path)?;
            snapshot.dir.replaced.store(true, Relaxed);
        }
        Ok(())
    }

    /// Begins (or goes on) receiving the snapshot called `id`, made of `files`. See [`Incoming::open`].
    ///
    /// # Errors
    /// As for [`Incoming::open`].
    pub fn receive(&self, id: &str, files: Vec<SnapshotFile>) -> io::Result<Incoming> {
        Incoming::open(&self.incoming, id, files)
    }

    /// Removes what is left of a received database that nobody needs.
    pub fn forget(received: &Path) {
        remove_dir(received);
    }

    /// A place below `incoming/` for a database that is not received, called `name`.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.incoming.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_that_was_being_removed_is_none_after_a_restart() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let aside = dir.path().join("snapshots").join("02.removed");
        fs::create_dir_all(&aside).expect("a directory");
        fs::write(aside.join("meta"), "whole").expect("a file");
        let snapshots = Snapshots::open(dir.path()).expect("well-formed");
        assert!(snapshots.current().is_none());
        assert!(!aside.exists());
    }
}
