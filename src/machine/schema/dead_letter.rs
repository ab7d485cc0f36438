//! `0x54 | name of the event subscription | 00 | number u64` → `state.DeadLetter`: an event that was given up.

use super::parked_event::{of_name, take_name};
use super::table::{Range, Table, key, only_u64, rest};
use crate::base::proto::state;

/// The table.
pub enum DeadLetter {}

impl Table for DeadLetter {
    const ORDINAL: u8 = 0x54;
    type Key<'a> = (&'a str, u64);
    type Row = state::DeadLetter;

    fn encode((name, number): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[name.as_bytes(), &[0], &number.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (name, number) = take_name(rest::<Self>(key)?)?;
        Some((name, only_u64(number)?))
    }
}

impl DeadLetter {
    /// Those of one event subscription, in the order of their numbers.
    pub fn of_subscription(name: &str) -> Range<Self> {
        of_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = DeadLetter::encode(("config", 7));
        assert_eq!(DeadLetter::decode(&key), Some(("config", 7)));
    }

    #[test]
    fn those_of_an_event_subscription_are_together() {
        let range = DeadLetter::of_subscription("a");
        assert!(has(&range, &DeadLetter::encode(("a", u64::MAX))));
        assert!(!has(&range, &DeadLetter::encode(("a0", 0))));
    }
}
