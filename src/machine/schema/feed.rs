//! `0x1b | session u64 | number u64` → `state.Feed`: retained messages that are still to go into a session's queue.

use super::{key, ordinal, take_u64, whole};
use crate::base::ids::SessionId;

/// The row of one feed.
pub fn encode(session: SessionId, number: u64) -> Vec<u8> {
    key(ordinal::FEED, &[&subject(session, number)])
}

/// Session and number of a key of this table.
pub fn decode(key: &[u8]) -> Option<(SessionId, u64)> {
    of_subject(key.strip_prefix(&[ordinal::FEED])?)
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::FEED)
}

/// What a timer calls a feed.
pub fn subject(session: SessionId, number: u64) -> [u8; 16] {
    let mut subject = [0; 16];
    subject[..8].copy_from_slice(&session.0.to_be_bytes());
    subject[8..].copy_from_slice(&number.to_be_bytes());
    subject
}

/// The inverse of [`subject`].
pub fn of_subject(subject: &[u8]) -> Option<(SessionId, u64)> {
    let (session, rest) = take_u64(subject)?;
    match take_u64(rest)? {
        (number, []) => Some((SessionId(session), number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = encode(SessionId(7), 9);
        assert_eq!(decode(&key), Some((SessionId(7), 9)));
        assert_eq!(decode(&key[..16]), None);
        assert_eq!(
            of_subject(&subject(SessionId(1), 2)),
            Some((SessionId(1), 2))
        );
        let (from, to) = all();
        assert!(from <= key && key < to);
    }
}
