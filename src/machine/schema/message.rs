//! `0x15 | message u64` → `state.Message`: a message that queues refer to.

use super::{key, ordinal};
use crate::session::MessageId;

/// The row of `message`.
pub fn encode(message: MessageId) -> Vec<u8> {
    key(ordinal::MESSAGE, &[&message.0.to_be_bytes()])
}
