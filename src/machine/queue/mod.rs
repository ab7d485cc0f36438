//! The queues of sessions: messages go in when they are published, are granted to the owning connection as far as its
//! client's receive maximum allows, and leave when the client has acknowledged them.
//!
//! The arithmetic is [`crate::session::Queue`]'s. In memory there is a copy of the row of every queue that was used,
//! and of the entries that are under way; both are derived from the tables. What a batch has changed is granted and
//! written once, when it ends: [`Queues::grant_ready`], [`Queues::store`].
//!
//! Invariant: what follows from a batch never depends on which queues are in memory.

mod acknowledge;
pub(super) mod full;
mod gap;
mod grant;
pub(super) mod message;
pub(super) mod purge;
pub(super) mod received;
mod session_queue;

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::batch::Batch;
use super::effect::{ApplicationMessage, DropReason};
use super::schema;
use super::session;
use crate::base::ids::{Incarnation, NodeId, Owner, SessionId};
use crate::base::limits;
use crate::base::proto::state;
use crate::session::delivery::{Delivery, identifiers_size};
use crate::session::{Admission, Bounds, Entry, Queue, Queued, Sequence};
use message::Storing;
use session_queue::SessionQueue;
pub(super) use session_queue::drop_policy;

/// The queues of all sessions, as far as they are in memory.
#[derive(Default)]
pub(super) struct Queues {
    queues: FxHashMap<SessionId, SessionQueue>,
    /// Queues that the batch under way has changed, or that may have room for more.
    touched: BTreeSet<SessionId>,
    /// Incarnations that have ended while queues still name their connections as owners.
    ended: BTreeSet<(NodeId, Incarnation)>,
}

/// Row operations that dropping an entry to make room takes: finding and removing it, and its reference to a message.
pub(super) const DROP_COST: usize = 5;

/// How many messages may make room for one: as many as the batch's budget allows, and these in any case.
pub(super) fn most_drops(batch: &Batch<'_, '_>) -> usize {
    (batch.budget_left() / DROP_COST).max(limits::DROPS_AT_LEAST)
}

impl Queues {
    /// Brings the queue of a session into memory; `false` when there is no such session.
    pub fn load(&mut self, batch: &Batch<'_, '_>, session: SessionId, client_id: &str) -> bool {
        if self.is_loaded(session) {
            return true;
        }
        let row = session::row(batch.tables, client_id);
        let Some(row) = row.filter(|row| row.session_id == session.0) else {
            return false;
        };
        self.add(batch, client_id, &row);
        true
    }

    fn add(&mut self, batch: &Batch<'_, '_>, client_id: &str, row: &state::Session) {
        let session = SessionId(row.session_id);
        let queue = batch.tables.get::<schema::Queue>(session);
        self.queues
            .insert(session, SessionQueue::new(client_id, row, queue));
    }

    /// Whether the queue of a session is in memory.
    pub fn is_loaded(&self, session: SessionId) -> bool {
        self.queues.contains_key(&session)
    }

    /// What the queue of a session may hold; `None` when it is not in memory.
    pub fn bounds(&self, session: SessionId) -> Option<Bounds> {
        Some(self.queues.get(&session)?.bounds)
    }

    /// How far the queue of a session has come; `None` when it is not in memory.
    pub fn queue(&self, session: SessionId) -> Option<&Queue> {
        Some(&self.queues.get(&session)?.queue)
    }

    /// The connections of an incarnation own no queue any more.
    pub fn end_incarnation(&mut self, node: NodeId, incarnation: Incarnation) {
        self.ended.insert((node, incarnation));
    }

    /// No queue names a connection of an ended incarnation any more.
    pub fn released(&mut self, node: NodeId, incarnation: Incarnation) {
        self.ended.remove(&(node, incarnation));
    }

    /// The connection that owns a queue in memory.
    fn owner(&self, queue: &SessionQueue) -> Option<Owner> {
        let has_ended = |owner: &Owner| {
            !self.ended.is_empty() && self.ended.contains(&(owner.node, owner.incarnation))
        };
        queue.owner.filter(|owner| !has_ended(owner))
    }

    /// Messages that would be granted to a session at once; 0 when its queue is not in memory, or is full.
    pub fn credit(&self, session: SessionId) -> u32 {
        self.queues
            .get(&session)
            .filter(|queue| queue.has_credit() && self.owner(queue).is_some())
            .map_or(0, |queue| queue.room().min(queue.places()))
    }

    /// Whether a message would be granted to a session at once, and none dropped for it.
    pub fn takes(&self, session: SessionId, bytes: u32) -> bool {
        let queue = self.queues.get(&session);
        let admits = |queue: &SessionQueue| {
            queue.queue.admit(bytes.into(), &queue.bounds) == Admission::Accepted
        };
        self.credit(session) > 0 && queue.is_some_and(admits)
    }

    /// Has a queue looked at when the batch ends.
    pub fn touch(&mut self, session: SessionId) {
        self.touched.insert(session);
    }

