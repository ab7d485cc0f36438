//! Snapshots on disk: finished ones, and one being received.
//!
//! ```text
//! snapshots/ID/db/      a RocksDB checkpoint of the state
//! snapshots/ID/meta     what it covers (opaque here); its presence makes the snapshot complete
//! incoming/ID/NAME      a received file, whole, checked and synced
//! incoming/ID/NAME.part a file under way
//! ```
//!
//! Anything incomplete is removed at the next start (or, in `incoming/`, reused when the same snapshot is sent
//! again). A snapshot that was replaced goes when its last reader is done with it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use parking_lot::Mutex;

use super::data_dir::{OpenError, sync_dir, write_durably};

/// One complete snapshot. Clones share the files, which stay until the last clone is gone.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Names its content among all snapshots of this data directory.
    pub id: String,
    /// What it covers, as given when it was made.
    pub meta: Bytes,
    dir: Arc<Dir>,
}

#[derive(Debug)]
struct Dir {
    path: PathBuf,
    doomed: AtomicBool,
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.doomed.load(Relaxed) {
            remove(&self.path);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an old snapshot was not removed; the next start tries again");
    }
}

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Name within the snapshot; never a path.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
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
        remove(target);
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
                Err(_) => remove(&path),
            }
        }
        complete.sort();
        let newest = complete.pop();
        for (path, _) in &complete {
            remove(path);
        }
        let current = newest.and_then(|(path, meta)| {
            let id = path.file_name()?.to_str()?.to_owned();
            Some(Snapshot {
                id,
                meta: meta.into(),
                dir: Arc::new(Dir {
                    path,
                    doomed: AtomicBool::new(false),
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

    /// Where to put the checkpoint of a snapshot called `id` (a later snapshot's id sorts later); nothing is
    /// there yet. [`Snapshots::finish`] completes it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn prepare(&self, id: &str) -> io::Result<PathBuf> {
        let dir = self.root.join(id);
        remove(&dir);
        fs::create_dir_all(&dir)?;
        Ok(dir.join("db"))
    }

    /// Makes the checkpoint prepared as `id` the current snapshot, durably, and lets the former one go.
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
                doomed: AtomicBool::new(false),
            }),
        };
        let former = self.current.lock().replace(snapshot.clone());
        if let Some(former) = former
            && former.id != snapshot.id
        {
            former.dir.doomed.store(true, Relaxed);
        }
        Ok(snapshot)
    }

    /// Begins (or goes on) receiving the snapshot called `id`, made of `files`.
    ///
    /// # Errors
    /// When a name is not a plain file name, or the operating system refuses.
    pub fn receive(&self, id: &str, files: Vec<SnapshotFile>) -> io::Result<Incoming> {
        if !plain(id) || !files.iter().all(|file| plain(&file.name)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a snapshot's names must be plain file names",
            ));
        }
        for entry in fs::read_dir(&self.incoming)? {
            let entry = entry?;
            if entry.file_name().to_str() != Some(id) {
                remove(&entry.path());
            }
        }
        let path = self.incoming.join(id);
        fs::create_dir_all(&path)?;
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let whole = files.iter().any(|file| {
                entry.file_name().to_str() == Some(file.name.as_str())
                    && entry
                        .metadata()
                        .is_ok_and(|found| found.len() == file.bytes)
            });
            if !whole {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Incoming {
            path,
            files,
            open: None,
        })
    }

    /// A place below `incoming/` for a database that is not received, called `name`.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.incoming.join(name)
    }
}

fn plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name != "."
        && name != ".."
        && !name.ends_with(".part")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// A snapshot being received, file by file.
#[derive(Debug)]
pub struct Incoming {
    path: PathBuf,
    files: Vec<SnapshotFile>,
    open: Option<Part>,
}

#[derive(Debug)]
struct Part {
    position: usize,
    file: File,
    bytes: u64,
    crc: u32,
}

impl Incoming {
    /// Positions of the files that are here already, whole and checked.
    pub fn have(&self) -> Vec<u32> {
        let here = self.files.iter().enumerate().filter(|(_, file)| {
            fs::metadata(self.path.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
        });
        here.map(|(position, _)| position as u32).collect()
    }

    /// Adds bytes to the file at `position`, which must come from its beginning and without gaps.
    ///
    /// # Errors
    /// When they don't fit where the file stands, their checksum differs, or the operating system refuses.
    pub fn chunk(&mut self, position: u32, offset: u64, data: &[u8], crc: u32) -> io::Result<()> {
        if crc32c::crc32c(data) != crc {
            return Err(damaged("a chunk's checksum differs"));
        }
        let position = position as usize;
        let Some(expected) = self.files.get(position) else {
            return Err(damaged("no such file in the snapshot"));
        };
        if self
            .open
            .as_ref()
            .is_none_or(|part| part.position != position)
        {
            let file = File::create(self.path.join(format!("{}.part", expected.name)))?;
            self.open = Some(Part {
                position,
                file,
                bytes: 0,
                crc: 0,
            });
        }
        let Some(part) = &mut self.open else {
            return Err(damaged("no file is open"));
        };
        if part.bytes != offset || offset + data.len() as u64 > expected.bytes {
            return Err(damaged("a chunk does not follow the one before"));
        }
        part.file.write_all(data)?;
        part.bytes += data.len() as u64;
        part.crc = crc32c::crc32c_append(part.crc, data);
        Ok(())
    }

    /// Ends the file at `position`: checked, synced, and from now on kept.
    ///
    /// # Errors
    /// As for [`Incoming::chunk`].
    pub fn end_file(&mut self, position: u32, crc: u32) -> io::Result<()> {
        let Some(expected) = self.files.get(position as usize) else {
            return Err(damaged("no such file in the snapshot"));
        };
        let target = self.path.join(&expected.name);
        let partial = self.path.join(format!("{}.part", expected.name));
        match self.open.take() {
            Some(part) if part.position == position as usize => {
                if part.bytes != expected.bytes || part.crc != crc {
                    return Err(damaged("a file's size or checksum differs"));
                }
                part.file.sync_all()?;
            }
            None if expected.bytes == 0 => File::create(&partial)?.sync_all()?,
            _ => return Err(damaged("the file that ends was not begun")),
        }
        fs::rename(partial, target)
    }

    /// Checks that all files are here and makes the directory durable. The result is a database to install.
    ///
    /// # Errors
    /// When one is missing, or the operating system refuses.
    pub fn done(self) -> io::Result<PathBuf> {
        if self.have().len() != self.files.len() {
            return Err(damaged("files are missing"));
        }
        sync_dir(&self.path)?;
        Ok(self.path)
    }
}

fn damaged(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
