//! `0x19 | shared filter` → `state.Group`: a share name with its filter, as it was subscribed to.

use super::{key, ordinal, whole};

/// The row of a group.
pub fn encode(filter: &str) -> Vec<u8> {
    key(ordinal::GROUP, &[filter.as_bytes()])
}

/// The filter of a key of this table.
pub fn decode(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&[ordinal::GROUP])?).ok()
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::GROUP)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(
            super::decode(&super::encode("$share/g/ä/#")),
            Some("$share/g/ä/#")
        );
    }
}
