//! `0x16 | message u64` → [`Count`]: how many queues refer to a message, while it is more than one.

use std::array::TryFromSliceError;

use bytes::Bytes;

use super::table::{Row, Table, key, only_u64, rest};
use crate::session::MessageId;

/// The table.
pub enum References {}

impl Table for References {
    const ORDINAL: u8 = 0x16;
    type Key<'a> = MessageId;
    type Row = Count;

    fn encode(message: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&message.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        only_u64(rest::<Self>(key)?).map(MessageId)
    }
}

/// A number of four bytes, big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u32);

impl Row for Count {
    type Error = TryFromSliceError;

    fn to_bytes(&self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    fn from_bytes(row: Bytes) -> Result<Self, TryFromSliceError> {
        Ok(Count(u32::from_be_bytes(row[..].try_into()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_rows_decode_to_what_they_were_made_of() {
        let key = References::encode(MessageId(7));
        assert_eq!(References::decode(&key), Some(MessageId(7)));
        let row = Count(0x0102_0304).to_bytes();
        assert_eq!(row, [1, 2, 3, 4]);
        assert_eq!(Count::from_bytes(row.into()).ok(), Some(Count(0x0102_0304)));
        assert!(Count::from_slice(&[1]).is_err());
    }
}
