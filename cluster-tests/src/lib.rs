//! Shows that Quorumq keeps its promises: starts real clusters of the real binary, talks to them over raw sockets, breaks
//! them, and judges what clients saw.
//!
//! Must not use Quorumq's own code for what it judges: packets are built and read by [`wire`], byte by byte, so that a
//! mistake in the broker's codec cannot hide itself.
//!
//! * [`cluster`] starts, kills, pauses and restarts nodes.
//! * [`connection`] is one MQTT connection; [`store`] is a state store client on top of it.
//! * [`corpus`] holds conversations written as text, byte by byte; [`conformance`] lists what they show of the standards.
//! * [`history`] records what clients asked and were told; [`check`] judges it; [`workload`] makes it.
//! * [`delivery`] does the same for messages: publishers and durable subscribers that move from node to node.
//! * [`flow`] has publishers with large windows and subscribers that take their time.
//! * [`script`] runs programs that use other people's clients.

pub mod check;
pub mod cluster;
pub mod conformance;
pub mod connection;
pub mod corpus;
pub mod delivery;
pub mod flow;
pub mod history;
pub mod http;
pub mod random;
pub mod rules;
pub mod script;
pub mod skip;
pub mod store;
pub mod trial;
pub mod wait;
pub mod watcher;
pub mod wire;
pub mod workload;
