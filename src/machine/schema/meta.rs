//! `0x01` → `state.Meta`: the machine's clock and counters. One row.

use super::{key, ordinal};

/// The key of the only row.
pub fn encode() -> Vec<u8> {
    key(ordinal::META, &[])
}
