//! Raft: one replicated log of batches, applied by every replica in the same order.
//!
//! Only this room names the Raft library. For the rooms above a batch is opaque bytes, and the replicated state machine
//! is an [`Apply`]; this room never looks into a batch.
//!
//! - [`core`]: the library at work on [`crate::storage`].
//! - [`transport`]: calls between nodes.
//! - [`membership`]: members and leader, and how they change.
//! - [`service`]: the incoming side, over all of these.
//! - [`replica`]: the handle, [`Raft`]; [`start`]: how a replica is put together.
//!
//! # The way of a batch
//! 1. [`Raft::propose`] gives it to the library.
//! 2. [`core::log_store`] makes it readable at once, and durable by the log's flush thread.
//! 3. [`transport::network`] sends it to the followers, which do the same.
//! 4. Once it is committed, [`core::applier`] runs it on a thread of its own: [`Apply::apply`], one atomic write for
//!    everything that is ready, [`Apply::committed`].

mod core;
#[cfg(test)]
mod fault_tests;
mod membership;
pub mod metrics;
mod replica;
mod service;
mod start;
mod transport;
mod types;

pub use self::core::apply::{Apply, Look};
pub use self::core::config::{RaftConfig, Retention, Timing};
pub use replica::Raft;
pub use transport::identity::WIRE_FORMAT;
pub use types::{ChangeError, Leadership, Peer, ReadError, Role, StartError, Status};

/// Log filter for the Raft library. It repeats the same line while a peer is away, and the handle of a core that has
/// stopped repeats it for each message that it cannot take; this node's own lines say both once.
pub const LOG_FILTER: &str = "openraft=error,openraft::raft::raft_inner=off";
