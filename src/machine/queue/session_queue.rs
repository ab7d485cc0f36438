//! The queue of one session in memory: a copy of its row, what of its session's row matters to it, and the entries that
//! are under way.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::gap::Gap;
use crate::base::ids::Owner;
use crate::base::limits;
use crate::base::proto::state;
use crate::machine::session::owner_of;
use crate::session::{Bounds, DropPolicy, Entry, Queue, Sequence};

/// Never more than this, see [`limits::UNDER_WAY`].
const UNDER_WAY: NonZeroU16 = NonZeroU16::new(limits::UNDER_WAY).expect("it is not 0");

pub(super) struct SessionQueue {
    pub client_id: Arc<str>,
    pub queue: Queue,
    pub owner: Option<Owner>,
    pub receive_maximum: NonZeroU16,
    pub bounds: Bounds,
    /// Messages dropped because the queue was full, since the session began.
    pub dropped: u64,
    /// The session was resumed and its PUBRELs are still to be sent.
    pub owes_releases: bool,
    /// Where there are no entries.
    pub gap: Gap,
    /// Entries under way, by sequence: those that were granted while this copy was in memory.
    granted: VecDeque<(Sequence, Entry)>,
    /// Its row as it is stored; that of a new queue is not.
    stored: state::Queue,
}

impl SessionQueue {
    pub fn new(client_id: &str, session: &state::Session, row: Option<state::Queue>) -> Self {
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
            dropped,
            owes_releases: false,
            gap: Gap::default(),
            granted: VecDeque::new(),
            stored: state::Queue::default(),
        };
        queue.stored = queue.row();
        queue
    }

    /// A connection owns the session from now on.
    pub fn connect(&mut self, session: &state::Session) {
        self.owner = owner_of(session);
        self.receive_maximum = receive_maximum(session);
        self.bounds = bounds(session);
    }

    /// The connection has ended. `sent_through` is the last entry it sent, if it could say so.
    pub fn disconnect(&mut self, sent_through: Option<Sequence>) {
        self.owner = None;
        self.queue.end_connection(sent_through);
        self.granted.clear();
        self.owes_releases = false;
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

    /// Its row, if it is no longer as it is stored; it is taken for stored then.
    pub fn changed_row(&mut self) -> Option<state::Queue> {
        let row = self.row();
        if row == self.stored {
            return None;
        }
        self.stored = row;
        Some(row)
    }

    /// Messages that may be granted until the client's receive maximum is reached.
    pub fn room(&self) -> u32 {
        u32::from(self.receive_maximum.get()).saturating_sub(self.queue.in_flight)
    }

    /// Messages that may be put into the queue until it is full; 0 when it is full by bytes.
    pub fn places(&self) -> u32 {
        let (queue, bounds) = (&self.queue, &self.bounds);
        if queue.bytes >= bounds.max_bytes {
            return 0;
        }
        let places = bounds.max_messages.saturating_sub(queue.messages);
        u32::try_from(places).unwrap_or(u32::MAX)
    }

    /// Whether a message would be granted at once.
    pub fn has_credit(&self) -> bool {
        self.owner.is_some() && self.room() > 0 && !self.queue.has_ungranted()
    }

    pub fn remember_granted(&mut self, sequence: Sequence, entry: &Entry) {
        self.granted.push_back((sequence, entry.clone()));
    }

    pub fn forget_granted(&mut self, sequence: Sequence) -> Option<Entry> {
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
        .min(UNDER_WAY)
}

fn bounds(session: &state::Session) -> Bounds {
    Bounds {
        max_messages: session.max_messages,
        max_bytes: session.max_bytes,
        policy: drop_policy(session.drop_policy),
    }
}

/// The policy that a row names by its number.
pub(in crate::machine) fn drop_policy(number: u32) -> DropPolicy {
    match number {
        0 => DropPolicy::Oldest,
        1 => DropPolicy::Newest,
        _ => DropPolicy::Session,
    }
}
