//! Retained messages on their way into the queue of a new subscription: those with QoS 1 and 2 of a durable session. The
//! others are sent by the node of the connection.
//!
//! A subscription may match a million of them, so they go in portions: what one batch looks at is bounded, and no more goes
//! into a queue than half of what it may hold, the rest when its client has taken that. How far a feed has come is a row.
//! In between messages are published. What is retained of their topic goes into the queue before them, so that no older
//! message comes after a newer one of its topic (P5); the feed passes over it when it comes there.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message as _;

use super::effect::ApplicationMessage;
use super::messages::Storing;
use super::publish::MatchSet;
use super::schema::timer::Kind;
use super::subscriptions::Subscriber;
use super::tables::Backing;
use super::{Context, Machine, schema};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::session::QoS;
use crate::session::delivery::Delivery;
use crate::topic::{matches, walk};

/// What of retained messages one batch may look at and put into queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    /// Rows looked at, of all feeds.
    pub rows: usize,
    /// Bytes put into queues, of all feeds; the last message may exceed them.
    pub bytes: u64,
    /// Messages that wait in one session's queue, its other ones included.
    pub waiting: u64,
}

impl Default for Portion {
    fn default() -> Self {
        Portion {
            rows: limits::RETAINED_ROWS_AT_ONCE,
            bytes: limits::RETAINED_BYTES_AT_ONCE,
            waiting: limits::RETAINED_WAITING,
        }
    }
}

/// The feeds under way, and what is left of the batch's portion.
#[derive(Default)]
pub(super) struct Feeds {
    rows: BTreeMap<(SessionId, u64), state::Feed>,
    portion: Portion,
    left: Portion,
}

impl Feeds {
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.rows.clear();
        let (from, to) = schema::feed::all();
        backing.scan(&from, &to, &mut |row_key, row| {
            let feed = schema::feed::decode(row_key).expect("this machine wrote the key");
            let row = state::Feed::decode(row).expect("this machine wrote the row");
            if !row.over {
                self.rows.insert(feed, row);
            }
            true
        });
    }

    /// A new batch has its whole portion.
    pub fn begin_batch(&mut self) {
        self.left = self.portion;
    }

    #[cfg(test)]
    pub fn set_portion(&mut self, portion: Portion) {
        self.portion = portion;
    }

    fn numbers(&self, session: SessionId) -> Vec<u64> {
        let all = (session, 0)..=(session, u64::MAX);
        self.rows
            .range(all)
            .map(|((_, number), _)| *number)
            .collect()
    }
}

/// What came of a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// All of it is in the queue.
    Done,
    /// There is more, and room for it.
    More,
    /// There may be more, and no room for it.
    Full,
}

impl Machine {
    /// Puts the retained messages that match a new subscription into its session's queue: the first ones now, the others
    /// in later batches.
    pub(super) fn queue_retained(
        &mut self,
        context: &mut Context<'_, '_>,
        subscriber: &Subscriber,
        filter: &str,
        subscription: &state::Subscription,
    ) {
        let session = subscriber.session;
        self.end_feeds(context, session, Some(filter));
        let granted = QoS::from_number(subscription.qos);
        if !subscriber.queues(granted) || granted == QoS::AtMostOnce {
            return;
        }
        let mut feed = state::Feed {
            filter: filter.to_owned(),
            qos: subscription.qos,
            no_local: subscription.no_local,
            identifier: subscription.identifier,
            index: context.index.0,
            ..Default::default()
        };
        self.meta.next_feed += 1;
        let number = self.meta.next_feed;
        let progress = self.feed_portion(context, session, number, &mut feed);
        self.put_feed(context, session, number, feed, progress);
    }

    /// A timer asks to go on with a feed.
    pub(super) fn go_on_feeding(&mut self, context: &mut Context<'_, '_>, subject: &[u8]) {
        let Some((session, number)) = schema::feed::of_subject(subject) else {
            return;
        };
        let Some(mut feed) = self.feeds.rows.remove(&(session, number)) else {
            self.purge_feed(context, session, number);
            return;
        };
        let progress = self.feed_portion(context, session, number, &mut feed);
        self.put_feed(context, session, number, feed, progress);
    }

