//! `0x51 | number u64` → `state.Event`: the outbox of events.

use super::table::{Table, key, only_u64, rest};
use crate::base::proto::state;

/// The table.
pub enum Event {}

impl Table for Event {
    const ORDINAL: u8 = 0x51;
    type Key<'a> = u64;
    type Row = state::Event;

    fn encode(number: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&number.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        only_u64(rest::<Self>(key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(Event::decode(&Event::encode(300)), Some(300));
        assert!(Event::encode(255) < Event::encode(256));
    }
}
