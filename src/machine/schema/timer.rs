//! `0x30 | deadline ms u64 | kind u8 | subject` → empty: something is due at a log time.

use super::{key, ordinal, take_u64, whole};
use crate::base::time::Millis;

/// What is due. The number is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A state-store key expires; the subject is the key.
    KeyExpiry = 1,
    /// A tombstone may go; the subject is the key.
    Tombstone = 2,
    /// The remembered replies of a log entry may go; the subject is its index, big-endian.
    Replies = 3,
    /// A session without a connection ends; the subject is its client id.
    SessionExpiry = 4,
    /// A will's delay is over; the subject is the client id.
    WillDelay = 5,
    /// A retained message expires; the subject is its topic.
    RetainedExpiry = 6,
    /// More rows of an ended session's queue are to go; the subject is the session, big-endian.
    PurgeSession = 7,
    /// More rows of an ended group are to go; the subject is the group, big-endian.
    PurgeGroup = 8,
    /// A session's queue holds more than was handed out at once; the subject is the session, big-endian.
    Grant = 9,
    /// More retained messages are to go into a session's queue; the subject is the feed.
    Feed = 10,
}

impl Kind {
    fn from_u8(number: u8) -> Option<Kind> {
        [
            Kind::KeyExpiry,
            Kind::Tombstone,
            Kind::Replies,
            Kind::SessionExpiry,
            Kind::WillDelay,
            Kind::RetainedExpiry,
            Kind::PurgeSession,
            Kind::PurgeGroup,
            Kind::Grant,
            Kind::Feed,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// The row of a timer.
pub fn encode(deadline: Millis, kind: Kind, subject: &[u8]) -> Vec<u8> {
    key(
        ordinal::TIMER,
        &[&deadline.0.to_be_bytes(), &[kind as u8], subject],
    )
}

/// Deadline, kind and subject of a key of this table.
pub fn decode(key: &[u8]) -> Option<(Millis, Kind, &[u8])> {
    let (deadline, rest) = take_u64(key.strip_prefix(&[ordinal::TIMER])?)?;
    let (kind, subject) = rest.split_first()?;
    Some((Millis(deadline), Kind::from_u8(*kind)?, subject))
}

/// All rows due from `from` on, the earliest first.
pub fn since(from: Millis) -> (Vec<u8>, Vec<u8>) {
    (
        key(ordinal::TIMER, &[&from.0.to_be_bytes()]),
        whole(ordinal::TIMER).1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        for kind in [
            Kind::KeyExpiry,
            Kind::Tombstone,
            Kind::Replies,
            Kind::SessionExpiry,
        ] {
            let key = encode(Millis(5), kind, b"x");
            assert_eq!(decode(&key), Some((Millis(5), kind, &b"x"[..])));
        }
    }

    #[test]
    fn the_earliest_deadline_sorts_first() {
        assert!(
            encode(Millis(255), Kind::SessionExpiry, b"z")
                < encode(Millis(256), Kind::KeyExpiry, b"")
        );
    }
}
