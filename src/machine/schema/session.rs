//! `0x10 | client id` → `state.Session`.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum Session {}

impl Table for Session {
    const ORDINAL: u8 = 0x10;
    type Key<'a> = &'a str;
    type Row = state::Session;

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
        assert_eq!(Session::decode(&Session::encode("kä/#+")), Some("kä/#+"));
    }
}
