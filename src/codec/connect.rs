//! CONNECT, which also says what version the rest of the connection speaks: one port takes all of them.

use std::num::{NonZeroU16, NonZeroU32};

use super::check;
use super::error::{DecodeError, EncodeError};
use super::frame::Frame;
use super::property::{Allowed, Property, PropertyId, PropertyReader, UserProperties, take_list};
use super::publish::PublishProperties;
use super::read::Reader;
use super::types::{MAX_PACKET_SIZE, PacketType, QoS, Version};
use super::write;

/// A CONNECT packet. Properties that 3.1 and 3.1.1 lack have the value MQTT 5.0 gives to their absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// Protocol version.
    pub version: Version,
    /// Clean Start; Clean Session before 5.0.
    pub clean_start: bool,
    /// Seconds; 0 turns the keep-alive off.
    pub keep_alive: u16,
    /// Client identifier. Empty asks for one to be assigned `[MQTT-3.1.3-6]`; never empty without clean session before
    /// 5.0, and never in 3.1.
    pub client_id: &'a str,
    /// Will message.
    pub will: Option<Will<'a>>,
    /// User name.
    pub username: Option<&'a str>,
    /// Password: binary data.
    pub password: Option<&'a [u8]>,
    /// Session expiry interval in seconds, if sent; absent is 0 in 5.0. `u32::MAX` never expires.
    pub session_expiry: Option<u32>,
    /// How many QoS 1 and 2 messages the client takes unacknowledged; absent is 65,535 `[MQTT-3.3.4-9]`.
    pub receive_maximum: Option<NonZeroU16>,
    /// The largest packet the client takes, in bytes; absent is no limit `[MQTT-3.1.2-24]`.
    pub maximum_packet_size: Option<NonZeroU32>,
    /// The highest topic alias the client takes; 0 is none `[MQTT-3.1.2-26]` `[MQTT-3.1.2-27]`.
    pub topic_alias_maximum: u16,
    /// The client wants Response Information in CONNACK `[MQTT-3.1.2-28]`.
    pub request_response_information: bool,
    /// Reason strings and user properties are wanted on every packet `[MQTT-3.1.2-29]`.
    pub request_problem_information: bool,
    /// Authentication method of extended authentication.
    pub authentication_method: Option<&'a str>,
    /// Authentication data; only with a method.
    pub authentication_data: Option<&'a [u8]>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// The will message of a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// QoS of the will.
    pub qos: QoS,
    /// Published as a retained message `[MQTT-3.1.2-15]`.
    pub retain: bool,
    /// A valid topic name.
    pub topic: &'a str,
    /// Binary data.
    pub payload: &'a [u8],
    /// Will delay interval in seconds.
    pub delay: u32,
    /// The properties the will is published with.
    pub properties: PublishProperties<'a>,
}

const ALLOWED: Allowed = Allowed::of(&[
    PropertyId::SessionExpiryInterval,
    PropertyId::AuthenticationMethod,
    PropertyId::AuthenticationData,
    PropertyId::RequestProblemInformation,
    PropertyId::RequestResponseInformation,
    PropertyId::ReceiveMaximum,
    PropertyId::TopicAliasMaximum,
    PropertyId::UserProperty,
    PropertyId::MaximumPacketSize,
]);

const CLEAN_START: u8 = 1 << 1;
const WILL: u8 = 1 << 2;
const WILL_RETAIN: u8 = 1 << 5;
const PASSWORD: u8 = 1 << 6;
const USER_NAME: u8 = 1 << 7;

/// Bridges of some servers set this bit of the level.
const BRIDGE: u8 = 0x80;

/// The version in whose form a CONNECT is refused: the one it asks for, 5.0 if it asks for a later one
/// `[MQTT-3.1.2-2]`, and `None` if it is neither. The rest of the packet need not be well-formed.
pub fn sniff_version(frame: Frame<'_>) -> Option<Version> {
    let mut body = Reader::new(frame.body);
    let (name, level) = (body.binary().ok()?, body.u8().ok()?);
    match (name, level & !BRIDGE) {
        (b"MQTT", 5..) => Some(Version::V5),
        (b"MQTT", 4) => Some(Version::V311),
        (b"MQIsdp", 3) => Some(Version::V31),
        _ => None,
    }
}

