//! SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.
//!
//! A filter that is no string closes the connection; a filter that is a string but no valid topic filter is answered in
//! its place of the SUBACK, so it is handed on with what is wrong with it.

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::ack::read_extras;
use super::check::{self, FilterError, SHARE_PREFIX, TopicFilter};
use super::encode::{Extras, PeerLimits, write_with_extras};
use super::error::{DecodeError, EncodeError};
use super::frame::Frame;
use super::property::{Allowed, Property, PropertyId, PropertyReader, UserProperties, take_list};
use super::read::Reader;
use super::reason::ReasonCode;
use super::types::{
    MAX_PACKET_SIZE, PacketId, PacketType, QoS, RetainHandling, SubscriptionOptions, Version,
};
use super::write;

/// A SUBSCRIBE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Packet identifier.
    pub packet_id: PacketId,
    /// Goes with every filter of the packet (MQTT 5.0 §3.8.2.1.2).
    pub subscription_id: Option<NonZeroU32>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
    /// At least one filter `[MQTT-3.8.3-2]`.
    pub filters: Filters<'a>,
}

/// One topic filter of a SUBSCRIBE with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterRequest<'a> {
    /// The filter as sent: a string, but maybe not a valid filter.
    pub filter: &'a str,
    /// Its options.
    pub options: SubscriptionOptions,
}

impl<'a> FilterRequest<'a> {
    /// The filter taken apart, or why the SUBACK carries 0x8F (0x80 before 5.0) in its place.
    pub fn topic_filter(&self) -> Result<TopicFilter<'a>, FilterError> {
        check::topic_filter(self.filter)
    }
}

/// The filters of a SUBSCRIBE, in order.
#[derive(Clone, Copy)]
pub struct Filters<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// Payload of a SUBSCRIBE, checked when it was decoded.
    Payload {
        bytes: &'a [u8],
        version: Version,
    },
    Slice(&'a [FilterRequest<'a>]),
}

impl<'a> Filters<'a> {
    /// Filters to send.
    pub const fn from_slice(filters: &'a [FilterRequest<'a>]) -> Self {
        Self(Source::Slice(filters))
    }

    /// Each filter with its options.
    pub fn iter(&self) -> impl Iterator<Item = FilterRequest<'a>> + Clone + 'a {
        let (mut reader, version, slice) = match self.0 {
            Source::Payload { bytes, version } => (Reader::new(bytes), version, [].as_slice()),
            Source::Slice(slice) => (Reader::new(&[]), Version::V5, slice),
        };
        let mut slice = slice.iter();
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return slice.next().copied();
            }
            // The payload was checked, so an error does not occur; it would end the iteration.
            read_request(&mut reader, version).ok()
        })
    }
}

impl PartialEq for Filters<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Filters<'_> {}

impl std::fmt::Debug for Filters<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn read_request<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<FilterRequest<'a>, DecodeError> {
    let filter = reader.string()?;
    let options = read_options(reader.u8()?, version)?;
    Ok(FilterRequest { filter, options })
}

fn read_options(bits: u8, version: Version) -> Result<SubscriptionOptions, DecodeError> {
    let reserved = if version.is_v5() {
        0b1100_0000
    } else {
        0b1111_1100
    };
    if bits & reserved != 0 {
        return Err(DecodeError::SubscriptionOptionsReserved);
    }
    Ok(SubscriptionOptions {
        qos: QoS::from_bits(bits & 0b11).ok_or(DecodeError::SubscriptionQosInvalid)?,
        no_local: bits & 1 << 2 != 0,
        retain_as_published: bits & 1 << 3 != 0,
        retain_handling: match bits >> 4 {
            0 => RetainHandling::SendAtSubscribe,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::RetainHandlingInvalid),
        },
    })
}

