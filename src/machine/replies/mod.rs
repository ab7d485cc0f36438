//! Remembered replies: a state-store write (docs/spec/state-store.md, Retries) that is sent again is answered as the
//! first time and not carried out again.
//!
//! The replies of one log entry are one row, or several where they are many: so looking one up costs as much however
//! many there are beside it. In memory there is only an [index](index) from a digest of (seed, client id, correlation
//! data, 64-bit fingerprint) to the rows that hold such a reply, and where in them; the rows decide. To forget a log
//! entry's replies reads no row: a busy node forgets thousands of replies each second, whose rows have long left every
//! cache.
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

mod index;

use bytes::Bytes;

use self::index::{Index, Place};
use super::batch::Batch;
use super::keyed_digest::{KeyedDigest, Seed};
use super::schema;
use super::schema::timer::Kind;
use super::tables::Backing;
use super::timers;
use crate::base::ids::LogIndex;
use crate::base::limits;
use crate::base::proto::{command, state};

/// Replies in one row. Each look-up reads and decodes a row.
const ROW_REPLIES: usize = 32;

/// Bytes of replies and correlation data in one row; the last reply may exceed them.
const ROW_BYTES: usize = 16 << 10;

/// What tells a request from others.
pub(super) struct Request<'a> {
    client_id: &'a str,
    correlation_data: &'a [u8],
    legacy_fingerprint: u64,
    fingerprint: &'a [u8],
    key: KeyedDigest,
}

impl<'a> Request<'a> {
    /// Of a command, whose reply is found [by a key](Replies::key).
    pub fn of(command: &'a command::StoreWrite, key: KeyedDigest) -> Self {
        Request {
            client_id: &command.client_id,
            correlation_data: &command.correlation_data,
            legacy_fingerprint: command.legacy_fingerprint,
            fingerprint: &command.fingerprint,
            key,
        }
    }
}

/// Index of what is remembered, and what the batch under way adds.
#[derive(Default)]
pub(super) struct Replies {
    seed: Seed,
    /// Where the replies are.
    index: Index,
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
                let place = Place::new(index, part, position);
                let fingerprint = reply.legacy_fingerprint;
                let key = self.digest(&reply.client_id, &reply.correlation_data, fingerprint);
                self.index.insert(key, place);
            }
            true
        });
    }

    /// What the reply to a request is found by.
    pub fn key(&self, request: &command::StoreWrite) -> KeyedDigest {
        let fingerprint = request.legacy_fingerprint;
        self.digest(&request.client_id, &request.correlation_data, fingerprint)
    }

    fn digest(&self, client_id: &str, correlation_data: &[u8], fingerprint: u64) -> KeyedDigest {
        let fingerprint = fingerprint.to_be_bytes();
        let fields = [client_id.as_bytes(), correlation_data, &fingerprint];
        self.seed.digest(&fields)
    }

    /// Whether a reply to such a request is remembered.
    pub fn contains(&self, key: &KeyedDigest) -> bool {
        self.index.contains(key)
    }

    /// The reply that was given to the same request before.
    pub fn find(&self, batch: &Batch<'_, '_>, request: &Request<'_>) -> Option<Bytes> {
        let mut similar = self.index.find(&request.key).take(limits::SIMILAR_REQUESTS);
        similar.find_map(|place| {
            let stored;
            let row = match place.index == batch.index {
                true => self.pending.get(place.part as usize)?,
                false => {
                    let row = (place.index, place.part);
                    stored = batch.tables.get::<schema::Replies>(row)?;
                    &stored
                }
            };
            let reply = row.replies.get(place.position as usize)?;
            is_same(reply, request).then(|| reply.reply.clone())
        })
    }

    /// Remembers the reply to the request [of a key](Replies::key) for so many seconds.
    pub fn remember(
        &mut self,
        batch: &Batch<'_, '_>,
        key: KeyedDigest,
        reply: state::RememberedReply,
        remember_s: u32,
    ) {
        self.pending_s = self.pending_s.max(remember_s);
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
        self.index
            .insert(key, Place::new(batch.index, part, position));
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
        let forgotten = self.index.remove_entry(index);
        batch.spend(forgotten.replies);
        for part in 0..forgotten.parts {
            batch.tables.delete::<schema::Replies>((index, part));
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.index.len()
    }
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
