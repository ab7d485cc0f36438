//! Everything between nodes that is not Raft: messages for other nodes' connections, and proposals for the leader.

pub mod inbox;
pub mod outbox;
pub mod service;
pub mod stream;
pub mod wire;
