//! From a frame to a packet, in the server's role.

use super::ack::Ack;
use super::disconnect::{Auth, Disconnect, Sender};
use super::error::DecodeError;
use super::frame::Frame;
use super::publish::{Publish, decode_publish};
use super::subscribe::Subscribe;
use super::types::{PacketType, Version};
use super::unsubscribe::Unsubscribe;

/// A packet that a client sends after its CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    Unsubscribe(Unsubscribe<'a>),
    PingReq,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// Decodes a packet from a client whose CONNECT has been accepted or is being authenticated.
///
/// A second CONNECT `[MQTT-3.1.0-2]` and what only a server sends are protocol errors. Which of these packets may come
/// before the CONNACK is for the session to decide.
pub fn decode<'a>(version: Version, frame: Frame<'a>) -> Result<Packet<'a>, DecodeError> {
    let packet = frame.packet_type().ok_or(DecodeError::PacketTypeReserved)?;
    if packet == PacketType::Publish {
        return decode_publish(version, frame).map(Packet::Publish);
    }
    match packet {
        PacketType::Connect => return Err(DecodeError::SecondConnect),
        PacketType::ConnAck | PacketType::SubAck | PacketType::UnsubAck | PacketType::PingResp => {
            return Err(DecodeError::PacketFromWrongSide);
        }
        PacketType::Auth if !version.is_v5() => return Err(DecodeError::AuthBeforeV5),
        _ => check_flags(version, packet, frame)?,
    }
    Ok(match packet {
        PacketType::PubAck => Packet::PubAck(Ack::read(version, packet, frame)?),
        PacketType::PubRec => Packet::PubRec(Ack::read(version, packet, frame)?),
        PacketType::PubRel => Packet::PubRel(Ack::read(version, packet, frame)?),
        PacketType::PubComp => Packet::PubComp(Ack::read(version, packet, frame)?),
        PacketType::Subscribe => Packet::Subscribe(Subscribe::read(version, frame)?),
        PacketType::Unsubscribe => Packet::Unsubscribe(Unsubscribe::read(version, frame)?),
        PacketType::PingReq => empty(frame).map(|()| Packet::PingReq)?,
        PacketType::Disconnect => {
            Packet::Disconnect(Disconnect::read(version, Sender::Client, frame)?)
        }
        PacketType::Auth => Packet::Auth(Auth::read(Sender::Client, frame)?),
        PacketType::Connect
        | PacketType::ConnAck
        | PacketType::Publish
        | PacketType::SubAck
        | PacketType::UnsubAck
        | PacketType::PingResp => return Err(DecodeError::PacketFromWrongSide),
    })
}

/// The flag bits are what table 2-2 fixes `[MQTT-2.1.3-1]`. 3.1 has a DUP flag in PUBREL, SUBSCRIBE and UNSUBSCRIBE.
pub(super) fn check_flags(
    version: Version,
    packet: PacketType,
    frame: Frame<'_>,
) -> Result<(), DecodeError> {
    let fixed = packet.first_byte() & 0x0F;
    let dup = if version == Version::V31 && fixed != 0 {
        0b1000
    } else {
        0
    };
    if frame.flags() & !dup == fixed {
        Ok(())
    } else {
        Err(DecodeError::HeaderFlags)
    }
}

/// A packet without a body.
pub(super) fn empty(frame: Frame<'_>) -> Result<(), DecodeError> {
    if frame.body.is_empty() {
        Ok(())
    } else {
        Err(DecodeError::BodyTooLong)
    }
}
