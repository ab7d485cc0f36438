//! SUBSCRIBE.
//!
//! A filter that is no string closes the connection; a filter that is a string but no valid topic filter is answered in
//! its place of the SUBACK, so it is handed on with what is wrong with it.

use std::num::NonZeroU32;

use super::check::{self, FilterError, SHARE_PREFIX, TopicFilter};
use super::error::{DecodeError, EncodeError};
use super::frame::Frame;
use super::property::{Allowed, Property, PropertyId, PropertyReader, UserProperties, take_list};
use super::read::Reader;
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
