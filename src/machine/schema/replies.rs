//! `0x22 | log index u64` → `state.Replies`: the remembered replies of one log entry's state-store writes.

use super::{key, ordinal, take_u64, whole};
use crate::base::ids::LogIndex;

/// The row of one log entry.
pub fn encode(index: LogIndex) -> Vec<u8> {
    key(ordinal::REPLIES, &[&index.0.to_be_bytes()])
}

/// The log index of a key of this table.
pub fn decode(key: &[u8]) -> Option<LogIndex> {
    match take_u64(key.strip_prefix(&[ordinal::REPLIES])?)? {
        (index, []) => Some(LogIndex(index)),
        _ => None,
    }
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::REPLIES)
}

#[cfg(test)]
mod tests {
    use crate::base::ids::LogIndex;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(
            super::decode(&super::encode(LogIndex(9))),
            Some(LogIndex(9))
        );
    }
}
