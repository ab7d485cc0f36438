//! Granting: which entries of a queue are sent to the connection that owns its session, and when.

use std::sync::Arc;

use super::{Queues, entries, first_entry, message};
use crate::base::ids::{Owner, SessionId};
use crate::base::limits;
use crate::machine::batch::Batch;
use crate::machine::effect::{ApplicationMessage, DropReason, Granted, Output};
use crate::machine::schema;
use crate::machine::schema::timer::Kind;
use crate::session::delivery::remaining_s;
use crate::session::{Entry, Grant, Queued, Sequence};

/// Row operations that granting an entry takes: its row is looked at, and its message is read.
const GRANT_COST: usize = 3;

impl Queues {
    /// Judges the first entry that was not granted yet, and sends it if it may be; `false` when it has to wait.
    pub(super) fn grant(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        sequence: Sequence,
        entry: &Entry,
        message: Option<&Arc<ApplicationMessage>>,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(&session) else {
            return false;
        };
        if let Entry::Queued(queued) = entry
            && queued.expires_at.is_some_and(|at| at < batch.now)
            && queue.queue.is_unsent(sequence)
        {
            if let Some(owner) = queue.owner {
                batch.outputs.dropped(owner.node, DropReason::Expired, 1);
            }
            let from = queue.queue.granted_through.next();
            queue.gap.removed(from, sequence);
            self.remove_entry(batch, session, sequence, entry);
            return true;
        }
        let known = queue.queue.oldest;
        let oldest = || first_entry(batch, session, known).map_or(sequence, |(first, _)| first);
        let granted = queue
            .queue
            .grant(sequence, entry, queue.receive_maximum, oldest);
        let (packet_id, dup) = match granted {
            Grant::Wait => return false,
            Grant::Passed => return true,
            Grant::Publish { packet_id, dup } => (packet_id, dup),
        };
        let (Entry::Queued(queued), Some(owner)) = (entry, queue.owner) else {
            return true;
        };
        if packet_id.is_some() {
            queue.remember_granted(sequence, entry);
        }
        deliver(batch, owner, sequence, dup, queued, message);
        if packet_id.is_none() {
            self.remove_entry(batch, session, sequence, entry);
        }
        true
    }

    /// Sends what may be sent of a session's queue, in the order of its entries.
    pub fn grant_ready(&mut self, batch: &mut Batch<'_, '_>, session: SessionId) {
        let queue = self.queues.get(&session);
        let Some(owner) = queue.and_then(|queue| self.owner(queue)) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        if std::mem::take(&mut queue.owes_releases) && batch.outputs.has_connection(owner) {
            let count = queue.queue.released;
            let oldest = queue.queue.oldest;
            send_releases(batch, session, owner, oldest, count as usize);
        }
        let mut allowance = batch.allowance(GRANT_COST).min(limits::GRANTS_AT_ONCE);
        loop {
            let Some(queue) = self.queues.get(&session) else {
                return;
            };
            let room = queue.room();
            if !queue.queue.has_ungranted() || room == 0 {
                return;
            }
            let from = queue.gap.skip(queue.queue.granted_through.next());
            let from = from.max(queue.queue.oldest);
            let wanted = (room as usize).min(allowance);
            let entries = entries(batch, session, from, wanted);
            allowance -= entries.len();
            batch.spend(entries.len() * GRANT_COST);
            let all = entries.len() < wanted;
            for (sequence, entry) in entries {
                if !self.grant(batch, session, sequence, &entry, None) {
                    return;
                }
            }
            if all {
                if let Some(queue) = self.queues.get_mut(&session) {
                    queue.queue.no_more_to_grant();
                }
                return;
            }
            if allowance == 0 {
                // The rest follows in the next batch, so that no batch takes long.
                batch.set_timer(batch.now, Kind::Grant, &session.0.to_be_bytes());
                return;
            }
        }
    }

    /// A timer asks to go on with a queue.
    pub fn go_on_granting(&mut self, subject: &[u8]) {
        if let Ok(session) = subject.try_into() {
            self.touch(SessionId(u64::from_be_bytes(session)));
        }
    }
}

/// Sends a granted entry on the node of its session's connection.
fn deliver(
    batch: &mut Batch<'_, '_>,
    owner: Owner,
    sequence: Sequence,
    dup: bool,
    queued: &Queued,
    message: Option<&Arc<ApplicationMessage>>,
) {
    if !batch.outputs.has_connection(owner) {
        return;
    }
    let message = match message {
        Some(message) => Some(message.clone()),
        None => message::read(batch, queued.message, queued.qos),
    };
    let Some(message) = message else {
        return;
    };
    let expiry_s = message
        .expires_at
        .map(|at| remaining_s(at, batch.now).unwrap_or(0));
    batch.outputs.push(Output::Deliver(Box::new(Granted {
        connection: owner.connection,
        sequence,
        qos: queued.qos,
        dup,
        retain: queued.retain,
        expiry_s,
        identifiers: queued.identifiers.clone(),
        is_shared: queued.group.is_some(),
        message,
    })));
}

/// PUBRELs go out again in the order in which their PUBRECs came (MQTT 5, 4.6).
fn send_releases(
    batch: &mut Batch<'_, '_>,
    session: SessionId,
    owner: Owner,
    oldest: Sequence,
    count: usize,
) {
    let mut owed = Vec::with_capacity(count);
    let range = schema::Entry::from(session, oldest);
    batch.tables.scan(&range, |(_, sequence), row| {
        if let Entry::Released { order } = row.decode() {
            owed.push((order, sequence));
        }
        owed.len() < count
    });
    owed.sort_unstable();
    let connection = owner.connection;
    for (_, sequence) in owed {
        batch.outputs.push(Output::SendPubRel {
            connection,
            sequence,
        });
    }
}
