//! `0x30 | deadline ms u64 | kind u8 | subject` → empty: something is due at a log time.
//!
//! `0x31`, likewise: something is due that messages wait for.

use super::table::{Table, key, rest, take_u64};
use crate::base::time::Millis;

/// What is due. The number is on disk.
///
/// Invariant: a replica stops at a kind that it does not know, as at an unknown command. Timers also come with
/// snapshots, so a new kind is written only when every member of the cluster knows it.
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
    /// More rows of an ended session are to go; the subject is the session, big-endian.
    PurgeSession = 7,
    /// More rows of an ended group are to go; the subject is the group, big-endian.
    PurgeGroup = 8,
    /// A session's queue holds more than was granted at once; the subject is the session, big-endian.
    Grant = 9,
    /// A retained replay goes on; the subject is its key in [`super::RetainedReplay`].
    RetainedReplay = 10,
    /// More sessions are owned by connections of an ended incarnation; the subject is its key in
    /// [`super::EndedIncarnation`].
    ReleaseIncarnation = 11,
    /// An ended connection still watches keys; the subject is the connection as in [`super::Watch`].
    EndWatches = 12,
    /// What a session without a connection was sent through groups is to go back; the subject is the session,
    /// big-endian.
    GiveBack = 13,
    /// A session ends because its queue is full; the subject is the session, big-endian, and the client id.
    QueueFull = 14,
    /// A message is still to go into queues; the subject is its key in [`super::FanOut`].
    FanOut = 15,
    /// An entry of the directory expires; the subject is its key in [`super::DirectoryEntry`].
    DirectoryExpiry = 16,
    /// More of what was retained under the name of an identity that has ended or begun is to go; the subject says
    /// which, see `retained::purge`.
    PurgeRetained = 17,
    /// Numbers of sessions may go; there is no subject.
    EventSequences = 50,
    /// Events that nobody waits for may go; there is no subject.
    TrimEvents = 51,
    /// A client has changed, and its event is due; the subject is the client.
    ClientChanged = 52,
    /// Parked events or dead letters of an event subscription are to go or to be replayed; the subject is its name.
    EventLetters = 53,
}

impl Kind {
    /// Whether messages wait for it: it is set for now, and goes on with what an entry has left.
    pub fn is_work(self) -> bool {
        matches!(
            self,
            Kind::Grant | Kind::RetainedReplay | Kind::GiveBack | Kind::QueueFull | Kind::FanOut
        )
    }

    /// Whether it goes before everything else that is due, however long that has been due: the end of a node's
    /// connections, which wills and events wait for.
    pub fn goes_first(self) -> bool {
        matches!(self, Kind::ReleaseIncarnation)
    }

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
            Kind::RetainedReplay,
            Kind::ReleaseIncarnation,
            Kind::EndWatches,
            Kind::GiveBack,
            Kind::QueueFull,
            Kind::FanOut,
            Kind::DirectoryExpiry,
            Kind::PurgeRetained,
            Kind::EventSequences,
            Kind::TrimEvents,
            Kind::ClientChanged,
            Kind::EventLetters,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// A table of timers.
pub enum Timers<const ORDINAL: u8> {}

/// The table.
pub type Timer = Timers<0x30>;

/// The table of those that messages wait for: see [`Kind::is_work`].
pub type WorkTimer = Timers<0x31>;

impl<const ORDINAL: u8> Table for Timers<ORDINAL> {
    const ORDINAL: u8 = ORDINAL;
    type Key<'a> = (Millis, Kind, &'a [u8]);
    type Row = ();

    fn encode((deadline, kind, subject): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&deadline.0.to_be_bytes(), &[kind as u8], subject])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (deadline, rest) = take_u64(rest::<Self>(key)?)?;
        let (kind, subject) = rest.split_first()?;
        Some((Millis(deadline), Kind::from_u8(*kind)?, subject))
    }
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
            Kind::RetainedReplay,
            Kind::FanOut,
            Kind::DirectoryExpiry,
            Kind::EventSequences,
            Kind::TrimEvents,
            Kind::ClientChanged,
            Kind::EventLetters,
        ] {
            let key = Timer::encode((Millis(5), kind, b"x"));
            assert_eq!(Timer::decode(&key), Some((Millis(5), kind, &b"x"[..])));
            let key = WorkTimer::encode((Millis(5), kind, b"x"));
            assert_eq!(WorkTimer::decode(&key), Some((Millis(5), kind, &b"x"[..])));
        }
    }

    #[test]
    fn the_earliest_deadline_sorts_first() {
        assert!(
            Timer::encode((Millis(255), Kind::SessionExpiry, b"z"))
                < Timer::encode((Millis(256), Kind::KeyExpiry, b""))
        );
    }
}
