//! Where crashes come from: a random look at the data directory at each step of the storage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::storage::Step;

/// A generator of random numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end.max(1)
    }
}

/// What was acknowledged.
#[derive(Clone, Default)]
pub struct Acknowledged {
    /// Terms of the entries that were called back, by index.
    pub durable: BTreeMap<u64, u64>,
    /// Term of the last vote that was saved.
    pub vote: u64,
    /// Terms of the committed entries, by index.
    pub committed: Vec<u64>,
}

/// A crash.
pub struct Image {
    pub path: PathBuf,
    pub step: Step,
    pub acknowledged: Acknowledged,
    /// The files that were copied and their sizes, before they were cut, and how much of the log's was durable.
    pub files: (BTreeMap<PathBuf, u64>, u64),
}

/// What the driver and the steps of the storage share.
pub struct Shared {
    pub random: Random,
    pub acknowledged: Acknowledged,
    /// Bytes of the log's file that are durable.
    pub synced: u64,
    pub images: Vec<Image>,
}

pub fn wal(dir: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(dir.join("log")).ok()?;
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let mut logs: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    logs.pop()
}

pub fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

pub fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy(&path, &target)?,
            false => fs::copy(&path, &target).map(|_| ())?,
        }
    }
    Ok(())
}

/// The files below `dir` and their sizes.
fn listing(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found = BTreeMap::new();
    for path in entries.map(|entry| entry.path()) {
        match path.is_dir() {
            true => found.extend(listing(&path)),
            false => {
                let length = length(&path);
                found.insert(path, length);
            }
        }
    }
    found
}

pub fn cut(path: &Path, length: u64) {
    let file = fs::File::options()
        .write(true)
        .open(path)
        .expect("just copied");
    file.set_len(length).expect("a shorter file");
}

impl Shared {
    /// The storage is at `step`: a crash, now and then.
    pub fn at(&mut self, data: &Path, crashes: &Path, step: Step, path: &Path) {
        let log = wal(data);
        // What the crash may cut: nobody was told of this sync yet. It is noted in any case, for the next crash.
        let synced = self.synced;
        if step == Step::LogSynced {
            self.synced = log.as_deref().map_or(0, length);
        }
        if self.random.below(3) != 0 {
            return;
        }
        let image = crashes.join(self.images.len().to_string());
        // Another thread of RocksDB may work meanwhile: no moment that can be copied.
        let before = listing(data);
        if copy(data, &image).is_err() || listing(data) != before {
            let _ = fs::remove_dir_all(&image);
            return;
        }
        let copied = |path: &Path| image.join(path.strip_prefix(data).expect("below it"));
        if let Some(log) = log.map(|log| copied(&log)) {
            // By the image's own file: the log may have grown since.
            let lost = length(&log).saturating_sub(synced);
            if lost > 0 && self.random.below(2) == 0 {
                cut(&log, synced + self.random.below(lost));
            }
        }
        if step == Step::FileWritten {
            let copied_file = copied(path);
            cut(&copied_file, self.random.below(length(&copied_file)));
        }
        self.images.push(Image {
            path: image,
            step,
            acknowledged: self.acknowledged.clone(),
            files: (before, synced),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next crash would cut what is durable.
    #[test]
    fn a_sync_is_noted_also_when_no_copy_can_be_made() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let data = root.path().join("data");
        fs::create_dir_all(data.join("log")).expect("a directory");
        let log = data.join("log").join("000001.log");
        let no_directory = root.path().join("file");
        fs::write(&no_directory, "").expect("a file");
        let mut shared = Shared {
            random: Random::new(1),
            acknowledged: Acknowledged::default(),
            synced: 0,
            images: Vec::new(),
        };
        for length in 1..=20 {
            fs::write(&log, vec![0; length]).expect("a file");
            shared.at(&data, &no_directory, Step::LogSynced, &log);
            assert_eq!(shared.synced, length as u64);
        }
        assert!(shared.images.is_empty());
    }
}