impl<'a> Subscribe<'a> {
    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        const ALLOWED: Allowed =
            Allowed::of(&[PropertyId::SubscriptionIdentifier, PropertyId::UserProperty]);
        let mut body = Reader::new(frame.body);
        let packet_id = body.packet_id()?;
        let mut subscription_id = None;
        let mut user_properties = UserProperties::NONE;
        if version.is_v5() {
            let list = take_list(&mut body)?;
            let mut reader = PropertyReader::new(list, ALLOWED);
            while let Some(property) = reader.next()? {
                if let Property::SubscriptionIdentifier(id) = property {
                    subscription_id = Some(id);
                }
            }
            user_properties = UserProperties::from_checked_list(list);
        }
        let bytes = body.take_rest();
        check_requests(bytes, version)?;
        Ok(Self {
            packet_id,
            subscription_id,
            user_properties,
            filters: Filters(Source::Payload { bytes, version }),
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, version: Version) -> Result<usize, EncodeError> {
        write::packet(
            out,
            PacketType::Subscribe.first_byte(),
            MAX_PACKET_SIZE,
            |out| {
                out.extend_from_slice(&self.packet_id.get().to_be_bytes());
                if version.is_v5() {
                    write::properties(out, |out| {
                        if let Some(id) = self.subscription_id {
                            Property::SubscriptionIdentifier(id).write(out)?;
                        }
                        self.user_properties.write(out)
                    })?;
                }
                for FilterRequest { filter, options } in self.filters.iter() {
                    write::field(out, filter.as_bytes())?;
                    out.push(if version.is_v5() {
                        options.to_bits()
                    } else {
                        options.qos as u8
                    });
                }
                Ok(())
            },
        )
    }
}

fn check_requests(bytes: &[u8], version: Version) -> Result<(), DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.is_empty() {
        return Err(DecodeError::NoTopicFilter);
    }
    while !reader.is_empty() {
        let FilterRequest { filter, options } = read_request(&mut reader, version)?;
        if options.no_local && filter.starts_with(SHARE_PREFIX) {
            return Err(DecodeError::NoLocalOnShared);
        }
    }
    Ok(())
}

/// An UNSUBSCRIBE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// Packet identifier.
    pub packet_id: PacketId,
    /// User properties.
    pub user_properties: UserProperties<'a>,
    /// At least one filter `[MQTT-3.10.3-2]`.
    pub filters: UnsubscribeFilters<'a>,
}

/// The filters of an UNSUBSCRIBE, in order. Each is a string, but maybe not a valid filter.
#[derive(Clone, Copy)]
pub struct UnsubscribeFilters<'a>(NameSource<'a>);

#[derive(Clone, Copy)]
enum NameSource<'a> {
    /// Payload of an UNSUBSCRIBE, checked when it was decoded.
    Payload(&'a [u8]),
    Slice(&'a [&'a str]),
}

impl<'a> UnsubscribeFilters<'a> {
    /// Filters to send.
    pub const fn from_slice(filters: &'a [&'a str]) -> Self {
        Self(NameSource::Slice(filters))
    }

    /// Each filter.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + 'a {
        let (mut reader, slice) = match self.0 {
            NameSource::Payload(bytes) => (Reader::new(bytes), [].as_slice()),
            NameSource::Slice(slice) => (Reader::new(&[]), slice),
        };
        let mut slice = slice.iter();
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return slice.next().copied();
            }
            reader.string().ok()
        })
    }
}

impl PartialEq for UnsubscribeFilters<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for UnsubscribeFilters<'_> {}

impl std::fmt::Debug for UnsubscribeFilters<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Unsubscribe<'a> {
    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        const ALLOWED: Allowed = Allowed::of(&[PropertyId::UserProperty]);
        let mut body = Reader::new(frame.body);
        let packet_id = body.packet_id()?;
        let mut user_properties = UserProperties::NONE;
        if version.is_v5() {
            let list = take_list(&mut body)?;
            let mut reader = PropertyReader::new(list, ALLOWED);
            while reader.next()?.is_some() {}
            user_properties = UserProperties::from_checked_list(list);
        }
        if body.is_empty() {
            return Err(DecodeError::NoTopicFilter);
        }
        let bytes = body.take_rest();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            reader.string()?;
        }
        Ok(Self {
            packet_id,
            user_properties,
            filters: UnsubscribeFilters(NameSource::Payload(bytes)),
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, version: Version) -> Result<usize, EncodeError> {
        write::packet(
            out,
            PacketType::Unsubscribe.first_byte(),
            MAX_PACKET_SIZE,
            |out| {
                out.extend_from_slice(&self.packet_id.get().to_be_bytes());
                if version.is_v5() {
                    write::properties(out, |out| self.user_properties.write(out))?;
                }
                self.filters
                    .iter()
                    .try_for_each(|filter| write::field(out, filter.as_bytes()))
            },
        )
    }
}

