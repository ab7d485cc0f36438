//! What replicas say to each other, and how.
//!
//! - [`channels`]: connections to the other nodes, for Raft and for forwarding.
//! - [`identity`]: who calls whom, on every call; [`identity_check`]: the check on the receiving side.
//! - [`rights`]: what a caller may do; [`wellformed`]: what a message has to be, before anything is done with it.
//! - [`vouching`]: what others say of who votes, where this node's own membership is old.
//! - [`network`]: the Raft library's outgoing calls. The incoming ones are in [`super::service`].
//! - [`read_rounds`]: linearizable reads, confirmed by the leader.
//! - [`snapshot_send`], [`snapshot_receive`]: a snapshot from one node to another.

pub mod channels;
pub mod identity;
pub mod identity_check;
pub mod network;
pub mod read_rounds;
pub mod rights;
pub mod snapshot_receive;
pub mod snapshot_send;
pub mod vouching;
pub mod wellformed;
