//! Writes PUBLISH for a subscriber.
//!
//! What differs per subscriber is in [`PublishHeader`]: flags, packet id, message expiry, subscription identifiers and
//! topic alias. Topic, forwarded properties and payload are the same bytes for everybody.

use std::num::NonZeroU16;

use super::error::EncodeError;
use super::property::PropertyId;
use super::types::{MAX_PACKET_SIZE, MAX_REMAINING_LENGTH, PacketId, PacketType, QoS, Version};
use super::write;

/// A topic alias to send `[MQTT-3.1.2-26]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicAlias {
    /// The alias, at most the maximum the client gave.
    pub alias: NonZeroU16,
    /// True to send the topic along, which sets the alias up; false once the client knows it.
    pub send_topic: bool,
}

/// What differs from subscriber to subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishHeader<'a> {
    /// Version of the subscriber's connection. Before 5.0 nothing but flags, packet id, topic and payload is sent.
    pub version: Version,
    /// QoS of this delivery: the lower of published and granted `[MQTT-3.8.4-8]`.
    pub qos: QoS,
    /// True on a retransmission `[MQTT-3.3.1-1]`; not sent with QoS 0 `[MQTT-3.3.1-2]`.
    pub dup: bool,
    /// Retain flag of this delivery.
    pub retain: bool,
    /// Needed exactly if the QoS is above 0; not sent with QoS 0 `[MQTT-2.2.1-2]`.
    pub packet_id: Option<PacketId>,
    /// Identifiers of the subscriptions it is sent for `[MQTT-3.3.4-3]`; each 1 to 268,435,455.
    pub subscription_ids: &'a [u32],
    /// Message expiry left, in seconds `[MQTT-3.3.2-6]`.
    pub remaining_expiry: Option<u32>,
    /// Topic alias to use.
    pub topic_alias: Option<TopicAlias>,
    /// The subscriber's maximum packet size in bytes `[MQTT-3.1.2-24]`.
    pub max_packet_size: u32,
}

impl PublishHeader<'_> {
    /// A QoS 0 delivery without anything per subscriber.
    pub const fn plain(version: Version) -> Self {
        Self {
            version,
            qos: QoS::AtMostOnce,
            dup: false,
            retain: false,
            packet_id: None,
            subscription_ids: &[],
            remaining_expiry: None,
            topic_alias: None,
            max_packet_size: MAX_PACKET_SIZE,
        }
    }

    const fn first_byte(&self) -> u8 {
        let dup = self.dup && !matches!(self.qos, QoS::AtMostOnce);
        PacketType::Publish.first_byte()
            | (dup as u8) << 3
            | (self.qos as u8) << 1
            | self.retain as u8
    }

    /// Bytes of the properties that are written per subscriber.
    fn own_properties(&self) -> Result<usize, EncodeError> {
        let mut length = 0;
        length += if self.topic_alias.is_some() { 3 } else { 0 };
        length += if self.remaining_expiry.is_some() {
            5
        } else {
            0
        };
        for id in self.subscription_ids {
            if *id == 0 || *id > MAX_REMAINING_LENGTH {
                return Err(EncodeError::VariableByteInteger(*id));
            }
            length += 1 + write::variable_length(*id);
        }
        Ok(length)
    }

    fn write_properties(&self, out: &mut Vec<u8>) {
        if let Some(TopicAlias { alias, .. }) = self.topic_alias {
            let [high, low] = alias.get().to_be_bytes();
            out.extend_from_slice(&[PropertyId::TopicAlias as u8, high, low]);
        }
        if let Some(seconds) = self.remaining_expiry {
            out.push(PropertyId::MessageExpiryInterval as u8);
            out.extend_from_slice(&seconds.to_be_bytes());
        }
        for id in self.subscription_ids {
            out.push(PropertyId::SubscriptionIdentifier as u8);
            write::variable(out, *id);
        }
    }
}

/// Writes a PUBLISH for one subscriber straight from its parts. `forwardable` is what
/// [`PublishProperties::forwardable`](super::PublishProperties::forwardable) returns; it is left out before MQTT 5.0.
///
/// Returns the size of the packet in bytes. On an error nothing was written; [`EncodeError::TooLarge`] means that the
/// message is dropped for this subscriber and counts as delivered `[MQTT-3.1.2-25]`.
#[inline]
pub fn encode_publish(
    out: &mut Vec<u8>,
    topic: &str,
    forwardable: &[u8],
    payload: &[u8],
    header: &PublishHeader<'_>,
) -> Result<usize, EncodeError> {
    let size = write_beginning(
        out,
        topic,
        forwardable,
        payload.len(),
        header,
        payload.len(),
    )?;
    out.extend_from_slice(payload);
    Ok(size)
}

/// Writes a PUBLISH without its payload of `payload_length` bytes, which the caller sends behind it. Returns the size
/// of the whole packet in bytes; errors are those of [`encode_publish`].
pub fn encode_publish_beginning(
    out: &mut Vec<u8>,
    topic: &str,
    forwardable: &[u8],
    payload_length: usize,
    header: &PublishHeader<'_>,
) -> Result<usize, EncodeError> {
    write_beginning(out, topic, forwardable, payload_length, header, 0)
}

/// Writes everything before the payload; `follows` bytes are to be appended behind it.
#[inline]
fn write_beginning(
    out: &mut Vec<u8>,
    topic: &str,
    forwardable: &[u8],
    payload_length: usize,
    header: &PublishHeader<'_>,
    follows: usize,
) -> Result<usize, EncodeError> {
    let is_v5 = header.version.is_v5();
    let topic = match header.topic_alias {
        Some(TopicAlias {
            send_topic: false, ..
        }) if is_v5 => "",
        _ => topic,
    };
    let topic_length =
        u16::try_from(topic.len()).map_err(|_| EncodeError::FieldTooLong(topic.len()))?;
    let packet_id = match (header.qos, header.packet_id) {
        (QoS::AtMostOnce, _) => None,
        (_, Some(id)) => Some(id),
        (_, None) => return Err(EncodeError::PacketIdMissing),
    };
    let mut remaining = 2 + topic.len() + payload_length;
    remaining += if packet_id.is_some() { 2 } else { 0 };
    let mut property_length = 0;
    if is_v5 {
        let length = header.own_properties()? + forwardable.len();
        property_length = write::check_size(length, MAX_PACKET_SIZE)?;
        remaining += write::variable_length(property_length) + length;
    }
    let length = write::check_size(remaining, header.max_packet_size)?;
    let size = 1 + write::variable_length(length) + remaining;
    out.reserve(size - payload_length + follows);
    out.push(header.first_byte());
    write::variable(out, length);
    out.extend_from_slice(&topic_length.to_be_bytes());
    out.extend_from_slice(topic.as_bytes());
    if let Some(id) = packet_id {
        out.extend_from_slice(&id.get().to_be_bytes());
    }
    if is_v5 {
        write::variable(out, property_length);
        header.write_properties(out);
        out.extend_from_slice(forwardable);
    }
    Ok(size)
}
