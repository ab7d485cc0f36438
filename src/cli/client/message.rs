//! The client's messages, received and sent.

use crate::codec::{PacketId, Publish, QoS};

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Quality of service of this delivery.
    pub qos: QoS,
    /// Whether it was retained.
    pub retain: bool,
    /// Whether it may have been delivered before.
    pub dup: bool,
    /// Application message.
    pub payload: Vec<u8>,
    /// Correlation data.
    pub correlation_data: Option<Vec<u8>>,
    /// User properties in order.
    pub user_properties: Vec<(String, String)>,
    pub(super) packet_id: Option<PacketId>,
}

impl Message {
    pub(super) fn from_packet(packet: &Publish<'_>) -> Message {
        let properties = &packet.properties;
        Message {
            topic: packet.topic.to_owned(),
            qos: packet.qos,
            retain: packet.retain,
            dup: packet.dup,
            payload: packet.payload.to_vec(),
            correlation_data: properties.correlation_data().map(<[u8]>::to_vec),
            user_properties: properties
                .user_properties()
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            packet_id: packet.packet_id,
        }
    }

    /// The value of the first user property with this name.
    pub fn user_property(&self, name: &str) -> Option<&str> {
        self.user_properties
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A message to send.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Quality of service.
    pub qos: QoS,
    /// Whether the server keeps it for later subscribers.
    pub retain: bool,
    /// Application message.
    pub payload: &'a [u8],
    /// Response topic.
    pub response_topic: Option<&'a str>,
    /// Correlation data, which the answer repeats.
    pub correlation_data: Option<&'a [u8]>,
    /// Message expiry interval, in seconds.
    pub message_expiry_s: Option<u32>,
    /// Content type.
    pub content_type: Option<&'a str>,
    /// User properties in order.
    pub user_properties: Vec<(&'a str, String)>,
}
