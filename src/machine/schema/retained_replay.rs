//! `0x1b | session u64 | number u64` → `state.RetainedReplay`: retained messages that are still to go into a session's
//! queue.

use super::table::{Table, key, only_u64, rest, take_u64};
use crate::base::ids::SessionId;
use crate::base::proto::state;

/// The table.
pub enum RetainedReplay {}

impl Table for RetainedReplay {
    const ORDINAL: u8 = 0x1b;
    type Key<'a> = (SessionId, u64);
    type Row = state::RetainedReplay;

    fn encode((session, number): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&subject(session, number)])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        of_subject(rest::<Self>(key)?)
    }
}

/// What a timer calls a retained replay.
pub fn subject(session: SessionId, number: u64) -> [u8; 16] {
    let mut subject = [0; 16];
    subject[..8].copy_from_slice(&session.0.to_be_bytes());
    subject[8..].copy_from_slice(&number.to_be_bytes());
    subject
}

/// The inverse of [`subject`].
pub fn of_subject(subject: &[u8]) -> Option<(SessionId, u64)> {
    let (session, rest) = take_u64(subject)?;
    Some((SessionId(session), only_u64(rest)?))
}

#[cfg(test)]
mod tests {
    use super::super::table::{Range, has};
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = RetainedReplay::encode((SessionId(7), 9));
        assert_eq!(RetainedReplay::decode(&key), Some((SessionId(7), 9)));
        assert_eq!(RetainedReplay::decode(&key[..16]), None);
        let subject = subject(SessionId(1), 2);
        assert_eq!(of_subject(&subject), Some((SessionId(1), 2)));
        assert!(has(&Range::<RetainedReplay>::all(), &key));
    }
}
