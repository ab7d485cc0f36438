//! `0x52 | name` → `state.EventSubscription`: who is to get events, and how far it has come.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum EventSubscription {}

impl Table for EventSubscription {
    const ORDINAL: u8 = 0x52;
    type Key<'a> = &'a str;
    type Row = state::EventSubscription;

    fn encode(name: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[name.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        std::str::from_utf8(rest::<Self>(key)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = EventSubscription::encode("config");
        assert_eq!(EventSubscription::decode(&key), Some("config"));
    }
}
