//! The steps of the storage at which a test may look, hold it, or end it as a crash would.
//!
//! Every effect on the disk names itself here, before or after it, as its name says. Outside of the crate's own tests
//! nothing listens, and a step costs nothing.

/// A moment between two effects on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A directory was created and is not durable yet.
    DirectoryCreated,
    /// A file was written and is not durable yet.
    FileWritten,
    /// A file is durable under a name that does not count yet.
    FileSynced,
    /// A file or directory got the name that counts, not durably yet.
    Renamed,
    /// Names in a directory are durable.
    DirectorySynced,
    /// A batch is about to be written to the log, and synced if it has to be.
    LogWriting,
    /// A batch of the log is written that need not be durable.
    LogWritten,
    /// A batch of the log is written and synced. Nobody was told yet.
    LogSynced,
    /// A memtable is about to be written to the state.
    StateWriting,
    /// A memtable was written to the state, not durably.
    StateWritten,
    /// The state was flushed.
    StateFlushed,
    /// A checkpoint of the state was taken, which does not count yet.
    CheckpointTaken,
    /// A database that was replaced, or refused, is about to be removed.
    DatabaseRemoving,
}

/// Tells that the storage below `path` is at `step`.
#[cfg(not(test))]
#[inline]
pub fn step(_step: Step, _path: &std::path::Path) {}

#[cfg(test)]
pub use listening::{listen, step};

#[cfg(test)]
mod listening {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::Step;

    type Call = Arc<dyn Fn(Step, &Path) + Send + Sync>;

    static LISTENERS: Mutex<Vec<(PathBuf, Call)>> = Mutex::new(Vec::new());

    /// Ends the listening when it is dropped.
    pub struct Listener(PathBuf);

    impl Drop for Listener {
        fn drop(&mut self) {
            LISTENERS.lock().retain(|(root, _)| *root != self.0);
        }
    }

    /// Has `call` called at every step of the storage below `root`, on the thread that is there.
    pub fn listen(root: &Path, call: impl Fn(Step, &Path) + Send + Sync + 'static) -> Listener {
        LISTENERS.lock().push((root.to_owned(), Arc::new(call)));
        Listener(root.to_owned())
    }

    /// Tells that the storage below `path` is at `step`.
    pub fn step(step: Step, path: &Path) {
        let below = |(root, _): &&(PathBuf, Call)| path.starts_with(root);
        let call = LISTENERS
            .lock()
            .iter()
            .find(below)
            .map(|(_, call)| Arc::clone(call));
        if let Some(call) = call {
            call(step, path);
        }
    }
}
