//! PUBLISH as it arrives, and the properties a message carries through the broker.
//!
//! The properties stay the raw bytes that were checked: a message is forwarded, queued and stored with them as they
//! came, and what the broker itself looks at was noted while checking. Writing a PUBLISH is in
//! [`super::publish_encode`].

use std::borrow::Cow;
use std::num::{NonZeroU16, NonZeroU32};

use super::check;
use super::error::{DecodeError, EncodeError};
use super::frame::Frame;
use super::property::{
    Allowed, PayloadFormat, Property, PropertyId, PropertyReader, UserProperties, take_list,
};
use super::read::Reader;
use super::types::{MAX_REMAINING_LENGTH, PacketId, QoS, Version};

/// A PUBLISH packet. It borrows the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The sender says it sent this packet before. Never passed on `[MQTT-3.3.1-3]`.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// The retain flag.
    pub retain: bool,
    /// Topic name without wildcards; empty only if there is a topic alias.
    pub topic: &'a str,
    /// Present exactly if the QoS is above 0 `[MQTT-2.2.1-2]`.
    pub packet_id: Option<PacketId>,
    /// Properties; empty before MQTT 5.0.
    pub properties: PublishProperties<'a>,
    /// The application message.
    pub payload: &'a [u8],
}

/// What the broker rewrites per hop; the rest of a message's properties is forwarded as it is.
const PER_HOP: Allowed = Allowed::of(&[
    PropertyId::TopicAlias,
    PropertyId::SubscriptionIdentifier,
    PropertyId::MessageExpiryInterval,
    PropertyId::WillDelayInterval,
]);

/// What may repeat in a PUBLISH; only a server sends subscription identifiers `[MQTT-3.3.4-4]`.
const REPEATABLE: Allowed =
    Allowed::of(&[PropertyId::UserProperty, PropertyId::SubscriptionIdentifier]);

const FROM_CLIENT: Allowed = Allowed::of(&[
    PropertyId::PayloadFormatIndicator,
    PropertyId::MessageExpiryInterval,
    PropertyId::TopicAlias,
    PropertyId::ResponseTopic,
    PropertyId::CorrelationData,
    PropertyId::UserProperty,
    PropertyId::ContentType,
]);

const FROM_SERVER: Allowed = Allowed::of(&[
    PropertyId::PayloadFormatIndicator,
    PropertyId::MessageExpiryInterval,
    PropertyId::TopicAlias,
    PropertyId::ResponseTopic,
    PropertyId::CorrelationData,
    PropertyId::UserProperty,
    PropertyId::SubscriptionIdentifier,
    PropertyId::ContentType,
]);

const WILL: Allowed = Allowed::of(&[
    PropertyId::PayloadFormatIndicator,
    PropertyId::MessageExpiryInterval,
    PropertyId::ResponseTopic,
    PropertyId::CorrelationData,
    PropertyId::UserProperty,
    PropertyId::ContentType,
    PropertyId::WillDelayInterval,
]);

/// The properties of a message: the raw list, checked, and where to find what the broker looks at.
///
/// It is kept small, because every PUBLISH carries one and most are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishProperties<'a> {
    raw: &'a [u8],
    /// Where the first property that is forwarded begins and the last one ends.
    forward: (u32, u32),
    /// Something that is not forwarded lies in between.
    holes: bool,
    payload_format: Option<PayloadFormat>,
    topic_alias: Option<NonZeroU16>,
    message_expiry: Option<u32>,
    will_delay: u32,
    /// Where these values begin, with their length; no value begins at 0, where an identifier is.
    response_topic: u32,
    correlation_data: u32,
    content_type: u32,
}

/// Equal if they say the same: what is written per hop may stand anywhere.
impl PartialEq for PublishProperties<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.forwardable() == other.forwardable()
            && self.message_expiry == other.message_expiry
            && self.topic_alias == other.topic_alias
            && self.subscription_ids().eq(other.subscription_ids())
    }
}

impl Eq for PublishProperties<'_> {}

