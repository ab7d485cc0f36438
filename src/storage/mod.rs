//! What a replica keeps on disk: the log, the applied state, and the data directory they live in.
//!
//! Only this module names RocksDB. It knows nothing of Raft's rules: it stores entries, changes and files,
//! durably where it says so, and stops the process when the disk does not keep its promise.

pub mod data_dir;
mod database;
mod fatal;
pub mod log_db;
mod log_flush;
pub mod metrics;
mod options;
mod recent;
mod record;
pub mod snapshots;
pub mod state_db;
mod tail;

pub use data_dir::{DataDir, OpenError};
pub use database::wait_closed;
pub use fatal::{EXIT_IO, fatal};
pub use log_db::{GroupLog, LogDb};
pub use record::Record;
pub use snapshots::{Snapshot, SnapshotFile, Snapshots};
pub use state_db::State;
