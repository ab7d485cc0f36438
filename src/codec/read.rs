//! Reads the fields of a packet's body in order. Nothing here looks beyond the slice it was given.

use super::check;
use super::error::DecodeError;
use super::types::PacketId;

/// What is left to read of a body or of a property list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes left.
    pub(super) const fn len(&self) -> usize {
        self.rest.len()
    }

    /// Everything that is left; nothing is afterwards.
    pub(super) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// The next `count` bytes.
    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(DecodeError::BodyTooShort)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::BodyTooShort)?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A variable byte integer in its shortest form `[MQTT-1.5.5-1]`.
    #[inline]
    pub(super) fn variable(&mut self) -> Result<u32, DecodeError> {
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u32::from(*byte));
        }
        match variable(self.rest) {
            Variable::Complete { value, length } => {
                self.take(length)?;
                Ok(value)
            }
            Variable::Incomplete => Err(DecodeError::BodyTooShort),
            Variable::TooLong => Err(DecodeError::VariableByteIntegerTooLong),
            Variable::NotMinimal => Err(DecodeError::VariableByteIntegerNotMinimal),
        }
    }

    /// A packet identifier `[MQTT-2.2.1-3]`.
    #[inline]
    pub(super) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16()?).ok_or(DecodeError::PacketIdZero)
    }

    /// Binary data: a two-byte length and as many bytes.
    #[inline]
    pub(super) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    /// An encoded string, checked.
    #[inline]
    pub(super) fn string(&mut self) -> Result<&'a str, DecodeError> {
        check::utf8(self.binary()?)
    }

    /// The body ends here.
    #[inline]
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::BodyTooLong)
        }
    }
}

/// What the first bytes of a slice say as a variable byte integer.
pub(super) enum Variable {
    Complete { value: u32, length: usize },
    Incomplete,
    TooLong,
    NotMinimal,
}

/// Reads a variable byte integer at the start of `bytes` (MQTT 5.0 §1.5.5).
#[inline]
pub(super) fn variable(bytes: &[u8]) -> Variable {
    let mut value = 0_u32;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            if *byte == 0 && index > 0 {
                return Variable::NotMinimal;
            }
            return Variable::Complete {
                value,
                length: index + 1,
            };
        }
    }
    if bytes.len() >= 4 {
        Variable::TooLong
    } else {
        Variable::Incomplete
    }
}
