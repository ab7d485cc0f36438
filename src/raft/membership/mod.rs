//! The cluster's members and its leader: how they change.
//!
//! - [`joining`]: the first membership, and nodes that come later.
//! - [`changes`]: changes, made by the leader and passed on to it by the other nodes.
//! - [`transfer`]: handing over leadership.
//! - [`stalled_disk`]: a leader whose disk stands still hands it over.
//! - [`call`]: a change as a call between nodes.
//!
//! See `docs/spec/replication.md`, Membership.

pub mod call;
pub mod changes;
pub mod joining;
pub mod stalled_disk;
pub mod transfer;
