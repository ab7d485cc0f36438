//! `0x20 | state-store key` → [`crate::store::record`]: a value or the tombstone of a key of the state store.

use bytes::Bytes;

use super::table::{Row, Table, key, rest};
use crate::store::{KeyRow, RecordError};

/// The table.
pub enum Record {}

impl Table for Record {
    const ORDINAL: u8 = 0x20;
    type Key<'a> = &'a [u8];
    type Row = KeyRow;

    fn encode(store_key: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[store_key])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        rest::<Self>(key)
    }
}

impl Row for KeyRow {
    type Error = RecordError;

    fn to_bytes(&self) -> Vec<u8> {
        let mut row = Vec::new();
        self.encode(&mut row);
        row
    }

    fn from_bytes(row: Bytes) -> Result<Self, RecordError> {
        KeyRow::decode(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let store_key = &b"\x00\xff"[..];
        assert_eq!(Record::decode(&Record::encode(store_key)), Some(store_key));
    }
}