    /// There may be room again in a queue that feeds wait for.
    pub(super) fn resume_feeds(&mut self, context: &mut Context<'_, '_>, session: SessionId) {
        if self.feeds.rows.is_empty() {
            return;
        }
        let most = self.most_waiting(session);
        let half_empty = |queue: &super::queues::SessionQueue| queue.queue.messages * 2 <= most;
        if !self.queues.get(&session).is_some_and(half_empty) {
            return;
        }
        for number in self.feeds.numbers(session) {
            if let Some(feed) = self.feeds.rows.get(&(session, number))
                && feed.due_ms == 0
            {
                let feed = feed.clone();
                self.put_feed(context, session, number, feed, Progress::More);
            }
        }
    }

    /// Messages that may wait in a queue before feeds wait for it.
    fn most_waiting(&self, session: SessionId) -> u64 {
        let bounds = self
            .queues
            .get(&session)
            .map(|queue| queue.bounds.max_messages);
        let half = bounds.unwrap_or(0) / 2;
        half.min(self.feeds.portion.waiting).max(1)
    }

    /// Messages and bytes that may go into a queue now.
    fn room(&self, session: SessionId) -> (u64, u64) {
        let Some(queue) = self.queues.get(&session) else {
            return (0, 0);
        };
        let messages = self
            .most_waiting(session)
            .saturating_sub(queue.queue.messages);
        let half = queue.bounds.max_bytes / 2;
        let bytes = match queue.queue.messages {
            // One message goes, however large.
            0 => half.max(1),
            _ => half.saturating_sub(queue.queue.bytes),
        };
        (messages, bytes)
    }

    /// Puts the next messages of a feed into the queue.
    fn feed_portion(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        number: u64,
        feed: &mut state::Feed,
    ) -> Progress {
        let Some(subscriber) = self.subscriptions.subscriber(session) else {
            return Progress::Done;
        };
        if !self.load_queue(context, session, &subscriber.client_id) {
            return Progress::Done;
        }
        let (messages, bytes) = self.room(session);
        if messages == 0 || bytes == 0 {
            return Progress::Full;
        }
        // Every feed of the session gets its part of the room.
        let others = self.feeds.numbers(session).len() as u64;
        let messages = (messages / (others + 1)).max(1);
        let left = self.feeds.left;
        let (rows, bytes) = (left.rows, bytes.min(left.bytes));
        if rows == 0 || bytes == 0 {
            return Progress::More;
        }
        // What went ahead is forgotten with the topics that are passed, and no more of it than rows are looked at.
        let mut ahead = gone_ahead(context, session, number, feed, rows + 1);
        let limit = match ahead.len() > rows {
            true => ahead.pop_last(),
            false => None,
        };
        let page = Page::read(context, session, feed, limit, (rows, messages, bytes));
        self.feeds.left.rows -= page.looked.min(rows);
        self.feeds.left.bytes = left.bytes.saturating_sub(page.bytes);
        for (topic, row) in page.found {
            if !ahead.contains(&topic) {
                self.enqueue_retained(context, &subscriber, feed, topic, row);
            }
        }
        for topic in ahead {
            if page.next.as_ref().is_none_or(|next| topic < *next) {
                let row_key = schema::ahead::encode(session, number, topic.as_bytes());
                context.tables.delete(row_key);
                feed.ahead -= 1;
            }
        }
        match page.next {
            None => Progress::Done,
            Some(next) => {
                feed.from = next;
                Progress::More
            }
        }
    }

