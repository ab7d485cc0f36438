//! The other nodes, as the router reaches them. `forward` implements the way there.

use std::sync::Arc;

use super::message::Message;
use crate::base::ids::{LogIndex, NodeId};
use crate::mailbox::{Mailbox, RequestId};

/// Which subscriptions of another node a message is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recipients<'a> {
    /// Shared subscriptions, as `$share/{name}/{filter}`: one member of each gets the message.
    pub groups: &'a [&'a str],
    /// Subscriptions that are not shared do not get it.
    pub only_groups: bool,
}

/// The other nodes of the cluster.
pub trait PeerNodes: Send + Sync {
    /// Queues a message for the connections of `node`. Returns whether it was taken: a message with QoS 0 is dropped
    /// when too much waits for that node already.
    ///
    /// When the message is with the connections there, `publisher` gets [`Item::ForwardConfirmed`]; or, if one of them
    /// reads slowly, [`Item::AckDeferred`] and later [`Item::AckReleased`].
    ///
    /// [`Item::ForwardConfirmed`]: crate::mailbox::Item::ForwardConfirmed
    /// [`Item::AckDeferred`]: crate::mailbox::Item::AckDeferred
    /// [`Item::AckReleased`]: crate::mailbox::Item::AckReleased
    fn forward(
        &self,
        node: NodeId,
        message: &Message<'_>,
        recipients: Recipients<'_>,
        publisher: Option<(&Arc<Mailbox>, RequestId)>,
    ) -> bool;

    /// Sends [`Item::SubscriptionEffective`] to `mailbox` once each of `nodes` has applied the log up to `index`, has
    /// ended, or has been silent for so long that it matches nothing without the log.
    ///
    /// [`Item::SubscriptionEffective`]: crate::mailbox::Item::SubscriptionEffective
    fn await_applied(
        &self,
        nodes: &[NodeId],
        index: LogIndex,
        mailbox: &Arc<Mailbox>,
        request_id: RequestId,
    );

    /// The incarnation of `node` has ended, and its connections with it: nothing waits for it any more.
    fn node_ended(&self, node: NodeId);
}
