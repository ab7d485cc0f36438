//! PUBLISH packets of the client that are not acknowledged yet.

use crate::codec::{PacketId, QoS};

/// A PUBLISH on its way through the log.
#[derive(Debug)]
pub(in crate::connection) struct LoggedPublish {
    /// To be acknowledged; `None` with QoS 0.
    pub(super) packet_id: Option<PacketId>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    /// Subscribers of this node that read too slowly.
    pub(super) deferred: u32,
    /// Size of the message.
    pub(super) bytes: usize,
}

/// A PUBLISH with QoS 1 or 2 whose subscribers have it, or get it past the log.
#[derive(Debug)]
pub(in crate::connection) struct DirectPublish {
    /// To be acknowledged.
    pub(super) packet_id: PacketId,
    pub(super) qos: QoS,
    /// Nodes that have not confirmed the message yet.
    pub(super) unconfirmed: u32,
    /// Subscribers of this node, and other nodes with subscribers, that read too slowly.
    pub(super) deferred: u32,
    /// Size of the message.
    pub(super) bytes: usize,
}
