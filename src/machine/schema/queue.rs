//! `0x13 | session u64` → `state.Queue`: how far the queue of a session has come.

use super::table::{Table, key, only_u64, rest};
use crate::base::ids::SessionId;
use crate::base::proto::state;

/// The table.
pub enum Queue {}

impl Table for Queue {
    const ORDINAL: u8 = 0x13;
    type Key<'a> = SessionId;
    type Row = state::Queue;

    fn encode(session: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&session.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        only_u64(rest::<Self>(key)?).map(SessionId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = Queue::encode(SessionId(7));
        assert_eq!(Queue::decode(&key), Some(SessionId(7)));
    }
}
