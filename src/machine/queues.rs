//! The queues of sessions: messages go in when they are published, are granted to the owning connection as far as its
//! client's receive maximum allows, and leave when the client has acknowledged them.
//!
//! The arithmetic is [`crate::session::queue`]'s. In memory there is a copy of the row of every queue that was used, and of
//! the entries that are under way; both are derived from the tables.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;

use prost::Message as _;

use super::effect::{ApplicationMessage, DropReason, Granted, Output};
use super::messages::Storing;
use super::schema::timer::Kind;
use super::sessions::owner_of;
use super::{Context, Machine, schema};
use crate::base::ids::{Owner, SessionId};
use crate::base::limits;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::session::delivery::{Delivery, remaining_s};
use crate::session::{Admission, Bounds, DropPolicy, Entry, Grant, Queue, Queued, Sequence};

/// The queue of one session, and what of its session matters to it.
pub(super) struct SessionQueue {
    pub client_id: Arc<str>,
    pub queue: Queue,
    pub owner: Option<Owner>,
    pub receive_maximum: NonZeroU16,
    pub bounds: Bounds,
    pub durable: bool,
    /// Messages dropped because the queue was full, since the session began.
    pub dropped: u64,
    /// Entries under way, by sequence: those that were granted while this copy was in memory.
    granted: VecDeque<(Sequence, Entry)>,
    /// The session was resumed and its PUBRELs are still to be sent.
    owes_releases: bool,
    /// Its shared subscriptions.
    pub groups: Vec<Arc<str>>,
    /// Its row as it is stored; that of a new queue is not.
    stored: state::Queue,
}

impl SessionQueue {
    fn read(client_id: &str, session: &state::Session, row: Option<state::Queue>) -> Self {
        let dropped = row.as_ref().map_or(0, |row| row.dropped);
        let mut queue = SessionQueue {
            client_id: client_id.into(),
            queue: row.map_or_else(Queue::default, |row| Queue {
                last: Sequence(row.last),
                oldest: Sequence(row.oldest),
                granted_through: Sequence(row.granted_through),
                sent_through: Sequence(row.sent_through),
                in_flight: row.in_flight,
                released: row.released,
                messages: row.messages,
                bytes: row.bytes,
                receptions: row.receptions,
            }),
            owner: owner_of(session),
            receive_maximum: receive_maximum(session),
            bounds: bounds(session),
            durable: session.durable,
            dropped,
            granted: VecDeque::new(),
            owes_releases: false,
            groups: Vec::new(),
            stored: state::Queue::default(),
        };
        queue.stored = queue.row();
        queue
    }

    fn row(&self) -> state::Queue {
        let queue = &self.queue;
        state::Queue {
            last: queue.last.0,
            oldest: queue.oldest.0,
            granted_through: queue.granted_through.0,
            sent_through: queue.sent_through.0,
            in_flight: queue.in_flight,
            released: queue.released,
            messages: queue.messages,
            bytes: queue.bytes,
            receptions: queue.receptions,
            dropped: self.dropped,
        }
    }

    /// Whether a message would be granted at once.
    pub fn has_credit(&self) -> bool {
        self.owner.is_some()
            && self.queue.in_flight < u32::from(self.receive_maximum.get())
            && !self.queue.has_ungranted()
    }

    pub(super) fn forget_granted(&mut self, sequence: Sequence) -> Option<Entry> {
        let at = self
            .granted
            .binary_search_by_key(&sequence, |(sequence, _)| *sequence)
            .ok()?;
        self.granted.remove(at).map(|(_, entry)| entry)
    }
}

fn receive_maximum(session: &state::Session) -> NonZeroU16 {
    u16::try_from(session.receive_maximum)
        .ok()
        .and_then(NonZeroU16::new)
        .unwrap_or(NonZeroU16::MAX)
}

fn bounds(session: &state::Session) -> Bounds {
    Bounds {
        max_messages: session.max_messages,
        max_bytes: session.max_bytes,
        policy: drop_policy(session.drop_policy),
    }
}