/// Protocol name and level `[MQTT-3.1.2-1]` `[MQTT-3.1.2-2]`.
fn read_version(body: &mut Reader<'_>) -> Result<Version, DecodeError> {
    match (body.binary()?, body.u8()?) {
        (b"MQTT", 5) => Ok(Version::V5),
        (b"MQTT", 4) => Ok(Version::V311),
        (b"MQIsdp", 3) => Ok(Version::V31),
        (b"MQTT" | b"MQIsdp", _) => Err(DecodeError::ProtocolLevel),
        _ => Err(DecodeError::ProtocolName),
    }
}

/// Decodes the first packet of a connection.
pub fn decode_connect(frame: Frame<'_>) -> Result<Connect<'_>, DecodeError> {
    if frame.packet_type() != Some(PacketType::Connect) {
        return Err(DecodeError::FirstPacketNotConnect);
    }
    if frame.flags() != 0 {
        return Err(DecodeError::HeaderFlags);
    }
    let mut body = Reader::new(frame.body);
    let version = read_version(&mut body)?;
    let flags = body.u8()?;
    check_flags(version, flags)?;
    let keep_alive = body.u16()?;
    let mut connect = Connect {
        keep_alive,
        clean_start: flags & CLEAN_START != 0,
        ..Connect::new(version, "")
    };
    if version.is_v5() {
        connect.read_properties(&mut body)?;
    }
    connect.client_id = body.string()?;
    if connect.client_id.is_empty()
        && (version == Version::V31 || version == Version::V311 && !connect.clean_start)
    {
        return Err(DecodeError::ClientIdMissing);
    }
    if flags & WILL != 0 {
        connect.will = Some(Will::read(&mut body, version, flags)?);
    }
    // 3.1 §3.1: for the sake of still older clients the remaining length takes precedence over these two flags.
    let absent = |body: &Reader<'_>| version == Version::V31 && body.is_empty();
    if flags & USER_NAME != 0 && !absent(&body) {
        connect.username = Some(body.string()?);
    }
    if flags & PASSWORD != 0 && !absent(&body) {
        connect.password = Some(body.binary()?);
    }
    body.finish()?;
    Ok(connect)
}

fn check_flags(version: Version, flags: u8) -> Result<(), DecodeError> {
    if flags & 1 != 0 {
        return Err(DecodeError::ConnectFlagReserved);
    }
    let will_qos = flags >> 3 & 0b11;
    if flags & WILL == 0 && (will_qos != 0 || flags & WILL_RETAIN != 0) {
        return Err(DecodeError::WillFlagsWithoutWill);
    }
    if will_qos == 3 {
        return Err(DecodeError::WillQosInvalid);
    }
    if !version.is_v5() && flags & PASSWORD != 0 && flags & USER_NAME == 0 {
        return Err(DecodeError::PasswordWithoutUserName);
    }
    Ok(())
}

impl<'a> Connect<'a> {
    /// A CONNECT with clean start, no keep-alive and nothing optional.
    pub const fn new(version: Version, client_id: &'a str) -> Self {
        Self {
            version,
            clean_start: true,
            keep_alive: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            session_expiry: None,
            receive_maximum: None,
            maximum_packet_size: None,
            topic_alias_maximum: 0,
            request_response_information: false,
            request_problem_information: true,
            authentication_method: None,
            authentication_data: None,
            user_properties: UserProperties::NONE,
        }
    }

    fn read_properties(&mut self, body: &mut Reader<'a>) -> Result<(), DecodeError> {
        let list = take_list(body)?;
        let mut reader = PropertyReader::new(list, ALLOWED);
        while let Some(property) = reader.next()? {
            match property {
                Property::SessionExpiryInterval(seconds) => self.session_expiry = Some(seconds),
                Property::ReceiveMaximum(count) => self.receive_maximum = Some(count),
                Property::MaximumPacketSize(bytes) => self.maximum_packet_size = Some(bytes),
                Property::TopicAliasMaximum(alias) => self.topic_alias_maximum = alias,
                Property::RequestResponseInformation(wanted) => {
                    self.request_response_information = wanted
                }
                Property::RequestProblemInformation(wanted) => {
                    self.request_problem_information = wanted
                }
                Property::AuthenticationMethod(method) => self.authentication_method = Some(method),
                Property::AuthenticationData(data) => self.authentication_data = Some(data),
                _ => {}
            }
        }
        if self.authentication_data.is_some() && self.authentication_method.is_none() {
            return Err(DecodeError::AuthenticationDataWithoutMethod);
        }
        self.user_properties = UserProperties::from_checked_list(list);
        Ok(())
    }

    fn flags(&self) -> u8 {
        let mut flags = 0;
        if self.clean_start {
            flags |= CLEAN_START;
        }
        if let Some(will) = &self.will {
            flags |= WILL | (will.qos as u8) << 3;
            if will.retain {
                flags |= WILL_RETAIN;
            }
        }
        if self.username.is_some() {
            flags |= USER_NAME;
        }
        if self.password.is_some() {
            flags |= PASSWORD;
        }
        flags
    }

    /// Writes the packet `[MQTT-3.1.3-1]`.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<usize, EncodeError> {
        write::packet(
            out,
            PacketType::Connect.first_byte(),
            MAX_PACKET_SIZE,
            |out| {
                write::field(out, self.version.protocol_name().as_bytes())?;
                out.extend_from_slice(&[self.version.level(), self.flags()]);
                out.extend_from_slice(&self.keep_alive.to_be_bytes());
                if self.version.is_v5() {
                    write::properties(out, |out| self.write_properties(out))?;
                }
                write::field(out, self.client_id.as_bytes())?;
                if let Some(will) = &self.will {
                    will.write(out, self.version)?;
                }
                if let Some(username) = self.username {
                    write::field(out, username.as_bytes())?;
                }
                if let Some(password) = self.password {
                    write::field(out, password)?;
                }
                Ok(())
            },
        )
    }

    fn write_properties(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let optional = [
            self.session_expiry.map(Property::SessionExpiryInterval),
            self.receive_maximum.map(Property::ReceiveMaximum),
            self.maximum_packet_size.map(Property::MaximumPacketSize),
            (self.topic_alias_maximum != 0)
                .then_some(Property::TopicAliasMaximum(self.topic_alias_maximum)),
            self.request_response_information
                .then_some(Property::RequestResponseInformation(true)),
            (!self.request_problem_information)
                .then_some(Property::RequestProblemInformation(false)),
            self.authentication_method
                .map(Property::AuthenticationMethod),
            self.authentication_data.map(Property::AuthenticationData),
        ];
        optional
            .iter()
            .flatten()
            .try_for_each(|property| property.write(out))?;
        self.user_properties.write(out)
    }
}

