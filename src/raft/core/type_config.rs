//! The types that the Raft library is instantiated with.
//!
//! Invariant: a term has at most one leader (the Raft paper's rule), so a term names its leader.

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
    /// The library's types in this product.
    pub TypeConfig:
        D = Batch,
        R = (),
        NodeId = u64,
        Node = NodeInfo,
        Term = u64,
        LeaderId = openraft::impls::leader_id_std::LeaderId<Self::Term, Self::NodeId>,
);

pub type Term = openraft::vote::leader_id_std::CommittedLeaderId<u64>;
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
pub type Entry = openraft::alias::EntryOf<TypeConfig>;
pub type Payload = openraft::alias::PayloadOf<TypeConfig>;
pub type Membership = openraft::Membership<u64, NodeInfo>;
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
