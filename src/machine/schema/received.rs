//! `0x17 | session u64 | packet id u16` → empty: a QoS 2 message was received from the session's client, its PUBREL not
//! yet.

use super::{key, ordinal, range_of, take_u64};
use crate::base::ids::SessionId;

/// The row of one packet id.
pub fn encode(session: SessionId, packet_id: u16) -> Vec<u8> {
    key(
        ordinal::RECEIVED,
        &[&session.0.to_be_bytes(), &packet_id.to_be_bytes()],
    )
}

/// The packet id of a key of this table.
pub fn decode(key: &[u8]) -> Option<u16> {
    let (_, rest) = take_u64(key.strip_prefix(&[ordinal::RECEIVED])?)?;
    Some(u16::from_be_bytes(rest.try_into().ok()?))
}

/// All rows of one session.
pub fn of_session(session: SessionId) -> (Vec<u8>, Vec<u8>) {
    range_of(ordinal::RECEIVED, session.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = encode(SessionId(7), 0x0102);
        assert_eq!(decode(&key), Some(0x0102));
        let (from, to) = of_session(SessionId(7));
        assert!(from <= key && key < to);
    }
}
