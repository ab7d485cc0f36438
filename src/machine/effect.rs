//! What applying a batch asks of the outside, as data.
//!
//! Every replica computes the same outputs; each node is handed only those that concern its own
//! connections, in the order in which they happened.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::hub::{DesiredChanged, HubReply};
use crate::base::directory;
use crate::base::hlc::Hlc;
use crate::base::ids::{ConnectionId, Incarnation, LogIndex, NodeId, SessionId};
use crate::base::proto::state::{DirectoryEntry, HashRound};
use crate::base::time::Millis;
use crate::events;
use crate::session::{QoS, Sequence};
use crate::store::Reply as StoreReply;

/// The answer to one command, for whoever proposed it.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The command was carried out and has nothing to tell.
    Done,
    /// The connection that sent the command no longer owns its session; nothing was done.
    NotOwner,
    /// Commands before it in the log entry have done as much of the kind as one entry may; nothing was done, and the
    /// client may try again.
    NotNow,
    /// A session is open.
    Opened {
        /// The session.
        session: SessionId,
        /// Whether its state was found.
        present: bool,
        /// Its messages with QoS 1 and 2 go through the log.
        durable: bool,
        /// Packet ids of QoS 2 messages that were received from its client and not released.
        received: Vec<u16>,
    },
    /// Subscriptions are made.
    Subscribed {
        /// The log entry that made them.
        index: LogIndex,
        /// One entry per filter: whether the filter was new.
        new: Vec<bool>,
        /// Positions of those that were not subscribed to, because there are as many subscriptions as there may be.
        refused: Vec<usize>,
    },
    /// One entry per filter: whether a subscription was there to be removed.
    Unsubscribed(Vec<bool>),
    /// A PUBLISH is in the log.
    Published {
        /// Whether anything was subscribed to its topic.
        matched: bool,
    },
    /// A batch for another node's connections is in the log, at this index.
    Relayed(LogIndex),
    /// Every replica hashes its state as it is after this log entry.
    HashesState(LogIndex),
    /// A PUBLISH or CONNECT was refused: there are as many retained messages, queued bytes or sessions as there may be.
    QuotaExceeded,
    /// A CONNECT was refused: the identity of its client rests on what has changed since.
    NotAuthorized,
    /// What became of a change of the directory.
    Directory(DirectoryReply),
    /// What became of a change of an event subscription.
    Events(EventsReply),
    /// What became of a command of the hub.
    Hub(HubReply),
    /// The reply of the state store.
    Store(StoreReply),
    /// The command can't be decoded, or its proposal was refused because of another one that can't; nothing was done.
    Undecodable,
}

/// What became of a change of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryReply {
    /// It is in the log; what it has written has this index as its version.
    Written(LogIndex),
    /// Nothing was changed: an entry has not the version that it was to have.
    Conflict {
        /// Which of the changes it is.
        at: usize,
        /// The version that the entry has; 0 when there is none.
        version: u64,
    },
    /// Nothing was changed: the directory holds as much as it may.
    Full,
    /// Nothing was changed: a kind is not known, a name or a value is longer than it may be, or there are too many.
    Invalid,
}

/// What became of a change of an event subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsReply {
    /// It is in the log at this index, which is the revision of options that were put.
    Done(LogIndex),
    /// Nothing was changed: the event subscription has another revision; 0 when there is none.
    Conflict {
        /// The one it has.
        revision: u64,
    },
    /// There is no such event subscription.
    NotFound,
    /// There are as many event subscriptions as there may be.
    Full,
    /// The name or the options are not what they may be, or the command holds too much.
    Invalid,
    /// What was asked for before is still under way.
    Busy,
}

/// Why events were not kept or not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventDrop {
    /// The outbox exceeded its bounds.
    OutboxFull,
    /// An event subscription had more dead letters than it may have.
    DeadLettersFull,
    /// The topic of an event would be longer than topics may be.
    TopicTooLong,
    /// As many events as may do so waited for going into queues of subscribers.
    Crowded,
}

/// An entry of the directory that was written or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryChanged {
    /// What it is.
    pub kind: directory::Kind,
    /// Its name.
    pub name: String,
    /// What it is now; `None` when it is gone.
    pub entry: Option<DirectoryEntry>,
}

/// A part of the log that no replica can decode, so that all pass it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// A whole entry.
    Entry,
    /// A command of a proposal, or all that follow it when its end can't be found.
    Command {
        /// Who proposed it.
        node: NodeId,
    },
}

/// Why a connection is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Another connection took the session over.
    TakenOver,
    /// An operator ended the connection, or deleted the session.
    Administrative,
    /// The session's queue was full, and its policy is to end the session.
    QueueFull,
    /// The client's identity was deleted or disabled, or lost the credential that the connection was opened with; or an
    /// identity was made of the client's id.
    IdentityRevoked,
}

impl EndReason {
    /// Whether the client's will is not published: it is not its own to publish any more, as with whoever is banned.
    pub fn discards_will(self) -> bool {
        matches!(self, EndReason::IdentityRevoked)
    }
}

impl From<EndReason> for events::DisconnectionReason {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::TakenOver => events::DisconnectionReason::SessionTakenOver,
            EndReason::Administrative => events::DisconnectionReason::ServerInitiatedDisconnect,
            EndReason::QueueFull => events::DisconnectionReason::SessionOverflow,
            EndReason::IdentityRevoked => events::DisconnectionReason::ClientAuthenticationError,
        }
    }
}

