//! `0x11 | session u64 | filter` → `state.Subscription`. The filter is stored as it was sent, `$share/…` included.

use super::{key, ordinal, range_of, take_u64, whole};
use crate::base::ids::SessionId;

/// The row of one subscription.
pub fn encode(session: SessionId, filter: &str) -> Vec<u8> {
    key(
        ordinal::SUBSCRIPTION,
        &[&session.0.to_be_bytes(), filter.as_bytes()],
    )
}

/// Session and filter of a key of this table.
pub fn decode(key: &[u8]) -> Option<(SessionId, &str)> {
    let (session, filter) = take_u64(key.strip_prefix(&[ordinal::SUBSCRIPTION])?)?;
    Some((SessionId(session), std::str::from_utf8(filter).ok()?))
}

/// All rows of one session.
pub fn of_session(session: SessionId) -> (Vec<u8>, Vec<u8>) {
    range_of(ordinal::SUBSCRIPTION, session.0)
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::SUBSCRIPTION)
}

#[cfg(test)]
mod tests {
    use crate::base::ids::SessionId;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = super::encode(SessionId(7), "$share/g/a/#");
        assert_eq!(super::decode(&key), Some((SessionId(7), "$share/g/a/#")));
    }

    #[test]
    fn the_rows_of_a_session_are_one_range() {
        let (from, to) = super::of_session(SessionId(7));
        assert!(
            from <= super::encode(SessionId(7), "a")
                && super::encode(SessionId(7), "\u{10FFFF}") < to
        );
        assert!(to <= super::encode(SessionId(8), "a"));
        assert!(super::of_session(SessionId(u64::MAX)).1 > super::encode(SessionId(u64::MAX), "z"));
    }
}
