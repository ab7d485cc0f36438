//! Retained messages on their way into the queue of a new subscription: those with QoS 1 and 2 of a durable session.
//! The others are sent by the node of the connection.
//!
//! A subscription may match a million of them, so they go some at a time: what one batch looks at is bounded, and no
//! more goes into a queue than half of what it may hold, the rest when its client has taken that. How far a replay has
//! come is a row. In between messages are published. What is retained of their topic goes into the queue before them,
//! so that no older message comes after a newer one of its topic (P5); the replay passes over it when it comes there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::page::{Page, PageLimits, replayed_topics};
use super::publication::Publication;
use super::replay_end::{ReplayId, go_on_purging, purge, set_timer};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::machine::batch::Batch;
use crate::machine::effect::ApplicationMessage;
use crate::machine::fan_out::FanOuts;
use crate::machine::queue::Queues;
use crate::machine::queue::message::Storing;
use crate::machine::schema::timer::Kind;
use crate::machine::schema::{self, ReplayedTopic, retained_replay};
use crate::machine::subscriptions::{Subscriber, SubscriptionIndex};
use crate::machine::tables::Backing;
use crate::session::QoS;
use crate::session::delivery::Delivery;
use crate::topic::Trie;

/// What of retained messages one batch may look at and put into queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct Budget {
    /// Rows looked at, of all replays.
    pub rows: usize,
    /// Bytes put into queues, of all replays; the last message may exceed them.
    pub bytes: u64,
    /// Messages that wait in one session's queue, its other ones included.
    pub waiting: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            rows: limits::RETAINED_ROWS_AT_ONCE,
            bytes: limits::RETAINED_BYTES_AT_ONCE,
            waiting: limits::RETAINED_WAITING,
        }
    }
}

/// Row operations that ending a replay, or going on with one, takes.
const REPLAY_COST: usize = 4;

/// The replays under way, and what is left of the batch's budget.
#[derive(Default)]
pub(in crate::machine) struct RetainedReplays {
    /// Their rows. Invariant: none of them has ended.
    rows: BTreeMap<ReplayId, state::RetainedReplay>,
    /// Their numbers by filter, to find those that a topic concerns: a filter of a session has at most one. Invariant:
    /// none is empty.
    by_filter: BTreeMap<SessionId, Trie<(), u64>>,
    /// Those that wait for room in the queue of their session.
    waiting: BTreeSet<ReplayId>,
    budget: Budget,
    left: Budget,
}

/// What came of one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// All of it is in the queue.
    Done,
    /// There is more, and room for it.
    More,
    /// There is more, and nothing is left of the batch's budget.
    Starved,
    /// There may be more, and no room for it.
    Full,
}

