//! How much room the volume of the data directory has.

use std::io;
use std::path::Path;

/// The room of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this process may still write.
    pub free_bytes: u64,
    /// Its size, bytes.
    pub total_bytes: u64,
    /// Files that may still be made.
    pub free_files: u64,
    /// Files that it can hold; 0 when it has no such bound.
    pub total_files: u64,
}

impl Space {
    /// The room of the volume that `path` is on.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn of(path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Space {
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free_files: found.f_favail,
            total_files: found.f_files,
        })
    }
}
