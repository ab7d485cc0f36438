//! What replicas say to each other, and how.
//!
//! - [`channels`]: connections to the other nodes, for Raft and for forwarding.
//! - [`identity`]: who calls whom, on every call; the check on the receiving side.
//! - [`network`]: the Raft library's outgoing calls. The incoming ones are in [`super::service`].
//! - [`read_rounds`]: linearizable reads, confirmed by the leader.
//! - [`snapshot_send`], [`snapshot_receive`]: a snapshot from one node to another.

pub mod channels;
pub mod identity;
pub mod network;
pub mod read_rounds;
pub mod snapshot_receive;
pub mod snapshot_send;