impl<'a> PublishProperties<'a> {
    /// No properties.
    pub const EMPTY: PublishProperties<'static> = PublishProperties {
        raw: &[],
        forward: (0, 0),
        holes: false,
        payload_format: None,
        topic_alias: None,
        message_expiry: None,
        will_delay: 0,
        response_topic: 0,
        correlation_data: 0,
        content_type: 0,
    };

    /// Checks a property list without its length, as [`raw`](Self::raw) and [`forwardable`](Self::forwardable) return
    /// it: for messages that come back from storage or from another node.
    pub fn parse(raw: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(raw, FROM_SERVER)
    }

    /// Properties of a will, with its delay.
    pub(super) fn parse_will(raw: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(raw, WILL)
    }

    #[inline]
    fn read(raw: &'a [u8], allowed: Allowed) -> Result<Self, DecodeError> {
        if raw.is_empty() {
            Ok(Self::EMPTY)
        } else {
            Self::read_list(raw, allowed)
        }
    }

    fn read_list(raw: &'a [u8], allowed: Allowed) -> Result<Self, DecodeError> {
        if raw.len() > MAX_REMAINING_LENGTH as usize {
            return Err(DecodeError::PropertyLength);
        }
        let mut reader = PropertyReader::new(raw, allowed).with_repeatable(REPEATABLE);
        let mut properties = Self { raw, ..Self::EMPTY };
        let (mut first, mut last, mut kept) = (0, 0, 0);
        let mut start = 0;
        while let Some(property) = reader.next()? {
            let end = (raw.len() - reader.remaining()) as u32;
            if !PER_HOP.contains(property.id()) {
                first = if kept == 0 { start } else { first };
                last = end;
                kept += end - start;
            }
            match property {
                Property::PayloadFormatIndicator(format) => {
                    properties.payload_format = Some(format)
                }
                Property::MessageExpiryInterval(seconds) => {
                    properties.message_expiry = Some(seconds)
                }
                Property::TopicAlias(alias) => properties.topic_alias = Some(alias),
                Property::WillDelayInterval(seconds) => properties.will_delay = seconds,
                Property::ResponseTopic(_) => properties.response_topic = start + 1,
                Property::CorrelationData(_) => properties.correlation_data = start + 1,
                Property::ContentType(_) => properties.content_type = start + 1,
                _ => {}
            }
            start = end;
        }
        properties.forward = (first, last);
        properties.holes = kept != last - first;
        Ok(properties)
    }

    /// The field that begins at `position`; `None` for 0.
    fn field(&self, position: u32) -> Option<&'a [u8]> {
        let field = self
            .raw
            .get(position as usize..)
            .filter(|_| position != 0)?;
        Reader::new(field).binary().ok()
    }

    fn text(&self, position: u32) -> Option<&'a str> {
        std::str::from_utf8(self.field(position)?).ok()
    }

    /// The list as it came, without its length.
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The list without what holds for one hop only: topic alias, subscription identifiers, message expiry (rewritten
    /// by the sender), will delay. All else is passed on unchanged and in order `[MQTT-3.3.2-4]` `[MQTT-3.3.2-15]`
    /// `[MQTT-3.3.2-16]` `[MQTT-3.3.2-17]` `[MQTT-3.3.2-18]` `[MQTT-3.3.2-20]`. Borrowed unless something stood
    /// between.
    pub fn forwardable(&self) -> Cow<'a, [u8]> {
        let (first, last) = self.forward;
        let list = self
            .raw
            .get(first as usize..last as usize)
            .unwrap_or_default();
        if !self.holes {
            return Cow::Borrowed(list);
        }
        let mut kept = Vec::with_capacity(list.len());
        let mut start = 0;
        let mut reader = self.reader(list);
        while let Ok(Some(property)) = reader.next() {
            let end = list.len() - reader.remaining();
            if !PER_HOP.contains(property.id()) {
                kept.extend_from_slice(&list[start..end]);
            }
            start = end;
        }
        Cow::Owned(kept)
    }

    fn reader(&self, list: &'a [u8]) -> PropertyReader<'a> {
        let all = Allowed::of(PropertyId::ALL);
        PropertyReader::new(list, all).with_repeatable(all)
    }

    /// True if there is no property at all.
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Payload format indicator, as sent.
    pub const fn payload_format(&self) -> Option<PayloadFormat> {
        self.payload_format
    }

    /// Message expiry interval in seconds, as sent; 0 is legal and expires at once.
    pub const fn message_expiry(&self) -> Option<u32> {
        self.message_expiry
    }

    /// Topic alias. That it is within the announced maximum is for the session to check `[MQTT-3.3.2-9]`.
    pub const fn topic_alias(&self) -> Option<NonZeroU16> {
        self.topic_alias
    }

    /// Where an answer is expected: a topic name without wildcards.
    pub fn response_topic(&self) -> Option<&'a str> {
        self.text(self.response_topic)
    }

    /// What an answer repeats.
    pub fn correlation_data(&self) -> Option<&'a [u8]> {
        self.field(self.correlation_data)
    }

    /// Content type.
    pub fn content_type(&self) -> Option<&'a str> {
        self.text(self.content_type)
    }

    /// Will delay interval in seconds; 0 outside a will.
    pub(super) const fn will_delay(&self) -> u32 {
        self.will_delay
    }

    /// User properties in order.
    pub const fn user_properties(&self) -> UserProperties<'a> {
        UserProperties::from_checked_list(self.raw)
    }

    /// Subscription identifiers, which only a server sends.
    pub fn subscription_ids(&self) -> impl Iterator<Item = NonZeroU32> + 'a {
        let mut reader = self.reader(self.raw);
        std::iter::from_fn(move || {
            while let Ok(Some(property)) = reader.next() {
                if let Property::SubscriptionIdentifier(id) = property {
                    return Some(id);
                }
            }
            None
        })
    }
}

