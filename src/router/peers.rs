//! The other nodes, as the router reaches them. `forward` implements the way there.

use std::sync::Arc;

use super::Router;
use super::message::{Message, Recipients};
use crate::base::ids::{LogIndex, NodeId};
use crate::machine::effect::RelayedBatch;
use crate::mailbox::{Mailbox, RequestId};

/// What the way to other nodes must know of who publishes a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin<'a> {
    /// Gets a confirmation of each node, under its request id.
    pub confirm_to: Option<(&'a Arc<Mailbox>, RequestId)>,
    /// Earlier messages of the publisher are in the log up to this index: a node delivers what follows them when it has
    /// applied as much (P5).
    pub after: LogIndex,
}

/// The other nodes of the cluster.
pub trait PeerNodes: Send + Sync {
    /// Queues a message for the connections of `node`. Returns the number of its batch; `None` when it was not taken: a
    /// message that nobody waits for is dropped when too much waits for that node already.
    ///
    /// When the message is with the connections there, `origin.confirm_to` gets [`Item::ForwardConfirmed`]; or, if one
    /// of them reads slowly, [`Item::AckDeferred`] and later [`Item::AckReleased`].
    ///
    /// [`Item::ForwardConfirmed`]: crate::mailbox::Item::ForwardConfirmed
    /// [`Item::AckDeferred`]: crate::mailbox::Item::AckDeferred
    /// [`Item::AckReleased`]: crate::mailbox::Item::AckReleased
    fn forward(
        &self,
        node: NodeId,
        message: &Message<'_>,
        recipients: Recipients<'_>,
        origin: Origin<'_>,
    ) -> Option<u64>;

    /// Whether the connections of `node` have the messages of this batch and all before it, or are gone.
    fn is_confirmed(&self, node: NodeId, sequence: u64) -> bool;

    /// Has `mailbox` offer its client's next packet again when `node` has confirmed anything. Who waits asks
    /// [`PeerNodes::is_confirmed`] once more afterwards.
    fn await_confirmed(&self, node: NodeId, mailbox: &Arc<Mailbox>);

    /// Messages for this node's connections have come through the log.
    fn take_relayed(&self, router: &Router, batch: &RelayedBatch);

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
