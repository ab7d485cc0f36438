//! `0x56` → `state.EventSettings`: what all replicas must know alike to record events. One row.

use super::table::{Table, key};
use crate::base::proto::state;

/// The table.
pub enum EventSettings {}

impl Table for EventSettings {
    const ORDINAL: u8 = 0x56;
    type Key<'a> = ();
    type Row = state::EventSettings;

    fn encode((): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        (key == [Self::ORDINAL]).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(EventSettings::decode(&EventSettings::encode(())), Some(()));
    }
}
