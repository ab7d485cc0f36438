//! `0x1c | session u64 | number u64 | topic` → empty: the retained message of a topic has gone into the queue before
//! its retained replay came to it.

use super::table::{Range, Table, key, rest, take_u64};
use crate::base::ids::SessionId;

/// The table.
pub enum ReplayedTopic {}

impl Table for ReplayedTopic {
    const ORDINAL: u8 = 0x1c;
    type Key<'a> = (SessionId, u64, &'a str);
    type Row = ();

    fn encode((session, number, topic): Self::Key<'_>) -> Vec<u8> {
        let (session, number) = (session.0.to_be_bytes(), number.to_be_bytes());
        key::<Self>(&[&session, &number, topic.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (session, rest) = take_u64(rest::<Self>(key)?)?;
        let (number, topic) = take_u64(rest)?;
        Some((SessionId(session), number, std::str::from_utf8(topic).ok()?))
    }
}

impl ReplayedTopic {
    /// The rows of a retained replay, from a topic on.
    pub fn from(session: SessionId, number: u64, topic: &str) -> Range<Self> {
        let next = match number.checked_add(1) {
            Some(next) => (session, next, ""),
            None => (SessionId(session.0.saturating_add(1)), 0, ""),
        };
        Range::<Self>::all()
            .starting_at((session, number, topic))
            .before(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of_and_is_among_its_replays_rows() {
        let (session, number) = (SessionId(7), 9);
        let key = ReplayedTopic::encode((session, number, "a/b"));
        assert_eq!(ReplayedTopic::decode(&key), Some((session, number, "a/b")));
        assert!(has(&ReplayedTopic::from(session, number, "a"), &key));
        assert!(!has(&ReplayedTopic::from(session, number, "b"), &key));
        let next = ReplayedTopic::encode((session, 10, ""));
        assert!(!has(&ReplayedTopic::from(session, number, "a"), &next));
    }
}
