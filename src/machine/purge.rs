//! The end of queues: their rows go in portions, so that no batch takes long; what came through groups is taken out first.

use super::queues::entries;
use super::schema::timer::Kind;
use super::{Context, Machine, schema};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::session::{Entry, QoS, Queued, Sequence};

impl Machine {
    /// The session has ended: its rows go, a portion per batch.
    pub(super) fn drop_queue(&mut self, context: &mut Context<'_, '_>, session: SessionId) {
        self.queues.remove(&session);
        self.touched.remove(&session);
        self.purge_session(context, session);
    }

    pub(super) fn purge_session_later(&mut self, context: &mut Context<'_, '_>, subject: &[u8]) {
        if let Ok(session) = subject.try_into() {
            self.purge_session(context, SessionId(u64::from_be_bytes(session)));
        }
    }

    fn purge_session(&mut self, context: &mut Context<'_, '_>, session: SessionId) {
        let entries = entries(context, session, Sequence::NONE, limits::PURGED_AT_ONCE);
        let more = entries.len() == limits::PURGED_AT_ONCE;
        for (sequence, entry) in entries {
            context
                .tables
                .delete(schema::entry::encode(session, sequence));
            if let Entry::Queued(queued) = entry {
                self.count_out(queued.size);
                self.release_message(context, queued.message);
            }
        }
        if more {
            let soon = context.now.plus(1);
            self.set_timer(context, soon, Kind::PurgeSession, &session.0.to_be_bytes());
            return;
        }
        for packet_id in self.received(context, session) {
            context
                .tables
                .delete(schema::received::encode(session, packet_id));
        }
        context.tables.delete(schema::queue::encode(session));
    }

    /// The unacknowledged QoS 1 messages that came to the session through groups, taken out of its queue, oldest first.
    pub(super) fn take_shared(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<Queued> {
        let mut shared = Vec::new();
        // They were granted, so they are among the first.
        let most = usize::from(u16::MAX);
        for (sequence, entry) in entries(context, session, Sequence::NONE, most) {
            if let Entry::Queued(queued) = &entry
                && queued.qos != QoS::ExactlyOnce
                && let Some(group) = queued.group
                && !keep(group)
            {
                shared.push(queued.clone());
                self.count_out(queued.size);
                if let Some(queue) = self.queues.get_mut(&session) {
                    queue.queue.finish(sequence, &entry, queued.size.into());
                    queue.forget_granted(sequence);
                    self.touched.insert(session);
                }
                context
                    .tables
                    .delete(schema::entry::encode(session, sequence));
            }
        }
        shared
    }
}
