//! `0x50 | authentication name | 00 | client id` → `state.EventSequence`: the number of the last connection.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum EventSequence {}

/// Authentication name and client id, as this key and that of [`super::EventSequenceEnd`] have them.
pub type Pair<'a> = (&'a str, &'a str);

impl Table for EventSequence {
    const ORDINAL: u8 = 0x50;
    type Key<'a> = Pair<'a>;
    type Row = state::EventSequence;

    fn encode((name, client_id): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[name.as_bytes(), &[0], client_id.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        take_pair(rest::<Self>(key)?)
    }
}

/// The two names of a pair. No client id holds the byte between them; a name that does is cut at another place, which
/// gives a pair all the same.
pub(super) fn take_pair(bytes: &[u8]) -> Option<Pair<'_>> {
    let at = bytes.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&bytes[..at]).ok()?;
    Some((name, std::str::from_utf8(&bytes[at + 1..]).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        for pair in [("kä", "c"), ("", "c"), ("devA/m1", "devA/m1")] {
            assert_eq!(
                EventSequence::decode(&EventSequence::encode(pair)),
                Some(pair)
            );
        }
        assert_eq!(EventSequence::decode(&[0x50, b'a']), None);
    }
}
