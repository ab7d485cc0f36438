//! The numbered databases below `state/`, and the file that names the one in use.
//!
//! Invariant: `state.current` is replaced as a whole, so after a crash at any moment it names the old database or the
//! new one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rocksdb::DB;

use crate::storage::data_dir::{self, OpenError, remove_dir};
use crate::storage::database::Database;
use crate::storage::options;

/// The file that holds the number of the database in use.
const CURRENT: &str = "state.current";

/// The directory of all databases.
pub fn root(data: &Path) -> PathBuf {
    data.join("state")
}

/// One of the numbered databases, open.
pub struct Generation {
    pub db: Database,
    pub number: u64,
    path: PathBuf,
    /// The files go when the last reader is done with it.
    replaced: AtomicBool,
}

impl Generation {
    /// Opens or creates database `number`.
    pub fn open(data: &Path, number: u64) -> Result<Generation, OpenError> {
        let path = path(data, number);
        data_dir::create_dir(&path).map_err(|error| OpenError::io(&path, error))?;
        let db = Database::open(&path, || DB::open(&options::state(), &path))
            .map_err(|error| OpenError::database(&path, &error))?;
        Ok(Generation {
            db,
            number,
            path,
            replaced: AtomicBool::new(false),
        })
    }

    /// Removes the files once nobody reads them any more.
    pub fn remove_when_unused(&self) {
        self.replaced.store(true, Relaxed);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.replaced.load(Relaxed) {
            // The database must not be open when its files go; closing twice is harmless.
            self.db.cancel_all_background_work(true);
            remove_dir(&self.path);
        }
    }
}

/// The directory of database `number`.
pub fn path(data: &Path, number: u64) -> PathBuf {
    root(data).join(number.to_string())
}

/// Removes every database but number `keep`: what an interrupted switch left.
pub fn remove_others(data: &Path, keep: u64) -> Result<(), OpenError> {
    let root = root(data);
    let keep = keep.to_string();
    for entry in fs::read_dir(&root).map_err(|error| OpenError::io(&root, error))? {
        let entry = entry.map_err(|error| OpenError::io(&root, error))?;
        if entry.file_name().to_str() != Some(keep.as_str()) {
            remove_dir(&entry.path());
        }
    }
    Ok(())
}

/// The number of the database in use; `None` before the first start.
pub fn read_current(data: &Path) -> Result<Option<u64>, OpenError> {
    let path = data.join(CURRENT);
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(OpenError::damaged(&path, "holds no number")),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::io(&path, error)),
    }
}

/// Makes database `number` the one in use, durably.
pub fn write_current(data: &Path, number: u64) -> Result<(), OpenError> {
    let path = data.join(CURRENT);
    data_dir::write_durably(&path, format!("{number}\n").as_bytes())
        .map_err(|error| OpenError::io(&path, error))
}
