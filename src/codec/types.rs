//! The small values that every packet shares: version, QoS, packet type, subscription options.

use std::num::NonZeroU16;

/// A packet identifier; zero is not one `[MQTT-2.2.1-3]`.
pub type PacketId = NonZeroU16;

/// The largest number a variable byte integer holds: 268,435,455 (MQTT 5.0 §1.5.5). A packet's remaining length is one.
pub const MAX_REMAINING_LENGTH: u32 = 268_435_455;

/// The largest packet the protocol can express, in bytes with its fixed header. As a limit it means "no limit".
pub const MAX_PACKET_SIZE: u32 = MAX_REMAINING_LENGTH + 5;

/// The largest length of a string or of binary data, in bytes (MQTT 5.0 §1.5.4, §1.5.6).
pub const MAX_FIELD_LENGTH: usize = 65_535;

/// The protocol version a client named in its CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// MQTT 3.1: protocol name `MQIsdp`, level 3.
    V31,
    /// MQTT 3.1.1: protocol name `MQTT`, level 4.
    V311,
    /// MQTT 5.0: protocol name `MQTT`, level 5.
    V5,
}

impl Version {
    /// True for MQTT 5.0, whose packets carry properties and reason codes.
    pub const fn is_v5(self) -> bool {
        matches!(self, Self::V5)
    }

    /// The protocol level byte of CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Self::V31 => 3,
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }

    /// The protocol name of CONNECT.
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::V31 => "MQIsdp",
            Self::V311 | Self::V5 => "MQTT",
        }
    }

    /// The version as it is usually written: `3.1`, `3.1.1`, `5.0`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V31 => "3.1",
            Self::V311 => "3.1.1",
            Self::V5 => "5.0",
        }
    }
}

/// Quality of service of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(clippy::enum_variant_names, reason = "the standard's names")]
pub enum QoS {
    /// At most once: no packet id, no acknowledgement.
    #[default]
    AtMostOnce = 0,
    /// At least once: PUBACK.
    AtLeastOnce = 1,
    /// Exactly once: PUBREC, PUBREL, PUBCOMP.
    ExactlyOnce = 2,
}

impl QoS {
    /// The QoS that was stored under this number; what is above 2 counts as 2.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::AtMostOnce,
            1 => Self::AtLeastOnce,
            _ => Self::ExactlyOnce,
        }
    }

    /// The QoS with this number; `None` for 3, which no packet may carry `[MQTT-3.3.1-4]`, and above.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// The control packet types, the upper four bits of the first byte (MQTT 5.0 §2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// The type in the upper four bits of a packet's first byte; `None` for the reserved 0.
    pub const fn from_first_byte(first: u8) -> Option<Self> {
        Some(match first >> 4 {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return None,
        })
    }

    /// The first byte of a packet of this type with the flag bits the standard fixes (MQTT 5.0 table 2-2). For PUBLISH
    /// the flags are zero and to be added.
    pub const fn first_byte(self) -> u8 {
        let flags = match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        };
        (self as u8) << 4 | flags
    }
}

/// When retained messages are sent at a subscribe (MQTT 5.0 §3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    /// At every subscribe `[MQTT-3.3.1-9]`; what 3.1 and 3.1.1 always do.
    #[default]
    SendAtSubscribe = 0,
    /// Only if the subscription is new `[MQTT-3.3.1-10]`.
    SendIfNew = 1,
    /// Never at subscribe `[MQTT-3.3.1-11]`.
    DoNotSend = 2,
}

/// The options byte of one topic filter in SUBSCRIBE. 3.1 and 3.1.1 have the QoS only; the rest is false and 0 there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubscriptionOptions {
    /// The highest QoS the client wants.
    pub qos: QoS,
    /// The client's own messages do not come back to it `[MQTT-3.8.3-3]`.
    pub no_local: bool,
    /// Forward with the RETAIN flag as it was published `[MQTT-3.3.1-13]`.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

impl SubscriptionOptions {
    /// The byte as MQTT 5.0 writes it (§3.8.3.1).
    pub const fn to_bits(self) -> u8 {
        self.qos as u8
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | (self.retain_handling as u8) << 4
    }
}
