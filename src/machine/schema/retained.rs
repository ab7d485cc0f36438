//! `0x18 | topic` → `state.Retained`: the retained message of one topic.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum Retained {}

impl Table for Retained {
    const ORDINAL: u8 = 0x18;
    /// The topic; a scan may begin inside a character.
    type Key<'a> = &'a [u8];
    type Row = state::Retained;

    fn encode(topic: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[topic])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        rest::<Self>(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Range, has};
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(
            Retained::decode(&Retained::encode(b"a/b")),
            Some(&b"a/b"[..])
        );
        let range = Range::<Retained>::all().starting_at(b"a");
        assert!(has(&range, &Retained::encode(b"a")));
        assert!(has(&range, &Retained::encode(b"\xff")));
    }
}
