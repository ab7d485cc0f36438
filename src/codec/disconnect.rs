//! DISCONNECT and AUTH.

use super::error::{DecodeError, EncodeError};
use super::extras::{Extras, PeerLimits, write_with_extras};
use super::frame::Frame;
use super::property::{Allowed, Property, PropertyId, PropertyReader, UserProperties, take_list};
use super::read::Reader;
use super::reason::ReasonCode;
use super::types::{PacketType, Version};
use super::write;

/// Who sent a packet that both sides may send with different contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Client,
    Server,
}

/// A DISCONNECT packet. Before MQTT 5.0 it is empty and only a client sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why; 0x00 (normal) before MQTT 5.0.
    pub reason: ReasonCode,
    /// Seconds; only a client sends it `[MQTT-3.14.2-2]`. That it does not raise a session's expiry from 0 is for the
    /// session to check (§3.14.2.2.2).
    pub session_expiry: Option<u32>,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// Another server to use; only a server sends it.
    pub server_reference: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// An AUTH packet of extended authentication; MQTT 5.0 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    /// 0x00 (server), 0x18 (both) or 0x19 (client).
    pub reason: ReasonCode,
    /// The method named in CONNECT `[MQTT-4.12.0-5]`.
    pub method: &'a str,
    /// Its data.
    pub data: Option<&'a [u8]>,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// `[MQTT-3.14.2-1]`, table 3-10 with its column of who sends it.
const fn is_disconnect_code(sender: Sender, code: ReasonCode) -> bool {
    let both = matches!(code as u8, 0x00 | 0x80..=0x83 | 0x90 | 0x93..=0x99);
    match sender {
        Sender::Client => both || code as u8 == 0x04,
        Sender::Server => {
            both || matches!(code as u8, 0x87 | 0x89 | 0x8B | 0x8D..=0x8F | 0x9A..=0xA2)
        }
    }
}

/// `[MQTT-3.15.2-1]`
const fn is_auth_code(sender: Sender, code: ReasonCode) -> bool {
    match sender {
        Sender::Client => matches!(code as u8, 0x18 | 0x19),
        Sender::Server => matches!(code as u8, 0x00 | 0x18),
    }
}

impl<'a> Disconnect<'a> {
    /// A DISCONNECT with a reason and nothing else.
    pub const fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            session_expiry: None,
            reason_string: None,
            server_reference: None,
            user_properties: UserProperties::NONE,
        }
    }

    pub(super) fn read(
        version: Version,
        sender: Sender,
        frame: Frame<'a>,
    ) -> Result<Self, DecodeError> {
        const FROM_CLIENT: Allowed = Allowed::of(&[
            PropertyId::SessionExpiryInterval,
            PropertyId::ReasonString,
            PropertyId::UserProperty,
        ]);
        const FROM_SERVER: Allowed = Allowed::of(&[
            PropertyId::ServerReference,
            PropertyId::ReasonString,
            PropertyId::UserProperty,
        ]);
        let mut body = Reader::new(frame.body);
        let mut disconnect = Self::new(ReasonCode::NORMAL_DISCONNECTION);
        if version.is_v5() && !body.is_empty() {
            disconnect.reason = ReasonCode::from_u8(body.u8()?)
                .filter(|code| is_disconnect_code(sender, *code))
                .ok_or(DecodeError::ReasonCodeNotAllowed)?;
            // A body that ends before the property length has no properties (§3.14.2.2.1).
            let list = if body.is_empty() {
                &[]
            } else {
                take_list(&mut body)?
            };
            let mut reader = PropertyReader::new(
                list,
                if sender == Sender::Client {
                    FROM_CLIENT
                } else {
                    FROM_SERVER
                },
            );
            while let Some(property) = reader.next()? {
                match property {
                    Property::SessionExpiryInterval(seconds) => {
                        disconnect.session_expiry = Some(seconds)
                    }
                    Property::ReasonString(text) => disconnect.reason_string = Some(text),
                    Property::ServerReference(text) => disconnect.server_reference = Some(text),
                    _ => {}
                }
            }
            disconnect.user_properties = UserProperties::from_checked_list(list);
        }
        body.finish()?;
        Ok(disconnect)
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        sender: Sender,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        let first = PacketType::Disconnect.first_byte();
        if !version.is_v5() {
            if sender == Sender::Server {
                return Err(EncodeError::Version);
            }
            out.extend_from_slice(&[first, 0]);
            return Ok(2);
        }
        if !is_disconnect_code(sender, self.reason) {
            return Err(EncodeError::ReasonCodeNotAllowed(self.reason));
        }
        let session_expiry = self.session_expiry.filter(|_| sender == Sender::Client);
        let server_reference = self.server_reference.filter(|_| sender == Sender::Server);
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        // DISCONNECT may carry both whatever the client said about problem information [MQTT-3.1.2-29].
        let limits = PeerLimits {
            problem_information: true,
            ..limits
        };
        write_with_extras(out, first, limits, extras, |out, extras| {
            if session_expiry.is_none() && server_reference.is_none() && extras.is_empty() {
                if self.reason != ReasonCode::NORMAL_DISCONNECTION {
                    out.push(self.reason as u8);
                }
                return Ok(());
            }
            out.push(self.reason as u8);
            write::properties(out, |out| {
                if let Some(seconds) = session_expiry {
                    Property::SessionExpiryInterval(seconds).write(out)?;
                }
                if let Some(text) = server_reference {
                    Property::ServerReference(text).write(out)?;
                }
                extras.write(out)
            })
        })
    }
}

