//! `0x11 | session u64 | filter` → `state.Subscription`. The filter is stored as it was sent, `$share/…` included.

use super::table::{Range, Table, key, rest, take_u64};
use crate::base::ids::SessionId;
use crate::base::proto::state;

/// The table.
pub enum Subscription {}

impl Table for Subscription {
    const ORDINAL: u8 = 0x11;
    type Key<'a> = (SessionId, &'a str);
    type Row = state::Subscription;

    fn encode((session, filter): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&session.0.to_be_bytes(), filter.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (session, filter) = take_u64(rest::<Self>(key)?)?;
        Some((SessionId(session), std::str::from_utf8(filter).ok()?))
    }
}

impl Subscription {
    /// All rows of one session.
    pub fn of_session(session: SessionId) -> Range<Self> {
        Range::<Self>::of_number(session.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    fn encode(session: u64, filter: &str) -> Vec<u8> {
        Subscription::encode((SessionId(session), filter))
    }

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = encode(7, "$share/g/a/#");
        let expected = (SessionId(7), "$share/g/a/#");
        assert_eq!(Subscription::decode(&key), Some(expected));
    }

    #[test]
    fn the_rows_of_a_session_are_one_range() {
        let range = Subscription::of_session(SessionId(7));
        assert!(has(&range, &encode(7, "a")) && has(&range, &encode(7, "\u{10FFFF}")));
        assert!(!has(&range, &encode(8, "a")));
        let last = Subscription::of_session(SessionId(u64::MAX));
        assert!(has(&last, &encode(u64::MAX, "z")));
    }
}
