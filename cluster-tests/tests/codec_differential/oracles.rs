//! The decoders ours is compared with, each behind the same question: is this packet legal?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::BytesMut;
use mqtt_protocol_core::mqtt::packet::{v3_1_1, v5_0};
use quorumq::codec::{Frame, PacketType, Version};
use rumqttd::protocol::{Protocol, v4::V4, v5::V5};
use tokio_util::codec::Decoder;

/// What a PUBLISH says, in terms all decoders share.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    pub flags: (bool, u8, bool),
    pub topic: String,
    pub packet_id: Option<u16>,
    pub payload: Vec<u8>,
    pub users: Vec<(String, String)>,
}

/// A verdict; an accepted PUBLISH says what was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted(Option<Message>),
    Refused,
    Panicked,
}

/// rmqtt-codec 0.3.1.
pub fn rmqtt(version: Version, bytes: &[u8]) -> Verdict {
    let mut buffer = BytesMut::from(bytes);
    if version == Version::V5 {
        return match rmqtt_codec::v5::Codec::new(0, 0).decode(&mut buffer) {
            Ok(Some((rmqtt_codec::v5::Packet::Publish(publish), _))) => {
                Verdict::Accepted(Some(rmqtt_message(&publish)))
            }
            Ok(Some(_)) => Verdict::Accepted(None),
            _ => Verdict::Refused,
        };
    }
    match rmqtt_codec::v3::Codec::new(0).decode(&mut buffer) {
        Ok(Some((rmqtt_codec::v3::Packet::Publish(publish), _))) => {
            Verdict::Accepted(Some(rmqtt_message(&publish)))
        }
        Ok(Some(_)) => Verdict::Accepted(None),
        _ => Verdict::Refused,
    }
}

fn rmqtt_message(publish: &rmqtt_codec::types::Publish) -> Message {
    let users = publish
        .properties
        .iter()
        .flat_map(|properties| &properties.user_properties);
    Message {
        flags: (publish.dup, publish.qos as u8, publish.retain),
        topic: publish.topic.to_string(),
        packet_id: publish.packet_id.map(u16::from),
        payload: publish.payload.to_vec(),
        users: users
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
    }
}

/// mqtt-protocol-core 0.7.9. Its parsers see the body only: the header's flags are not compared.
pub fn protocol_core(version: Version, frame: Frame<'_>) -> Verdict {
    let flags = frame.first & 0x0F;
    macro_rules! parse {
        ($packet:ty) => {
            match <$packet>::parse(frame.body) {
                Ok((_, length)) if length == frame.body.len() => Verdict::Accepted(None),
                _ => Verdict::Refused,
            }
        };
    }
    macro_rules! publish {
        ($packet:ty, $users:expr) => {
            match <$packet>::parse(flags, Arc::from(frame.body)) {
                Ok((publish, _)) => Verdict::Accepted(Some(Message {
                    flags: (publish.dup(), publish.qos() as u8, publish.retain()),
                    topic: publish.topic_name().to_owned(),
                    packet_id: publish.packet_id(),
                    payload: publish.payload().as_slice().to_vec(),
                    users: $users(&publish),
                })),
                Err(_) => Verdict::Refused,
            }
        };
    }
    let kind = frame.packet_type().expect("checked by the caller");
    match (version, kind) {
        (Version::V5, PacketType::Connect) => parse!(v5_0::Connect),
        (Version::V5, PacketType::Publish) => publish!(v5_0::Publish, core_users),
        (Version::V5, PacketType::PubAck) => parse!(v5_0::Puback),
        (Version::V5, PacketType::PubRec) => parse!(v5_0::Pubrec),
        (Version::V5, PacketType::PubRel) => parse!(v5_0::Pubrel),
        (Version::V5, PacketType::PubComp) => parse!(v5_0::Pubcomp),
        (Version::V5, PacketType::Subscribe) => parse!(v5_0::Subscribe),
        (Version::V5, PacketType::Unsubscribe) => parse!(v5_0::Unsubscribe),
        (Version::V5, PacketType::PingReq) => parse!(v5_0::Pingreq),
        (Version::V5, PacketType::Disconnect) => parse!(v5_0::Disconnect),
        (Version::V5, PacketType::Auth) => parse!(v5_0::Auth),
        (_, PacketType::Connect) => parse!(v3_1_1::Connect),
        (_, PacketType::Publish) => publish!(v3_1_1::Publish, |_: &v3_1_1::Publish| Vec::new()),
        (_, PacketType::PubAck) => parse!(v3_1_1::Puback),
        (_, PacketType::PubRec) => parse!(v3_1_1::Pubrec),
        (_, PacketType::PubRel) => parse!(v3_1_1::Pubrel),
        (_, PacketType::PubComp) => parse!(v3_1_1::Pubcomp),
        (_, PacketType::Subscribe) => parse!(v3_1_1::Subscribe),
        (_, PacketType::Unsubscribe) => parse!(v3_1_1::Unsubscribe),
        (_, PacketType::PingReq) => parse!(v3_1_1::Pingreq),
        (_, PacketType::Disconnect) => parse!(v3_1_1::Disconnect),
        _ => Verdict::Refused,
    }
}

fn core_users(publish: &v5_0::Publish) -> Vec<(String, String)> {
    use mqtt_protocol_core::mqtt::packet::Property;
    let user = |property: &Property| match property {
        Property::UserProperty(user) => Some((user.key().to_owned(), user.val().to_owned())),
        _ => None,
    };
    publish.props().iter().filter_map(user).collect()
}

/// rumqttd 0.20.0, which may panic.
pub fn rumqttd(version: Version, bytes: &[u8]) -> Verdict {
    let read = || {
        let mut buffer = BytesMut::from(bytes);
        let result = match version {
            Version::V5 => V5.read_mut(&mut buffer, 1 << 20),
            _ => V4.read_mut(&mut buffer, 1 << 20),
        };
        result.is_ok()
    };
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(true) => Verdict::Accepted(None),
        Ok(false) => Verdict::Refused,
        Err(_) => Verdict::Panicked,
    }
}