    fn enqueue_retained(
        &mut self,
        context: &mut Context<'_, '_>,
        subscriber: &Subscriber,
        feed: &state::Feed,
        topic: String,
        row: state::Retained,
    ) {
        let qos = QoS::from_number(row.qos);
        let mut storing = Storing::new(Arc::new(ApplicationMessage {
            topic,
            qos,
            retain: true,
            payload: row.payload,
            properties: row.properties,
            expires_at: row.expires_at_ms.map(Millis),
            publisher: None,
        }));
        let delivery = Delivery {
            qos: qos.min(QoS::from_number(feed.qos)),
            retain: true,
            identifiers: (feed.identifier != 0)
                .then_some(feed.identifier)
                .into_iter()
                .collect(),
        };
        let (session, client_id) = (subscriber.session, &subscriber.client_id);
        self.enqueue(context, session, client_id, delivery, None, &mut storing);
        self.store_message(context, &storing);
    }

    /// Keeps what is left of a feed, with the time when it goes on.
    fn put_feed(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        number: u64,
        mut feed: state::Feed,
        progress: Progress,
    ) {
        let row_key = schema::feed::encode(session, number);
        if progress == Progress::Done {
            debug_assert_eq!(feed.ahead, 0, "{feed:?}");
            context.tables.delete(row_key);
            return;
        }
        feed.due_ms = 0;
        if progress == Progress::More {
            let soon = context.now.plus(1);
            feed.due_ms = soon.0;
            self.set_timer(
                context,
                soon,
                Kind::Feed,
                &schema::feed::subject(session, number),
            );
        }
        context.tables.put(row_key, feed.encode_to_vec());
        self.feeds.rows.insert((session, number), feed);
    }

    /// A message is about to be published: what is retained of its topic goes before it into the queues of the sessions
    /// whose feeds have not come there.
    pub(super) fn feed_ahead(
        &mut self,
        context: &mut Context<'_, '_>,
        match_set: &MatchSet,
        message: &ApplicationMessage,
    ) {
        if self.feeds.rows.is_empty() {
            return;
        }
        let topic = &message.topic;
        let row = context
            .tables
            .get(&schema::retained::encode(topic.as_bytes()));
        let row = row.map(|row| state::Retained::decode(row).expect("this machine wrote the row"));
        for subscriber in match_set.subscribers() {
            let session = subscriber.session;
            for number in self.feeds.numbers(session) {
                let Some(feed) = self.feeds.rows.get(&(session, number)) else {
                    continue;
                };
                if feed.from > *topic || !matches(&feed.filter, topic) {
                    continue;
                }
                let mark = schema::ahead::encode(session, number, topic.as_bytes());
                if feed.ahead > 0 && context.tables.get(&mark).is_some() {
                    continue;
                }
                let mut feed = feed.clone();
                let owed = row.clone().filter(|row| is_owed(&feed, session, row));
                // Whether the feed would find something to send all the same when it comes to the topic: the message that
                // has gone ahead, or this one, if it is retained by the same log entry.
                let finds = match message.retain {
                    false => owed.is_some(),
                    true => context.index.0 <= feed.index && !message.payload.is_empty(),
                };
                if let Some(row) = owed {
                    self.enqueue_retained(context, subscriber, &feed, topic.clone(), row);
                }
                if finds {
                    context.tables.put(mark, Vec::new());
                    feed.ahead += 1;
                    let row_key = schema::feed::encode(session, number);
                    context.tables.put(row_key, feed.encode_to_vec());
                    self.feeds.rows.insert((session, number), feed);
                }
            }
        }
    }

    /// Ends the feed of a filter, or all of a session.
    pub(super) fn end_feeds(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        filter: Option<&str>,
    ) {
        if self.feeds.rows.is_empty() {
            return;
        }
        for number in self.feeds.numbers(session) {
            let is_meant = |feed: &state::Feed| filter.is_none_or(|filter| feed.filter == filter);
            if !self
                .feeds
                .rows
                .get(&(session, number))
                .is_some_and(is_meant)
            {
                continue;
            }
            let Some(mut feed) = self.feeds.rows.remove(&(session, number)) else {
                continue;
            };
            let subject = schema::feed::subject(session, number);
            if feed.due_ms != 0 {
                self.clear_timer(context, Millis(feed.due_ms), Kind::Feed, &subject);
            }
            let row_key = schema::feed::encode(session, number);
            if feed.ahead == 0 {
                context.tables.delete(row_key);
                continue;
            }
            feed.over = true;
            context.tables.put(row_key, feed.encode_to_vec());
            self.purge_feed(context, session, number);
        }
    }

