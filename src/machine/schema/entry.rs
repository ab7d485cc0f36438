//! `0x14 | session u64 | sequence u64` → [`crate::session::Entry`]: one message in the queue of one session.

use super::{key, ordinal, range_of, take_u64};
use crate::base::ids::SessionId;
use crate::session::Sequence;

/// The row of one entry.
pub fn encode(session: SessionId, sequence: Sequence) -> Vec<u8> {
    key(
        ordinal::ENTRY,
        &[&session.0.to_be_bytes(), &sequence.0.to_be_bytes()],
    )
}

/// Session and sequence of a key of this table.
pub fn decode(key: &[u8]) -> Option<(SessionId, Sequence)> {
    let (session, rest) = take_u64(key.strip_prefix(&[ordinal::ENTRY])?)?;
    match take_u64(rest)? {
        (sequence, []) => Some((SessionId(session), Sequence(sequence))),
        _ => None,
    }
}

/// The rows of `session` from `sequence` on.
pub fn from(session: SessionId, sequence: Sequence) -> (Vec<u8>, Vec<u8>) {
    (
        encode(session, sequence),
        range_of(ordinal::ENTRY, session.0).1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = encode(SessionId(7), Sequence(9));
        assert_eq!(decode(&key), Some((SessionId(7), Sequence(9))));
        assert_eq!(decode(&key[1..]), None);
    }

    #[test]
    fn the_rows_of_a_session_are_in_the_order_of_their_sequences() {
        let (from, to) = from(SessionId(7), Sequence(2));
        assert!(encode(SessionId(7), Sequence(1)) < from);
        assert!(from <= encode(SessionId(7), Sequence(2)));
        assert!(encode(SessionId(7), Sequence(256)) > encode(SessionId(7), Sequence(255)));
        assert!(encode(SessionId(7), Sequence(u64::MAX)) < to);
        assert!(to <= encode(SessionId(8), Sequence(0)));
    }
}
