//! What of a directory tree is durable, and what a crash may leave of it.
//!
//! A sync of a file makes its bytes durable, and a sync of a directory the names in it. After a power cut everything
//! else is as it was or as it has become, each name, each file's end, and each sector of the log's segments by itself.
//! RocksDB syncs its own files, so what it makes in a database's directory counts as durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::random::Random;
use crate::storage::Step;

/// What a disk writes as a whole, bytes.
const SECTOR: usize = 512;

/// Inode numbers by name.
type Names = BTreeMap<OsString, u64>;

/// What is durable below a directory.
pub struct Disk {
    root: PathBuf,
    data: PathBuf,
    /// Durable files under their inode numbers: they outlive their names.
    kept: PathBuf,
    /// Durable names of each directory, which is kept open so that no other one gets its inode number.
    names: BTreeMap<u64, (Names, File)>,
    /// Durable bytes of each file.
    bytes: BTreeMap<u64, u64>,
    /// What of the log's segments is durable.
    segments: BTreeMap<u64, Vec<u8>>,
    /// Directories that became a database's, and what was in them.
    moved: BTreeMap<u64, Names>,
}

fn inode(path: &Path) -> io::Result<u64> {
    Ok(fs::symlink_metadata(path)?.ino())
}

fn names(dir: &Path) -> io::Result<Names> {
    let entries = fs::read_dir(dir)?;
    let named = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name(), inode(&entry.path())?))
    };
    entries.map(named).collect()
}

/// Inode number and size of everything at and below `path`.
fn walk(path: &Path, found: &mut BTreeMap<PathBuf, (u64, u64)>) -> io::Result<()> {
    let data = fs::symlink_metadata(path)?;
    let is_dir = data.is_dir();
    let bytes = if is_dir { 0 } else { data.len() };
    found.insert(path.to_owned(), (data.ino(), bytes));
    if is_dir {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), found)?;
        }
    }
    Ok(())
}

impl Disk {
    /// Of the data directory `data` in `root`, which is durable itself. Durable files get a second name in `kept`, on
    /// the same volume.
    pub fn new(root: &Path, data: &Path, kept: &Path) -> io::Result<Disk> {
        fs::create_dir_all(kept)?;
        Ok(Disk {
            root: root.to_owned(),
            data: data.to_owned(),
            kept: kept.to_owned(),
            names: BTreeMap::new(),
            bytes: BTreeMap::new(),
            segments: BTreeMap::new(),
            moved: BTreeMap::new(),
        })
    }

    /// Notes what is durable now that the storage is at `step`.
    pub fn note(&mut self, step: Step, path: &Path) -> io::Result<()> {
        match step {
            Step::DirectorySynced => self.note_directory(path)?,
            Step::FileSynced => {
                self.note_file(path)?;
                if path.parent() == Some(&self.data.join("log")) {
                    self.note_segment(path)?;
                }
            }
            Step::LogSynced => {
                self.note_file(path)?;
                self.note_segment(path)?;
            }
            Step::Renamed if self.is_database(path) => {
                self.moved.insert(inode(path)?, names(path)?);
            }
            _ => {}
        }
        Ok(())
    }

    fn note_directory(&mut self, path: &Path) -> io::Result<()> {
        let names = names(path)?;
        for (name, inode) in &names {
            let (path, kept) = (path.join(name), self.kept.join(inode.to_string()));
            if path.is_file() && !kept.exists() {
                fs::hard_link(path, kept)?;
            }
        }
        let dir = File::open(path)?;
        self.names.insert(dir.metadata()?.ino(), (names, dir));
        Ok(())
    }

    fn note_file(&mut self, path: &Path) -> io::Result<()> {
        let data = fs::metadata(path)?;
        self.bytes.insert(data.ino(), data.len());
        Ok(())
    }

    fn note_segment(&mut self, path: &Path) -> io::Result<()> {
        self.segments.insert(inode(path)?, fs::read(path)?);
        Ok(())
    }

    fn is_database(&self, path: &Path) -> bool {
        path.parent() == Some(&self.data.join("state"))
    }

