//! The client's role: what our command line, the benchmark and the tests send and receive.
//!
//! Acknowledgements are written by [`super::encode`] and PUBLISH by [`super::encode_publish`], which are the same in
//! both directions.

use super::ack::Ack;
use super::connack::ConnAck;
use super::connect::Connect;
use super::decode::{check_flags, empty};
use super::disconnect::{Auth, Disconnect, Sender};
use super::error::{DecodeError, EncodeError};
use super::extras::PeerLimits;
use super::frame::Frame;
use super::publish::{self, Publish};
use super::publish_encode::{PublishHeader, TopicAlias};
use super::suback::{SubAck, UnsubAck};
use super::subscribe::Subscribe;
use super::types::{MAX_PACKET_SIZE, PacketType, Version};
use super::unsubscribe::Unsubscribe;

/// A packet that a server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    SubAck(SubAck<'a>),
    UnsubAck(UnsubAck<'a>),
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// Decodes a packet from a server.
pub fn decode<'a>(version: Version, frame: Frame<'a>) -> Result<Packet<'a>, DecodeError> {
    let packet = frame.packet_type().ok_or(DecodeError::PacketTypeReserved)?;
    match packet {
        PacketType::Publish => {
            return publish::decode_from_server(version, frame).map(Packet::Publish);
        }
        PacketType::Auth if !version.is_v5() => return Err(DecodeError::AuthBeforeV5),
        _ => check_flags(version, packet, frame)?,
    }
    Ok(match packet {
        PacketType::ConnAck => Packet::ConnAck(ConnAck::read(version, frame)?),
        PacketType::PubAck => Packet::PubAck(Ack::read(version, packet, frame)?),
        PacketType::PubRec => Packet::PubRec(Ack::read(version, packet, frame)?),
        PacketType::PubRel => Packet::PubRel(Ack::read(version, packet, frame)?),
        PacketType::PubComp => Packet::PubComp(Ack::read(version, packet, frame)?),
        PacketType::SubAck => Packet::SubAck(SubAck::read(version, frame)?),
        PacketType::UnsubAck => Packet::UnsubAck(UnsubAck::read(version, frame)?),
        PacketType::PingResp => empty(frame).map(|()| Packet::PingResp)?,
        PacketType::Disconnect if version.is_v5() => {
            Packet::Disconnect(Disconnect::read(version, Sender::Server, frame)?)
        }
        PacketType::Auth => Packet::Auth(Auth::read(Sender::Server, frame)?),
        PacketType::Connect
        | PacketType::Publish
        | PacketType::Subscribe
        | PacketType::Unsubscribe
        | PacketType::PingReq
        | PacketType::Disconnect => return Err(DecodeError::PacketFromWrongSide),
    })
}

/// CONNECT.
pub fn connect(out: &mut Vec<u8>, packet: &Connect<'_>) -> Result<usize, EncodeError> {
    packet.write(out)
}

/// PUBLISH as it stands, topic alias and message expiry included. A packet without topic needs an alias.
pub fn publish(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Publish<'_>,
) -> Result<usize, EncodeError> {
    let send_topic = !packet.topic.is_empty();
    let delivery = PublishHeader {
        version,
        qos: packet.qos,
        dup: packet.dup,
        retain: packet.retain,
        packet_id: packet.packet_id,
        subscription_ids: &[],
        remaining_expiry: packet.properties.message_expiry(),
        topic_alias: packet
            .properties
            .topic_alias()
            .map(|alias| TopicAlias { alias, send_topic }),
        max_packet_size: MAX_PACKET_SIZE,
    };
    super::encode_publish(
        out,
        packet.topic,
        &packet.properties.forwardable(),
        packet.payload,
        &delivery,
    )
}

/// SUBSCRIBE.
pub fn subscribe(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Subscribe<'_>,
) -> Result<usize, EncodeError> {
    packet.write(out, version)
}

/// UNSUBSCRIBE.
pub fn unsubscribe(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Unsubscribe<'_>,
) -> Result<usize, EncodeError> {
    packet.write(out, version)
}

/// PINGREQ.
pub fn pingreq(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[PacketType::PingReq.first_byte(), 0]);
    2
}

/// DISCONNECT from the client; before 5.0 it carries no reason.
pub fn disconnect(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Disconnect<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, Sender::Client, limits)
}

/// AUTH from the client; [`EncodeError::Version`] before 5.0.
pub fn auth(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Auth<'_>,
    limits: PeerLimits,
) -> Result<usize, EncodeError> {
    packet.write(out, version, Sender::Client, limits)
}
