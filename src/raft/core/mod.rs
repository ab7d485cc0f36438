//! The Raft library at work: its types, its log and its state machine on [`crate::storage`], and what watches over it.
//!
//! - [`type_config`], [`encoding`]: the library's types, and their form on the wire and on disk.
//! - [`log_store`]: the library's log over the log on disk.
//! - [`state_machine`], [`applier`], [`apply`]: from committed entries to the machine above, on a thread of its own.
//! - [`removed`]: who was a member and may not come back by itself.
//! - [`write`]: a batch given to the log, and whether the log has taken it.
//! - [`machine_version`]: whether this machine may go on with the state.
//! - [`leadership`], [`roster`], [`status`], [`read`]: what the library knows, for those who ask.
//! - [`heartbeat`]: its answer, which does not wait for the disk.
//! - [`fast_election`], [`retention`]: when to campaign, when to take snapshots and to purge.
//!
//! Nothing here talks to another node: that is [`super::transport`]'s business.

pub mod applier;
pub mod apply;
pub mod config;
pub mod encoding;
pub mod fast_election;
pub mod heartbeat;
pub mod leadership;
pub mod log_store;
pub mod machine_version;
pub mod read;
pub mod removed;
pub mod retention;
pub mod roster;
pub mod state_machine;
pub mod status;
#[cfg(test)]
mod suite_tests;
pub mod type_config;
pub mod write;
