//! The Raft logs of this node: entries and metadata of every group, in one RocksDB with a synced WAL.
//!
//! [`LogDb`] opens the database and owns the flush thread ([`flush`]), the only writer. [`GroupLog`] is the handle of
//! one group's log; its newest entries are also in memory ([`tail`]). [`record`] is the format on disk.

mod flush;
mod group_log;
mod log_db;
mod record;
mod tail;

pub use flush::BeforeSync;
pub use group_log::{Bounds, GroupLog, MAX_QUEUED_BYTES};
pub use log_db::LogDb;
pub use record::Record;
pub use tail::Mark;
