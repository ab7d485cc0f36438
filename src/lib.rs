//! Quorumq: an MQTT broker cluster whose acknowledgements are commits.
//!
//! # Layers
//! Lowest first; a lower one never imports a higher one:
//!
//! [`ids`], [`limits`], [`time`], [`hlc`] < [`topic`], [`mqtt::codec`] < [`store`], [`session`] < [`machine`] <
//! [`storage`] < [`raft`] < [`router`], [`auth`] < [`replica`] < [`mqtt`], [`http`] < [`node`], [`cli`]. [`config`] and
//! [`telemetry`] serve the upper half.
//!
//! # One request, from socket to commit to answer
//! `connection::task` reads packets, [`replica::proposer`] gathers commands, [`replica::sequencer`] stamps
//! them on the leader, [`raft`] replicates the batch, [`machine::Machine::apply`] runs it on every node,
//! [`replica::applier`] hands the outputs to the connections through [`router::mailbox`].
//!
//! # One PUBLISH to a durable session
//! `connection::publishing` proposes it when its [`router::Route`] says that the log must hold it; `machine::messaging` finds
//! the sessions, `machine::queue` puts an entry into each queue and grants it as [`session::queue`] allows; the owner's
//! node encodes it into the mailbox; the client's acknowledgement comes back as one more command.
//!
//! `docs/architecture.md` tells both at length.

pub mod auth;
pub mod base;
pub mod cli;
pub mod codec;
pub mod config;
pub(crate) mod connection;
pub(crate) mod forward;
pub(crate) mod http;
pub mod machine;
pub(crate) mod mailbox;
pub(crate) mod node;
pub(crate) mod raft;
pub(crate) mod replica;
pub(crate) mod router;
pub mod session;
pub(crate) mod storage;
pub mod store;
pub mod telemetry;
pub mod topic;

/// What the integration tests of `raft/` and `storage/` use; no part of the crate's interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::raft::{Apply, ChangeError, Peer, Raft, RaftConfig, Role, StartError, Timing};
    pub use crate::storage::metrics::LogMetrics;
    pub use crate::storage::{
        BeforeSync, Bounds, DataDir, EXIT_IO, FORMAT, GroupLog, LogDb, OpenError, Record,
        SnapshotFile, Snapshots, StateDb, wait_closed,
    };
}
