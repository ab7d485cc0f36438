//! `0x55 | client` → `state.PendingClient`: a client that has changed, until the event that says so.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum PendingClient {}

impl Table for PendingClient {
    const ORDINAL: u8 = 0x55;
    type Key<'a> = &'a str;
    type Row = state::PendingClient;

    fn encode(client: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[client.as_bytes()])
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
        let key = PendingClient::encode("devA/m1");
        assert_eq!(PendingClient::decode(&key), Some("devA/m1"));
    }
}
