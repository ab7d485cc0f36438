//! The types Raft is instantiated with.
//!
//! At most one leader per term (the Raft paper's rule), so that a term names its leader.

use std::fmt;

use bytes::Bytes;

/// A batch of commands as Raft carries it: opaque, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch(pub Bytes);

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} bytes)", self.0.len())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What membership records of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// `host:port` of its cluster listener.
    pub address: String,
    /// UUID of the only data directory that may use the node's id.
    pub directory: String,
}

openraft::declare_raft_types!(
    /// Raft's types in this product.
    pub TypeConfig:
        D = Batch,
        R = (),
        NodeId = u64,
        Node = NodeInfo,
        Term = u64,
        LeaderId = openraft::impls::leader_id_std::LeaderId<Self::Term, Self::NodeId>,
);

pub(super) type CoreRaft = openraft::Raft<TypeConfig, super::state_machine::StateMachine>;
pub(super) type Term = openraft::vote::leader_id_std::CommittedLeaderId<u64>;
pub(super) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(super) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(super) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(super) type Payload = openraft::alias::PayloadOf<TypeConfig>;
pub(super) type Membership = openraft::Membership<u64, NodeInfo>;
pub(super) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(super) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
