//! `0x12 | client id` → `state.Will`: the will of a session, until it is published or dropped.

use super::{key, ordinal};

/// The row of the will of `client_id`.
pub fn encode(client_id: &str) -> Vec<u8> {
    key(ordinal::WILL, &[client_id.as_bytes()])
}
