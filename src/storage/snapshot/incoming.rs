//! A snapshot being received, file by file.
//!
//! ```text
//! incoming/ID/NAME      a received file, whole, checked and synced
//! incoming/ID/NAME.part a file under way
//! incoming/ID.sums      a line for each file that was received: checksum, size, name
//! ```
//!
//! Invariant: a file gets its name only when it is whole, checked and synced, so a transfer that broke off goes on with
//! the files that are there.
//!
//! Files of a database never change. So when a newer snapshot replaces the one being received, files of the same name,
//! size and checksum stay: a transfer that takes longer than the time between two snapshots comes to its end, too.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::storage::faults::{self, Step};
use crate::storage::files::{create_dir, remove_dir, sync_dir, sync_file};
use crate::storage::space::Space;

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Name within the snapshot; never a path.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its CRC-32C, when it is known.
    pub crc: Option<u32>,
}

/// A line of a `.sums` file.
fn sum_line(name: &str, bytes: u64, crc: u32) -> String {
    format!("{crc:08x} {bytes} {name}\n")
}

/// The files that `path` lists. A line that a crash has cut is passed over.
fn read_sums(path: &Path) -> Vec<SnapshotFile> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter_map(|line| {
        let mut parts = line.strip_suffix('\n')?.splitn(3, ' ');
        let crc = u32::from_str_radix(parts.next()?, 16).ok()?;
        let bytes = parts.next()?.parse().ok()?;
        let name = parts.next().filter(|name| plain(name))?.to_owned();
        Some(SnapshotFile {
            name,
            bytes,
            crc: Some(crc),
        })
    });
    whole.collect()
}

/// A snapshot being received, file by file.
#[derive(Debug)]
pub struct Incoming {
    path: PathBuf,
    /// Where the checksums of received files are listed.
    sums: PathBuf,
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
    /// broke off. Files of other snapshots that are the same stay; what is left of those is removed.
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
        let (path, sums) = (root.join(id), root.join(format!("{id}.sums")));
        create_dir(&path)?;
        for entry in fs::read_dir(root)? {
            let other = entry?.path();
            if other.is_dir() && other != path {
                keep_same_files(&other, &path, &sums, &files)?;
                remove_dir(&other);
            }
        }
        for entry in fs::read_dir(root)? {
            let entry = entry?.path();
            if entry.is_file() && entry != sums {
                fs::remove_file(entry)?;
            }
        }
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
        let incoming = Incoming {
            path,
            sums,
            files,
            open: None,
        };
        incoming.check_room(root)?;
        Ok(incoming)
    }

    /// Whether the volume has room for what is still to come: a snapshot that can't be received to its end must not
    /// fill the disk, whatever its sender has announced.
    fn check_room(&self, root: &Path) -> io::Result<()> {
        let have = self.have();
        let missing = (0u32..)
            .zip(&self.files)
            .filter(|(position, _)| have.binary_search(position).is_err())
            .try_fold(0_u64, |sum, (_, file)| sum.checked_add(file.bytes));
        let free = Space::of(root)?.free_bytes;
        if missing.is_some_and(|missing| missing <= free) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("the snapshot needs more than the {free} bytes that are free"),
        ))
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
                sync_file(&part.file, &partial)?;
            }
            None if expected.bytes == 0 => sync_file(&File::create(&partial)?, &partial)?,
            _ => return Err(damaged("the file that ends was not begun")),
        }
        fs::rename(partial, &target)?;
        faults::step(Step::Renamed, &target)?;
        append_line(&self.sums, &sum_line(&expected.name, expected.bytes, crc))
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
        // Every file has its place now. When this fails, the next snapshot removes it.
        let _ = fs::remove_file(&self.sums);
        Ok(self.path)
    }
}

/// Moves those of `wanted` that were received for the snapshot in `from` to `to`, and lists them in `sums`.
fn keep_same_files(from: &Path, to: &Path, sums: &Path, wanted: &[SnapshotFile]) -> io::Result<()> {
    for file in read_sums(&from.with_added_extension("sums")) {
        let (source, target) = (from.join(&file.name), to.join(&file.name));
        let whole = || fs::metadata(&source).is_ok_and(|found| found.len() == file.bytes);
        if wanted.contains(&file) && !target.exists() && whole() {
            fs::rename(&source, &target)?;
            append_line(
                sums,
                &sum_line(&file.name, file.bytes, file.crc.unwrap_or(0)),
            )?;
        }
    }
    Ok(())
}

fn append_line(path: &Path, line: &str) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
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
        && !name.ends_with(".sums")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