    /// Makes `to` what the end of the process leaves, or a power cut. Returns whether it could: not while another
    /// thread changes the tree.
    pub fn image(&self, to: &Path, random: &mut Random) -> bool {
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        let made = walk(&self.root, &mut before).and_then(|()| {
            let paths = before
                .iter()
                .map(|(path, (inode, _))| (*inode, path.clone()));
            let mut image = Image {
                disk: self,
                paths: paths.collect(),
                is_power_cut: random.below(4) != 0,
                random,
            };
            image.directory(before[&self.root].0, to)?;
            walk(&self.root, &mut after)
        });
        if made.is_err() || before != after {
            let _ = fs::remove_dir_all(to);
            return false;
        }
        true
    }
}

/// An image being made.
struct Image<'a> {
    disk: &'a Disk,
    /// Where everything is now, by inode number.
    paths: BTreeMap<u64, PathBuf>,
    is_power_cut: bool,
    random: &'a mut Random,
}

impl Image<'_> {
    /// Makes `to` what is left of a directory.
    fn directory(&mut self, inode: u64, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        let path = self.paths.get(&inode).cloned();
        let now = path.as_deref().map_or_else(|| Ok(Names::new()), names)?;
        let durable = self.durable_names(inode, path.as_deref(), &now);
        let all: BTreeSet<&OsString> = now.keys().chain(durable.keys()).collect();
        for name in all {
            let is_lost = self.is_power_cut && self.random.below(2) == 0;
            let left = if is_lost { &durable } else { &now };
            if let Some(inode) = left.get(name) {
                self.entry(*inode, &to.join(name))?;
            }
        }
        Ok(())
    }

    fn durable_names(&self, inode: u64, path: Option<&Path>, now: &Names) -> Names {
        let synced = self.disk.names.get(&inode).map(|(names, _)| names);
        if !path.is_some_and(|path| self.disk.is_database(path)) {
            return synced.cloned().unwrap_or_default();
        }
        // RocksDB syncs what it makes, and nothing that was there before.
        let mut durable = now.clone();
        durable.retain(|name, file| {
            let has = |names: &Names| names.get(name) == Some(file);
            synced.is_some_and(has) || !self.disk.moved.get(&inode).is_some_and(has)
        });
        durable
    }

    fn entry(&mut self, inode: u64, to: &Path) -> io::Result<()> {
        let kept = self.disk.kept.join(inode.to_string());
        let path = match self.paths.get(&inode) {
            Some(path) => path.clone(),
            None if kept.exists() => kept,
            None => return self.directory(inode, to),
        };
        if path.is_dir() {
            return self.directory(inode, to);
        }
        let length = fs::metadata(&path)?.len();
        let durable = self.durable_bytes(inode, &path).min(length);
        let left = match self.is_power_cut {
            true => durable + self.random.below(length - durable + 1),
            false => length,
        };
        let is_immutable = to.extension().is_some_and(|extension| extension == "sst");
        if is_immutable && left == length {
            return fs::hard_link(path, to);
        }
        fs::copy(&path, to)?;
        File::options().write(true).open(to)?.set_len(left)?;
        match self.disk.segments.get(&inode) {
            Some(durable) if self.is_power_cut => self.take_sectors(durable, to),
            _ => Ok(()),
        }
    }

    /// Has sectors of a segment be what was durable of them.
    fn take_sectors(&mut self, durable: &[u8], to: &Path) -> io::Result<()> {
        let mut left = fs::read(to)?;
        // A crash may come before the first of them, in the middle, or behind the last.
        let odds = 1 + self.random.below(4);
        for (sector, durable) in left.chunks_mut(SECTOR).zip(durable.chunks(SECTOR)) {
            if sector != durable && self.random.below(5) < odds {
                sector[..durable.len()].copy_from_slice(durable);
            }
        }
        fs::write(to, left)
    }

    /// How much of a file is durable; of a file that RocksDB takes care of, all.
    fn durable_bytes(&self, inode: u64, path: &Path) -> u64 {
        let is_database = path.parent().is_some_and(|dir| self.disk.is_database(dir));
        let was_there = || {
            let mut moved = self.disk.moved.values();
            moved.any(|names| names.values().any(|file| *file == inode))
        };
        match self.disk.bytes.get(&inode) {
            Some(bytes) if !is_database => *bytes,
            None if !is_database || was_there() => 0,
            _ => u64::MAX,
        }
    }
}
