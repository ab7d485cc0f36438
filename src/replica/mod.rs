//! This node's side of the replicated machine: it proposes commands, stamps them when it leads, applies what is
//! committed, and serves linearizable reads.
//!
//! Below, Raft replicates opaque batches. Above, connections submit commands and reads, and find the replies in their
//! mailboxes. This room knows neither packets nor sockets of clients.

mod admission;
pub mod applier;
pub mod clock;
pub mod directory;
pub mod forwarder;
mod pace;
pub mod progress;
mod propose_error;
pub mod proposer;
pub mod reader;
pub mod reply_to;
pub mod sequencer;
pub mod share;
pub mod state_hasher;
mod turns;
pub mod view;
mod wall_clocks;
pub mod weight;
