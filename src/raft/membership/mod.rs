//! The cluster's members and its leader: how they change.
//!
//! - [`joining`]: the first membership, and nodes that come later.
//! - [`changes`]: changes, made by the leader and passed on to it by the other nodes.
//! - [`transfer`]: handing over leadership.
//! - [`call`]: a change as a call between nodes.
//!
//! See `docs/spec/replication.md`, Membership.

pub mod call;
pub mod changes;
pub mod joining;
pub mod transfer;
