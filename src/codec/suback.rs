//! SUBACK and UNSUBACK: one code per filter.

use std::borrow::Cow;

use super::error::{DecodeError, EncodeError};
use super::extras::read_extras;
use super::extras::{Extras, PeerLimits, write_with_extras};
use super::frame::Frame;
use super::property::UserProperties;
use super::read::Reader;
use super::reason::ReasonCode;
use super::types::{PacketId, PacketType, Version};
use super::write;

/// A SUBACK packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// The identifier of the SUBSCRIBE `[MQTT-3.8.4-2]`.
    pub packet_id: PacketId,
    /// One code per filter, in order `[MQTT-3.8.4-6]` `[MQTT-3.9.3-1]`.
    pub reasons: Cow<'a, [ReasonCode]>,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// An UNSUBACK packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    /// The identifier of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// One code per filter, in order `[MQTT-3.11.3-1]` `[MQTT-3.11.3-2]`; none before MQTT 5.0.
    pub reasons: Cow<'a, [ReasonCode]>,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// `[MQTT-3.9.3-2]`
const fn is_suback_code(code: ReasonCode) -> bool {
    matches!(
        code as u8,
        0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2
    )
}

/// `[MQTT-3.11.3-2]`
const fn is_unsuback_code(code: ReasonCode) -> bool {
    matches!(code as u8, 0 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91)
}

fn check_codes(
    codes: &[ReasonCode],
    allowed: impl Fn(ReasonCode) -> bool,
) -> Result<(), EncodeError> {
    match codes.iter().find(|code| !allowed(**code)) {
        Some(code) => Err(EncodeError::ReasonCodeNotAllowed(*code)),
        None => Ok(()),
    }
}

fn read_codes<'a>(
    bytes: &[u8],
    allowed: impl Fn(ReasonCode) -> bool,
) -> Result<Cow<'a, [ReasonCode]>, DecodeError> {
    bytes
        .iter()
        .map(|byte| {
            ReasonCode::from_u8(*byte)
                .filter(|code| allowed(*code))
                .ok_or(DecodeError::ReasonCodeNotAllowed)
        })
        .collect()
}

impl<'a> SubAck<'a> {
    /// An acknowledgement with nothing but codes.
    pub const fn new(packet_id: PacketId, reasons: &'a [ReasonCode]) -> Self {
        Self {
            packet_id,
            reasons: Cow::Borrowed(reasons),
            reason_string: None,
            user_properties: UserProperties::NONE,
        }
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        check_codes(&self.reasons, is_suback_code)?;
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        write_with_extras(
            out,
            PacketType::SubAck.first_byte(),
            limits,
            extras,
            |out, extras| {
                out.extend_from_slice(&self.packet_id.get().to_be_bytes());
                if version.is_v5() {
                    write::properties(out, |out| extras.write(out))?;
                    out.extend(self.reasons.iter().map(|code| *code as u8));
                } else {
                    out.extend(self.reasons.iter().map(|code| code.suback_v3()));
                }
                Ok(())
            },
        )
    }

    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        let mut body = Reader::new(frame.body);
        let mut suback = Self::new(body.packet_id()?, &[]);
        if version.is_v5() {
            (suback.reason_string, suback.user_properties) = read_extras(&mut body)?;
        }
        let allowed = |code: ReasonCode| {
            if version.is_v5() {
                is_suback_code(code)
            } else {
                matches!(code as u8, 0..=2 | 0x80)
            }
        };
        suback.reasons = read_codes(body.take_rest(), allowed)?;
        if suback.reasons.is_empty() {
            return Err(DecodeError::BodyTooShort);
        }
        Ok(suback)
    }
}

impl<'a> UnsubAck<'a> {
    /// An acknowledgement with nothing but codes, which are not sent before MQTT 5.0.
    pub const fn new(packet_id: PacketId, reasons: &'a [ReasonCode]) -> Self {
        Self {
            packet_id,
            reasons: Cow::Borrowed(reasons),
            reason_string: None,
            user_properties: UserProperties::NONE,
        }
    }

    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        check_codes(&self.reasons, is_unsuback_code)?;
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        write_with_extras(
            out,
            PacketType::UnsubAck.first_byte(),
            limits,
            extras,
            |out, extras| {
                out.extend_from_slice(&self.packet_id.get().to_be_bytes());
                if version.is_v5() {
                    write::properties(out, |out| extras.write(out))?;
                    out.extend(self.reasons.iter().map(|code| *code as u8));
                }
                Ok(())
            },
        )
    }

    pub(super) fn read(version: Version, frame: Frame<'a>) -> Result<Self, DecodeError> {
        let mut body = Reader::new(frame.body);
        let mut unsuback = Self::new(body.packet_id()?, &[]);
        if version.is_v5() {
            (unsuback.reason_string, unsuback.user_properties) = read_extras(&mut body)?;
            unsuback.reasons = read_codes(body.take_rest(), is_unsuback_code)?;
            if unsuback.reasons.is_empty() {
                return Err(DecodeError::BodyTooShort);
            }
        }
        body.finish()?;
        Ok(unsuback)
    }
}