/// Why a queued message was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    QueueFull,
    /// Its message expiry interval was over.
    Expired,
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

impl Change {
    /// Bytes of the value.
    pub fn bytes(&self) -> usize {
        match self {
            Change::Set { value, .. } => value.len(),
            Change::Delete { .. } => 0,
        }
    }
}

/// A message on its way to subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationMessage {
    /// Topic name.
    pub topic: String,
    /// QoS it was published with.
    pub qos: QoS,
    /// RETAIN as published.
    pub retain: bool,
    /// The application message.
    pub payload: Bytes,
    /// Properties as they are forwarded.
    pub properties: Bytes,
    /// The log time after which it is not sent any more.
    pub expires_at: Option<Millis>,
    /// The publisher's session, for No Local.
    pub publisher: Option<SessionId>,
}

/// A message of a session's queue, to be sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The connection of this node that owns the session.
    pub connection: ConnectionId,
    /// Its number in the queue, from which its packet id follows.
    pub sequence: Sequence,
    /// QoS of the delivery.
    pub qos: QoS,
    /// DUP: it may have been sent before.
    pub dup: bool,
    /// RETAIN of the delivery.
    pub retain: bool,
    /// Message expiry interval left, seconds.
    pub expiry_s: Option<u32>,
    /// Identifiers of the subscriptions it matched.
    pub identifiers: SmallVec<[u32; 2]>,
    /// It comes from a group that the session is a member of.
    pub is_shared: bool,
    /// The message.
    pub message: Arc<ApplicationMessage>,
}

/// Messages of another node for connections of this one, which came through the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedBatch {
    /// The node that sent them.
    pub from: NodeId,
    /// The incarnation of that node in which the batch was numbered.
    pub incarnation: Incarnation,
    /// Number of the batch.
    pub sequence: u64,
    /// The messages, as they go between nodes.
    pub messages: Bytes,
}

/// Something for a node to do.
#[derive(Clone, Debug)]
pub enum Output {
    /// The reply to the next command of this node's proposal `sequence`.
    Reply {
        /// The incarnation that proposed.
        incarnation: Incarnation,
        /// The proposal.
        sequence: u64,
        /// The reply.
        reply: Reply,
    },
    /// A node has registered an incarnation: it is live now.
    NodesChanged,
    /// An entry of the directory was written or deleted. Every node is told.
    DirectoryChanged(Box<DirectoryChanged>),
    /// Replicas are to hash their states, or one has said what came out.
    HashRoundChanged(Box<HashRound>),
    /// All commands of this node's proposal `sequence` are answered.
    ProposalApplied {
        /// The incarnation that proposed.
        incarnation: Incarnation,
        /// The proposal.
        sequence: u64,
    },
    /// The leader has put this node's proposal into the log without its commands, or some of them could not be decoded:
    /// those without a reply get [`Reply::Undecodable`]. [`Output::ProposalApplied`] follows.
    ProposalRefused {
        /// The incarnation that proposed.
        incarnation: Incarnation,
        /// The proposal.
        sequence: u64,
    },
    /// Something in the log was passed over. Every node is told.
    Skipped {
        /// The log entry.
        index: LogIndex,
        /// What it was.
        what: Skipped,
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
    /// Desired properties were written: tell the identity's connection of this node.
    Desired(Box<DesiredChanged>),
    /// Deliver a message to this node's connections, as far as it does not go through their sessions' queues: every
    /// node does so for its own.
    Publish {
        /// The message.
        message: Arc<ApplicationMessage>,
        /// Message expiry interval left, seconds.
        expiry_s: Option<u32>,
        /// The log entry that published it: subscriptions that were made there or later do not get it.
        index: LogIndex,
    },
    /// Send a message with QoS 0 to one connection of this node: it was chosen from a group.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// RETAIN of the delivery.
        retain: bool,
        /// Message expiry interval left, seconds.
        expiry_s: Option<u32>,
        /// Identifier of the subscription.
        identifiers: SmallVec<[u32; 2]>,
        /// The message.
        message: Arc<ApplicationMessage>,
    },
    /// Send a message of a session's queue.
    Deliver(Box<Granted>),
    /// Hand messages over that another node could not send.
    Relayed(RelayedBatch),
    /// Send PUBREL: the session was resumed and owes it, in this order.
    SendPubRel {
        /// The connection.
        connection: ConnectionId,
        /// The message's number in the queue.
        sequence: Sequence,
    },
    /// Messages of a session's queue were dropped or expired.
    Dropped {
        /// Why.
        reason: DropReason,
        /// How many.
        count: u64,
    },
    /// There are new events, or something about event subscriptions has changed. Every node is told, once per batch.
    EventsChanged,
    /// An event was recorded: to be counted.
    EventRecorded {
        /// What it says.
        kind: events::Kind,
        /// Why the connection has ended, if it says that one has.
        reason: events::DisconnectionReason,
    },
    /// Events were dropped: to be counted.
    EventsDropped {
        /// Why.
        reason: EventDrop,
        /// How many.
        count: u64,
    },
    /// A node was declared dead, or registered a new incarnation: its former connections are gone.
    NodeEnded {
        /// The node.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
    },
}
