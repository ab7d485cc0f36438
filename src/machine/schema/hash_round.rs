//! `0x04` → `state.HashRound`: what the replicas have found when they hashed their states the last time. One row.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum HashRound {}

impl Table for HashRound {
    const ORDINAL: u8 = 0x04;
    type Key<'a> = ();
    type Row = state::HashRound;

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
        assert_eq!(HashRound::decode(&HashRound::encode(())), Some(()));
        assert_eq!(HashRound::decode(&[4, 0]), None);
    }
}