impl<'a> Auth<'a> {
    /// An AUTH with method and data.
    pub const fn new(reason: ReasonCode, method: &'a str, data: Option<&'a [u8]>) -> Self {
        Self {
            reason,
            method,
            data,
            reason_string: None,
            user_properties: UserProperties::NONE,
        }
    }

    pub(super) fn read(sender: Sender, frame: Frame<'a>) -> Result<Self, DecodeError> {
        const ALLOWED: Allowed = Allowed::of(&[
            PropertyId::AuthenticationMethod,
            PropertyId::AuthenticationData,
            PropertyId::ReasonString,
            PropertyId::UserProperty,
        ]);
        let mut body = Reader::new(frame.body);
        // An empty body is 0x00 without properties (§3.15.2.1).
        let code = if body.is_empty() { 0 } else { body.u8()? };
        let reason = ReasonCode::from_u8(code)
            .filter(|code| is_auth_code(sender, *code))
            .ok_or(DecodeError::ReasonCodeNotAllowed)?;
        let list = if body.is_empty() {
            &[]
        } else {
            take_list(&mut body)?
        };
        let mut reader = PropertyReader::new(list, ALLOWED);
        let (mut method, mut data, mut reason_string) = (None, None, None);
        while let Some(property) = reader.next()? {
            match property {
                Property::AuthenticationMethod(text) => method = Some(text),
                Property::AuthenticationData(bytes) => data = Some(bytes),
                Property::ReasonString(text) => reason_string = Some(text),
                _ => {}
            }
        }
        body.finish()?;
        let method = method.ok_or(DecodeError::AuthenticationMethodMissing)?;
        Ok(Self {
            reason,
            method,
            data,
            reason_string,
            user_properties: UserProperties::from_checked_list(list),
        })
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        sender: Sender,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        if !version.is_v5() {
            return Err(EncodeError::Version);
        }
        if !is_auth_code(sender, self.reason) {
            return Err(EncodeError::ReasonCodeNotAllowed(self.reason));
        }
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        write_with_extras(
            out,
            PacketType::Auth.first_byte(),
            limits,
            extras,
            |out, extras| {
                out.push(self.reason as u8);
                write::properties(out, |out| {
                    Property::AuthenticationMethod(self.method).write(out)?;
                    if let Some(data) = self.data {
                        Property::AuthenticationData(data).write(out)?;
                    }
                    extras.write(out)
                })
            },
        )
    }
}