pub(super) fn drop_policy(number: u32) -> DropPolicy {
    match number {
        0 => DropPolicy::Oldest,
        1 => DropPolicy::Newest,
        _ => DropPolicy::Session,
    }
}

pub(super) fn read_entry(row: &[u8]) -> Entry {
    Entry::decode(row).expect("this machine wrote the row")
}

impl Machine {
    /// Brings the queue of a session into memory; `false` when there is no such session.
    pub(super) fn load_queue(
        &mut self,
        context: &Context<'_, '_>,
        session: SessionId,
        client_id: &str,
    ) -> bool {
        if self.queues.contains_key(&session) {
            return true;
        }
        let Some(row) = self
            .session(context, client_id)
            .filter(|row| row.session_id == session.0)
        else {
            return false;
        };
        self.add_queue(context, client_id, &row);
        true
    }

    fn add_queue(&mut self, context: &Context<'_, '_>, client_id: &str, row: &state::Session) {
        let session = SessionId(row.session_id);
        let queue = context
            .tables
            .get(&schema::queue::encode(session))
            .map(|row| state::Queue::decode(row).expect("this machine wrote the row"));
        let mut queue = SessionQueue::read(client_id, row, queue);
        queue.groups = self.groups.of_session(session);
        self.queues.insert(session, queue);
    }

