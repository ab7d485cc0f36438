//! Everything between nodes that is not Raft: messages for the connections of other nodes, and proposals for the
//! leader.
//!
//! [`outbox`] implements [`crate::router::PeerNodes`], so the router reaches other nodes without knowing this room.
//! [`stream`] sends what the outboxes hold; [`service`] receives it on the other node, where [`inbox`] sees to it that
//! each batch is delivered once. [`hand_over`] asks for what a connection has not proposed yet, and [`directory`]
//! changes the directory on all nodes.

pub mod directory;
pub mod hand_over;
pub mod inbox;
pub mod last_seen;
pub mod outbox;
mod outbox_state;
pub mod service;
pub mod stream;
mod wire;

#[cfg(test)]
mod expiry_tests;
#[cfg(test)]
mod shared_tests;
