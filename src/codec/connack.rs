//! CONNACK: the answer to CONNECT, with everything the server settles for the connection.

use std::num::{NonZeroU16, NonZeroU32};

use super::error::{DecodeError, EncodeError};
use super::extras::{Extras, PeerLimits, write_with_extras};
use super::frame::Frame;
use super::property::{Allowed, Property, PropertyId, PropertyReader, UserProperties, take_list};
use super::read::Reader;
use super::reason::ReasonCode;
use super::types::{PacketType, QoS, Version};
use super::write;

/// A CONNACK packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// The server found state of this session `[MQTT-3.2.2-3]`. Not sent in 3.1, nor with an error `[MQTT-3.2.2-6]`.
    pub session_present: bool,
    /// 0x00, or why the connection is refused.
    pub reason: ReasonCode,
    /// Not sent before MQTT 5.0.
    pub properties: ConnAckProperties<'a>,
}

/// The properties of CONNACK. What is `None` is not sent and has the meaning MQTT 5.0 §3.2.2.3 gives to its absence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnAckProperties<'a> {
    /// Seconds; set if it differs from what the client asked for.
    pub session_expiry: Option<u32>,
    /// How many QoS 1 and 2 messages the server takes unacknowledged `[MQTT-3.3.4-7]`.
    pub receive_maximum: Option<NonZeroU16>,
    /// The highest QoS the server takes, if below 2 `[MQTT-3.2.2-9]`.
    pub maximum_qos: Option<QoS>,
    /// Whether retained messages are supported.
    pub retain_available: Option<bool>,
    /// The largest packet the server takes, in bytes `[MQTT-3.2.2-15]`.
    pub maximum_packet_size: Option<NonZeroU32>,
    /// The client identifier made for a client that sent none `[MQTT-3.2.2-16]`.
    pub assigned_client_id: Option<&'a str>,
    /// The highest topic alias the server takes `[MQTT-3.2.2-17]`.
    pub topic_alias_maximum: Option<u16>,
    /// For people; left out if the packet gets too large `[MQTT-3.2.2-19]`.
    pub reason_string: Option<&'a str>,
    /// Left out if the packet gets too large `[MQTT-3.2.2-20]`.
    pub user_properties: UserProperties<'a>,
    /// Whether wildcards may be subscribed to.
    pub wildcard_subscription_available: Option<bool>,
    /// Whether subscription identifiers are supported.
    pub subscription_identifier_available: Option<bool>,
    /// Whether shared subscriptions are supported.
    pub shared_subscription_available: Option<bool>,
    /// Seconds; replaces the client's keep-alive `[MQTT-3.2.2-21]`.
    pub server_keep_alive: Option<u16>,
    /// A hint for response topics, only if asked for `[MQTT-3.1.2-28]`.
    pub response_information: Option<&'a str>,
    /// Another server to use.
    pub server_reference: Option<&'a str>,
    /// The method named in CONNECT `[MQTT-4.12.0-5]`.
    pub authentication_method: Option<&'a str>,
    /// Its data.
    pub authentication_data: Option<&'a [u8]>,
}

const ALLOWED: Allowed = Allowed::of(&[
    PropertyId::SessionExpiryInterval,
    PropertyId::AssignedClientIdentifier,
    PropertyId::ServerKeepAlive,
    PropertyId::AuthenticationMethod,
    PropertyId::AuthenticationData,
    PropertyId::ResponseInformation,
    PropertyId::ServerReference,
    PropertyId::ReasonString,
    PropertyId::ReceiveMaximum,
    PropertyId::TopicAliasMaximum,
    PropertyId::MaximumQos,
    PropertyId::RetainAvailable,
    PropertyId::UserProperty,
    PropertyId::MaximumPacketSize,
    PropertyId::WildcardSubscriptionAvailable,
    PropertyId::SubscriptionIdentifierAvailable,
    PropertyId::SharedSubscriptionAvailable,
]);

/// The codes of MQTT 5.0 table 3-1 `[MQTT-3.2.2-8]`.
const fn is_connack_code(code: ReasonCode) -> bool {
    matches!(code as u8, 0x00 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F)
}

impl<'a> ConnAck<'a> {
    /// An accepted connection without properties.
    pub fn accepted(session_present: bool) -> Self {
        Self {
            session_present,
            reason: ReasonCode::Success,
            properties: ConnAckProperties::default(),
        }
    }