/// A SUBACK packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// The identifier of the SUBSCRIBE `[MQTT-3.8.4-2]`.
    pub packet_id: PacketId,
    /// One code per filter, in order `[MQTT-3.8.4-6]` `[MQTT-3.9.3-1]`.
    pub reasons: Cow<'a, [ReasonCode]>,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// An UNSUBACK packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    /// The identifier of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// One code per filter, in order `[MQTT-3.11.3-1]` `[MQTT-3.11.3-2]`; none before MQTT 5.0.
    pub reasons: Cow<'a, [ReasonCode]>,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// `[MQTT-3.9.3-2]`
const fn is_suback_code(code: ReasonCode) -> bool {
    matches!(
        code as u8,
        0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2
    )
}

/// `[MQTT-3.11.3-2]`
const fn is_unsuback_code(code: ReasonCode) -> bool {
    matches!(code as u8, 0 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91)
}

fn check_codes(
    codes: &[ReasonCode],
    allowed: impl Fn(ReasonCode) -> bool,
) -> Result<(), EncodeError> {
    match codes.iter().find(|code| !allowed(**code)) {
        Some(code) => Err(EncodeError::ReasonCodeNotAllowed(*code)),
        None => Ok(()),
    }
}

fn read_codes<'a>(
    bytes: &[u8],
    allowed: impl Fn(ReasonCode) -> bool,
) -> Result<Cow<'a, [ReasonCode]>, DecodeError> {
    bytes
        .iter()
        .map(|byte| {
            ReasonCode::from_u8(*byte)
                .filter(|code| allowed(*code))
                .ok_or(DecodeError::ReasonCodeNotAllowed)
        })
        .collect()
}

impl<'a> SubAck<'a> {
    /// An acknowledgement with nothing but codes.
    pub const fn new(packet_id: PacketId, reasons: &'a [ReasonCode]) -> Self {
        Self {
            packet_id,
            reasons: Cow::Borrowed(reasons),
            reason_string: None,
            user_properties: UserProperties::NONE,
        }
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        check_codes(&self.reasons, is_suback_code)?;
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        write_with_extras(
            out,
            PacketType::SubAck.first_byte(),
            limits,
            extras,
            |out, extras| {
                out.extend_from_slice(&self.packet_id.get().to_be_bytes());
                if version.is_v5() {
                    write::properties(out, |out| extras.write(out))?;
                    out.extend(self.reasons.iter().map(|code| *code as u8));
                } else {
                    out.extend(self.reasons.iter().map(|code| code.suback_v3()));
                }
                Ok(())
            },
        )
    }

    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        let mut body = Reader::new(frame.body);
        let mut suback = Self::new(body.packet_id()?, &[]);
        if version.is_v5() {
            (suback.reason_string, suback.user_properties) = read_extras(&mut body)?;
        }
        let allowed = |code: ReasonCode| {
            if version.is_v5() {
                is_suback_code(code)
            } else {
                matches!(code as u8, 0..=2 | 0x80)
            }
        };
        suback.reasons = read_codes(body.take_rest(), allowed)?;
        if suback.reasons.is_empty() {
            return Err(DecodeError::BodyTooShort);
        }
        Ok(suback)
    }
}

impl<'a> UnsubAck<'a> {
    /// An acknowledgement with nothing but codes, which are not sent before MQTT 5.0.
    pub const fn new(packet_id: PacketId, reasons: &'a [ReasonCode]) -> Self {
        Self {
            packet_id,
            reasons: Cow::Borrowed(reasons),
            reason_string: None,
            user_properties: UserProperties::NONE,
        }
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        check_codes(&self.reasons, is_unsuback_code)?;
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        write_with_extras(
            out,
            PacketType::UnsubAck.first_byte(),
            limits,
            extras,
            |out, extras| {
                out.extend_from_slice(&self.packet_id.get().to_be_bytes());
                if version.is_v5() {
                    write::properties(out, |out| extras.write(out))?;
                    out.extend(self.reasons.iter().map(|code| *code as u8));
                }
                Ok(())
            },
        )
    }

    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        let mut body = Reader::new(frame.body);
        let mut unsuback = Self::new(body.packet_id()?, &[]);
        if version.is_v5() {
            (unsuback.reason_string, unsuback.user_properties) = read_extras(&mut body)?;
            unsuback.reasons = read_codes(body.take_rest(), is_unsuback_code)?;
            if unsuback.reasons.is_empty() {
                return Err(DecodeError::BodyTooShort);
            }
        }
        body.finish()?;
        Ok(unsuback)
    }
}
