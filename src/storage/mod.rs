//! What a replica keeps on disk: the log, the applied state, snapshots, and the data directory they live in.
//!
//! Only this room names RocksDB. It knows nothing of Raft's rules: it stores entries, rows and files, and makes them
//! durable where it says so.
//!
//! Invariant: the process ends ([`fatal`]) when the disk does not keep its promise, so whatever this room reports as
//! durable is durable. See `docs/spec/replication.md`, Storage and Snapshots.

mod data_dir;
mod database;
#[cfg(test)]
#[path = "../../tests/directory/mod.rs"]
mod directory;
mod diverged;
mod fatal;
mod faults;
mod files;
mod log;
pub mod metrics;
mod open_error;
mod options;
mod snapshot;
mod space;
mod state;

pub use data_dir::{DataDir, FORMAT};
pub use database::wait_closed;
#[cfg(test)]
pub use directory::Directory;
pub use diverged::EXIT_DIVERGED;
pub use fatal::{EXIT_IO, fatal};
#[cfg(test)]
pub use faults::{Step, listen};
pub use log::{BeforeSync, Bounds, GroupLog, MAX_QUEUED_BYTES, Mark, NodeLog, Record};
pub use open_error::OpenError;
pub use snapshot::{Incoming, Snapshot, SnapshotFile, Snapshots};
pub use space::Space;
pub use state::{CheckpointError, ReservedRows, StateDb, StateView};