    /// Removes what is left of a feed that is over, a portion per batch.
    fn purge_feed(&mut self, context: &mut Context<'_, '_>, session: SessionId, number: u64) {
        let (from, to) = schema::ahead::from(session, number, b"");
        let mut rows = Vec::new();
        context.tables.scan(&from, &to, |row_key, _| {
            rows.push(row_key.to_vec());
            rows.len() < limits::PURGED_AT_ONCE
        });
        let more = rows.len() == limits::PURGED_AT_ONCE;
        for row_key in rows {
            context.tables.delete(row_key);
        }
        if more {
            let soon = context.now.plus(1);
            self.set_timer(
                context,
                soon,
                Kind::Feed,
                &schema::feed::subject(session, number),
            );
        } else {
            context.tables.delete(schema::feed::encode(session, number));
        }
    }
}

/// Whether a feed sends a retained message: what was retained after its SUBSCRIBE has gone into the queue as it was
/// published.
fn is_owed(feed: &state::Feed, session: SessionId, row: &state::Retained) -> bool {
    let is_own = feed.no_local && row.publisher == session.0;
    row.qos > 0 && !is_own && row.index <= feed.index
}

/// The first topics of a feed, from where it goes on, whose message has gone ahead.
fn gone_ahead(
    context: &Context<'_, '_>,
    session: SessionId,
    number: u64,
    feed: &state::Feed,
    most: usize,
) -> BTreeSet<String> {
    let mut topics = BTreeSet::new();
    if feed.ahead == 0 {
        return topics;
    }
    let (from, to) = schema::ahead::from(session, number, feed.from.as_bytes());
    context.tables.scan(&from, &to, |row_key, _| {
        topics.extend(schema::ahead::decode(row_key).map(str::to_owned));
        topics.len() < most
    });
    topics
}

/// The next retained messages of a feed.
struct Page {
    found: Vec<(String, state::Retained)>,
    /// The topic to go on from, when there may be more.
    next: Option<String>,
    looked: usize,
    bytes: u64,
}

impl Page {
    /// Reads until so many rows were looked at, and so many messages and bytes found; before the topic `limit`.
    fn read(
        context: &Context<'_, '_>,
        session: SessionId,
        feed: &state::Feed,
        limit: Option<String>,
        (rows, messages, most_bytes): (usize, u64, u64),
    ) -> Page {
        let mut found = Vec::new();
        let (count, bytes, looked) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let mut next = limit.clone();
        walk::for_each_match(
            &feed.filter,
            feed.from.as_bytes(),
            |from, show| {
                let (from, to) = schema::retained::from(from);
                context.tables.scan(&from, &to, |row_key, row| {
                    let topic = schema::retained::decode(row_key).map(std::str::from_utf8);
                    let Some(Ok(topic)) = topic else {
                        return true;
                    };
                    let is_enough = looked.get() >= rows
                        || count.get() >= messages
                        || bytes.get() >= most_bytes;
                    if is_enough || limit.as_deref().is_some_and(|limit| topic >= limit) {
                        next = Some(topic.to_owned());
                        return false;
                    }
                    looked.set(looked.get() + 1);
                    show(topic.as_bytes(), row)
                });
            },
            |topic, row| {
                let row = state::Retained::decode(row).expect("this machine wrote the row");
                if is_owed(feed, session, &row) {
                    count.set(count.get() + 1);
                    let size = topic.len() + row.payload.len() + row.properties.len();
                    bytes.set(bytes.get() + size as u64);
                    found.push((topic.to_owned(), row));
                }
                true
            },
        );
        // Where the limit comes first, all before it has been looked at.
        if let (Some(limit), Some(reached)) = (limit, &next)
            && *reached > limit
        {
            next = Some(limit);
        }
        Page {
            found,
            next,
            looked: looked.get(),
            bytes: bytes.get(),
        }
    }
}
