//! What a principal may use up.

use serde::{Deserialize, Serialize};

/// Limits; an absent one is left to the listener, and to the configuration behind it. What is bounded twice has the
/// lower bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections of the principal to one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// New connections of the principal to one node, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connects_per_s: Option<u32>,
    /// Messages that one client may send, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_in_per_s: Option<u32>,
    /// Bytes that one client may send, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_in_per_s: Option<u64>,
    /// Messages that one client is sent, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_out_per_s: Option<u32>,
    /// Bytes that one client is sent, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_out_per_s: Option<u64>,
    /// Subscriptions of one session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<u64>,
    /// Messages with QoS 1 and 2 that one client may have unacknowledged, each way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u16>,
    /// Sessions of the principal in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    /// Bytes in the queue of one session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<u64>,
    /// Bytes of the largest packet that a client may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_bytes: Option<u32>,
    /// The highest QoS of messages that a client may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_qos: Option<u8>,
    /// Whether a client may have messages retained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
    /// The longest session expiry interval, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_expiry_s: Option<u32>,
}

impl Limits {
    /// These, and `others` where these say nothing.
    #[must_use]
    pub fn or(self, others: Limits) -> Limits {
        Limits {
            connections: self.connections.or(others.connections),
            connects_per_s: self.connects_per_s.or(others.connects_per_s),
            messages_in_per_s: self.messages_in_per_s.or(others.messages_in_per_s),
            bytes_in_per_s: self.bytes_in_per_s.or(others.bytes_in_per_s),
            messages_out_per_s: self.messages_out_per_s.or(others.messages_out_per_s),
            bytes_out_per_s: self.bytes_out_per_s.or(others.bytes_out_per_s),
            subscriptions: self.subscriptions.or(others.subscriptions),
            in_flight: self.in_flight.or(others.in_flight),
            sessions: self.sessions.or(others.sessions),
            queue_bytes: self.queue_bytes.or(others.queue_bytes),
            packet_bytes: self.packet_bytes.or(others.packet_bytes),
            max_qos: self.max_qos.or(others.max_qos),
            retain: self.retain.or(others.retain),
            session_expiry_s: self.session_expiry_s.or(others.session_expiry_s),
        }
    }
}
