//! `0x1d | session u64` → `state.EndedSession`: a session that has ended while rows of it are left.

use super::table::{Table, key, only_u64, rest};
use crate::base::ids::SessionId;
use crate::base::proto::state;

/// The table.
pub enum EndedSession {}

impl Table for EndedSession {
    const ORDINAL: u8 = 0x1d;
    type Key<'a> = SessionId;
    type Row = state::EndedSession;

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
        let key = EndedSession::encode(SessionId(7));
        assert_eq!(EndedSession::decode(&key), Some(SessionId(7)));
    }
}
