//! The Raft logs of this node: entries and metadata of every group, in segments that are written one behind the other.
//!
//! [`NodeLog`] opens the log and owns the flush thread ([`flush`]), the only writer. [`GroupLog`] is the handle of one
//! group's log; its newest entries are also in memory ([`tail`]). A write is a frame ([`frame`]) of changes
//! ([`change`]) in a segment ([`segment`]), which is made before it is needed ([`spare`]); [`index`] knows where which
//! entries are, and [`recovery`] finds that out at the start.

mod change;
mod flush;
mod former;
mod frame;
mod group_log;
mod index;
#[cfg(test)]
mod model_tests;
mod node_log;
mod record;
mod recovery;
mod segment;
mod spare;
#[cfg(test)]
mod start_tests;
mod tail;
mod writer;

use std::io;
use std::path::Path;

pub use flush::BeforeSync;
pub use former::take_over;
pub use group_log::{Bounds, GroupLog, MAX_QUEUED_BYTES};
pub use node_log::NodeLog;
pub use record::Record;
pub use tail::Mark;

/// Whether there is a log in the directory `path`.
pub fn is_there(path: &Path) -> bool {
    // Whether one that can't be read is there its opening says.
    former::is_there(path)
        || match segment::list(path) {
            Ok(numbers) => !numbers.is_empty(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
}