    /// A connection owns the session from now on.
    pub fn connect(&mut self, batch: &Batch<'_, '_>, client_id: &str, row: &state::Session) {
        let session = SessionId(row.session_id);
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.connect(row);
        } else if row.durable {
            self.add(batch, client_id, row);
        }
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.owes_releases = queue.queue.released > 0;
            self.touched.insert(session);
        }
    }

    /// The connection that owned the session has ended. `sent_through` is the last entry it sent, if it could say so.
    pub fn disconnect(
        &mut self,
        batch: &Batch<'_, '_>,
        session: SessionId,
        client_id: &str,
        sent_through: Option<Sequence>,
    ) {
        // A queue that is not in memory may have been granted to before this replica started.
        if !self.load(batch, session, client_id) {
            return;
        }
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.disconnect(sent_through);
            if queue.queue.last != Sequence::NONE {
                self.touched.insert(session);
            }
        }
    }

    /// Puts a message into the queue of a session and grants it when nothing stands before it.
    pub fn enqueue(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        client_id: &str,
        delivery: Delivery,
        group: Option<u64>,
        storing: &mut Storing,
    ) {
        let size = storing
            .size()
            .saturating_add(identifiers_size(&delivery.identifiers));
        if !self.load(batch, session, client_id) || !self.make_room(batch, session, size) {
            return;
        }
        let queued = Queued {
            message: storing.refer(batch),
            qos: delivery.qos,
            retain: delivery.retain,
            size,
            expires_at: storing.message.expires_at,
            group,
            identifiers: delivery.identifiers,
        };
        let message = storing.message.clone();
        self.push(batch, session, queued, Some(&message));
    }

    /// Makes room for `size` bytes as the queue's policy says; `false` when the message is to be dropped.
    fn make_room(&mut self, batch: &mut Batch<'_, '_>, session: SessionId, size: u32) -> bool {
        let mut left = most_drops(batch);
        loop {
            let Some(queue) = self.queues.get_mut(&session) else {
                return false;
            };
            let first = match queue.queue.admit(size.into(), &queue.bounds) {
                Admission::Accepted => return true,
                Admission::DropNew => None,
                Admission::DropFirstAfter(_) if left == 0 => None,
                Admission::DropFirstAfter(after) => {
                    let from = after.next();
                    let first = first_entry(batch, session, queue.gap.skip(from));
                    if let Some((sequence, _)) = &first {
                        queue.gap.removed(from, *sequence);
                        left -= 1;
                        batch.spend(DROP_COST);
                    }
                    first
                }
                Admission::EndSession => {
                    let dropped = match full::end_session(batch, session, &queue.client_id) {
                        true => queue.queue.messages + 1,
                        false => 1,
                    };
                    batch.count_dropped(DropReason::QueueFull, dropped);
                    return false;
                }
            };
            queue.dropped += 1;
            self.touched.insert(session);
            if let Some((sequence, entry)) = &first {
                self.remove_entry(batch, session, *sequence, entry);
            }
            batch.count_dropped(DropReason::QueueFull, 1);
            if first.is_none() {
                return false;
            }
        }
    }

    /// Adds an entry; the message's row is there or will be.
    pub fn push(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        queued: Queued,
        message: Option<&Arc<ApplicationMessage>>,
    ) {
        let owned = |queue| self.owner(queue).is_some();
        let is_owned = self.queues.get(&session).is_some_and(owned);
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        let at_once = is_owned && !queue.owes_releases && !queue.queue.has_ungranted();
        let sequence = queue.queue.push(queued.size.into());
        self.touched.insert(session);
        batch.meta.count_in(queued.size);
        let entry = Entry::Queued(queued);
        batch
            .tables
            .put_new::<schema::Entry>((session, sequence), &entry);
        if at_once {
            // Whatever can't be granted now is found again when there is room.
            self.grant(batch, session, sequence, &entry, message);
        }
    }

    /// Takes an entry out of its queue and frees its message.
    fn remove_entry(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        sequence: Sequence,
        entry: &Entry,
    ) {
        if let Some(queue) = self.queues.get_mut(&session) {
            let size = match entry {
                Entry::Queued(queued) => queued.size.into(),
                Entry::Released { .. } => 0,
            };
            queue.queue.finish(sequence, entry, size);
        }
        self.touched.insert(session);
        batch.tables.delete::<schema::Entry>((session, sequence));
        if let Entry::Queued(queued) = entry {
            batch.meta.count_out(queued.size);
            message::release(batch, queued.message);
        }
    }

    /// The next queue to be looked at when a batch ends. Looking at it may touch others.
    pub fn next_touched(&mut self) -> Option<SessionId> {
        self.touched.pop_first()
    }

    /// The queue was looked at: its row is written if it has changed.
    pub fn store(&mut self, batch: &mut Batch<'_, '_>, session: SessionId) {
        self.touched.remove(&session);
        if let Some(row) = self
            .queues
            .get_mut(&session)
            .and_then(SessionQueue::changed_row)
        {
            batch.tables.put::<schema::Queue>(session, &row);
        }
    }
}

fn first_entry(
    batch: &Batch<'_, '_>,
    session: SessionId,
    from: Sequence,
) -> Option<(Sequence, Entry)> {
    entries(batch, session, from, 1).pop()
}

/// The first entries of a queue from a sequence on.
fn entries(
    batch: &Batch<'_, '_>,
    session: SessionId,
    from: Sequence,
    most: usize,
) -> Vec<(Sequence, Entry)> {
    let mut found = Vec::new();
    let range = schema::Entry::from(session, from);
    batch.tables.scan(&range, |(_, sequence), row| {
        found.push((sequence, row.decode()));
        found.len() < most
    });
    found
}
