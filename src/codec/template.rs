//! Writes PUBLISH: once per message, patched per subscriber.
//!
//! Per hop are the packet id, the flags, the message expiry, subscription identifiers and the topic alias; topic,
//! forwarded properties and payload are the same bytes for everybody, whatever the version.

use std::num::NonZeroU16;

use bytes::Bytes;

use super::error::{DecodeError, EncodeError};
use super::property::PropertyId;
use super::publish::{Publish, PublishProperties};
use super::types::{
    MAX_FIELD_LENGTH, MAX_PACKET_SIZE, MAX_REMAINING_LENGTH, PacketId, PacketType, QoS, Version,
};
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

    const fn is_plain(&self) -> bool {
        matches!(self.qos, QoS::AtMostOnce)
            && self.subscription_ids.is_empty()
            && self.remaining_expiry.is_none()
            && self.topic_alias.is_none()
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

/// The parts of a message that are the same for everybody.
#[derive(Clone, Copy)]
struct Message<'a> {
    topic: &'a [u8],
    properties: &'a [u8],
    payload: &'a [u8],
}

impl Message<'_> {
    /// Writes everything but the payload. Returns the size of the whole packet; on an error nothing was written.
    #[inline]
    fn write_head(
        &self,
        out: &mut Vec<u8>,
        delivery: &PublishHeader<'_>,
        reserve_payload: bool,
    ) -> Result<usize, EncodeError> {
        let topic = match delivery.topic_alias {
            Some(TopicAlias {
                send_topic: false, ..
            }) if delivery.version.is_v5() => &[],
            _ => self.topic,
        };
        let topic_length =
            u16::try_from(topic.len()).map_err(|_| EncodeError::FieldTooLong(topic.len()))?;
        let packet_id = match (delivery.qos, delivery.packet_id) {
            (QoS::AtMostOnce, _) => None,
            (_, Some(id)) => Some(id),
            (_, None) => return Err(EncodeError::PacketIdMissing),
        };
        let mut remaining = 2 + topic.len() + self.payload.len();
        remaining += if packet_id.is_some() { 2 } else { 0 };
        let mut property_length = 0;
        if delivery.version.is_v5() {
            let length = delivery.own_properties()? + self.properties.len();
            property_length = write::check_size(length, MAX_PACKET_SIZE)?;
            remaining += write::variable_length(property_length) + length;
        }
        let length = write::check_size(remaining, delivery.max_packet_size)?;
        let size = 1 + write::variable_length(length) + remaining;
        out.reserve(if reserve_payload {
            size
        } else {
            size - self.payload.len()
        });
        out.push(delivery.first_byte());
        write::variable(out, length);
        out.extend_from_slice(&topic_length.to_be_bytes());
        out.extend_from_slice(topic);
        if let Some(id) = packet_id {
            out.extend_from_slice(&id.get().to_be_bytes());
        }
        if delivery.version.is_v5() {
            write::variable(out, property_length);
            delivery.write_properties(out);
            out.extend_from_slice(self.properties);
        }
        Ok(size)
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>, delivery: &PublishHeader<'_>) -> Result<usize, EncodeError> {
        let size = self.write_head(out, delivery, true)?;
        out.extend_from_slice(self.payload);
        Ok(size)
    }
}

/// Writes a PUBLISH for one subscriber straight from its parts. `forwardable` is what
/// [`PublishProperties::forwardable`] returns; it is left out before MQTT 5.0.
///
/// Returns the size of the packet in bytes. On an error nothing was written; [`EncodeError::TooLarge`] means that the
/// message is dropped for this subscriber and counts as delivered `[MQTT-3.1.2-25]`.
#[inline]
pub fn encode_publish(
    out: &mut Vec<u8>,
    topic: &str,
    forwardable: &[u8],
    payload: &[u8],
    delivery: &PublishHeader<'_>,
) -> Result<usize, EncodeError> {
    Message {
        topic: topic.as_bytes(),
        properties: forwardable,
        payload,
    }
    .write(out, delivery)
}

