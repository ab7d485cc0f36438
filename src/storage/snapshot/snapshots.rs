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

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use parking_lot::Mutex;

use super::incoming::{Incoming, SnapshotFile};
use crate::storage::data_dir::{OpenError, remove_dir, sync_dir, write_durably};

/// One complete snapshot. Clones share the files.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Tells its content from that of every other snapshot of this data directory.
    pub id: String,
    /// What it covers, as given when it was made.
    pub meta: Bytes,
    dir: Arc<Dir>,
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
            remove_dir(&self.path);
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
        for entry in fs::read_dir(self.db())? {
            let entry = entry?;
            let name = entry.file_name().into_string();
            let name = name.map_err(|_| io::Error::other("a snapshot file's name is not UTF-8"))?;
            files.push(SnapshotFile {
                name,
                bytes: entry.metadata()?.len(),
            });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
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
                File::open(&to)?.sync_all()?;
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
}

impl Snapshots {
    /// Finds the newest complete snapshot below `data` and removes all others.
    ///
    /// # Errors
    /// When the directories can't be read or made.
    pub fn open(data: &Path) -> Result<Snapshots, OpenError> {
        let (root, incoming) = (data.join("snapshots"), data.join("incoming"));
        for dir in [&root, &incoming] {
            fs::create_dir_all(dir).map_err(|error| OpenError::io(dir, error))?;
        }
        let mut complete = Vec::new();
        for entry in fs::read_dir(&root).map_err(|error| OpenError::io(&root, error))? {
            let path = entry.map_err(|error| OpenError::io(&root, error))?.path();
            match fs::read(path.join("meta")) {
                Ok(meta) => complete.push((path, meta)),
                Err(_) => remove_dir(&path),
            }
        }
        complete.sort();
        let newest = complete.pop();
        for (path, _) in &complete {
            remove_dir(path);
        }
        let current = newest.and_then(|(path, meta)| {
            let id = path.file_name()?.to_str()?.to_owned();
            Some(Snapshot {
                id,
                meta: meta.into(),
                dir: Arc::new(Dir {
                    path,
                    replaced: AtomicBool::new(false),
                }),
            })
        });
        Ok(Snapshots {
            root,
            incoming,
            current: Mutex::new(current),
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
        remove_dir(&dir);
        fs::create_dir_all(&dir)?;
        Ok(dir.join("db"))
    }

    /// Makes the checkpoint prepared as `id` the current snapshot, durably, and replaces the former one.
    ///
    /// # Errors
    /// The operating system's; the former snapshot stays current.
    pub fn finish(&self, id: &str, meta: Bytes) -> io::Result<Snapshot> {
        let path = self.root.join(id);
        let db = path.join("db");
        for entry in fs::read_dir(&db)? {
            File::open(entry?.path())?.sync_all()?;
        }
        sync_dir(&db)?;
        write_durably(&path.join("meta"), &meta)?;
        sync_dir(&self.root)?;
        let snapshot = Snapshot {
            id: id.to_owned(),
            meta,
            dir: Arc::new(Dir {
                path,
                replaced: AtomicBool::new(false),
            }),
        };
        let former = self.current.lock().replace(snapshot.clone());
        if let Some(former) = former
            && former.id != snapshot.id
        {
            former.dir.replaced.store(true, Relaxed);
        }
        Ok(snapshot)
    }

    /// Begins (or goes on) receiving the snapshot called `id`, made of `files`. See [`Incoming::open`].
    ///
    /// # Errors
    /// As for [`Incoming::open`].
    pub fn receive(&self, id: &str, files: Vec<SnapshotFile>) -> io::Result<Incoming> {
        Incoming::open(&self.incoming, id, files)
    }

    /// A place below `incoming/` for a database that is not received, called `name`.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.incoming.join(name)
    }
}
