//! Writes what a server sends. PUBLISH is in [`super::template`].
//!
//! Every function appends one packet to `out` and returns its size in bytes; on an error `out` is as it was before.
//! Reason strings and user properties give way when the packet would be larger than the receiver accepts.

use super::ack::Ack;
use super::connack::ConnAck;
use super::disconnect::{Auth, Disconnect, Sender};
use super::error::EncodeError;
use super::property::{Property, UserProperties};
use super::suback::{SubAck, UnsubAck};
use super::types::{MAX_PACKET_SIZE, PacketType, Version};
use super::write;

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

/// CONNACK. Before 5.0 a reason without a return code is [`EncodeError::ReasonCodeNotAllowed`]: the connection is then
/// closed without CONNACK `[MQTT311-3.2.2-6]`.
pub fn connack(
    out: &mut Vec<u8>,
    version: Version,
    packet: &ConnAck<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, limits)
}

/// PUBACK.
pub fn puback(
    out: &mut Vec<u8>,
    version: Version,
    ack: &Ack<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    ack.write(out, version, PacketType::PubAck, limits)
}

/// PUBREC.
pub fn pubrec(
    out: &mut Vec<u8>,
    version: Version,
    ack: &Ack<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    ack.write(out, version, PacketType::PubRec, limits)
}

/// PUBREL.
pub fn pubrel(
    out: &mut Vec<u8>,
    version: Version,
    ack: &Ack<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    ack.write(out, version, PacketType::PubRel, limits)
}

/// PUBCOMP.
pub fn pubcomp(
    out: &mut Vec<u8>,
    version: Version,
    ack: &Ack<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    ack.write(out, version, PacketType::PubComp, limits)
}

/// SUBACK. Before 5.0 every failure is 0x80 `[MQTT311-3.9.3-2]`.
pub fn suback(
    out: &mut Vec<u8>,
    version: Version,
    packet: &SubAck<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, limits)
}

/// UNSUBACK.
pub fn unsuback(
    out: &mut Vec<u8>,
    version: Version,
    packet: &UnsubAck<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, limits)
}

/// PINGRESP.
pub fn pingresp(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[PacketType::PingResp.first_byte(), 0]);
    2
}

/// DISCONNECT from the server; [`EncodeError::Version`] before 5.0, which has none: the connection is just closed.
pub fn disconnect(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Disconnect<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, Sender::Server, limits)
}

/// AUTH from the server; [`EncodeError::Version`] before 5.0.
pub fn auth(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Auth<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, Sender::Server, limits)
}
