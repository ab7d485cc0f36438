//! The numbered databases below `state/`, and the file that names the one in use.
//!
//! Invariant: `state.current` is replaced as a whole, so after a crash at any moment it names the old database or the
//! new one.
//! Invariant: closing a database and removing its files, which takes long, is the work of a thread of its own: the last
//! reader may be a task.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rocksdb::DB;

use crate::storage::database::Database;
use crate::storage::files::{self, remove_dir};
use crate::storage::open_error::OpenError;
use crate::storage::options;
use crate::storage::space::Space;

/// The file that holds the number of the database in use.
const CURRENT: &str = "state.current";

/// The directory of all databases.
pub fn root(data: &Path) -> PathBuf {
    data.join("state")
}

/// One of the numbered databases, open.
pub struct Generation {
    pub number: u64,
    path: PathBuf,
    /// Taken when this value is dropped.
    open: Option<Database>,
    /// The files go when the last reader is done with it.
    replaced: AtomicBool,
}

impl Generation {
    /// Opens or creates database `number`.
    pub fn open(data: &Path, number: u64) -> Result<Generation, OpenError> {
        let path = path(data, number);
        files::create_dir(&path).map_err(|error| OpenError::io(&path, error))?;
        let volume = Space::of(&path).map_err(|error| OpenError::io(&path, error))?;
        let options = options::state(volume.total_bytes);
        let db = Database::open(&path, || DB::open(&options, &path))
            .map_err(|error| OpenError::database(&path, &error))?;
        options::set_of_open_state(&db).map_err(|error| OpenError::database(&path, &error))?;
        Ok(Generation {
            number,
            path,
            open: Some(db),
            replaced: AtomicBool::new(false),
        })
    }

    /// The database.
    pub fn db(&self) -> &Database {
        self.open.as_ref().expect("taken only by the drop")
    }

    /// Removes the files once nobody reads them any more.
    pub fn remove_when_unused(&self) {
        self.replaced.store(true, Relaxed);
    }

    /// Removes the files of a database that nobody reads: its number is free on return.
    pub fn remove(mut self) {
        drop(Removal(self.open.take(), std::mem::take(&mut self.path)));
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let db = self.open.take();
        if !self.replaced.load(Relaxed) {
            return;
        }
        let removal = Removal(db, std::mem::take(&mut self.path));
        // When no thread can be had, it is removed here.
        let _ = std::thread::Builder::new()
            .name("remove".into())
            .spawn(move || drop(removal));
    }
}

/// A database that is closed, and its files removed, when this value is dropped.
struct Removal(Option<Database>, PathBuf);

impl Drop for Removal {
    fn drop(&mut self) {
        if let Some(db) = &self.0 {
            // The database must not work when its files go. It counts as open until they are gone.
            db.cancel_all_background_work(true);
        }
        remove_dir(&self.1);
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
    files::write_durably(&path, format!("{number}\n").as_bytes())
        .map_err(|error| OpenError::io(&path, error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::storage::{Directory, Step, listen, wait_closed};

    #[test]
    fn the_last_reader_of_a_replaced_database_does_not_remove_it_itself() {
        let dir = Directory::new();
        let (told, removals) = mpsc::channel();
        let _listener = listen(dir.path(), move |step, _| {
            if step == Step::DirectoryRemoving {
                let thread = std::thread::current();
                // The test may be over.
                let _ = told.send(thread.name().map(str::to_owned));
            }
            Ok(())
        });
        let generation = Arc::new(Generation::open(dir.path(), 1).expect("an empty directory"));
        let reader = Arc::clone(&generation);
        generation.remove_when_unused();
        drop(generation);
        assert!(path(dir.path(), 1).exists(), "somebody reads it");
        drop(reader);
        let thread = removals.recv_timeout(Duration::from_secs(60));
        assert_eq!(thread, Ok(Some("remove".to_owned())));
        assert!(wait_closed(dir.path(), Duration::from_secs(60)));
        assert!(!path(dir.path(), 1).exists());
    }

    #[test]
    fn the_number_of_a_refused_database_is_free_at_once() {
        let dir = Directory::new();
        for _ in 0..3 {
            let generation = Generation::open(dir.path(), 2).expect("an empty directory");
            generation.remove();
            assert!(!path(dir.path(), 2).exists());
        }
    }
}
