//! Messages that are still to go into queues: a publication that matches more sessions and groups than one log entry
//! may serve is a row, and later entries go on with it.
//!
//! Invariant: the messages of one topic go into each queue in the order in which they were published (P5): while one is
//! on its way, the next ones of its topic wait behind it. The first one of each topic has a timer.
//!
//! The row refers to the message as a queue does. In memory there are their numbers by topic, derived from the rows.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Included, Unbounded};

use super::batch::Batch;
use super::effect::ApplicationMessage;
use super::queue::message;
use super::schema;
use super::schema::timer::Kind;
use super::tables::Backing;
use crate::base::ids::{LogIndex, SessionId};
use crate::base::limits;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::events::topic;
use crate::session::{MessageId, QoS};
use crate::topic::matches;

/// Topics that are looked at for one that a filter matches.
const TOPICS_LOOKED_AT: usize = 64;

/// How far a message has come: sessions come first, then groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The sessions up to this one have it.
    pub session: SessionId,
    /// All sessions have it, and the groups up to `group`.
    pub groups: bool,
    /// A shared filter.
    pub group: String,
}

/// Messages of one topic, the oldest first.
#[derive(Default)]
struct OfTopic {
    messages: VecDeque<MessageId>,
    load: Load,
}

/// What is still to go into queues, in the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FanOutUsage {
    /// Messages.
    pub messages: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// The log time at which the oldest of them was published.
    pub oldest: Option<Millis>,
}

/// All messages on their way into queues.
#[derive(Default)]
pub(super) struct FanOuts {
    /// Invariant: none is empty.
    by_topic: BTreeMap<String, OfTopic>,
    /// When each was published; an older version has not noted it.
    published: BTreeMap<MessageId, Millis>,
    all: Load,
    /// Of them, events: each has a topic of its own, and together they may take as much as those of one topic.
    events: Load,
}

/// How many messages are on their way, and their bytes.
#[derive(Clone, Copy, Default)]
struct Load {
    count: usize,
    bytes: u64,
}

impl Load {
    fn add(&mut self, size: u32) {
        self.count += 1;
        self.bytes += u64::from(size);
    }

    fn remove(&mut self, size: u32) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size.into());
    }

    /// Whether it is as much as one of so many shares.
    fn is_full(self, shares: usize) -> bool {
        self.count >= limits::FAN_OUTS / shares
            || self.bytes >= limits::FAN_OUT_BYTES / shares as u64
    }
}

