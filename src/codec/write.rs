//! Writes the fields of a packet, and a packet around its body.

use super::error::EncodeError;
use super::types::MAX_REMAINING_LENGTH;

/// Bytes a variable byte integer takes; the value is at most 268,435,455.
#[inline]
pub(super) const fn variable_length(value: u32) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// Writes a variable byte integer in its shortest form `[MQTT-1.5.5-1]`; the value is at most 268,435,455.
#[inline]
pub(super) fn variable(out: &mut Vec<u8>, mut value: u32) {
    debug_assert!(value <= MAX_REMAINING_LENGTH, "checked by the caller");
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes binary data or a string with its two-byte length.
#[inline]
pub(super) fn field(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), EncodeError> {
    let length = u16::try_from(bytes.len()).map_err(|_| EncodeError::FieldTooLong(bytes.len()))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// The remaining length as a number that the header can hold, if the whole packet is within `max` bytes
/// `[MQTT-3.1.2-24]`.
#[inline]
pub(super) fn check_size(remaining: usize, max: u32) -> Result<u32, EncodeError> {
    let too_large = |size| EncodeError::TooLarge { size, max };
    let length = u32::try_from(remaining)
        .ok()
        .filter(|length| *length <= MAX_REMAINING_LENGTH)
        .ok_or(too_large(remaining.saturating_add(5)))?;
    let size = remaining + 1 + variable_length(length);
    if size > max as usize {
        Err(too_large(size))
    } else {
        Ok(length)
    }
}

/// Writes a packet whose body `body` writes. On an error, or when the packet is larger than `max`, `out` is as before.
/// Returns the size of the packet.
///
/// The length gets one byte at first; a body of 128 bytes and more is moved up when it is known. The packets written
/// this way are small; PUBLISH computes its length beforehand.
pub(super) fn packet(
    out: &mut Vec<u8>,
    first: u8,
    max: u32,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let start = out.len();
    let result = (|| {
        out.extend_from_slice(&[first, 0]);
        body(out)?;
        let remaining = out.len() - start - 2;
        let length = check_size(remaining, max)?;
        set_length(out, start + 1, length);
        Ok(out.len() - start)
    })();
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Turns the one byte at `position`, a placeholder, into the variable byte integer `length`.
fn set_length(out: &mut Vec<u8>, position: usize, length: u32) {
    if length < 0x80 {
        out[position] = length as u8;
        return;
    }
    let mut bytes = Vec::with_capacity(4);
    variable(&mut bytes, length);
    out.splice(position..=position, bytes);
}

/// Writes a property list with its length, which `properties` writes.
pub(super) fn properties(
    out: &mut Vec<u8>,
    properties: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.push(0);
    properties(out)?;
    let length = out.len() - start - 1;
    let length = u32::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_REMAINING_LENGTH)
        .ok_or(EncodeError::TooLarge {
            size: length,
            max: MAX_REMAINING_LENGTH,
        })?;
    set_length(out, start, length);
    Ok(())
}
