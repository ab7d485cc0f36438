//! Snapshots on disk: complete ones ([`Snapshots`]), and the one being received ([`Incoming`]).

mod incoming;
mod snapshots;

pub use incoming::{Incoming, SnapshotFile};
pub use snapshots::{Snapshot, Snapshots};
