//! This node's side of the replicated machine: proposing, stamping when it leads, applying, and linearizable reads.
//!
//! Below it Raft replicates opaque batches; above it connections hand in commands and reads, and find the answers in
//! their mailboxes. It knows neither packets nor sockets of clients.

pub mod applier;
pub mod clock;
pub mod forwarder;
pub mod peers;
pub mod proposer;
pub mod reader;
pub mod sequencer;
