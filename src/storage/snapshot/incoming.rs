//! A snapshot being received, file by file.
//!
//! ```text
//! incoming/ID/NAME      a received file, whole, checked and synced
//! incoming/ID/NAME.part a file under way
//! ```
//!
//! Invariant: a file gets its name only when it is whole, checked and synced, so a transfer that broke off goes on with
//! the files that are there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::storage::data_dir::{remove_dir, sync_dir};

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Name within the snapshot; never a path.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A snapshot being received, file by file.
#[derive(Debug)]
pub struct Incoming {
    path: PathBuf,
    files: Vec<SnapshotFile>,
    open: Option<Part>,
}

/// The file under way.
#[derive(Debug)]
struct Part {
    position: usize,
    file: File,
    bytes: u64,
    crc: u32,
}

impl Incoming {
    /// Begins receiving the snapshot called `id`, made of `files`, below `root`; or goes on where an earlier attempt
    /// broke off. What is left of other snapshots is removed.
    ///
    /// # Errors
    /// When a name is not a plain file name, or the operating system refuses.
    pub fn open(root: &Path, id: &str, files: Vec<SnapshotFile>) -> io::Result<Incoming> {
        if !plain(id) || !files.iter().all(|file| plain(&file.name)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a snapshot's names must be plain file names",
            ));
        }
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.file_name().to_str() != Some(id) {
                remove_dir(&entry.path());
            }
        }
        let path = root.join(id);
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

/// Whether `name` names a file in a directory, and nothing outside of it.
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
