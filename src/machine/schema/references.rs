//! `0x16 | message u64` → u32, big-endian: how many queues refer to a message, while it is more than one.

use super::{key, ordinal};
use crate::session::MessageId;

/// The row of `message`.
pub fn encode(message: MessageId) -> Vec<u8> {
    key(ordinal::REFERENCES, &[&message.0.to_be_bytes()])
}
