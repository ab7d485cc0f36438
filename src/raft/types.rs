//! What the rooms above see of Raft: plain values, none of the Raft library's types.
//!
//! Nothing here does anything; [`super::Raft`] produces these values and takes them.

use serde::Serialize;

pub use super::core::machine_version::VersionError;
use crate::base::ids::{LogIndex, NodeId};

/// Who leads, as far as this replica knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The highest term this replica has seen.
    pub term: u64,
    /// The leader of `term`, when one is known.
    pub leader: Option<NodeId>,
    /// This replica leads `term` **and** has applied the blank entry its term began with, so everything
    /// earlier leaders committed is in its state. Only then may it stamp time and propose.
    pub is_leader: bool,
}

/// A proposal reached a replica that does not lead (any more). Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node does not lead the cluster")]
pub struct NotLeader {
    /// Where to try instead, when known.
    pub leader: Option<NodeId>,
}

/// A linearizable read could not be confirmed. Nothing was read; trying again is safe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No leader is known or reachable; a minority answers this.
    #[error("no leader is known")]
    NoLeader,
    /// The leader could not confirm with a majority that it still leads, or did not answer in time.
    #[error("the leader did not confirm the read: {0}")]
    Unconfirmed(String),
    /// The leader does not take this node for a member: it was removed, or its disk was replaced.
    #[error("the leader refused the read: {0}")]
    Refused(String),
    /// This replica did not apply up to the confirmed index in time.
    #[error("this replica lags behind the confirmed index")]
    Lagging,
    /// The replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// The replica could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of its range.
    #[error("raft setting: {0}")]
    Config(String),
    /// The Raft core refused to start on what is stored.
    #[error("raft core: {0}")]
    Core(String),
    /// The data directory could not be used.
    #[error(transparent)]
    Storage(#[from] crate::storage::OpenError),
    /// The state belongs to another version of the machine.
    #[error(transparent)]
    Version(#[from] VersionError),
}

/// A change of the cluster's members or leader was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only the leader changes members, and this node does not lead.
    #[error("this node does not lead the cluster")]
    NotLeader(NotLeader),
    /// The cluster has members already; it is never bootstrapped twice.
    #[error("the cluster is initialised already")]
    AlreadyInitialised,
    /// Only the lowest id of the list may bootstrap.
    #[error("node {lowest} bootstraps this cluster, not this node")]
    NotTheLowest {
        /// The id that does it.
        lowest: NodeId,
    },
    /// This node id belongs to another data directory.
    #[error(
        "node {node} is known with data directory {known}: a wiped or replaced disk must not come back \
         under its old id; run `quorumq cluster leave {node}` and join under a new id"
    )]
    OtherDataDirectory {
        /// The id in question.
        node: NodeId,
        /// The data-directory UUID the cluster knows it with.
        known: String,
    },
    /// No such member.
    #[error("node {0} is not a member")]
    UnknownNode(NodeId),
    /// It was removed, and nobody has named it since.
    #[error(
        "node {0} was removed from the cluster and does not come back by itself: give it a new number, or take it \
         back on purpose with `quorumq cluster join {0} HOST:PORT`"
    )]
    Removed(NodeId),
    /// Refused because the remaining members could not form a majority.
    #[error("removing node {0} would leave no voter")]
    LastVoter(NodeId),
    /// Another change is under way, or it failed half way; trying again is safe.
    #[error("the change was not made: {0}")]
    Failed(String),
    /// The replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// How a member takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Counts in majorities.
    Voter,
    /// Receives the log and counts in none.
    Learner,
}

/// One member's replica: what the membership records of it, and what the leader knows of its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaStatus {
    /// Node id.
    pub node: u64,
    /// `host:port` of its cluster listener.
    pub address: String,
    /// UUID of the only data directory that may use this id.
    pub data_directory: String,
    /// Voter or learner.
    pub role: Role,
    /// On the leader: the last entry known to be durable there.
    pub matched: Option<u64>,
    /// On the leader: entries it is behind the leader's last one.
    pub lag: Option<u64>,
    /// On the leader: milliseconds since it last acknowledged anything.
    pub silent_ms: Option<u64>,
}

/// A snapshot of the replica's state for people and probes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// This node.
    pub node: u64,
    /// Highest term seen.
    pub term: u64,
    /// Leader of that term, when known.
    pub leader: Option<u64>,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub state: &'static str,
    /// Index of the last entry in this replica's log.
    pub last_log: u64,
    /// Highest index this replica knows to be committed.
    pub committed: u64,
    /// Highest index whose effects are written to `state/`.
    pub applied: u64,
    /// Index the newest snapshot covers.
    pub snapshot: Option<u64>,
    /// Highest index removed from the log.
    pub purged: Option<u64>,
    /// Members in order of id.
    pub members: Vec<ReplicaStatus>,
    /// A membership change has not reached its final configuration yet.
    pub joint: bool,
    /// On the leader: milliseconds since a majority last confirmed it.
    pub majority_ms: Option<u64>,
    /// The data directory the cluster knows this node's id with, when it is another than this node has: its disk
    /// was wiped or replaced, peers refuse it, and it has to leave and join under a new id.
    pub directory_mismatch: Option<String>,
    /// Nodes that were refused lately because their machine has another version, and why.
    pub other_versions: Vec<(String, String)>,
    /// Why Raft has stopped, when it has.
    pub stopped: Option<String>,
}

impl Status {
    /// Entries known to be committed that this replica has not applied yet.
    pub fn apply_lag(&self) -> u64 {
        self.committed.saturating_sub(self.applied)
    }

    /// The member called `node`, when it is one.
    pub fn member(&self, node: NodeId) -> Option<&ReplicaStatus> {
        self.members.iter().find(|member| member.node == node.0)
    }
}

/// A member as an operator or the bootstrap list names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Node id.
    pub node: NodeId,
    /// `host:port` of its cluster listener.
    pub address: String,
}

/// Index zero: before the first entry.
pub const NOTHING: LogIndex = LogIndex(0);
