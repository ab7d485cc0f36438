//! `0x01` → `state.Meta`: the machine's clock and counters. One row.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum Meta {}

impl Table for Meta {
    const ORDINAL: u8 = 0x01;
    type Key<'a> = ();
    type Row = state::Meta;

    fn encode((): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        rest::<Self>(key)?.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_key() {
        assert_eq!(Meta::decode(&Meta::encode(())), Some(()));
        assert_eq!(Meta::decode(&[1, 0]), None);
    }
}
