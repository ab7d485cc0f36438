//! `0x1a | group u64 | number u64` → [`crate::session::Entry`]: a message that waits for a member of a group.

use super::table::{Range, Table, key, only_u64, rest, take_u64};
use crate::session;

/// The table.
pub enum Waiting {}

impl Table for Waiting {
    const ORDINAL: u8 = 0x1a;
    type Key<'a> = (u64, u64);
    type Row = session::Entry;

    fn encode((group, number): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&group.to_be_bytes(), &number.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (group, rest) = take_u64(rest::<Self>(key)?)?;
        Some((group, only_u64(rest)?))
    }
}

impl Waiting {
    /// The rows of a group from `number` on.
    pub fn from(group: u64, number: u64) -> Range<Self> {
        Range::<Self>::of_number(group).starting_at((group, number))
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(Waiting::decode(&Waiting::encode((7, 9))), Some((7, 9)));
        let range = Waiting::from(7, 2);
        assert!(!has(&range, &Waiting::encode((7, 1))));
        assert!(has(&range, &Waiting::encode((7, u64::MAX))));
        assert!(!has(&range, &Waiting::encode((8, 0))));
    }
}
