//! `0x17 | session u64 | packet id u16` → empty: a QoS 2 message was received from the session's client, its PUBREL not
//! yet.

use super::table::{Range, Table, key, rest, take_u64};
use crate::base::ids::SessionId;

/// The table.
pub enum Received {}

impl Table for Received {
    const ORDINAL: u8 = 0x17;
    type Key<'a> = (SessionId, u16);
    type Row = ();

    fn encode((session, packet_id): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&session.0.to_be_bytes(), &packet_id.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (session, packet_id) = take_u64(rest::<Self>(key)?)?;
        let packet_id = u16::from_be_bytes(packet_id.try_into().ok()?);
        Some((SessionId(session), packet_id))
    }
}

impl Received {
    /// All rows of one session.
    pub fn of_session(session: SessionId) -> Range<Self> {
        Range::<Self>::of_number(session.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = Received::encode((SessionId(7), 0x0102));
        assert_eq!(Received::decode(&key), Some((SessionId(7), 0x0102)));
        assert!(has(&Received::of_session(SessionId(7)), &key));
    }
}
