//! UNSUBSCRIBE. As in SUBSCRIBE, a filter that is a string but no valid topic filter is answered, not a reason to
//! close.

use super::error::{DecodeError, EncodeError};
use super::frame::Frame;
use super::property::{Allowed, PropertyId, PropertyReader, UserProperties, take_list};
use super::read::Reader;
use super::types::{MAX_PACKET_SIZE, PacketId, PacketType, Version};
use super::write;

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
pub struct UnsubscribeFilters<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// Payload of an UNSUBSCRIBE, checked when it was decoded.
    Payload(&'a [u8]),
    Slice(&'a [&'a str]),
}

impl<'a> UnsubscribeFilters<'a> {
    /// Filters to send.
    pub const fn from_slice(filters: &'a [&'a str]) -> Self {
        Self(Source::Slice(filters))
    }

    /// Each filter.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + 'a {
        let (mut reader, slice) = match self.0 {
            Source::Payload(bytes) => (Reader::new(bytes), [].as_slice()),
            Source::Slice(slice) => (Reader::new(&[]), slice),
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
            filters: UnsubscribeFilters(Source::Payload(bytes)),
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
