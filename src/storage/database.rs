//! A RocksDB that this process has open, and the wait for its end.
//!
//! A process must not end while a thread still works in RocksDB: its static data goes first, and the thread then aborts
//! the process ("pthread lock: Invalid argument"). Handles of a database are shared with tasks and threads that end on
//! their own time, so nobody knows by himself which handle is the last. Hence every open database is entered here
//! until it is closed, and whoever is about to end the process waits for that.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rocksdb::DB;

/// Directories of the databases that are open.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// One of them was closed.
static CLOSED: Condvar = Condvar::new();

/// An open database. Fields are dropped in their order: the entry goes when RocksDB has closed it.
pub(super) struct Database {
    db: DB,
    _entry: Entry,
}

impl Database {
    /// Opens the database at `path` by `open`.
    pub fn open(
        path: &Path,
        open: impl FnOnce() -> Result<DB, rocksdb::Error>,
    ) -> Result<Database, rocksdb::Error> {
        // Entered before: a failed open has its threads to end, too.
        let entry = Entry::new(path);
        Ok(Database {
            db: open()?,
            _entry: entry,
        })
    }
}

impl Deref for Database {
    type Target = DB;

    fn deref(&self) -> &DB {
        &self.db
    }
}

struct Entry(PathBuf);

impl Entry {
    fn new(path: &Path) -> Entry {
        OPEN.lock().push(path.to_owned());
        Entry(path.to_owned())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut open = OPEN.lock();
        if let Some(at) = open.iter().position(|path| *path == self.0) {
            open.swap_remove(at);
        }
        CLOSED.notify_all();
    }
}

/// Waits until this process has no database below `directory` open any more, for at most `patience`. Returns whether
/// that is so. Blocks the thread.
pub fn wait_closed(directory: &Path, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    let mut open = OPEN.lock();
    while open.iter().any(|path| path.starts_with(directory)) {
        if CLOSED.wait_until(&mut open, deadline).timed_out() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocksdb::Options;

    fn open(path: &Path) -> Database {
        let mut options = Options::default();
        options.create_if_missing(true);
        Database::open(path, || DB::open(&options, path)).expect("an empty directory")
    }

    #[test]
    fn whoever_waits_is_told_when_the_last_database_of_the_directory_is_closed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        let other = open(&elsewhere.path().join("db"));
        let (first, second) = (open(&dir.path().join("a")), open(&dir.path().join("b")));
        assert!(!wait_closed(dir.path(), Duration::ZERO));
        let closing = std::thread::spawn(move || {
            drop(first);
            assert!(!wait_closed(second.path(), Duration::ZERO));
            drop(second);
        });
        assert!(wait_closed(dir.path(), Duration::from_secs(60)));
        closing.join().expect("the other thread has not panicked");
        // The files are free.
        drop(open(&dir.path().join("a")));
        assert!(!wait_closed(elsewhere.path(), Duration::ZERO));
        drop(other);
    }

    #[test]
    fn a_database_that_could_not_be_opened_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let missing = dir.path().join("missing");
        let failed = Database::open(&missing, || DB::open(&Options::default(), &missing));
        assert!(failed.is_err());
        assert!(wait_closed(dir.path(), Duration::ZERO));
    }
}
