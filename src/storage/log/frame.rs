//! The format of the log's segments: frames of changes.
//!
//! A frame is what one write adds. It begins at a multiple of [`SECTOR`] bytes and is filled up with zeros, so that no
//! write changes a sector that holds another frame. All numbers are little endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC-32C of everything that follows, up to the end of the payload |
//! | 4..8 | length of the payload |
//! | 8..16 | number of the segment |
//! | 16..20 | where in the segment the frame begins |
//! | 20..24 | CRC-32C of the frame before, which may be the last one of the segment before |
//! | 24..28 | bytes of the segment that were durable when the frame was written |
//! | 28..32 | [`FORMAT`] |
//! | 32..40 | the log's random number |
//! | 40.. | payload: [`Change`](super::change::Change)s, each `kind u8 \| group u32` and its fields; byte strings as `length u32 \| bytes` |
//!
//! Segments are written over and over again. A frame of a former use has another number, and one that a crash left
//! behind the end of the log does not follow the frame before it; so neither is taken for a part of the log. Clients
//! choose what entries hold, but they do not know the log's number: nothing in an entry is taken for a frame.
//!
//! Invariant: formats and numbers are for ever.

use bytes::Bytes;

/// Frames begin at multiples of this, in bytes.
pub const SECTOR: usize = 512;
/// Bytes before the payload.
pub const HEADER: usize = 40;
/// The format described above.
const FORMAT: u32 = 1;

/// Where a frame is, and what it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The log's random number.
    pub log: u64,
    /// Number of its segment.
    pub segment: u64,
    /// Where in the segment it begins.
    pub offset: u32,
    /// Checksum of the frame before.
    pub previous: u32,
    /// Bytes of the segment that are durable already.
    pub durable: u32,
}

/// An empty frame, to which changes are added.
pub fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER, 0);
}

/// Completes the frame in `buffer` for its place, and returns its checksum; `None` when it is too long for one.
pub fn finish(buffer: &mut Vec<u8>, place: Place) -> Option<u32> {
    let length = buffer.len().checked_sub(HEADER)?;
    let padded = buffer.len().next_multiple_of(SECTOR);
    // The place of the next frame is a number of this size, too.
    place.offset.checked_add(u32::try_from(padded).ok()?)?;
    buffer[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    buffer[8..16].copy_from_slice(&place.segment.to_le_bytes());
    buffer[16..20].copy_from_slice(&place.offset.to_le_bytes());
    buffer[20..24].copy_from_slice(&place.previous.to_le_bytes());
    buffer[24..28].copy_from_slice(&place.durable.to_le_bytes());
    buffer[28..32].copy_from_slice(&FORMAT.to_le_bytes());
    buffer[32..40].copy_from_slice(&place.log.to_le_bytes());
    let sum = crc32c::crc32c(&buffer[4..]);
    buffer[..4].copy_from_slice(&sum.to_le_bytes());
    buffer.resize(padded, 0);
    Some(sum)
}

/// The part of a frame before its payload.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Checksum of the frame.
    pub sum: u32,
    /// Bytes of the payload.
    pub length: usize,
    format: u32,
    pub place: Place,
}

impl Head {
    /// Reads the beginning of a frame, whose checksum is not looked at.
    pub fn decode(header: &[u8; HEADER]) -> Head {
        let number = |at: usize| {
            let bytes = header[at..].first_chunk();
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let long = |at: usize| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        Head {
            sum: number(0),
            length: number(4) as usize,
            format: number(28),
            place: Place {
                log: long(32),
                segment: long(8),
                offset: number(16),
                previous: number(20),
                durable: number(24),
            },
        }
    }

    /// Whether the frame is of the format that this release knows.
    pub fn is_known(&self) -> bool {
        self.format == FORMAT
    }

    /// Bytes of the frame with what fills it up.
    pub fn padded(&self) -> u64 {
        (HEADER as u64 + self.length as u64).next_multiple_of(SECTOR as u64)
    }
}

/// A whole frame.
#[derive(Clone, Debug)]
pub struct Frame {
    pub head: Head,
    pub payload: Bytes,
}

impl Frame {
    /// Checks the frame of which these are all bytes, but for what fills it up.
    pub fn check(head: Head, bytes: Bytes) -> Option<Frame> {
        (crc32c::crc32c(bytes.get(4..)?) == head.sum).then(|| Frame {
            head,
            payload: bytes.slice(HEADER..),
        })
    }

    /// Where the next frame begins.
    pub fn end(&self) -> u64 {
        u64::from(self.head.place.offset) + self.head.padded()
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
