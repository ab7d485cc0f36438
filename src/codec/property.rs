//! The 27 properties of MQTT 5.0 (§2.2.2.2): one reader and one writer for all packets.
//!
//! Which property may stand in which packet is an [`Allowed`] set; whether a value is in its range is decided here,
//! once.

use std::num::{NonZeroU16, NonZeroU32};

use super::check;
use super::error::{DecodeError, EncodeError};
use super::read::Reader;
use super::types::{MAX_REMAINING_LENGTH, QoS};
use super::write;

/// Whether the payload is declared to be text (MQTT 5.0 §3.3.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PayloadFormat {
    /// Unspecified bytes.
    Bytes = 0,
    /// Text in UTF-8.
    Utf8 = 1,
}

macro_rules! property_ids {
    ($($name:ident = $value:literal;)+) => {
        /// The identifier of a property, as on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum PropertyId {
            $($name = $value,)+
        }

        impl PropertyId {
            /// Every identifier the standard defines.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            const fn from_u32(value: u32) -> Option<Self> {
                match value {
                    $($value => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

property_ids! {
    PayloadFormatIndicator = 0x01;
    MessageExpiryInterval = 0x02;
    ContentType = 0x03;
    ResponseTopic = 0x08;
    CorrelationData = 0x09;
    SubscriptionIdentifier = 0x0B;
    SessionExpiryInterval = 0x11;
    AssignedClientIdentifier = 0x12;
    ServerKeepAlive = 0x13;
    AuthenticationMethod = 0x15;
    AuthenticationData = 0x16;
    RequestProblemInformation = 0x17;
    WillDelayInterval = 0x18;
    RequestResponseInformation = 0x19;
    ResponseInformation = 0x1A;
    ServerReference = 0x1C;
    ReasonString = 0x1F;
    ReceiveMaximum = 0x21;
    TopicAliasMaximum = 0x22;
    TopicAlias = 0x23;
    MaximumQos = 0x24;
    RetainAvailable = 0x25;
    UserProperty = 0x26;
    MaximumPacketSize = 0x27;
    WildcardSubscriptionAvailable = 0x28;
    SubscriptionIdentifierAvailable = 0x29;
    SharedSubscriptionAvailable = 0x2A;
}

/// One property with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "the standard's names")]
pub enum Property<'a> {
    PayloadFormatIndicator(PayloadFormat),
    /// Seconds.
    MessageExpiryInterval(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(NonZeroU32),
    /// Seconds; `u32::MAX` never expires.
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(&'a str),
    /// Seconds.
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    /// Seconds.
    WillDelayInterval(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(NonZeroU16),
    TopicAliasMaximum(u16),
    TopicAlias(NonZeroU16),
    /// 0 or 1; a server that takes QoS 2 leaves it out.
    MaximumQos(QoS),
    RetainAvailable(bool),
    UserProperty(&'a str, &'a str),
    /// Bytes.
    MaximumPacketSize(NonZeroU32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifierAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::PropertyOutOfRange),
    }
}

/// Reads the identifier of a property. Before the value: which property it is decides what is wrong with it.
fn read_id(reader: &mut Reader<'_>) -> Result<PropertyId, DecodeError> {
    PropertyId::from_u32(reader.variable()?).ok_or(DecodeError::PropertyUnknown)
}

/// A field that does not fit into the list: the list's length is wrong.
fn in_list(error: DecodeError) -> DecodeError {
    match error {
        DecodeError::BodyTooShort => DecodeError::PropertyLength,
        other => other,
    }
}

impl<'a> Property<'a> {
    /// Reads the value of a property and checks it.
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        use PropertyId as Id;
        Ok(match id {
            Id::PayloadFormatIndicator => Self::PayloadFormatIndicator(if flag(reader)? {
                PayloadFormat::Utf8
            } else {
                PayloadFormat::Bytes
            }),
            Id::MessageExpiryInterval => Self::MessageExpiryInterval(reader.u32()?),
            Id::ContentType => Self::ContentType(reader.string()?),
            Id::ResponseTopic => {
                let topic = reader.string()?;
                if !check::is_topic_name(topic) {
                    return Err(DecodeError::ResponseTopicInvalid);
                }
                Self::ResponseTopic(topic)
            }
            Id::CorrelationData => Self::CorrelationData(reader.binary()?),
            Id::SubscriptionIdentifier => Self::SubscriptionIdentifier(
                NonZeroU32::new(reader.variable()?).ok_or(DecodeError::PropertyOutOfRange)?,
            ),
            Id::SessionExpiryInterval => Self::SessionExpiryInterval(reader.u32()?),
            Id::AssignedClientIdentifier => Self::AssignedClientIdentifier(reader.string()?),
            Id::ServerKeepAlive => Self::ServerKeepAlive(reader.u16()?),
            Id::AuthenticationMethod => Self::AuthenticationMethod(reader.string()?),
            Id::AuthenticationData => Self::AuthenticationData(reader.binary()?),
            Id::RequestProblemInformation => Self::RequestProblemInformation(flag(reader)?),
            Id::WillDelayInterval => Self::WillDelayInterval(reader.u32()?),
            Id::RequestResponseInformation => Self::RequestResponseInformation(flag(reader)?),
            Id::ResponseInformation => Self::ResponseInformation(reader.string()?),
            Id::ServerReference => Self::ServerReference(reader.string()?),
            Id::ReasonString => Self::ReasonString(reader.string()?),
            Id::ReceiveMaximum => Self::ReceiveMaximum(
                NonZeroU16::new(reader.u16()?).ok_or(DecodeError::PropertyOutOfRange)?,
            ),
            Id::TopicAliasMaximum => Self::TopicAliasMaximum(reader.u16()?),
            Id::TopicAlias => {
                Self::TopicAlias(NonZeroU16::new(reader.u16()?).ok_or(DecodeError::TopicAliasZero)?)
            }
            Id::MaximumQos => Self::MaximumQos(if flag(reader)? {
                QoS::AtLeastOnce
            } else {
                QoS::AtMostOnce
            }),
            Id::RetainAvailable => Self::RetainAvailable(flag(reader)?),
            Id::UserProperty => Self::UserProperty(reader.string()?, reader.string()?),
            Id::MaximumPacketSize => Self::MaximumPacketSize(
                NonZeroU32::new(reader.u32()?).ok_or(DecodeError::PropertyOutOfRange)?,
            ),
            Id::WildcardSubscriptionAvailable => Self::WildcardSubscriptionAvailable(flag(reader)?),
            Id::SubscriptionIdentifierAvailable => {
                Self::SubscriptionIdentifierAvailable(flag(reader)?)
            }
            Id::SharedSubscriptionAvailable => Self::SharedSubscriptionAvailable(flag(reader)?),
        })
    }

    /// The property's identifier.
    pub const fn id(&self) -> PropertyId {
        use PropertyId as Id;
        match self {
            Self::PayloadFormatIndicator(_) => Id::PayloadFormatIndicator,
            Self::MessageExpiryInterval(_) => Id::MessageExpiryInterval,
            Self::ContentType(_) => Id::ContentType,
            Self::ResponseTopic(_) => Id::ResponseTopic,
            Self::CorrelationData(_) => Id::CorrelationData,
            Self::SubscriptionIdentifier(_) => Id::SubscriptionIdentifier,
            Self::SessionExpiryInterval(_) => Id::SessionExpiryInterval,
            Self::AssignedClientIdentifier(_) => Id::AssignedClientIdentifier,
            Self::ServerKeepAlive(_) => Id::ServerKeepAlive,
            Self::AuthenticationMethod(_) => Id::AuthenticationMethod,
            Self::AuthenticationData(_) => Id::AuthenticationData,
            Self::RequestProblemInformation(_) => Id::RequestProblemInformation,
            Self::WillDelayInterval(_) => Id::WillDelayInterval,
            Self::RequestResponseInformation(_) => Id::RequestResponseInformation,
            Self::ResponseInformation(_) => Id::ResponseInformation,
            Self::ServerReference(_) => Id::ServerReference,
            Self::ReasonString(_) => Id::ReasonString,
            Self::ReceiveMaximum(_) => Id::ReceiveMaximum,
            Self::TopicAliasMaximum(_) => Id::TopicAliasMaximum,
            Self::TopicAlias(_) => Id::TopicAlias,
            Self::MaximumQos(_) => Id::MaximumQos,
            Self::RetainAvailable(_) => Id::RetainAvailable,
            Self::UserProperty(..) => Id::UserProperty,
            Self::MaximumPacketSize(_) => Id::MaximumPacketSize,
            Self::WildcardSubscriptionAvailable(_) => Id::WildcardSubscriptionAvailable,
            Self::SubscriptionIdentifierAvailable(_) => Id::SubscriptionIdentifierAvailable,
            Self::SharedSubscriptionAvailable(_) => Id::SharedSubscriptionAvailable,
        }
    }

    /// Writes identifier and value. On an error `out` may hold a part of it.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(self.id() as u8);
        match *self {
            Self::PayloadFormatIndicator(format) => out.push(format as u8),
            Self::MaximumQos(qos) => out.push((qos != QoS::AtMostOnce) as u8),
            Self::RequestProblemInformation(value)
            | Self::RequestResponseInformation(value)
            | Self::RetainAvailable(value)
            | Self::WildcardSubscriptionAvailable(value)
            | Self::SubscriptionIdentifierAvailable(value)
            | Self::SharedSubscriptionAvailable(value) => out.push(value.into()),
            Self::ServerKeepAlive(value) | Self::TopicAliasMaximum(value) => {
                out.extend_from_slice(&value.to_be_bytes());
            }
            Self::ReceiveMaximum(value) | Self::TopicAlias(value) => {
                out.extend_from_slice(&value.get().to_be_bytes())
            }
            Self::MessageExpiryInterval(value)
            | Self::SessionExpiryInterval(value)
            | Self::WillDelayInterval(value) => out.extend_from_slice(&value.to_be_bytes()),
            Self::MaximumPacketSize(value) => out.extend_from_slice(&value.get().to_be_bytes()),
            Self::SubscriptionIdentifier(value) => {
                if value.get() > MAX_REMAINING_LENGTH {
                    return Err(EncodeError::VariableByteInteger(value.get()));
                }
                write::variable(out, value.get());
            }
            Self::CorrelationData(bytes) | Self::AuthenticationData(bytes) => {
                write::field(out, bytes)?
            }
            Self::ContentType(text)
            | Self::ResponseTopic(text)
            | Self::AssignedClientIdentifier(text)
            | Self::AuthenticationMethod(text)
            | Self::ResponseInformation(text)
            | Self::ServerReference(text)
            | Self::ReasonString(text) => write::field(out, text.as_bytes())?,
            Self::UserProperty(name, value) => {
                write::field(out, name.as_bytes())?;
                write::field(out, value.as_bytes())?;
            }
        }
        Ok(())
    }
}

/// A set of property identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed(u64);

impl Allowed {
    pub(super) const fn of(ids: &[PropertyId]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < ids.len() {
            bits |= 1 << ids[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    pub(super) const fn contains(self, id: PropertyId) -> bool {
        self.0 & 1 << id as u8 != 0
    }
}

/// Properties that may occur more than once anywhere. A subscription identifier may, too, but only in a PUBLISH from
/// the server, which is why the list says it.
const REPEATABLE: Allowed = Allowed::of(&[PropertyId::UserProperty]);

/// Reads a property list, each property checked for its place, its number and its value.
#[derive(Debug)]
pub(super) struct PropertyReader<'a> {
    reader: Reader<'a>,
    allowed: Allowed,
    repeatable: Allowed,
    seen: u64,
}

impl<'a> PropertyReader<'a> {
    /// Reads a list without its length.
    pub(super) const fn new(list: &'a [u8], allowed: Allowed) -> Self {
        Self {
            reader: Reader::new(list),
            allowed,
            repeatable: REPEATABLE,
            seen: 0,
        }
    }

    /// Lets subscription identifiers repeat `[MQTT-3.3.4-4]`.
    pub(super) const fn with_repeatable(mut self, repeatable: Allowed) -> Self {
        self.repeatable = repeatable;
        self
    }

    /// Bytes not read yet.
    pub(super) const fn remaining(&self) -> usize {
        self.reader.len()
    }

    /// The next property, or `None` at the end of the list.
    pub(super) fn next(&mut self) -> Result<Option<Property<'a>>, DecodeError> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let id = read_id(&mut self.reader).map_err(in_list)?;
        if !self.allowed.contains(id) {
            return Err(DecodeError::PropertyNotAllowed);
        }
        let bit = 1_u64 << id as u8;
        if self.seen & bit != 0 && !self.repeatable.contains(id) {
            return Err(DecodeError::PropertyRepeated);
        }
        self.seen |= bit;
        Property::read(id, &mut self.reader)
            .map(Some)
            .map_err(in_list)
    }
}

/// Takes a property list, without its length, off a body.
#[inline]
pub(super) fn take_list<'a>(body: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = body.variable()?;
    body.take(length as usize)
}

/// The user properties of a packet, in their order `[MQTT-3.3.2-18]`.
#[derive(Clone, Copy)]
pub struct UserProperties<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// A property list that was checked when it was decoded; other properties stand between.
    List(&'a [u8]),
    Pairs(&'a [(&'a str, &'a str)]),
}

impl<'a> UserProperties<'a> {
    /// No user properties.
    pub const NONE: Self = Self(Source::Pairs(&[]));

    /// User properties to send.
    pub const fn from_pairs(pairs: &'a [(&'a str, &'a str)]) -> Self {
        Self(Source::Pairs(pairs))
    }

    /// `list` has been read to its end without an error.
    pub(super) const fn from_checked_list(list: &'a [u8]) -> Self {
        Self(Source::List(list))
    }

    /// Name and value of each.
    pub const fn iter(&self) -> UserPropertyIter<'a> {
        UserPropertyIter(self.0)
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The value of the first one with this name.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter()
            .find(|(candidate, _)| *candidate == name)
            .map(|(_, value)| value)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.iter()
            .try_for_each(|(name, value)| Property::UserProperty(name, value).write(out))
    }
}

impl Default for UserProperties<'_> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<'a> IntoIterator for UserProperties<'a> {
    type Item = (&'a str, &'a str);
    type IntoIter = UserPropertyIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for UserProperties<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for UserProperties<'_> {}

impl std::fmt::Debug for UserProperties<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator over [`UserProperties`].
#[derive(Clone)]
pub struct UserPropertyIter<'a>(Source<'a>);

impl<'a> Iterator for UserPropertyIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::Pairs(pairs) => {
                let (first, rest) = pairs.split_first()?;
                *pairs = rest;
                Some(*first)
            }
            Source::List(list) => {
                let mut reader = Reader::new(list);
                // The list was checked, so an error does not occur; it would end the iteration.
                while let Ok(property) =
                    read_id(&mut reader).and_then(|id| Property::read(id, &mut reader))
                {
                    if let Property::UserProperty(name, value) = property {
                        *list = reader.take_rest();
                        return Some((name, value));
                    }
                }
                *list = &[];
                None
            }
        }
    }
}
