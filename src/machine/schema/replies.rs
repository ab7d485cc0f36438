//! `0x22 | log index u64` → `state.Replies`: the remembered replies of one log entry's state-store writes.

use super::table::{Table, key, only_u64, rest};
use crate::base::ids::LogIndex;
use crate::base::proto::state;

/// The table.
pub enum Replies {}

impl Table for Replies {
    const ORDINAL: u8 = 0x22;
    type Key<'a> = LogIndex;
    type Row = state::Replies;

    fn encode(index: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&index.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        only_u64(rest::<Self>(key)?).map(LogIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = Replies::encode(LogIndex(9));
        assert_eq!(Replies::decode(&key), Some(LogIndex(9)));
    }
}
