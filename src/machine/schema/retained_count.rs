//! `0x1f | publisher` → [`Count`]: how many retained messages there are of one device or module, while there are some.

use super::references::Count;
use super::table::{Table, key, rest};

/// The table.
pub enum RetainedCount {}

impl Table for RetainedCount {
    const ORDINAL: u8 = 0x1f;
    /// What the topics of its messages begin with, see [`crate::registry::messages::publisher`].
    type Key<'a> = &'a str;
    type Row = Count;

    fn encode(publisher: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[publisher.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        std::str::from_utf8(rest::<Self>(key)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = RetainedCount::encode("devices/d");
        assert_eq!(RetainedCount::decode(&key), Some("devices/d"));
    }
}
