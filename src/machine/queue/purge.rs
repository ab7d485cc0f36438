//! The end of queues: their rows go some at a time, so that no batch takes long; what came through groups is taken out
//! first.

use super::{Queues, entries, message, received};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::machine::schema::timer::Kind;
use crate::session::{Entry, QoS, Queued, Sequence};

impl Queues {
    /// The session has ended: its rows go, as many per batch as [`limits::PURGED_AT_ONCE`] says.
    pub fn end_session(&mut self, batch: &mut Batch<'_, '_>, session: SessionId) {
        self.queues.remove(&session);
        self.touched.remove(&session);
        purge(batch, session);
    }

    /// The unacknowledged QoS 1 messages that came to the session through groups, taken out of its queue, oldest first.
    pub fn take_shared(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<Queued> {
        let mut shared = Vec::new();
        // They were granted, so they are among the first.
        let most = usize::from(u16::MAX);
        for (sequence, entry) in entries(batch, session, Sequence::NONE, most) {
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
        shared
    }
}

/// A timer asks to go on with the rows of an ended session.
pub(in crate::machine) fn go_on(batch: &mut Batch<'_, '_>, subject: &[u8]) {
    if let Ok(session) = subject.try_into() {
        purge(batch, SessionId(u64::from_be_bytes(session)));
    }
}

fn purge(batch: &mut Batch<'_, '_>, session: SessionId) {
    let entries = entries(batch, session, Sequence::NONE, limits::PURGED_AT_ONCE);
    let more = entries.len() == limits::PURGED_AT_ONCE;
    for (sequence, entry) in entries {
        batch.tables.delete::<schema::Entry>((session, sequence));
        if let Entry::Queued(queued) = entry {
            batch.meta.count_out(queued.size);
            message::release(batch, queued.message);
        }
    }
    if more {
        let soon = batch.now.plus(1);
        batch.set_timer(soon, Kind::PurgeSession, &session.0.to_be_bytes());
        return;
    }
    for packet_id in received::all(batch, session) {
        received::remove(batch, session, packet_id);
    }
    batch.tables.delete::<schema::Queue>(session);
}