impl FanOuts {
    /// Reads the rows again.
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = FanOuts::default();
        backing.rows::<schema::FanOut>(&schema::Range::all(), |id, row| {
            self.insert(id, row.decode());
            true
        });
    }

    /// Messages are numbered in the order in which they were published.
    fn insert(&mut self, id: MessageId, row: state::FanOut) {
        self.all.add(row.size);
        if is_event(&row.topic) {
            self.events.add(row.size);
        }
        if row.published_ms != 0 {
            self.published.insert(id, Millis(row.published_ms));
        }
        let of_topic = self.by_topic.entry(row.topic).or_default();
        of_topic.messages.push_back(id);
        of_topic.load.add(row.size);
    }

    /// What is on its way.
    pub fn usage(&self) -> FanOutUsage {
        FanOutUsage {
            messages: self.all.count as u64,
            bytes: self.all.bytes,
            oldest: self.published.values().next().copied(),
        }
    }

    /// Whether a message of a topic is on its way.
    pub fn has(&self, topic: &str) -> bool {
        !self.by_topic.is_empty() && self.by_topic.contains_key(topic)
    }

    /// Whether there are as many as there may be, of all topics or of this one; of the topics of events together.
    pub fn is_full(&self, topic: &str) -> bool {
        let is_full = |of_topic: &OfTopic| of_topic.load.is_full(limits::FAN_OUT_SHARES);
        self.all.is_full(1)
            || is_event(topic) && self.events.is_full(limits::FAN_OUT_SHARES)
            || self.by_topic.get(topic).is_some_and(is_full)
    }

    /// The first topic from `from` on of which messages are on their way and that a filter matches; where many do not
    /// match, one before it.
    pub fn first_match(&self, filter: &str, from: &str) -> Option<&str> {
        let topics = self.by_topic.range::<str, _>((Included(from), Unbounded));
        let mut topics = topics.map(|(topic, _)| topic.as_str()).enumerate();
        topics
            .find(|(number, topic)| *number == TOPICS_LOOKED_AT || matches(filter, topic))
            .map(|(_, topic)| topic)
    }

    /// A message goes on in later batches, behind others of its topic.
    pub fn add(
        &mut self,
        batch: &mut Batch<'_, '_>,
        id: MessageId,
        message: &ApplicationMessage,
        size: u32,
        position: Position,
    ) {
        let mut row = state::FanOut {
            topic: message.topic.clone(),
            qos: message.qos as u32,
            retain: message.retain,
            publisher: message.publisher.map_or(0, |session| session.0),
            node: batch.node.0,
            index: batch.index.0,
            size,
            published_ms: batch.now.0,
            ..Default::default()
        };
        let is_first = !self.has(&row.topic);
        set_position(&mut row, position);
        batch.tables.put::<schema::FanOut>(id, &row);
        if is_first {
            set_timer(batch, id);
        }
        self.insert(id, row);
    }

    /// A message has come so far, and goes on in a later batch.
    pub fn keep(
        &self,
        batch: &mut Batch<'_, '_>,
        id: MessageId,
        mut row: state::FanOut,
        position: Position,
    ) {
        set_position(&mut row, position);
        batch.tables.put::<schema::FanOut>(id, &row);
        set_timer(batch, id);
    }

    /// A message has come to everybody; the next one of its topic, which somebody has to go on with.
    #[must_use]
    pub fn end(
        &mut self,
        batch: &mut Batch<'_, '_>,
        id: MessageId,
        row: &state::FanOut,
    ) -> Option<MessageId> {
        batch.tables.delete::<schema::FanOut>(id);
        message::release(batch, id);
        self.all.remove(row.size);
        self.published.remove(&id);
        if is_event(&row.topic) {
            self.events.remove(row.size);
        }
        let of_topic = self.by_topic.get_mut(&row.topic)?;
        of_topic.messages.pop_front();
        of_topic.load.remove(row.size);
        let next = of_topic.messages.front().copied();
        if next.is_none() {
            self.by_topic.remove(&row.topic);
        }
        next
    }
}

fn is_event(topic: &str) -> bool {
    topic.starts_with(topic::PREFIX)
}

/// The message of a timer's subject.
pub(super) fn of_subject(subject: &[u8]) -> Option<MessageId> {
    Some(MessageId(u64::from_be_bytes(subject.try_into().ok()?)))
}

/// A later batch goes on with a message.
pub(super) fn set_timer(batch: &mut Batch<'_, '_>, id: MessageId) {
    batch.set_timer(batch.now, Kind::FanOut, &id.0.to_be_bytes());
}

/// The log entry that published a message.
pub(super) fn index_of(row: &state::FanOut) -> LogIndex {
    LogIndex(row.index)
}

/// The message as it was published.
pub(super) fn message(
    batch: &Batch<'_, '_>,
    id: MessageId,
    row: &state::FanOut,
) -> Option<ApplicationMessage> {
    let message = message::read(batch, id, QoS::from_number(row.qos))?;
    Some(ApplicationMessage {
        retain: row.retain,
        publisher: (row.publisher != 0).then_some(SessionId(row.publisher)),
        ..ApplicationMessage::clone(&message)
    })
}

/// How far a message has come, as its row says.
pub(super) fn position(row: &state::FanOut) -> Position {
    Position {
        session: SessionId(row.session),
        groups: row.groups,
        group: row.group.clone(),
    }
}

fn set_position(row: &mut state::FanOut, position: Position) {
    row.session = position.session.0;
    row.groups = position.groups;
    row.group = position.group;
}
