//! What clients have acknowledged: entries of their queues go, or wait for PUBCOMP; received packet ids are free again.

use super::{Queues, message, received};
use crate::base::ids::SessionId;
use crate::base::proto::command;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::session::{Entry, Sequence};

impl Queues {
    /// What the client of a session has acknowledged.
    pub fn acknowledge(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        client_id: &str,
        command: command::Acknowledge,
    ) {
        for packet_id in command.released {
            if let Ok(packet_id) = u16::try_from(packet_id) {
                received::remove(batch, session, packet_id);
            }
        }
        if command.completed.is_empty() && command.received.is_empty()
            || !self.load(batch, session, client_id)
        {
            return;
        }
        for sequence in command.completed {
            self.complete(batch, session, Sequence(sequence));
        }
        for sequence in command.received {
            self.receive(batch, session, Sequence(sequence));
        }
    }

    fn under_way(
        &mut self,
        batch: &Batch<'_, '_>,
        session: SessionId,
        sequence: Sequence,
    ) -> Option<Entry> {
        let queue = self.queues.get_mut(&session)?;
        if !queue.queue.may_be_acknowledged(sequence) {
            return None;
        }
        if let Some(entry) = queue.forget_granted(sequence) {
            return Some(entry);
        }
        batch.tables.get::<schema::Entry>((session, sequence))
    }

    fn complete(&mut self, batch: &mut Batch<'_, '_>, session: SessionId, sequence: Sequence) {
        if let Some(entry) = self.under_way(batch, session, sequence) {
            self.remove_entry(batch, session, sequence, &entry);
        }
    }

    fn receive(&mut self, batch: &mut Batch<'_, '_>, session: SessionId, sequence: Sequence) {
        let Some(Entry::Queued(queued)) = self.under_way(batch, session, sequence) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        let released = queue.queue.receive(sequence, queued.size.into());
        self.touch(session);
        batch
            .tables
            .put::<schema::Entry>((session, sequence), &released);
        batch.meta.count_out(queued.size);
        message::release(batch, queued.message);
    }
}