/// A message encoded once for all subscribers: one allocation, cheap to clone and to share between connections.
///
/// It is laid out as the packet of a plain QoS 0 delivery to a 5.0 client, so that such a delivery is one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishTemplate {
    packet: Bytes,
    /// Where the topic starts, behind its length.
    topic: usize,
    /// Where the forwarded properties start.
    properties: usize,
    /// Where the payload starts.
    payload: usize,
}

impl PublishTemplate {
    /// Encodes a message. `forwardable` is a checked property list as [`PublishProperties::forwardable`] returns it.
    ///
    /// Fails if the topic is longer than 65,535 bytes or the packet than 268,435,460.
    pub fn new(topic: &str, forwardable: &[u8], payload: &[u8]) -> Result<Self, EncodeError> {
        let mut packet = Vec::new();
        let message = Message {
            topic: topic.as_bytes(),
            properties: forwardable,
            payload,
        };
        let size = message.write(&mut packet, &PublishHeader::plain(Version::V5))?;
        let payload = size - payload.len();
        let properties = payload - forwardable.len();
        let list_length = u32::try_from(forwardable.len()).unwrap_or(u32::MAX);
        let topic = properties - write::variable_length(list_length) - topic.len();
        Ok(Self {
            packet: packet.into(),
            topic,
            properties,
            payload,
        })
    }

    /// Encodes a message as it was received. With a topic alias in it, `topic` is the one the alias stands for.
    pub fn from_publish(publish: &Publish<'_>, topic: &str) -> Result<Self, EncodeError> {
        Self::new(topic, &publish.properties.forwardable(), publish.payload)
    }

    /// Writes the packet for one subscriber. See [`encode_publish`] for result and errors.
    #[inline]
    pub fn encode_into(
        &self,
        out: &mut Vec<u8>,
        delivery: &PublishHeader<'_>,
    ) -> Result<usize, EncodeError> {
        if delivery.is_plain() && delivery.version.is_v5() {
            let size = self.packet.len();
            if size > delivery.max_packet_size as usize {
                return Err(EncodeError::TooLarge {
                    size,
                    max: delivery.max_packet_size,
                });
            }
            let start = out.len();
            out.extend_from_slice(&self.packet);
            out[start] = delivery.first_byte();
            return Ok(size);
        }
        self.message().write(out, delivery)
    }

    /// Writes the packet for one subscriber without its payload, for a writer that sends [`payload`](Self::payload)
    /// from where it lies. Returns the size of the whole packet.
    pub fn encode_head_into(
        &self,
        out: &mut Vec<u8>,
        delivery: &PublishHeader<'_>,
    ) -> Result<usize, EncodeError> {
        self.message().write_head(out, delivery, false)
    }

    fn message(&self) -> Message<'_> {
        Message {
            topic: self.topic_bytes(),
            properties: self.forwardable(),
            payload: &self.packet[self.payload..],
        }
    }

    fn topic_bytes(&self) -> &[u8] {
        let length = u16::from_be_bytes([self.packet[self.topic - 2], self.packet[self.topic - 1]]);
        debug_assert!(usize::from(length) <= MAX_FIELD_LENGTH);
        &self.packet[self.topic..self.topic + usize::from(length)]
    }

    /// The topic name.
    pub fn topic(&self) -> &str {
        std::str::from_utf8(self.topic_bytes()).expect("written from a str by `new`")
    }

    /// The forwarded properties as a list without its length.
    pub fn forwardable(&self) -> &[u8] {
        &self.packet[self.properties..self.payload]
    }

    /// The forwarded properties; an error only if `new` was given a list that was not checked.
    pub fn properties(&self) -> Result<PublishProperties<'_>, DecodeError> {
        PublishProperties::parse(self.forwardable())
    }

    /// The payload, sharing the template's memory.
    pub fn payload(&self) -> Bytes {
        self.packet.slice(self.payload..)
    }

    /// Bytes of memory the message takes.
    pub fn size(&self) -> usize {
        self.packet.len()
    }
}
