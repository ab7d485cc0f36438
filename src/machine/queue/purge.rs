//! The end of queues: what came to a session through groups is taken out, and the rows of an ended session go some at a
//! time, so that no batch takes long.

use super::{Queues, entries, message, received};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::session::{Entry, QoS, Queued, Sequence};

/// Row operations that removing an entry and its reference to a message takes.
pub(in crate::machine) const PURGE_COST: usize = 4;

impl Queues {
    /// The session has ended, and its queue with it; the entries are for [`purge`].
    pub fn forget(&mut self, batch: &mut Batch<'_, '_>, session: SessionId) {
        batch.tables.delete::<schema::Queue>(session);
        self.queues.remove(&session);
        self.touched.remove(&session);
    }

    /// The unacknowledged QoS 1 messages that came to the session through groups, taken out of its queue, oldest first.
    pub fn take_shared(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<Queued> {
        let mut shared = Vec::new();
        // They were granted when they were put into the queue, so not more than may be under way stand before them.
        let entries = entries(batch, session, Sequence::NONE, limits::UNDER_WAY.into());
        batch.spend(entries.len());
        for (sequence, entry) in entries {
            if let Entry::Queued(queued) = &entry
                && queued.qos != QoS::ExactlyOnce
                && let Some(group) = queued.group
                && !keep(group)
            {
                shared.push(queued.clone());
                batch.meta.count_out(queued.size);
                if let Some(queue) = self.queues.get_mut(&session) {
                    queue.queue.finish(sequence, &entry, queued.size.into());
                    queue.forget_granted(sequence);
                    self.touched.insert(session);
                }
                batch.tables.delete::<schema::Entry>((session, sequence));
            }
        }
        batch.spend(shared.len() * PURGE_COST);
        shared
    }
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
