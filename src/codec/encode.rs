//! Writes what a server sends. PUBLISH is in [`super::publish_encode`].
//!
//! Every function appends one packet to `out` and returns its size in bytes; on an error `out` is as it was before.
//! Reason strings and user properties give way when the packet would be larger than the receiver accepts.

use super::ack::Ack;
use super::connack::ConnAck;
use super::disconnect::{Auth, Disconnect, Sender};
use super::error::EncodeError;
use super::extras::PeerLimits;
use super::suback::{SubAck, UnsubAck};
use super::types::{PacketType, Version};

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
