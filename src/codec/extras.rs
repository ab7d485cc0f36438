//! Reason string and user properties of answers, which give way when a packet would be larger than its receiver
//! accepts.

use super::error::{DecodeError, EncodeError};
use super::property::{Allowed, Property, PropertyId, PropertyReader, UserProperties};
use super::read::Reader;
use super::types::MAX_PACKET_SIZE;
use super::write;

const ALLOWED: Allowed = Allowed::of(&[PropertyId::ReasonString, PropertyId::UserProperty]);

/// What the receiver of a packet asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Its maximum packet size in bytes `[MQTT-3.1.2-24]`.
    pub max_packet_size: u32,
    /// False if it wants reason strings and user properties on PUBLISH, CONNACK and DISCONNECT only `[MQTT-3.1.2-29]`.
    pub problem_information: bool,
}

impl PeerLimits {
    /// A receiver that asked for nothing.
    pub const NONE: Self = Self {
        max_packet_size: MAX_PACKET_SIZE,
        problem_information: true,
    };
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self::NONE
    }
}

/// What may be left out of a packet.
#[derive(Clone, Copy)]
pub(super) struct Extras<'a> {
    pub(super) reason_string: Option<&'a str>,
    pub(super) users: UserProperties<'a>,
}

impl Extras<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.reason_string.is_none() && self.users.is_empty()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if let Some(text) = self.reason_string {
            Property::ReasonString(text).write(out)?;
        }
        self.users.write(out)
    }
}

/// Writes a packet with as many of its extras as fit: all, then without user properties, then without the reason string
/// `[MQTT-3.4.2-2]` `[MQTT-3.4.2-3]` and the like.
pub(super) fn write_with_extras<'a>(
    out: &mut Vec<u8>,
    first: u8,
    limits: PeerLimits,
    extras: Extras<'a>,
    body: impl Fn(&mut Vec<u8>, Extras<'a>) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let nothing = Extras {
        reason_string: None,
        users: UserProperties::NONE,
    };
    let candidates = [
        extras,
        Extras {
            users: UserProperties::NONE,
            ..extras
        },
    ];
    if limits.problem_information && !extras.is_empty() {
        for candidate in candidates {
            match write::packet(out, first, limits.max_packet_size, |out| {
                body(out, candidate)
            }) {
                Err(EncodeError::TooLarge { .. }) => {}
                result => return result,
            }
        }
    }
    write::packet(out, first, limits.max_packet_size, |out| body(out, nothing))
}

/// Reads reason string and user properties, the only properties of the acknowledgements. A body that ends before the
/// property length has none (§3.4.2.2.1).
pub(super) fn read_extras<'a>(
    body: &mut Reader<'a>,
) -> Result<(Option<&'a str>, UserProperties<'a>), DecodeError> {
    if body.is_empty() {
        return Ok((None, UserProperties::NONE));
    }
    let list = super::property::take_list(body)?;
    let mut reader = PropertyReader::new(list, ALLOWED);
    let mut reason_string = None;
    while let Some(property) = reader.next()? {
        if let Property::ReasonString(text) = property {
            reason_string = Some(text);
        }
    }
    Ok((reason_string, UserProperties::from_checked_list(list)))
}
