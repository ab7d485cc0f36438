//! `0x1c | session u64 | number u64 | topic` → empty: the retained message of a topic has gone into the queue before its
//! feed came to it.

use super::{feed, key, ordinal};
use crate::base::ids::SessionId;

/// The row of one topic of a feed.
pub fn encode(session: SessionId, number: u64, topic: &[u8]) -> Vec<u8> {
    key(ordinal::AHEAD, &[&feed::subject(session, number), topic])
}

/// The topic of a key of this table.
pub fn decode(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&[ordinal::AHEAD])?.get(16..)?).ok()
}

/// The rows of a feed, from a topic on.
pub fn from(session: SessionId, number: u64, topic: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let end = match number.checked_add(1) {
        Some(next) => encode(session, next, b""),
        None => encode(SessionId(session.0.saturating_add(1)), 0, b""),
    };
    (encode(session, number, topic), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_its_topic_and_is_among_its_feeds_rows() {
        let key = encode(SessionId(7), 9, b"a/b");
        assert_eq!(decode(&key), Some("a/b"));
        let (first, end) = from(SessionId(7), 9, b"a");
        assert!(first <= key && key < end);
        assert!(end <= encode(SessionId(7), 10, b""));
        assert!(from(SessionId(7), 9, b"b").0 > key);
    }
}
