//! Remembered replies: a state-store write that is sent again is answered as the first time and not carried out again
//! (docs/spec/state-store.md, Retries).
//!
//! The replies of one log entry are one row. In memory there is only an index from a digest of (client id, correlation
//! data, 64-bit fingerprint) to the entries whose rows hold such a reply, and where in them; the rows decide.
//!
//! Invariant: the index follows from the rows alone. A replica that has just restarted answers as one that kept
//! running.
//!
//! Two requests are the same when their 128-bit fingerprints are; where one of them was logged by a version that had
//! only the 64-bit one, when those are. Commands hold both. So a request that comes again is known whichever versions
//! of a rolling upgrade proposed it the first and the second time, and it is never applied twice.
//!
//! Versions that know only the 64 bits take two requests with the same 64 bits and the same correlation data for one. A
//! client that constructs such requests while versions are mixed can make their replicas differ.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::batch::Batch;
use super::schema;
use super::schema::timer::Kind;
use super::tables::Backing;
use super::timers;
use crate::base::ids::LogIndex;
use crate::base::limits;
use crate::base::proto::{command, state};
use crate::store::Reply;
use crate::store::fingerprint::{STABLE_BYTES, digest};

type Key = [u8; STABLE_BYTES];

/// Replies of former entries that one batch keeps decoded: a few of the largest rows.
const KEPT_REPLIES: usize = 1 << 17;

/// Index of what is remembered, and what the batch under way adds.
#[derive(Default)]
pub(super) struct Replies {
    /// Where the replies are: the log entry, and the position in its row. Several of one key are replies to different
    /// requests with the same 64 bits.
    entries: BTreeSet<(Key, LogIndex, u32)>,
    read: ReadRows,
    pending: Vec<state::RememberedReply>,
    /// The longest that any of `pending` is to be remembered, seconds.
    pending_s: u32,
}

impl Replies {
    /// Builds the index anew from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = Replies::default();
        backing.rows::<schema::Replies>(&schema::Range::all(), |index, row| {
            for (position, reply) in (0..).zip(&row.decode().replies) {
                self.entries.insert((key_of_reply(reply), index, position));
            }
            true
        });
    }

    /// The reply that was given to the same request before.
    pub fn find(
        &mut self,
        batch: &mut Batch<'_, '_>,
        command: &command::StoreWrite,
    ) -> Option<Reply> {
        let key = key_of_command(command);
        let all = (key, LogIndex(0), 0)..=(key, LogIndex(u64::MAX), u32::MAX);
        let newest_first = self.entries.range(all).rev();
        let similar: SmallVec<[(LogIndex, u32); limits::SIMILAR_REQUESTS]> = newest_first
            .take(limits::SIMILAR_REQUESTS)
            .map(|(_, index, position)| (*index, *position))
            .collect();
        similar.into_iter().find_map(|(index, position)| {
            let replies = match index == batch.index {
                true => &self.pending,
                false => self.read.row(batch, index),
            };
            let reply = replies.get(position as usize)?;
            match is_same(reply, command) {
                true => Reply::decode(reply.reply.clone()).ok(),
                false => None,
            }
        })
    }

    /// Remembers a reply as long as the command says.
    pub fn remember(&mut self, batch: &Batch<'_, '_>, command: command::StoreWrite, reply: &Reply) {
        // A batch has far fewer commands.
        let position = self.pending.len() as u32;
        self.entries
            .insert((key_of_command(&command), batch.index, position));
        self.pending_s = self.pending_s.max(command.remember_s);
        let mut bytes = Vec::with_capacity(32);
        reply.encode(&mut bytes);
        self.pending.push(state::RememberedReply {
            client_id: command.client_id,
            correlation_data: command.correlation_data,
            legacy_fingerprint: command.legacy_fingerprint,
            reply: bytes.into(),
            fingerprint: command.fingerprint,
        });
    }

    /// Writes the batch's replies as one row that lives as long as the longest of them asks for.
    pub fn store(&mut self, batch: &mut Batch<'_, '_>) {
        self.read = ReadRows::default();
        if self.pending.is_empty() {
            return;
        }
        let row = state::Replies {
            replies: std::mem::take(&mut self.pending),
        };
        let seconds = std::mem::take(&mut self.pending_s);
        batch.tables.put::<schema::Replies>(batch.index, &row);
        let deadline = timers::whole_second(batch.now.plus(u64::from(seconds) * 1000));
        let subject = batch.index.0.to_be_bytes();
        batch.set_timer(deadline, Kind::Replies, &subject);
    }

    /// A timer says that the replies of a log entry may go.
    pub fn forget(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        let Ok(index) = subject.try_into() else {
            return;
        };
        let index = LogIndex(u64::from_be_bytes(index));
        let Some(row) = batch.tables.get::<schema::Replies>(index) else {
            return;
        };
        batch.spend(row.replies.len());
        for (position, reply) in (0..).zip(&row.replies) {
            self.entries.remove(&(key_of_reply(reply), index, position));
        }
        batch.tables.delete::<schema::Replies>(index);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Rows that the batch under way has read, decoded: many requests of one entry that come again in one entry would
/// otherwise each decode all of its replies.
#[derive(Default)]
struct ReadRows {
    rows: BTreeMap<LogIndex, Vec<state::RememberedReply>>,
    /// Replies of all of them.
    replies: usize,
}

impl ReadRows {
    /// The replies of a log entry, in order.
    fn row(&mut self, batch: &mut Batch<'_, '_>, index: LogIndex) -> &Vec<state::RememberedReply> {
        if !self.rows.contains_key(&index) {
            let row = batch.tables.get::<schema::Replies>(index);
            let replies = row.unwrap_or_default().replies;
            batch.spend(replies.len());
            if self.replies + replies.len() > KEPT_REPLIES {
                *self = ReadRows::default();
            }
            self.replies += replies.len();
            self.rows.insert(index, replies);
        }
        self.rows.entry(index).or_default()
    }
}

fn key(client_id: &str, correlation_data: &[u8], legacy_fingerprint: u64) -> Key {
    let fingerprint = legacy_fingerprint.to_be_bytes();
    digest(&[client_id.as_bytes(), correlation_data, &fingerprint])
}

fn key_of_command(command: &command::StoreWrite) -> Key {
    let correlation_data = &command.correlation_data;
    key(
        &command.client_id,
        correlation_data,
        command.legacy_fingerprint,
    )
}

fn key_of_reply(reply: &state::RememberedReply) -> Key {
    let correlation_data = &reply.correlation_data;
    key(&reply.client_id, correlation_data, reply.legacy_fingerprint)
}

fn is_same(reply: &state::RememberedReply, command: &command::StoreWrite) -> bool {
    let has_both = !reply.fingerprint.is_empty() && !command.fingerprint.is_empty();
    let is_same_request = match has_both {
        true => reply.fingerprint == command.fingerprint,
        false => reply.legacy_fingerprint == command.legacy_fingerprint,
    };
    is_same_request
        && reply.client_id == command.client_id
        && reply.correlation_data == command.correlation_data
}
