//! Cuts the byte stream into packets, before anything is parsed.
//!
//! The size limit is checked on the header alone, so that a hostile length costs nothing; no buffer is reserved here
//! and no byte after a complete packet is asked for.

use super::error::DecodeError;
use super::read::{self, Variable};
use super::types::PacketType;

/// The fixed header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Packet type and flags.
    pub first: u8,
    /// Bytes of the header itself, 2 to 5.
    pub length: usize,
    /// Bytes that follow the header.
    pub remaining: usize,
}

impl Header {
    /// Size of the whole packet in bytes.
    pub const fn total(&self) -> usize {
        self.length + self.remaining
    }
}

/// A complete packet, cut out of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Packet type and flags.
    pub first: u8,
    /// What follows the fixed header.
    pub body: &'a [u8],
    /// Size of the whole packet in bytes: what to drop from the read buffer.
    pub length: usize,
}

impl Frame<'_> {
    /// The packet's type.
    pub const fn packet_type(&self) -> Option<PacketType> {
        PacketType::from_first_byte(self.first)
    }

    /// The four flag bits.
    pub(super) const fn flags(&self) -> u8 {
        self.first & 0x0F
    }
}

/// Reads the fixed header at the start of `bytes`; `None` while it is incomplete.
///
/// `max_packet_size` is in bytes and counts the whole packet, header included (MQTT 5.0 §3.2.2.3.6). A packet that
/// announces more is refused before any of its body has arrived.
#[inline]
pub fn header(bytes: &[u8], max_packet_size: u32) -> Result<Option<Header>, DecodeError> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    if first < 0x10 {
        return Err(DecodeError::PacketTypeReserved);
    }
    let (remaining, length) = match rest {
        [short @ 0..0x80, ..] => (usize::from(*short), 2),
        _ => match read::variable(rest) {
            Variable::Complete { value, length } => (value as usize, length + 1),
            Variable::Incomplete => return Ok(None),
            Variable::TooLong => return Err(DecodeError::RemainingLengthTooLong),
            Variable::NotMinimal => return Err(DecodeError::RemainingLengthNotMinimal),
        },
    };
    let header = Header {
        first,
        length,
        remaining,
    };
    if header.total() > max_packet_size as usize {
        return Err(DecodeError::PacketTooLarge);
    }
    Ok(Some(header))
}

/// Cuts the first packet off `bytes`; `None` while it is incomplete. See [`header`] for the limit.
#[inline]
pub fn next(bytes: &[u8], max_packet_size: u32) -> Result<Option<Frame<'_>>, DecodeError> {
    let Some(header) = header(bytes, max_packet_size)? else {
        return Ok(None);
    };
    let total = header.total();
    Ok(bytes.get(header.length..total).map(|body| Frame {
        first: header.first,
        body,
        length: total,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::types::MAX_PACKET_SIZE;
    use super::*;

    #[test]
    fn a_packet_is_complete_with_its_last_byte_and_takes_nothing_after_it() {
        let stream = [0x30, 3, 0, 1, b'a', 0xC0, 0];
        for end in 0..5 {
            assert_eq!(
                next(&stream[..end], MAX_PACKET_SIZE),
                Ok(None),
                "{end} bytes"
            );
        }
        let frame = next(&stream[..5], MAX_PACKET_SIZE)
            .unwrap()
            .expect("complete");
        assert_eq!(
            (frame.first, frame.body, frame.length),
            (0x30, &stream[2..5], 5)
        );
        assert_eq!(next(&stream, MAX_PACKET_SIZE), Ok(Some(frame)));
        assert_eq!(
            next(&stream[5..], MAX_PACKET_SIZE)
                .unwrap()
                .map(|frame| frame.length),
            Some(2)
        );
    }

    #[test]
    fn a_packet_too_large_is_refused_from_its_header() {
        // [MQTT-3.2.2-15]: the limit counts the header.
        assert_eq!(next(&[0x30, 8], 9), Err(DecodeError::PacketTooLarge));
        assert_eq!(next(&[0x30, 8], 10), Ok(None));
        assert_eq!(
            next(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], 1 << 20),
            Err(DecodeError::PacketTooLarge)
        );
        assert_eq!(
            next(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], MAX_PACKET_SIZE),
            Ok(None)
        );
        assert_eq!(DecodeError::PacketTooLarge.reason() as u8, 0x95);
    }

    #[test]
    fn the_remaining_length_is_minimal_and_at_most_four_bytes() {
        // [MQTT-1.5.5-1]
        assert_eq!(
            next(&[0x30, 0x80, 0x00], 100),
            Err(DecodeError::RemainingLengthNotMinimal)
        );
        assert_eq!(
            next(&[0x30, 0x85, 0x80, 0x00], 100),
            Err(DecodeError::RemainingLengthNotMinimal)
        );
        assert_eq!(
            next(&[0x30, 0x80, 0x80, 0x80, 0x80], 100),
            Err(DecodeError::RemainingLengthTooLong)
        );
        assert_eq!(next(&[0x30, 0x80, 0x80, 0x80], 100), Ok(None));
        assert_eq!(next(&[0x0F], 100), Err(DecodeError::PacketTypeReserved));
        assert_eq!(next(&[], 100), Ok(None));
    }
}
