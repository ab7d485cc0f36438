//! `0x20 | state-store key` → [`crate::store::record`]: a value or the tombstone of a key of the state store.

use super::{key, ordinal, whole};

/// The row of the state store's `store_key`.
pub fn encode(store_key: &[u8]) -> Vec<u8> {
    key(ordinal::RECORD, &[store_key])
}

/// The state store's key of a key of this table.
pub fn decode(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[ordinal::RECORD])
}

/// All rows from the state store's `store_key` on.
pub fn from(store_key: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (encode(store_key), whole(ordinal::RECORD).1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(
            super::decode(&super::encode(b"\x00\xff")),
            Some(&b"\x00\xff"[..])
        );
    }
}
