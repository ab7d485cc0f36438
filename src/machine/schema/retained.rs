//! `0x18 | topic` → `state.Retained`: the retained message of one topic.

use super::{key, ordinal, whole};

/// The row of `topic`.
pub fn encode(topic: &[u8]) -> Vec<u8> {
    key(ordinal::RETAINED, &[topic])
}

/// The topic of a key of this table.
pub fn decode(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[ordinal::RETAINED])
}

/// All rows from `topic` on.
pub fn from(topic: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (encode(topic), whole(ordinal::RETAINED).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(decode(&encode(b"a/b")), Some(&b"a/b"[..]));
        let (from, to) = from(b"a");
        assert!(from <= encode(b"a") && encode(b"\xff") < to);
    }
}
