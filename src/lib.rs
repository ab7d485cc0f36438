//! Quorumq: an MQTT broker cluster whose acknowledgements are commits.
//!
//! Layers, lowest first; a lower one never imports a higher one:
//!
//! `ids, limits, time, hlc` < `topic` < `store` < `machine` < `storage` < `raft` < `router` < `mqtt, http` < `node, cli`

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
