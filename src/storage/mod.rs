//! What a replica keeps on disk: the log, the applied state, and the data directory they live in.
//!
//! Only this module names RocksDB. It knows nothing of Raft's rules: it stores entries, changes and files,
//! durably where it says so, and stops the process when the disk does not keep its promise.

pub mod data_dir;
mod fatal;
pub mod metrics;

pub use data_dir::{DataDir, OpenError};
pub use fatal::fatal;
