//! What applying a batch asks of the outside, as data.
//!
//! Every replica computes the same outputs; each node is handed only those that concern its own
//! connections, in the order in which they happened.

use std::sync::Arc;

use bytes::Bytes;

use crate::hlc::Hlc;
use crate::ids::{ConnectionId, Incarnation, NodeId, SessionId};
use crate::machine::subscriptions::Subscriber;
use crate::proto::state;
use crate::store::Reply as StoreReply;

/// The answer to one command, for whoever proposed it.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The command was carried out and has nothing to tell.
    Done,
    /// The connection that sent the command no longer owns its session; nothing was done.
    NotOwner,
    /// A session is open.
    Opened {
        /// The session.
        session: SessionId,
        /// Whether its state was found.
        present: bool,
        /// The session as routing knows it.
        subscriber: Arc<Subscriber>,
    },
    /// One entry per filter: whether the filter was new.
    Subscribed(Vec<bool>),
    /// One entry per filter: whether a subscription was there to be removed.
    Unsubscribed(Vec<bool>),
    /// The reply of the state store.
    Store(StoreReply),
}

/// Why a connection is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Another connection took the session over.
    TakenOver,
    /// An administrator deleted the session.
    Administrative,
}

/// What happened to a watched key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was set.
    Set {
        /// The new value.
        value: Bytes,
        /// Its version.
        version: Hlc,
    },
    /// It was deleted, or it expired.
    Delete {
        /// A version higher than the deleted value's.
        version: Hlc,
    },
}

/// Something for a node to do.
#[derive(Clone, Debug)]
pub enum Output {
    /// The reply to the next command of this node's proposal under way.
    Reply {
        /// The incarnation that proposed.
        incarnation: Incarnation,
        /// The reply.
        reply: Reply,
    },
    /// Another node has registered a life: it is live now.
    NodesChanged,
    /// All commands of this node's proposal `sequence` are answered.
    ProposalApplied {
        /// The incarnation that proposed.
        incarnation: Incarnation,
        /// The proposal.
        sequence: u64,
    },
    /// This node's proposal was refused because an earlier one is missing: re-send from `expected`.
    ProposalGap {
        /// The incarnation that proposed.
        incarnation: Incarnation,
        /// The first missing sequence.
        expected: u64,
    },
    /// This node's proposal was refused: its incarnation is not (or no longer) registered.
    IncarnationRefused {
        /// The refused incarnation.
        refused: Incarnation,
        /// The newest one that was ever registered; a new one must be higher.
        known: Incarnation,
    },
    /// End a connection of this node.
    End {
        /// The connection.
        connection: ConnectionId,
        /// What to tell its client.
        reason: EndReason,
    },
    /// A watched key changed: tell the watching connection of this node.
    Notify {
        /// The connection.
        connection: ConnectionId,
        /// The state store's key.
        key: Bytes,
        /// What happened to it.
        change: Change,
    },
    /// Deliver a message to this node's connections: every node does so for its own.
    Publish(Arc<state::Will>),
    /// A node was declared dead, or registered a new life: its former connections are gone.
    NodeEnded {
        /// The node.
        node: NodeId,
        /// The life that has ended.
        incarnation: Incarnation,
    },
}
