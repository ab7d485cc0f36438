//! The schema of `state/`: one file per key type. Keys sort as bytes; numbers are big-endian.
//!
//! | ordinal | table | key | value |
//! |---|---|---|---|
//! | `0x00` | the storage layer's own | | |
//! | `0x01` | [`meta`] | | `state.Meta` |
//! | `0x02` | [`node`] | node id | `state.Node` |
//! | `0x10` | [`session`] | client id | `state.Session` |
//! | `0x11` | [`subscription`] | session id, filter | `state.Subscription` |
//! | `0x12` | [`will`] | client id | `state.Will` |
//! | `0x13` | [`queue`] | session id | `state.Queue` |
//! | `0x14` | [`entry`] | session id, sequence | `session::Entry` |
//! | `0x15` | [`message`] | message id | `state.Message` |
//! | `0x16` | [`references`] | message id | number |
//! | `0x17` | [`received`] | session id, packet id | |
//! | `0x18` | [`retained`] | topic | `state.Retained` |
//! | `0x19` | [`group`] | shared filter | `state.Group` |
//! | `0x1a` | [`waiting`] | group id, number | `session::Entry` |
//! | `0x1b` | [`feed`] | session id, number | `state.Feed` |
//! | `0x1c` | [`ahead`] | session id, number, topic | |
//! | `0x20` | [`record`] | state-store key | `store::record` |
//! | `0x21` | [`watch`] | connection, state-store key | client id |
//! | `0x22` | [`replies`] | log index | `state.Replies` |
//! | `0x30` | [`timer`] | deadline, kind, subject | |
//!
//! Ordinals are for ever: one is never given to another table.

pub mod ahead;
pub mod entry;
pub mod feed;
pub mod group;
pub mod message;
pub mod meta;
pub mod node;
pub mod queue;
pub mod received;
pub mod record;
pub mod references;
pub mod replies;
pub mod retained;
pub mod session;
pub mod subscription;
pub mod timer;
pub mod waiting;
pub mod watch;
pub mod will;

/// The first byte of every key.
pub(crate) mod ordinal {
    pub const META: u8 = 0x01;
    pub const NODE: u8 = 0x02;
    pub const SESSION: u8 = 0x10;
    pub const SUBSCRIPTION: u8 = 0x11;
    pub const WILL: u8 = 0x12;
    pub const QUEUE: u8 = 0x13;
    pub const ENTRY: u8 = 0x14;
    pub const MESSAGE: u8 = 0x15;
    pub const REFERENCES: u8 = 0x16;
    pub const RECEIVED: u8 = 0x17;
    pub const RETAINED: u8 = 0x18;
    pub const GROUP: u8 = 0x19;
    pub const WAITING: u8 = 0x1a;
    pub const FEED: u8 = 0x1b;
    pub const AHEAD: u8 = 0x1c;
    pub const RECORD: u8 = 0x20;
    pub const WATCH: u8 = 0x21;
    pub const REPLIES: u8 = 0x22;
    pub const TIMER: u8 = 0x30;
}

/// Builds a key: the table's ordinal, then `parts`.
fn key(ordinal: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut key = Vec::with_capacity(length);
    key.push(ordinal);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// The key range `[from, to)` of a whole table.
fn whole(ordinal: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![ordinal], vec![ordinal + 1])
}

/// The key range `[from, to)` of the rows of one number, which comes first in the key.
fn range_of(ordinal: u8, number: u64) -> (Vec<u8>, Vec<u8>) {
    let from = key(ordinal, &[&number.to_be_bytes()]);
    let to = match number.checked_add(1) {
        Some(next) => key(ordinal, &[&next.to_be_bytes()]),
        None => whole(ordinal).1,
    };
    (from, to)
}

/// Splits eight bytes off the front as a number.
fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*head), rest))
}
