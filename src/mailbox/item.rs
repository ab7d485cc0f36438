//! What a mailbox holds beside packets: replies to the connection's requests, and notices.

use bytes::Bytes;

use crate::machine::effect::{Change, EndReason, Reply};
use crate::session::Sequence;
use crate::store::Reply as StoreReply;

/// Identifies an outstanding request of one connection.
pub type RequestId = u32;

/// A reply to one of the connection's requests, or a notice.
#[derive(Debug)]
pub enum Item {
    /// A proposed command was applied.
    Reply(RequestId, Reply),
    /// A linearizable read was carried out.
    Read(RequestId, StoreReply),
    /// A GET was not, because too much of what was read before is on its way to the client. Until
    /// the connection ends that, none is.
    ReadRefused,
    /// What was acknowledged anywhere before it was asked for is in this node's state.
    BarrierPassed(RequestId),
    /// Another node has handed a forwarded message to its connections.
    ForwardConfirmed(RequestId),
    /// The message has reached its subscribers, but one of them reads slowly: the acknowledgement waits for
    /// [`Item::AckReleased`].
    AckDeferred(RequestId),
    /// The acknowledgement need not wait for one of the slow subscribers any more.
    AckReleased(RequestId),
    /// Every live node has applied a subscription.
    SubscriptionEffective(RequestId),
    /// A watched key changed.
    Notify {
        /// Name of the key in the state store.
        key: Bytes,
        /// What happened to it.
        change: Change,
    },
    /// A message of the session's queue is larger than the client accepts. It counts as delivered `[MQTT-3.1.2-25]`.
    Undeliverable(Sequence),
    /// The client is to get PUBREL for a message of the session's queue.
    SendPubRel(Sequence),
    /// The connection must end.
    End(End),
}

impl Item {
    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let content = match self {
            Item::Reply(_, Reply::Store(reply)) | Item::Read(_, reply) => reply.content_bytes(),
            Item::Reply(_, Reply::Subscribed { new, .. }) => new.len(),
            Item::Reply(_, Reply::Unsubscribed(removed)) => removed.len(),
            Item::Notify { key, change } => key.len() + change.bytes(),
            _ => 0,
        };
        size_of::<Item>() + content
    }
}

/// Why the node ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The replicated state says so.
    Machine(EndReason),
    /// The node has lost contact with the quorum.
    Unavailable,
    /// The node is shutting down.
    ShuttingDown,
    /// The client reads too slowly for what it has subscribed to.
    OutboxFull,
    /// The answer to a request is larger than the client accepts.
    AnswerTooLarge,
    /// What is kept for the client exceeds the memory that one connection may have.
    ConnectionMemory,
    /// The memory of the node for its clients is used up, and this connection has much of it.
    NodeMemory,
    /// What the client's identity rests on is gone.
    Revoked,
    /// What the client's identity rests on is another now: it has to prove again who it is.
    Changed,
    /// An operator has banned the client.
    Banned,
    /// An operator has banned the client's address.
    AddressBanned,
}
