//! `0x57 | due ms u64 | authentication name | 00 | client id` → empty: the numbers of a session that has no connection
//! may go then, or later.

use super::event_sequence::{Pair, take_pair};
use super::table::{Table, key, rest, take_u64};
use crate::base::time::Millis;

/// The table.
pub enum EventSequenceEnd {}

impl Table for EventSequenceEnd {
    const ORDINAL: u8 = 0x57;
    type Key<'a> = (Millis, Pair<'a>);
    type Row = ();

    fn encode((due, (name, client_id)): Self::Key<'_>) -> Vec<u8> {
        let due = due.0.to_be_bytes();
        key::<Self>(&[&due, name.as_bytes(), &[0], client_id.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (due, pair) = take_u64(rest::<Self>(key)?)?;
        Some((Millis(due), take_pair(pair)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let made_of = (Millis(300), ("kä", "c"));
        let key = EventSequenceEnd::encode(made_of);
        assert_eq!(EventSequenceEnd::decode(&key), Some(made_of));
        assert!(key > EventSequenceEnd::encode((Millis(255), ("z", "z"))));
    }
}