impl RetainedReplays {
    /// Reads the rows again.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.rows.clear();
        self.by_filter.clear();
        self.waiting.clear();
        backing.rows::<schema::RetainedReplay>(&schema::Range::all(), |id, row| {
            let row = row.decode();
            if !row.ended {
                self.insert(id, row);
            }
            true
        });
    }

    fn insert(&mut self, id: ReplayId, row: state::RetainedReplay) {
        let filters = self.by_filter.entry(id.0).or_default();
        filters.insert(&row.filter, (), id.1);
        match row.due_ms {
            0 => self.waiting.insert(id),
            _ => self.waiting.remove(&id),
        };
        self.rows.insert(id, row);
    }

    fn remove(&mut self, id: ReplayId) -> Option<state::RetainedReplay> {
        let row = self.rows.remove(&id)?;
        self.waiting.remove(&id);
        if let Some(filters) = self.by_filter.get_mut(&id.0) {
            filters.remove(&row.filter, &());
            if filters.is_empty() {
                self.by_filter.remove(&id.0);
            }
        }
        Some(row)
    }

    /// A new batch has its whole budget.
    pub fn begin_batch(&mut self) {
        self.left = self.budget;
    }

    /// Whether something is left of the batch's budget.
    pub fn has_budget(&self) -> bool {
        self.left.rows > 0 && self.left.bytes > 0
    }

    #[cfg(test)]
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Numbers of a session's replays whose filter matches a topic, in the order in which they began.
    fn concerned(&self, session: SessionId, topic: &str) -> Vec<u64> {
        let mut numbers = Vec::new();
        if let Some(filters) = self.by_filter.get(&session) {
            filters.for_each_match(topic, |(), number| numbers.push(*number));
        }
        // The trie's order is not the same on all replicas.
        numbers.sort_unstable();
        numbers
    }

    /// Puts the retained messages that match a new subscription into its session's queue: the first ones now, the
    /// others in later batches.
    pub fn start(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        subscriber: &Subscriber,
        filter: &str,
        subscription: &state::Subscription,
        fan_outs: &FanOuts,
    ) {
        let session = subscriber.session;
        self.end(batch, session, filter);
        let granted = QoS::from_number(subscription.qos);
        if !subscriber.queues(granted) || granted == QoS::AtMostOnce {
            return;
        }
        let mut replay = state::RetainedReplay {
            filter: filter.to_owned(),
            qos: subscription.qos,
            no_local: subscription.no_local,
            identifier: subscription.identifier,
            index: batch.index.0,
            ..Default::default()
        };
        let id = (session, batch.meta.new_retained_replay());
        let progress = self.advance(batch, queues, subscriber, id, &mut replay, fan_outs);
        self.put(batch, id, replay, progress);
    }

    /// A timer asks to go on with a replay.
    pub fn go_on(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        index: &SubscriptionIndex,
        fan_outs: &FanOuts,
        subject: &[u8],
    ) {
        let Some(id) = retained_replay::of_subject(subject) else {
            return;
        };
        let subscriber = index.subscriber(id.0);
        let live = subscriber.filter(|live| queues.load(batch, id.0, &live.client_id));
        let Some(subscriber) = live else {
            self.end_one(batch, id);
            return;
        };
        let Some(mut replay) = self.remove(id) else {
            go_on_purging(batch, id);
            return;
        };
        let progress = self.advance(batch, queues, &subscriber, id, &mut replay, fan_outs);
        self.put(batch, id, replay, progress);
        // Others may wait for the room that it has left.
        queues.touch(id.0);
    }

    /// There may be room again in a queue that replays wait for.
    pub fn resume(&mut self, batch: &mut Batch<'_, '_>, queues: &Queues, session: SessionId) {
        if self.waiting.is_empty() {
            return;
        }
        // For messages it waits until half of the room is there, so that a replay goes on with more than one at once.
        let (messages, bytes) = self.room(queues, session);
        if bytes == 0 || messages * 2 < self.most_waiting(queues, session) {
            return;
        }
        let all = (session, 0)..=(session, u64::MAX);
        let most = batch.allowance(REPLAY_COST);
        let waiting: Vec<_> = self.waiting.range(all).take(most).copied().collect();
        batch.spend(waiting.len() * REPLAY_COST);
        for id in waiting {
            if let Some(replay) = self.rows.get(&id).cloned() {
                self.put(batch, id, replay, Progress::More);
            }
        }
    }

    /// Messages that may wait in a queue before replays wait for it.
    fn most_waiting(&self, queues: &Queues, session: SessionId) -> u64 {
        let max_messages = queues
            .bounds(session)
            .map_or(0, |bounds| bounds.max_messages);
        (max_messages / 2).min(self.budget.waiting).max(1)
    }

    /// Messages and bytes that may go into a queue now. Invariant: where this finds none, no replay of the queue has a
    /// timer; it would fire in every batch and change nothing.
    fn room(&self, queues: &Queues, session: SessionId) -> (u64, u64) {
        let (Some(queue), Some(bounds)) = (queues.queue(session), queues.bounds(session)) else {
            return (0, 0);
        };
        let most = self.most_waiting(queues, session);
        let half = bounds.max_bytes / 2;
        let bytes = match queue.messages {
            // One message goes, however large.
            0 => half.max(1),
            _ => half.saturating_sub(queue.bytes),
        };
        (most.saturating_sub(queue.messages), bytes)
    }

    /// Puts the next messages of a replay into the queue.
    fn advance(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        subscriber: &Subscriber,
        (session, number): ReplayId,
        replay: &mut state::RetainedReplay,
        fan_outs: &FanOuts,
    ) -> Progress {
        if !queues.load(batch, session, &subscriber.client_id) {
            return Progress::Done;
        }
        let (messages, bytes) = self.room(queues, session);
        if messages == 0 || bytes == 0 {
            return Progress::Full;
        }
        // Every replay of the session gets its part of the room.
        let others = self.of_session(session) as u64;
        let limits = PageLimits {
            rows: self.left.rows,
            messages: (messages / (others + 1)).max(1),
            bytes: bytes.min(self.left.bytes),
        };
        if limits.rows == 0 || limits.bytes == 0 {
            return Progress::Starved;
        }
        // Messages of a topic that are still on their way into queues come first, each with what is retained before it.
        let under_way = fan_outs.first_match(&replay.filter, &replay.from);
        if under_way == Some(&replay.from) {
            return Progress::More;
        }
        // What was replayed first is forgotten with the topics that are passed, and no more of it than rows are looked
        // at.
        let mut replayed = replayed_topics(batch, (session, number), replay, limits.rows + 1);
        let end = match replayed.len() > limits.rows {
            true => replayed.pop_last(),
            false => None,
        };
        let ends = [end, under_way.map(str::to_owned)];
        let end = ends.into_iter().flatten().min();
        let page = Page::read(batch, session, replay, end, limits);
        self.left.rows -= page.cost().min(limits.rows);
        self.left.bytes = self.left.bytes.saturating_sub(page.bytes);
        for (topic, row) in page.found {
            if !replayed.contains(&topic) {
                enqueue(batch, queues, subscriber, replay, topic, row);
            }
        }
        for topic in replayed {
            if page.next.as_ref().is_none_or(|next| topic < *next) {
                let key = (session, number, topic.as_str());
                batch.tables.delete::<ReplayedTopic>(key);
                replay.replayed_topics -= 1;
            }
        }
        match page.next {
            None => Progress::Done,
            Some(next) => {
                replay.from = next;
                Progress::More
            }
        }
    }

    /// Keeps what is left of a replay, with the time when it goes on.
    fn put(
        &mut self,
        batch: &mut Batch<'_, '_>,
        id: ReplayId,
        mut replay: state::RetainedReplay,
        progress: Progress,
    ) {
        if progress == Progress::Done {
            debug_assert_eq!(replay.replayed_topics, 0, "{replay:?}");
            batch.tables.delete::<schema::RetainedReplay>(id);
            return;
        }
        let due = match progress {
            Progress::More => Some(batch.now.plus(1)),
            // In its place before those that had their part since.
            Progress::Starved => Some(match replay.due_ms {
                0 => batch.now,
                due_ms => Millis(due_ms).min(batch.now),
            }),
            Progress::Full | Progress::Done => None,
        };
        replay.due_ms = due.map_or(0, |due| due.0);
        if let Some(due) = due {
            set_timer(batch, due, id);
        }
        batch.tables.put::<schema::RetainedReplay>(id, &replay);
        self.insert(id, replay);
    }

    /// How many replays of a session have not ended.
    pub fn of_session(&self, session: SessionId) -> usize {
        match self.rows.is_empty() {
            true => 0,
            false => self.by_filter.get(&session).map_or(0, Trie::len),
        }
    }

    /// The message that is retained of a topic, if any replay could send it.
    pub fn retained(&self, batch: &Batch<'_, '_>, topic: &str) -> Option<state::Retained> {
        match self.rows.is_empty() {
            true => None,
            false => batch.tables.get::<schema::Retained>(topic.as_bytes()),
        }
    }

    /// A message is about to go into the queue of a session: what is retained of its topic goes before it if a replay
    /// has not come there.
    pub fn replay_first(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        subscriber: &Subscriber,
        message: &ApplicationMessage,
        publication: &Publication,
    ) {
        let (session, topic) = (subscriber.session, &message.topic);
        if !publication.concerns_replays(message) {
            return;
        }
        for number in self.concerned(session, topic) {
            let id = (session, number);
            let Some(replay) = self.rows.get(&id) else {
                continue;
            };
            if replay.from > *topic {
                continue;
            }
            let key = (session, number, topic.as_str());
            if replay.replayed_topics > 0 && batch.tables.contains::<ReplayedTopic>(key) {
                continue;
            }
            let (first, finds) = publication.before(session, replay, message);
            if let Some(row) = first {
                enqueue(batch, queues, subscriber, replay, topic.clone(), row);
            }
            if finds && let Some(replay) = self.rows.get_mut(&id) {
                batch.tables.put::<ReplayedTopic>(key, &());
                replay.replayed_topics += 1;
                batch.tables.put::<schema::RetainedReplay>(id, replay);
            }
        }
    }

    /// Ends the replay of a filter.
    pub fn end(&mut self, batch: &mut Batch<'_, '_>, session: SessionId, filter: &str) {
        let filters = self.by_filter.get(&session);
        if let Some(number) = filters.and_then(|filters| filters.get(filter, &())) {
            let id = (session, *number);
            self.end_one(batch, id);
        }
    }

    /// Ends the replays of a session, as many as the batch's budget allows; `false` when there may be more.
    #[must_use]
    pub fn end_all(&mut self, batch: &mut Batch<'_, '_>, session: SessionId) -> bool {
        let most = batch.allowance(REPLAY_COST);
        let all = (session, 0)..=(session, u64::MAX);
        let ids: Vec<_> = self.rows.range(all).map(|(id, _)| *id).take(most).collect();
        batch.spend(ids.len() * REPLAY_COST);
        for id in &ids {
            self.end_one(batch, *id);
        }
        ids.len() < most
    }

    fn end_one(&mut self, batch: &mut Batch<'_, '_>, id: ReplayId) {
        let Some(mut replay) = self.remove(id) else {
            go_on_purging(batch, id);
            return;
        };
        if replay.due_ms != 0 {
            let subject = retained_replay::subject(id.0, id.1);
            batch.clear_timer(Millis(replay.due_ms), Kind::RetainedReplay, &subject);
        }
        if replay.replayed_topics == 0 {
            batch.tables.delete::<schema::RetainedReplay>(id);
            return;
        }
        replay.ended = true;
        purge(batch, id, replay);
    }
}

fn enqueue(
    batch: &mut Batch<'_, '_>,
    queues: &mut Queues,
    subscriber: &Subscriber,
    replay: &state::RetainedReplay,
    topic: String,
    row: state::Retained,
) {
    if row.expires_at_ms.is_some_and(|at| Millis(at) < batch.now) {
        // Its timer has not come to it yet.
        return;
    }
    let qos = QoS::from_number(row.qos);
    let mut storing = Storing::for_one(Arc::new(ApplicationMessage {
        topic,
        qos,
        retain: true,
        payload: row.payload,
        properties: row.properties,
        expires_at: row.expires_at_ms.map(Millis),
        publisher: None,
    }));
    let delivery = Delivery {
        qos: qos.min(QoS::from_number(replay.qos)),
        retain: true,
        identifiers: (replay.identifier != 0)
            .then_some(replay.identifier)
            .into_iter()
            .collect(),
    };
    let (session, client_id) = (subscriber.session, &subscriber.client_id);
    queues.enqueue(batch, session, client_id, delivery, None, &mut storing);
    storing.store(batch);
}
