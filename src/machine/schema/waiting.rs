//! `0x1a | group u64 | number u64` → [`crate::session::Entry`]: a message that waits for a member of a group.

use super::{key, ordinal, range_of, take_u64};

/// The row of one message.
pub fn encode(group: u64, number: u64) -> Vec<u8> {
    key(
        ordinal::WAITING,
        &[&group.to_be_bytes(), &number.to_be_bytes()],
    )
}

/// The number of a key of this table.
pub fn decode(key: &[u8]) -> Option<u64> {
    let (_, rest) = take_u64(key.strip_prefix(&[ordinal::WAITING])?)?;
    match take_u64(rest)? {
        (number, []) => Some(number),
        _ => None,
    }
}

/// The rows of a group from `number` on.
pub fn from(group: u64, number: u64) -> (Vec<u8>, Vec<u8>) {
    (encode(group, number), range_of(ordinal::WAITING, group).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(decode(&encode(7, 9)), Some(9));
        let (from, to) = from(7, 2);
        assert!(encode(7, 1) < from && encode(7, u64::MAX) < to && to <= encode(8, 0));
    }
}
