//! The RocksDB databases that this process has open, and the wait until they are closed.
//!
//! A process must not end while a thread still works in RocksDB: its static data goes first, and the thread then aborts
//! the process ("pthread lock: Invalid argument"). Tasks and threads share the handles of a database and end on their
//! own time, so no owner knows which handle is the last. Therefore whoever is about to end the process waits here.
//!
//! Invariant: a database is in the list of open ones from before it is opened until after it is closed.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rocksdb::DB;

/// Directories of the open databases.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Signalled when a database was closed.
static CLOSED: Condvar = Condvar::new();

/// An open database. Fields are dropped in their order, so its entry in the list goes after RocksDB has closed it.
pub struct Database {
    db: DB,
    _entry: Entry,
}

impl Database {
    /// Opens the database at `path` by `open`.
    pub fn open(
        path: &Path,
        open: impl FnOnce() -> Result<DB, rocksdb::Error>,
    ) -> Result<Database, rocksdb::Error> {
        // Listed before it is opened: a failed open has threads to end, too.
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

/// An entry in the list of open databases.
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

/// Waits until this process has no database below `directory` open any more, for at most `timeout`. Returns whether
/// that is so. Blocks the thread.
pub fn wait_closed(directory: &Path, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
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
