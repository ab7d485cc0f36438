//! What clients have acknowledged: entries of their queues go, or wait for PUBCOMP; received packet ids are free again.

use super::effect::Reply;
use super::queues::read_entry;
use super::{Context, Machine, schema};
use crate::base::ids::SessionId;
use crate::base::proto::command;
use crate::session::{Entry, Sequence};

impl Machine {
    /// What a client has acknowledged.
    pub(super) fn acknowledge(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::Acknowledge,
    ) -> Reply {
        let owner = context.owner(command.connection);
        let Some(connected) = self.connections.get(&owner).cloned() else {
            return Reply::NotOwner;
        };
        let session = connected.session;
        for packet_id in command.released {
            if let Ok(packet_id) = u16::try_from(packet_id) {
                context
                    .tables
                    .delete(schema::received::encode(session, packet_id));
            }
        }
        if !(command.completed.is_empty() && command.received.is_empty())
            && self.load_queue(context, session, &connected.client_id)
        {
            for sequence in command.completed {
                self.complete(context, session, Sequence(sequence));
            }
            for sequence in command.received {
                self.receive(context, session, Sequence(sequence));
            }
        }
        Reply::Done
    }

    fn under_way(
        &mut self,
        context: &Context<'_, '_>,
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
        let row = context
            .tables
            .get(&schema::entry::encode(session, sequence))?;
        Some(read_entry(&row))
    }

    fn complete(&mut self, context: &mut Context<'_, '_>, session: SessionId, sequence: Sequence) {
        if let Some(entry) = self.under_way(context, session, sequence) {
            self.remove_entry(context, session, sequence, &entry);
        }
    }

    fn receive(&mut self, context: &mut Context<'_, '_>, session: SessionId, sequence: Sequence) {
        let Some(Entry::Queued(queued)) = self.under_way(context, session, sequence) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        let released = queue.queue.receive(sequence, queued.size.into());
        self.touched.insert(session);
        let mut row = Vec::with_capacity(16);
        released.encode(&mut row);
        context
            .tables
            .put(schema::entry::encode(session, sequence), row);
        self.count_out(queued.size);
        self.release_message(context, queued.message);
    }
}