/// Builds the properties of a message the broker or our client itself sends. Clear it and use it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishPropertiesBuf {
    raw: Vec<u8>,
}

impl PublishPropertiesBuf {
    /// No properties yet.
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// Drops all properties and keeps the memory.
    pub fn clear(&mut self) {
        self.raw.clear();
    }

    /// Appends one property. Which ones a PUBLISH may carry, and how often, is checked by
    /// [`as_properties`](Self::as_properties).
    pub fn push(&mut self, property: Property<'_>) -> Result<&mut Self, EncodeError> {
        let start = self.raw.len();
        if let Err(error) = property.write(&mut self.raw) {
            self.raw.truncate(start);
            return Err(error);
        }
        Ok(self)
    }

    /// Appends a user property.
    pub fn push_user(&mut self, name: &str, value: &str) -> Result<&mut Self, EncodeError> {
        self.push(Property::UserProperty(name, value))
    }

    /// The list without its length.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The list, checked as a received one would be.
    pub fn as_properties(&self) -> Result<PublishProperties<'_>, DecodeError> {
        PublishProperties::parse(&self.raw)
    }
}

/// Topic and packet id of a PUBLISH with QoS 1 whose properties were refused, so that it can be acknowledged before the
/// connection is closed.
pub fn refused_publish(frame: Frame<'_>) -> Option<(&str, PacketId)> {
    if QoS::from_bits(frame.flags() >> 1 & 0b11) != Some(QoS::AtLeastOnce) {
        return None;
    }
    let mut body = Reader::new(frame.body);
    let topic = check::topic_name_field(body.binary().ok()?).ok()?;
    Some((topic, body.packet_id().ok()?))
}

/// Decodes a PUBLISH that a client sent.
#[inline]
pub fn decode_publish<'a>(version: Version, frame: Frame<'a>) -> Result<Publish<'a>, DecodeError> {
    decode(version, frame, FROM_CLIENT)
}

/// Decodes a PUBLISH that a server sent: it may carry subscription identifiers `[MQTT-3.3.4-3]`.
pub(super) fn decode_from_server<'a>(
    version: Version,
    frame: Frame<'a>,
) -> Result<Publish<'a>, DecodeError> {
    decode(version, frame, FROM_SERVER)
}

#[inline(always)]
fn decode<'a>(
    version: Version,
    frame: Frame<'a>,
    allowed: Allowed,
) -> Result<Publish<'a>, DecodeError> {
    let flags = frame.flags();
    let qos = QoS::from_bits(flags >> 1 & 0b11).ok_or(DecodeError::PublishQosInvalid)?;
    let dup = flags & 0b1000 != 0;
    if dup && qos == QoS::AtMostOnce && version != Version::V31 {
        return Err(DecodeError::DupWithoutQos);
    }
    let mut body = Reader::new(frame.body);
    let topic = check::topic_name_field(body.binary()?)?;
    let packet_id = if qos == QoS::AtMostOnce {
        None
    } else {
        Some(body.packet_id()?)
    };
    let properties = if version.is_v5() {
        let list = take_list(&mut body)?;
        PublishProperties::read(list, allowed).map_err(|error| match error {
            DecodeError::PropertyNotAllowed
                if allowed == FROM_CLIENT && carries_subscription_id(list) =>
            {
                DecodeError::SubscriptionIdFromClient
            }
            other => other,
        })?
    } else {
        PublishProperties::EMPTY
    };
    if topic.is_empty() && properties.topic_alias.is_none() {
        return Err(DecodeError::TopicNameEmpty);
    }
    Ok(Publish {
        dup,
        qos,
        retain: flags & 1 != 0,
        topic,
        packet_id,
        properties,
        payload: body.take_rest(),
    })
}

/// True if the property that [`FROM_CLIENT`] lacked was a subscription identifier: a protocol error, not a malformed
/// packet `[MQTT-3.3.4-6]`.
#[cold]
fn carries_subscription_id(list: &[u8]) -> bool {
    PublishProperties::read(list, FROM_SERVER).is_ok()
}
