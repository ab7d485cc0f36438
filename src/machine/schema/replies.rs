//! `0x22 | log index u64 [| part u32]` → `state.Replies`: remembered replies of one log entry's state-store writes. Its
//! first part, the only one of most entries, is numbered 0 and has no number in its key.

use super::table::{Table, key, rest, take_u64};
use crate::base::ids::LogIndex;
use crate::base::proto::state;

/// The table.
pub enum Replies {}

impl Table for Replies {
    const ORDINAL: u8 = 0x22;
    type Key<'a> = (LogIndex, u32);
    type Row = state::Replies;

    fn encode((index, part): Self::Key<'_>) -> Vec<u8> {
        let (index, part) = (index.0.to_be_bytes(), part.to_be_bytes());
        let part: &[u8] = if part == [0; 4] { &[] } else { &part };
        key::<Self>(&[&index, part])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (index, part) = take_u64(rest::<Self>(key)?)?;
        let part = match part {
            [] => 0,
            part => u32::from_be_bytes(part.try_into().ok()?),
        };
        Some((LogIndex(index), part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        for part in [0, 1, u32::MAX] {
            let key = Replies::encode((LogIndex(9), part));
            assert_eq!(Replies::decode(&key), Some((LogIndex(9), part)));
        }
        assert_eq!(Replies::encode((LogIndex(9), 0)).len(), 9);
        assert_eq!(Replies::decode(&[0x22, 0, 0, 0, 0, 0, 0, 0, 9, 1]), None);
    }
}
