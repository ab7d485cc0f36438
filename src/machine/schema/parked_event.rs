//! `0x53 | name of the event subscription | 00 | due ms u64 | number u64` → `state.ParkedEvent`: an event that is
//! delivered apart from the others.

use super::table::{Range, Table, key, only_u64, rest, take_u64};
use crate::base::proto::state;
use crate::base::time::Millis;

/// The table.
pub enum ParkedEvent {}

impl Table for ParkedEvent {
    const ORDINAL: u8 = 0x53;
    type Key<'a> = (&'a str, Millis, u64);
    type Row = state::ParkedEvent;

    fn encode((name, due, number): Self::Key<'_>) -> Vec<u8> {
        let (due, number) = (due.0.to_be_bytes(), number.to_be_bytes());
        key::<Self>(&[name.as_bytes(), &[0], &due, &number])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (name, numbers) = take_name(rest::<Self>(key)?)?;
        let (due, number) = take_u64(numbers)?;
        Some((name, Millis(due), only_u64(number)?))
    }
}

impl ParkedEvent {
    /// Those of one event subscription, the first due first.
    pub fn of_subscription(name: &str) -> Range<Self> {
        of_name(name)
    }
}

/// The name that a key begins with, and what follows it.
pub(super) fn take_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let at = bytes.iter().position(|byte| *byte == 0)?;
    Some((std::str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]))
}

/// The rows whose keys begin with a name.
pub(super) fn of_name<T: Table>(name: &str) -> Range<T> {
    let name = name.as_bytes();
    Range::new(key::<T>(&[name, &[0]]), key::<T>(&[name, &[1]]))
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let made_of = ("config", Millis(0), 7);
        let key = ParkedEvent::encode(made_of);
        assert_eq!(ParkedEvent::decode(&key), Some(made_of));
        assert_eq!(ParkedEvent::decode(&key[..key.len() - 1]), None);
    }

    #[test]
    fn those_of_an_event_subscription_are_together_and_in_time() {
        let range = ParkedEvent::of_subscription("a");
        let last = ParkedEvent::encode(("a", Millis::NEVER, u64::MAX));
        assert!(has(&range, &ParkedEvent::encode(("a", Millis(0), 0))));
        assert!(has(&range, &last));
        for other in ["", "a-", "a0", "b"] {
            let key = ParkedEvent::encode((other, Millis(0), 0));
            assert!(!has(&range, &key), "{other}");
        }
        assert!(
            ParkedEvent::encode(("a", Millis(255), 9)) < ParkedEvent::encode(("a", Millis(256), 1))
        );
    }
}
