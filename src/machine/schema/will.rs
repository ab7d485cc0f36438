//! `0x12 | client id` → `state.Will`: the will of a session, until it is published or dropped.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum Will {}

impl Table for Will {
    const ORDINAL: u8 = 0x12;
    type Key<'a> = &'a str;
    type Row = state::Will;

    fn encode(client_id: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[client_id.as_bytes()])
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
        assert_eq!(Will::decode(&Will::encode("kä")), Some("kä"));
    }
}
