//! A temporary directory for databases.

use std::path::Path;
use std::time::Duration;

use quorumq::testing::wait_closed;

/// Removed when dropped, once this process has no database in it open any more: RocksDB aborts a process that ends
/// while a thread still closes one. Declare it before whatever opens databases in it.
pub struct Directory(tempfile::TempDir);

impl Directory {
    pub fn new() -> Directory {
        Directory(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let closed = wait_closed(self.path(), Duration::from_secs(60));
        assert!(
            closed || std::thread::panicking(),
            "somebody still holds a database in {}",
            self.path().display()
        );
    }
}
