//! `0x13 | session u64` → `state.Queue`: how far the queue of a session has come.

use super::{key, ordinal};
use crate::base::ids::SessionId;

/// The row of `session`.
pub fn encode(session: SessionId) -> Vec<u8> {
    key(ordinal::QUEUE, &[&session.0.to_be_bytes()])
}
