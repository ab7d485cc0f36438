//! Remembered replies: a state-store write (docs/spec/state-store.md, Retries) that is sent again is answered as the
//! first time and not carried out again.
//!
//! The replies of one log entry are one row, or several where they are many: so looking one up costs as much however
//! many there are beside it. In memory there is only an index from a digest of (client id, correlation data, 64-bit
//! fingerprint) to the rows that hold such a reply, and where in them; the rows decide.
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

use std::collections::BTreeSet;

use bytes::Bytes;

use super::batch::Batch;
use super::schema;
use super::schema::timer::Kind;
use super::tables::Backing;
use super::timers;
use crate::base::ids::LogIndex;
use crate::base::limits;
use crate::base::proto::state;
use crate::store::fingerprint::{STABLE_BYTES, digest};

type Key = [u8; STABLE_BYTES];

/// Replies in one row. Each look-up reads and decodes a row.
const ROW_REPLIES: usize = 32;

/// Bytes of replies and correlation data in one row; the last reply may exceed them.
const ROW_BYTES: usize = 16 << 10;

/// Where a reply is: the log entry, the part of its replies, and the position in that part.
type Place = (LogIndex, u32, u32);

/// What tells a request from others.
pub(super) struct Request<'a> {
    /// Who has sent it.
    pub client_id: &'a str,
    /// Names it among those of its client.
    pub correlation_data: &'a [u8],
    /// As in `command.StoreWrite`.
    pub legacy_fingerprint: u64,
    /// 128 bits of a hash of the request.
    pub fingerprint: &'a [u8],
}

/// Index of what is remembered, and what the batch under way adds.
#[derive(Default)]
pub(super) struct Replies {
    /// Where the replies are. Several of one key are replies to different requests with the same 64 bits.
    places: BTreeSet<(Key, Place)>,
    /// What the batch under way adds, part by part.
    pending: Vec<state::Replies>,
    /// Bytes in the last part of `pending`.
    pending_bytes: usize,
    /// The longest that any of `pending` is to be remembered, seconds.
    pending_s: u32,
}

impl Replies {
    /// Builds the index anew from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = Replies::default();
        backing.rows::<schema::Replies>(&schema::Range::all(), |(index, part), row| {
            for (position, reply) in (0..).zip(&row.decode().replies) {
                let place = (index, part, position);
                self.places.insert((key_of_reply(reply), place));
            }
            true
        });
    }

    /// The reply that was given to the same request before.
    pub fn find(&self, batch: &Batch<'_, '_>, request: &Request<'_>) -> Option<Bytes> {
        let key = key_of_request(request);
        let all = (key, (LogIndex(0), 0, 0))..=(key, (LogIndex(u64::MAX), u32::MAX, u32::MAX));
        let newest_first = self.places.range(all).rev();
        let mut similar = newest_first.take(limits::SIMILAR_REQUESTS);
        similar.find_map(|(_, (index, part, position))| {
            let stored;
            let row = match *index == batch.index {
                true => self.pending.get(*part as usize)?,
                false => {
                    stored = batch.tables.get::<schema::Replies>((*index, *part))?;
                    &stored
                }
            };
            let reply = row.replies.get(*position as usize)?;
            is_same(reply, request).then(|| reply.reply.clone())
        })
    }

    /// Remembers a reply for so many seconds.
    pub fn remember(
        &mut self,
        batch: &Batch<'_, '_>,
        reply: state::RememberedReply,
        remember_s: u32,
    ) {
        self.pending_s = self.pending_s.max(remember_s);
        let key = key_of_reply(&reply);
        let is_full = |row: &state::Replies| row.replies.len() >= ROW_REPLIES;
        if self.pending.last().is_none_or(is_full) || self.pending_bytes >= ROW_BYTES {
            self.pending.push(state::Replies::default());
            self.pending_bytes = 0;
        }
        // A batch has far fewer commands.
        let part = self.pending.len().saturating_sub(1) as u32;
        let Some(row) = self.pending.last_mut() else {
            return;
        };
        let position = row.replies.len() as u32;
        self.places.insert((key, (batch.index, part, position)));
        self.pending_bytes += reply.reply.len() + reply.correlation_data.len();
        row.replies.push(reply);
    }

    /// Writes the batch's replies, which live as long as the longest of them asks for.
    pub fn store(&mut self, batch: &mut Batch<'_, '_>) {
        if self.pending.is_empty() {
            return;
        }
        for (part, row) in (0..).zip(self.pending.drain(..)) {
            batch
                .tables
                .put::<schema::Replies>((batch.index, part), &row);
        }
        self.pending_bytes = 0;
        let seconds = std::mem::take(&mut self.pending_s);
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
        let (mut parts, mut forgotten) = (Vec::new(), 0);
        let range = schema::Replies::of_entry(index);
        batch.tables.scan(&range, |(_, part), row| {
            for (position, reply) in (0..).zip(&row.decode().replies) {
                let place = (index, part, position);
                self.places.remove(&(key_of_reply(reply), place));
                forgotten += 1;
            }
            parts.push(part);
            true
        });
        batch.spend(forgotten);
        for part in parts {
            batch.tables.delete::<schema::Replies>((index, part));
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }
}

fn key(client_id: &str, correlation_data: &[u8], legacy_fingerprint: u64) -> Key {
    let fingerprint = legacy_fingerprint.to_be_bytes();
    digest(&[client_id.as_bytes(), correlation_data, &fingerprint])
}

fn key_of_request(request: &Request<'_>) -> Key {
    key(
        request.client_id,
        request.correlation_data,
        request.legacy_fingerprint,
    )
}

fn key_of_reply(reply: &state::RememberedReply) -> Key {
    let correlation_data = &reply.correlation_data;
    key(&reply.client_id, correlation_data, reply.legacy_fingerprint)
}

fn is_same(reply: &state::RememberedReply, request: &Request<'_>) -> bool {
    let has_both = !reply.fingerprint.is_empty() && !request.fingerprint.is_empty();
    let is_same_request = match has_both {
        true => reply.fingerprint == request.fingerprint,
        false => reply.legacy_fingerprint == request.legacy_fingerprint,
    };
    is_same_request
        && reply.client_id == request.client_id
        && reply.correlation_data == request.correlation_data
}