impl<'a> Will<'a> {
    fn read(body: &mut Reader<'a>, version: Version, flags: u8) -> Result<Self, DecodeError> {
        let properties = if version.is_v5() {
            PublishProperties::parse_will(take_list(body)?)?
        } else {
            PublishProperties::EMPTY
        };
        let topic = body.string()?;
        if !check::is_topic_name(topic) {
            return Err(DecodeError::WillTopicInvalid);
        }
        Ok(Self {
            qos: QoS::from_bits(flags >> 3 & 0b11).ok_or(DecodeError::WillQosInvalid)?,
            retain: flags & WILL_RETAIN != 0,
            topic,
            payload: body.binary()?,
            delay: properties.will_delay(),
            properties,
        })
    }

    fn write(&self, out: &mut Vec<u8>, version: Version) -> Result<(), EncodeError> {
        if version.is_v5() {
            write::properties(out, |out| {
                if self.delay != 0 {
                    Property::WillDelayInterval(self.delay).write(out)?;
                }
                if let Some(seconds) = self.properties.message_expiry() {
                    Property::MessageExpiryInterval(seconds).write(out)?;
                }
                out.extend_from_slice(&self.properties.forwardable());
                Ok(())
            })?;
        }
        write::field(out, self.topic.as_bytes())?;
        write::field(out, self.payload)
    }
}
