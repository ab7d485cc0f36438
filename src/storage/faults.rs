//! The steps of the storage at which a test may look, hold the thread, have the operation fail, or take what a crash
//! would leave.
//!
//! Every effect on the disk names itself here, before or after it, as its name says. Outside of the crate's own tests
//! nothing listens, and a step costs nothing.

/// A moment between two effects on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub enum Step {
    /// A file was written and is not durable yet.
    FileWritten,
    /// A file is durable, under a name that may not be.
    FileSynced,
    /// A file or directory got its name, not durably, and no sync of the directory follows at once.
    Renamed,
    /// Names in a directory were made, changed or removed, not durably.
    DirectoryChanged,
    /// Names in a directory are durable.
    DirectorySynced,
    /// A directory is about to be removed, if it is there.
    DirectoryRemoving,
    /// A frame is about to be written to a segment of the log.
    LogWriting,
    /// A frame of the log is written, not durably.
    LogWritten,
    /// A segment of the log is synced. Nobody was told yet.
    LogSynced,
    /// A memtable is about to be written to the state.
    StateWriting,
    /// A memtable was written to the state, not durably.
    StateWritten,
    /// The state is about to be flushed.
    StateFlushing,
    /// The state was flushed.
    StateFlushed,
    /// A checkpoint of the state is about to be taken.
    CheckpointTaking,
    /// A checkpoint of the state was taken, which does not count yet.
    CheckpointTaken,
}

/// Tells that the storage is at `step` with the file, directory or database at `path`.
///
/// # Errors
/// What a test has the operation fail with.
#[cfg(not(test))]
#[inline]
pub fn step(_step: Step, _path: &std::path::Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub use listening::{listen, step};

#[cfg(test)]
mod listening {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::Step;

    type Call = Arc<dyn Fn(Step, &Path) -> io::Result<()> + Send + Sync>;

    static LISTENERS: Mutex<Vec<(PathBuf, Call)>> = Mutex::new(Vec::new());

    /// Ends the listening when it is dropped.
    pub struct Listener(PathBuf);

    impl Drop for Listener {
        fn drop(&mut self) {
            LISTENERS.lock().retain(|(root, _)| *root != self.0);
        }
    }

    /// Has `call` called at every step of the storage below `root`, on the thread that is there: it is held until the
    /// call returns, and what it was about to do fails with an error of the call.
    pub fn listen(
        root: &Path,
        call: impl Fn(Step, &Path) -> io::Result<()> + Send + Sync + 'static,
    ) -> Listener {
        LISTENERS.lock().push((root.to_owned(), Arc::new(call)));
        Listener(root.to_owned())
    }

    /// Tells that the storage is at `step` with the file, directory or database at `path`.
    pub fn step(step: Step, path: &Path) -> io::Result<()> {
        let below = |(root, _): &&(PathBuf, Call)| path.starts_with(root);
        let call = LISTENERS
            .lock()
            .iter()
            .find(below)
            .map(|(_, call)| Arc::clone(call));
        call.map_or(Ok(()), |call| call(step, path))
    }
}
