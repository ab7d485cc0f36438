//! Quorumq: an MQTT broker cluster whose acknowledgements are commits.
//!
//! # Rooms
//! Each module of this list is a room. Lowest first; a lower room never imports a higher one, and no files import each
//! other in a circle (`tests/tidy`):
//!
//! [`base`] < [`topic`], [`codec`], [`auth`], [`query`] < `session`, [`store`], `registry`, `twin`, `events` < `acl` <
//! `machine` < [`config`], `telemetry`, `http_client` < `transport`, `login` < `storage` < `peers` < `raft` < `mailbox`
//! < `router` < `replica` < `forward` < `identity`, `webhook` < `connection`, `http` < `hub_http` < `node` < [`cli`].
//!
//! # One request, from socket to commit to answer
//! `connection::task` reads packets, `replica::proposer` gathers commands, `replica::sequencer` stamps them on the
//! leader, `raft` replicates the batch, `machine::Machine::apply` runs it on every node, `replica::applier` hands the
//! outputs to the connections through `router` and `mailbox`.
//!
//! # One PUBLISH to a durable session
//! `connection::publishing` proposes it when its route says that the log must hold it; `machine::messaging` finds the
//! sessions; `machine::queue` puts an entry into each queue and grants it as `session::queue` allows; the owner's node
//! encodes it into the mailbox; the client's acknowledgement comes back as one more command.
//!
//! `docs/architecture.md` tells both at length, `docs/spec/` what each part has to do.

pub(crate) mod acl;
pub mod auth;
pub mod base;
pub mod cli;
pub mod codec;
pub mod config;
pub(crate) mod connection;
pub(crate) mod events;
pub(crate) mod forward;
pub(crate) mod http;
pub(crate) mod http_client;
pub(crate) mod hub_http;
pub(crate) mod identity;
pub(crate) mod login;
pub(crate) mod machine;
pub(crate) mod mailbox;
pub(crate) mod node;
pub(crate) mod peers;
pub mod query;
pub(crate) mod raft;
pub(crate) mod registry;
pub(crate) mod replica;
pub(crate) mod router;
pub(crate) mod session;
pub(crate) mod storage;
pub mod store;
pub(crate) mod telemetry;
pub mod topic;
pub(crate) mod transport;
pub(crate) mod twin;
pub(crate) mod webhook;

// What the integration tests share is shared with the tests in here, too.
#[cfg(test)]
extern crate self as quorumq;

/// What the integration tests of `raft/` and `storage/` use; no part of the crate's interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::machine::tables::{Backing, Change, Changes, Tables};
    pub use crate::peers::{
        Connector, NodeName, Reach, Reload, Settings as TrustSettings, Source as TrustSource,
        Trust, incoming,
    };
    pub use crate::raft::{
        Apply, ChangeError, Peer, Raft, RaftConfig, Retention, Role, StartError, Timing,
        WIRE_FORMAT,
    };
    pub use crate::storage::metrics::LogMetrics;
    pub use crate::storage::{
        BeforeSync, Bounds, DataDir, EXIT_DIVERGED, EXIT_IO, FORMAT, GroupLog, Incoming, Mark,
        NodeLog, OpenError, Record, SnapshotFile, Snapshots, StateDb, wait_closed,
    };
}