    /// A connection owns the session from now on.
    pub(super) fn open_queue(
        &mut self,
        context: &Context<'_, '_>,
        client_id: &str,
        row: &state::Session,
    ) {
        let session = SessionId(row.session_id);
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.owner = owner_of(row);
            queue.receive_maximum = receive_maximum(row);
            queue.bounds = bounds(row);
            queue.durable = row.durable;
        } else if row.durable {
            self.add_queue(context, client_id, row);
        }
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.owes_releases = queue.queue.released > 0;
            self.touched.insert(session);
        }
    }

    /// The connection that owned the session has ended. `sent_through` is the last entry it sent, if it could say so.
    pub(super) fn close_queue(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        client_id: &str,
        sent_through: Option<Sequence>,
    ) {
        // A queue that is not in memory may have been granted to by the former copy of this machine.
        if !self.load_queue(context, session, client_id) {
            return;
        }
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        queue.owner = None;
        queue.queue.end_connection(sent_through);
        queue.granted.clear();
        queue.owes_releases = false;
        if queue.queue.last != Sequence::NONE {
            self.touched.insert(session);
        }
    }

    /// Puts a message into the queue of a session and grants it when nothing stands before it. Tells whether it was taken.
    pub(super) fn enqueue(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        client_id: &str,
        delivery: Delivery,
        group: Option<u64>,
        storing: &mut Storing,
    ) -> bool {
        if !self.load_queue(context, session, client_id) {
            return false;
        }
        let size = storing.size();
        if !self.make_room(context, session, size) {
            return false;
        }
        let queued = Queued {
            message: self.message_id(storing),
            qos: delivery.qos,
            retain: delivery.retain,
            size,
            expires_at: storing.message.expires_at,
            group,
            identifiers: delivery.identifiers,
        };
        storing.refer();
        let message = storing.message.clone();
        self.push(context, session, queued, Some(&message));
        true
    }

    /// Makes room for `size` bytes as the queue's policy says; `false` when the message is to be dropped.
    fn make_room(&mut self, context: &mut Context<'_, '_>, session: SessionId, size: u32) -> bool {
        loop {
            let Some(queue) = self.queues.get_mut(&session) else {
                return false;
            };
            match queue.queue.admit(size.into(), &queue.bounds) {
                Admission::Accepted => return true,
                Admission::DropNew => {
                    queue.dropped += 1;
                    self.touched.insert(session);
                    self.count_dropped(context, DropReason::QueueFull, 1);
                    return false;
                }
                Admission::DropFirstAfter(after) => {
                    let Some((sequence, entry)) = first_entry(context, session, after.next())
                    else {
                        queue.dropped += 1;
                        self.touched.insert(session);
                        self.count_dropped(context, DropReason::QueueFull, 1);
                        return false;
                    };
                    queue.dropped += 1;
                    self.remove_entry(context, session, sequence, &entry);
                    self.count_dropped(context, DropReason::QueueFull, 1);
                }
                Admission::EndSession => {
                    let (client_id, dropped) = (queue.client_id.clone(), queue.queue.messages + 1);
                    self.count_dropped(context, DropReason::QueueFull, dropped);
                    if !self.doomed.contains(&client_id) {
                        self.doomed.push(client_id);
                    }
                    return false;
                }
            }
        }
    }

    fn count_dropped(&mut self, context: &Context<'_, '_>, reason: DropReason, count: u64) {
        if context.node == self.local {
            self.outputs.push(Output::Dropped { reason, count });
        }
    }

    /// Adds an entry; the message's row is there or will be.
    pub(super) fn push(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        queued: Queued,
        message: Option<&Arc<ApplicationMessage>>,
    ) {
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        let at_once = queue.owner.is_some() && !queue.owes_releases && !queue.queue.has_ungranted();
        let sequence = queue.queue.push(queued.size.into());
        self.touched.insert(session);
        self.count_in(queued.size);
        let mut row = Vec::with_capacity(16);
        let entry = Entry::Queued(queued);
        entry.encode(&mut row);
        context
            .tables
            .put_new(schema::entry::encode(session, sequence), row);
        if at_once {
            // Whatever can't be granted now is found again when there is room.
            self.grant(context, session, sequence, &entry, message);
        }
    }

    /// Judges the first entry that was not granted yet, and sends it if it may be; `false` when it has to wait.
    fn grant(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        sequence: Sequence,
        entry: &Entry,
        message: Option<&Arc<ApplicationMessage>>,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(&session) else {
            return false;
        };
        if let Entry::Queued(queued) = entry
            && queued.expires_at.is_some_and(|at| at < context.now)
            && queue.queue.is_unsent(sequence)
        {
            if queue.owner.is_some_and(|owner| owner.node == self.local) {
                self.outputs.push(Output::Dropped {
                    reason: DropReason::Expired,
                    count: 1,
                });
            }
            self.remove_entry(context, session, sequence, entry);
            return true;
        }
        let oldest =
            || first_entry(context, session, Sequence::NONE).map_or(sequence, |(first, _)| first);
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
            queue.granted.push_back((sequence, entry.clone()));
        }
        if owner.node == self.local {
            let message = match message {
                Some(message) => Some(message.clone()),
                None => self.message(context, queued.message, queued.qos),
            };
            if let Some(message) = message {
                let expiry_s = message
                    .expires_at
                    .map(|at| remaining_s(at, context.now).unwrap_or(0));
                self.outputs.push(Output::Deliver(Box::new(Granted {
                    connection: owner.connection,
                    sequence,
                    qos: queued.qos,
                    dup,
                    retain: queued.retain,
                    expiry_s,
                    identifiers: queued.identifiers.clone(),
                    message,
                })));
            }
        }
        if packet_id.is_none() {
            self.remove_entry(context, session, sequence, entry);
        }
        true
    }

    /// Takes an entry out of its queue and frees its message.
    pub(super) fn remove_entry(
        &mut self,
        context: &mut Context<'_, '_>,
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
        context
            .tables
            .delete(schema::entry::encode(session, sequence));
        if let Entry::Queued(queued) = entry {
            self.count_out(queued.size);
            self.release_message(context, queued.message);
        }
    }

    /// Grants what may be granted after a batch, and writes the rows of the queues it has changed.
    pub(super) fn settle_queues(&mut self, context: &mut Context<'_, '_>) {
        // Granting may touch other queues of a group; those have credit left and nothing waiting.
        while let Some(session) = self.touched.pop_first() {
            // After a restart it may not be in memory yet, and what follows must not depend on that.
            if let Some(subscriber) = self.subscriptions.subscriber(session) {
                self.load_queue(context, session, &subscriber.client_id);
            }
            self.pump(context, session);
            self.feed_from_groups(context, session);
            self.resume_feeds(context, session);
            self.touched.remove(&session);
            if let Some(queue) = self.queues.get_mut(&session) {
                let row = queue.row();
                if row != queue.stored {
                    context
                        .tables
                        .put(schema::queue::encode(session), row.encode_to_vec());
                    queue.stored = row;
                }
            }
        }
    }

    fn pump(&mut self, context: &mut Context<'_, '_>, session: SessionId) {
        let Some(queue) = self.queues.get_mut(&session) else {
            return;
        };
        let Some(owner) = queue.owner else {
            return;
        };
        if std::mem::take(&mut queue.owes_releases) && owner.node == self.local {
            let count = queue.queue.released;
            self.send_releases(context, session, owner, count as usize);
        }
        loop {
            let Some(queue) = self.queues.get(&session) else {
                return;
            };
            let room = u32::from(queue.receive_maximum.get()).saturating_sub(queue.queue.in_flight);
            if !queue.queue.has_ungranted() || room == 0 {
                return;
            }
            let from = queue.queue.granted_through.next().max(queue.queue.oldest);
            let wanted = (room as usize).min(limits::GRANTS_AT_ONCE);
            let entries = entries(context, session, from, wanted);
            if entries.is_empty() {
                return;
            }
            let all = entries.len() < wanted;
            for (sequence, entry) in entries {
                if !self.grant(context, session, sequence, &entry, None) {
                    return;
                }
            }
            if all {
                return;
            }
            if wanted == limits::GRANTS_AT_ONCE {
                // The rest follows in the next batch, so that no batch takes long.
                let now = context.now;
                self.set_timer(context, now, Kind::Grant, &session.0.to_be_bytes());
                return;
            }
        }
    }

    /// A timer asks to go on with a queue.
    pub(super) fn go_on_granting(&mut self, subject: &[u8]) {
        if let Ok(session) = subject.try_into() {
            self.touched.insert(SessionId(u64::from_be_bytes(session)));
        }
    }

    /// PUBRELs go out again in the order in which their PUBRECs came (MQTT 5, 4.6).
    fn send_releases(
        &mut self,
        context: &Context<'_, '_>,
        session: SessionId,
        owner: Owner,
        count: usize,
    ) {
        let (from, to) = schema::entry::from(session, Sequence::NONE);
        let mut owed = Vec::with_capacity(count);
        context.tables.scan(&from, &to, |row_key, row| {
            if let (Some((_, sequence)), Entry::Released { order }) =
                (schema::entry::decode(row_key), read_entry(row))
            {
                owed.push((order, sequence));
            }
            owed.len() < count
        });
        owed.sort_unstable();
        let connection = owner.connection;
        self.outputs
            .extend(owed.into_iter().map(|(_, sequence)| Output::SendPubRel {
                connection,
                sequence,
            }));
    }

    /// Packet ids of the QoS 2 messages whose PUBREL the session's client still owes.
    pub(super) fn received(&self, context: &Context<'_, '_>, session: SessionId) -> Vec<u16> {
        let (from, to) = schema::received::of_session(session);
        let mut ids = Vec::new();
        context.tables.scan(&from, &to, |row_key, _| {
            ids.extend(schema::received::decode(row_key));
            true
        });
        ids
    }
}

fn first_entry(
    context: &Context<'_, '_>,
    session: SessionId,
    from: Sequence,
) -> Option<(Sequence, Entry)> {
    entries(context, session, from, 1).pop()
}

/// The first entries of a queue from a sequence on.
pub(super) fn entries(
    context: &Context<'_, '_>,
    session: SessionId,
    from: Sequence,
    most: usize,
) -> Vec<(Sequence, Entry)> {
    let (from, to) = schema::entry::from(session, from);
    let mut found = Vec::new();
    context.tables.scan(&from, &to, |row_key, row| {
        if let Some((_, sequence)) = schema::entry::decode(row_key) {
            found.push((sequence, read_entry(row)));
        }
        found.len() < most
    });
    found
}

/// Whether a message with this deadline is over.
pub(super) fn is_over(expires_at: Option<Millis>, now: Millis) -> bool {
    expires_at.is_some_and(|at| at < now)
}
