//! The end of queues: what came to a session through groups is taken out, and the rows of an ended session go some at a
//! time, so that no batch takes long.

use super::{Queues, entries, message, received};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::session::{Entry, QoS, Queue, Queued, Sequence};

/// Row operations that removing an entry and its reference to a message takes.
pub(in crate::machine) const PURGE_COST: usize = 4;

impl Queues {
    /// Before which sequence the queue of a session has no entries.
    pub fn oldest(&self, batch: &Batch<'_, '_>, session: SessionId) -> Sequence {
        if let Some(queue) = self.queues.get(&session) {
            return queue.queue.oldest;
        }
        let row = batch.tables.get::<schema::Queue>(session);
        // One in memory that holds nothing yet may have no row.
        row.map_or(Queue::default().oldest, |row| Sequence(row.oldest))
    }

    /// The session has ended, and its queue with it; the entries, from this sequence on, are for [`purge`]. `None` when
    /// it has no queue.
    pub fn forget(&mut self, batch: &mut Batch<'_, '_>, session: SessionId) -> Option<Sequence> {
        let loaded = self.queues.remove(&session);
        self.touched.remove(&session);
        let row = batch.tables.get::<schema::Queue>(session);
        if row.is_some() {
            batch.tables.delete::<schema::Queue>(session);
        }
        let oldest = loaded.map(|loaded| loaded.queue.oldest);
        oldest.or(row.map(|row| Sequence(row.oldest)))
    }

    /// The unacknowledged QoS 1 messages that came to the session through groups, taken out of its queue, oldest first.
    /// It has no entries before `from`.
    pub fn take_shared(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        mut from: Sequence,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<Queued> {
        let mut shared = Vec::new();
        let at_once = usize::from(limits::UNDER_WAY);
        // They were granted when they were put into the queue, so no more than may be under way stand before them.
        // Former versions let as many be under way as there are packet ids.
        for _ in 0..usize::from(u16::MAX).div_ceil(at_once) {
            let found = entries(batch, session, from, at_once);
            batch.spend(found.len());
            let is_last = found.len() < at_once;
            let mut goes_on = false;
            for (sequence, entry) in found {
                from = sequence.next();
                let queue = self.queues.get(&session);
                let was_sent = queue.is_some_and(|queue| !queue.queue.is_unsent(sequence));
                goes_on = was_sent || is_shared(&entry);
                if let Some(queued) = goes_back(&entry, &mut keep) {
                    shared.push(queued.clone());
                    self.take_out(batch, session, sequence, &entry, queued.size);
                }
            }
            if is_last || !goes_on {
                break;
            }
        }
        batch.spend(shared.len() * PURGE_COST);
        shared
    }

    /// Takes an entry out of the queue, if that is in memory; its message keeps the reference.
    fn take_out(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        sequence: Sequence,
        entry: &Entry,
        size: u32,
    ) {
        batch.meta.count_out(size);
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.queue.finish(sequence, entry, size.into());
            queue.forget_granted(sequence);
            self.touched.insert(session);
        }
        batch.tables.delete::<schema::Entry>((session, sequence));
    }
}

/// The delivery, when it is one with QoS 1 through a group that does not keep it for the session.
fn goes_back<'e>(entry: &'e Entry, keep: &mut impl FnMut(u64) -> bool) -> Option<&'e Queued> {
    match entry {
        Entry::Queued(queued) if queued.qos != QoS::ExactlyOnce => {
            let group = queued.group?;
            (!keep(group)).then_some(queued)
        }
        _ => None,
    }
}

/// Whether a delivery came through a group.
fn is_shared(entry: &Entry) -> bool {
    matches!(entry, Entry::Queued(queued) if queued.group.is_some())
}

/// Removes what the queue of an ended session holds from a sequence on, as much as the batch's budget allows; where to
/// go on, if anything is left.
#[must_use]
pub(in crate::machine) fn purge(
    batch: &mut Batch<'_, '_>,
    session: SessionId,
    from: Sequence,
) -> Option<Sequence> {
    let most = batch.allowance(PURGE_COST);
    let entries = entries(batch, session, from, most);
    let next = entries.get(most - 1).map(|(last, _)| last.next());
    batch.spend(entries.len() * PURGE_COST);
    for (sequence, entry) in entries {
        batch.tables.delete::<schema::Entry>((session, sequence));
        if let Entry::Queued(queued) = entry {
            batch.meta.count_out(queued.size);
            message::release(batch, queued.message);
        }
    }
    if next.is_some() {
        return next;
    }
    // Its entries are gone, so this scan is all there is left to do.
    let most = batch.allowance(PURGE_COST);
    let received = received::first(batch, session, most);
    batch.spend(received.len() * PURGE_COST);
    let more = received.len() == most;
    for packet_id in received {
        received::remove(batch, session, packet_id);
    }
    more.then_some(from)
}
