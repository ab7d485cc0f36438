//! Quorumq: an MQTT broker cluster whose acknowledgements are commits.
//!
//! # Layers
//! Lowest first; a lower one never imports a higher one:
//!
//! [`ids`], [`limits`], [`time`], [`hlc`] < [`topic`], [`mqtt::codec`] < [`store`], [`session`] < [`machine`] <
//! [`storage`] < [`raft`] < [`router`] < [`replica`] < [`mqtt`], [`http`] < [`node`], [`cli`]. [`config`] and
//! [`telemetry`] serve the upper half.
//!
//! # One request, from socket to commit to answer
//! [`mqtt::connection::task`] reads packets, [`replica::proposer`] gathers commands, [`replica::sequencer`] stamps
//! them on the leader, [`raft`] replicates the batch, [`machine::Machine::apply`] runs it on every node,
//! [`replica::applier`] hands the outputs to the connections through [`router::mailbox`]. `docs/architecture.md` tells
//! it at length.

pub mod cli;
pub mod config;
pub mod hlc;
pub mod http;
pub mod ids;
pub mod limits;
pub mod machine;
pub mod mqtt;
pub mod node;
pub mod proto;
pub mod raft;
pub mod replica;
pub mod router;
pub mod session;
pub mod storage;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod topic;