    /// A refused connection without properties.
    pub fn refused(reason: ReasonCode) -> Self {
        Self {
            session_present: false,
            reason,
            properties: ConnAckProperties::default(),
        }
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        let present = u8::from(
            self.session_present && self.reason == ReasonCode::Success && version != Version::V31,
        );
        let first = PacketType::ConnAck.first_byte();
        if !version.is_v5() {
            let code = self
                .reason
                .connack_return_code()
                .ok_or(EncodeError::ReasonCodeNotAllowed(self.reason))?;
            out.extend_from_slice(&[first, 2, present, code]);
            return Ok(4);
        }
        if !is_connack_code(self.reason) {
            return Err(EncodeError::ReasonCodeNotAllowed(self.reason));
        }
        let extras = Extras {
            reason_string: self.properties.reason_string,
            users: self.properties.user_properties,
        };
        // CONNACK may carry both whatever the client said about problem information [MQTT-3.1.2-29].
        let limits = PeerLimits {
            problem_information: true,
            ..limits
        };
        write_with_extras(out, first, limits, extras, |out, extras| {
            out.extend_from_slice(&[present, self.reason as u8]);
            write::properties(out, |out| {
                self.properties.write(out)?;
                extras.write(out)
            })
        })
    }

    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        let mut body = Reader::new(frame.body);
        let flags = body.u8()?;
        let code = body.u8()?;
        if flags > 1 && version != Version::V31 {
            return Err(DecodeError::ConnAckFlagsReserved);
        }
        let session_present = flags == 1 && version != Version::V31;
        let mut connack = Self {
            session_present,
            ..Self::accepted(false)
        };
        if version.is_v5() {
            connack.reason = ReasonCode::from_u8(code)
                .filter(|code| is_connack_code(*code))
                .ok_or(DecodeError::ReasonCodeNotAllowed)?;
            connack.properties.read(take_list(&mut body)?)?;
        } else {
            connack.reason = match code {
                0 => ReasonCode::Success,
                1 => ReasonCode::UnsupportedProtocolVersion,
                2 => ReasonCode::ClientIdentifierNotValid,
                3 => ReasonCode::ServerUnavailable,
                4 => ReasonCode::BadUserNameOrPassword,
                5 => ReasonCode::NotAuthorized,
                _ => return Err(DecodeError::ReasonCodeNotAllowed),
            };
        }
        if session_present && connack.reason != ReasonCode::Success {
            return Err(DecodeError::SessionPresentOnRefusal);
        }
        body.finish()?;
        Ok(connack)
    }
}

impl<'a> ConnAckProperties<'a> {
    fn read(&mut self, list: &'a [u8]) -> Result<(), DecodeError> {
        let mut reader = PropertyReader::new(list, ALLOWED);
        while let Some(property) = reader.next()? {
            match property {
                Property::SessionExpiryInterval(seconds) => self.session_expiry = Some(seconds),
                Property::ReceiveMaximum(count) => self.receive_maximum = Some(count),
                Property::MaximumQos(qos) => self.maximum_qos = Some(qos),
                Property::RetainAvailable(available) => self.retain_available = Some(available),
                Property::MaximumPacketSize(bytes) => self.maximum_packet_size = Some(bytes),
                Property::AssignedClientIdentifier(id) => self.assigned_client_id = Some(id),
                Property::TopicAliasMaximum(alias) => self.topic_alias_maximum = Some(alias),
                Property::ReasonString(text) => self.reason_string = Some(text),
                Property::WildcardSubscriptionAvailable(yes) => {
                    self.wildcard_subscription_available = Some(yes)
                }
                Property::SubscriptionIdentifierAvailable(yes) => {
                    self.subscription_identifier_available = Some(yes)
                }
                Property::SharedSubscriptionAvailable(yes) => {
                    self.shared_subscription_available = Some(yes)
                }
                Property::ServerKeepAlive(seconds) => self.server_keep_alive = Some(seconds),
                Property::ResponseInformation(text) => self.response_information = Some(text),
                Property::ServerReference(text) => self.server_reference = Some(text),
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

    /// All but reason string and user properties.
    fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let optional = [
            self.session_expiry.map(Property::SessionExpiryInterval),
            self.receive_maximum.map(Property::ReceiveMaximum),
            // 2 is not a value of the property: it is said by leaving it out.
            self.maximum_qos
                .filter(|qos| *qos != QoS::ExactlyOnce)
                .map(Property::MaximumQos),
            self.retain_available.map(Property::RetainAvailable),
            self.maximum_packet_size.map(Property::MaximumPacketSize),
            self.assigned_client_id
                .map(Property::AssignedClientIdentifier),
            self.topic_alias_maximum.map(Property::TopicAliasMaximum),
            self.wildcard_subscription_available
                .map(Property::WildcardSubscriptionAvailable),
            self.subscription_identifier_available
                .map(Property::SubscriptionIdentifierAvailable),
            self.shared_subscription_available
                .map(Property::SharedSubscriptionAvailable),
            self.server_keep_alive.map(Property::ServerKeepAlive),
            self.response_information.map(Property::ResponseInformation),
            self.server_reference.map(Property::ServerReference),
            self.authentication_method
                .map(Property::AuthenticationMethod),
            self.authentication_data.map(Property::AuthenticationData),
        ];
        optional
            .iter()
            .flatten()
            .try_for_each(|property| property.write(out))
    }
}
