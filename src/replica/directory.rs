//! Who is told of changes of the directory on this node.
//!
//! Invariant: an observer sees every change once its batch is in the tables, in the order of the log; what was changed
//! while it was added, or while the tables were replaced, it may see twice.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::machine::tables::Backing;

/// Somebody who keeps something that follows from the directory. It is called on the thread that applies the log, for
/// which everybody waits: it must be quick, and must not write to the directory there.
pub trait DirectoryObserver: Send + Sync {
    /// An entry was written, or deleted.
    fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>);

    /// Anything may have changed: what is kept is to be made anew.
    fn reset(&self, backing: &dyn Backing);
}

/// The observers of this node.
#[derive(Default)]
pub struct DirectoryObservers(RwLock<Vec<Arc<dyn DirectoryObserver>>>);

impl DirectoryObservers {
    /// Adds an observer, which is shown what there is.
    pub fn add(&self, observer: Arc<dyn DirectoryObserver>, backing: &dyn Backing) {
        // Changes wait meanwhile, so none is missed.
        let mut observers = self.0.write();
        observer.reset(backing);
        observers.push(observer);
    }

    pub(super) fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>) {
        for observer in self.0.read().iter() {
            observer.changed(kind, name, entry);
        }
    }

    pub(super) fn reset(&self, backing: &dyn Backing) {
        for observer in self.0.read().iter() {
            observer.reset(backing);
        }
    }
}
