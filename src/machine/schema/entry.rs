//! `0x14 | session u64 | sequence u64` → [`crate::session::Entry`]: one message in the queue of one session.

use bytes::Bytes;

use super::table::{Range, Row, Table, key, only_u64, rest, take_u64};
use crate::base::ids::SessionId;
use crate::session::{self, EntryError, Sequence};

/// The table.
pub enum Entry {}

impl Table for Entry {
    const ORDINAL: u8 = 0x14;
    type Key<'a> = (SessionId, Sequence);
    type Row = session::Entry;

    fn encode((session, sequence): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&session.0.to_be_bytes(), &sequence.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (session, rest) = take_u64(rest::<Self>(key)?)?;
        Some((SessionId(session), Sequence(only_u64(rest)?)))
    }
}

impl Entry {
    /// The entries of a session from a sequence on.
    pub fn from(session: SessionId, sequence: Sequence) -> Range<Self> {
        Range::<Self>::of_number(session.0).starting_at((session, sequence))
    }
}

/// Most entries take 11 bytes.
const USUAL_BYTES: usize = 16;

impl Row for session::Entry {
    type Error = EntryError;

    fn to_bytes(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(USUAL_BYTES);
        self.encode(&mut row);
        row
    }

    fn from_bytes(row: Bytes) -> Result<Self, EntryError> {
        session::Entry::decode(&row)
    }

    fn from_slice(row: &[u8]) -> Result<Self, EntryError> {
        session::Entry::decode(row)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    fn encode(session: u64, sequence: u64) -> Vec<u8> {
        Entry::encode((SessionId(session), Sequence(sequence)))
    }

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = encode(7, 9);
        assert_eq!(Entry::decode(&key), Some((SessionId(7), Sequence(9))));
        assert_eq!(Entry::decode(&key[1..]), None);
    }

    #[test]
    fn the_rows_of_a_session_are_in_the_order_of_their_sequences() {
        let range = Entry::from(SessionId(7), Sequence(2));
        assert!(!has(&range, &encode(7, 1)));
        assert!(has(&range, &encode(7, 2)));
        assert!(encode(7, 256) > encode(7, 255));
        assert!(has(&range, &encode(7, u64::MAX)));
        assert!(!has(&range, &encode(8, 0)));
    }
}
