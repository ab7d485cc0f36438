//! PUBACK, PUBREC, PUBREL, PUBCOMP: one layout, two lists of reason codes.

use super::error::{DecodeError, EncodeError};
use super::extras::{Extras, PeerLimits, read_extras, write_with_extras};
use super::frame::Frame;
use super::property::UserProperties;
use super::read::Reader;
use super::reason::ReasonCode;
use super::types::{PacketId, PacketType, Version};
use super::write;

/// A PUBACK, PUBREC, PUBREL or PUBCOMP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The identifier of the PUBLISH it belongs to `[MQTT-2.2.1-5]`.
    pub packet_id: PacketId,
    /// Always 0x00 before MQTT 5.0.
    pub reason: ReasonCode,
    /// For people.
    pub reason_string: Option<&'a str>,
    /// User properties.
    pub user_properties: UserProperties<'a>,
}

/// `[MQTT-3.4.2-1]` `[MQTT-3.5.2-1]` `[MQTT-3.6.2-1]` `[MQTT-3.7.2-1]`
const fn is_code_of(packet: PacketType, code: ReasonCode) -> bool {
    match packet {
        PacketType::PubRel | PacketType::PubComp => matches!(code as u8, 0x00 | 0x92),
        _ => matches!(
            code as u8,
            0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99
        ),
    }
}

impl<'a> Ack<'a> {
    /// A successful acknowledgement.
    pub const fn success(packet_id: PacketId) -> Self {
        Self::with_reason(packet_id, ReasonCode::Success)
    }

    /// An acknowledgement with a reason code and nothing else.
    pub const fn with_reason(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self {
            packet_id,
            reason,
            reason_string: None,
            user_properties: UserProperties::NONE,
        }
    }

    #[inline]
    pub(super) fn read(
        version: Version,
        packet: PacketType,
        frame: Frame<'a>,
    ) -> Result<Self, DecodeError> {
        let mut body = Reader::new(frame.body);
        let mut ack = Self::success(body.packet_id()?);
        if version.is_v5() && !body.is_empty() {
            ack.reason = ReasonCode::from_u8(body.u8()?)
                .filter(|code| is_code_of(packet, *code))
                .ok_or(DecodeError::ReasonCodeNotAllowed)?;
            (ack.reason_string, ack.user_properties) = read_extras(&mut body)?;
        }
        body.finish()?;
        Ok(ack)
    }

    #[inline]
    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        packet: PacketType,
        limits: PeerLimits,
    ) -> Result<usize, EncodeError> {
        let [high, low] = self.packet_id.get().to_be_bytes();
        let first = packet.first_byte();
        let bare = self.reason == ReasonCode::Success
            && self.reason_string.is_none()
            && self.user_properties.is_empty();
        if bare || !version.is_v5() {
            write::check_size(2, limits.max_packet_size)?;
            out.extend_from_slice(&[first, 2, high, low]);
            return Ok(4);
        }
        if !is_code_of(packet, self.reason) {
            return Err(EncodeError::ReasonCodeNotAllowed(self.reason));
        }
        let extras = Extras {
            reason_string: self.reason_string,
            users: self.user_properties,
        };
        write_with_extras(out, first, limits, extras, |out, extras| {
            out.extend_from_slice(&[high, low]);
            if extras.is_empty() {
                // Shortest forms: the property length, and with 0x00 the code as well, may be left out (§3.4.2.1).
                if self.reason != ReasonCode::Success {
                    out.push(self.reason as u8);
                }
                return Ok(());
            }
            out.push(self.reason as u8);
            write::properties(out, |out| extras.write(out))
        })
    }
}
