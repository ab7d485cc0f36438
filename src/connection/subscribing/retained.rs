//! Retained messages for new subscriptions, read page by page as the client takes them.
//!
//! Messages of a durable session with QoS 1 and 2 went into its queue when the subscription was made; a replay sends
//! the others. It skips retained messages that are newer than the subscription: they were delivered when they were
//! published.
//!
//! Invariant: a filter has one replay at most. A subscription that is made again takes its place, or gives it the new
//! options if it asks for no retained messages itself; a subscription that ends ends it.
//! Invariant: no page looks at more than [`PAGE_ROWS`] or [`PAGE_BYTES`], or finds more than [`PAGE_MESSAGES`], and the
//! next one follows when the client has got this one. So what a client asks for costs no more than what it reads.
//! Invariant: a page is read while everything that was taken out of the mailbox before is on its way already, and what
//! is in the mailbox follows it. So a change of a retained message never comes before the older message that the page
//! has found (P5). A message that is not retained may come first if it was taken out before its topic's turn came.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::acl::{Rights, Share};
use crate::base::ids::{LogIndex, SessionId};
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::codec::QoS;
use crate::connection::broker::Broker;
use crate::connection::sys;
use crate::machine::read::{self, ListBudget};
use crate::mailbox::{Contents, Filling, Mailbox, RequestId};
use crate::router::{Message, Router};
use crate::session::delivery::{remaining_s, sends_retained};
use crate::topic::Filter;

/// Rows that one page looks at.
const PAGE_ROWS: usize = 256;

/// Bytes of rows after which a page ends.
const PAGE_BYTES: usize = 64 << 10;

/// Messages that one page finds.
const PAGE_MESSAGES: usize = 64;

/// What a client has subscribed to.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    pub(super) filter: Arc<str>,
    /// Maximum QoS, as granted.
    pub(super) qos: QoS,
    pub(super) no_local: bool,
    pub(super) retain_handling: u8,
    /// Subscription identifier, 0 when there is none.
    pub(super) identifier: u32,
}

impl Subscription {
    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Subscription>() + self.filter.len()
    }

    fn sends_retained(&self, is_new: bool) -> bool {
        let is_shared = Filter::parse(&self.filter).is_ok_and(|filter| filter.share.is_some());
        sends_retained(self.retain_handling, is_new, is_shared)
    }
}

/// Who gets the messages.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    /// What the client may get.
    pub(super) rights: &'a Rights,
    pub(super) broker: &'a Broker,
    pub(super) mailbox: &'a Mailbox,
    pub(super) session: SessionId,
    /// The session's messages with QoS 1 and 2 go through its queue.
    pub(super) is_durable: bool,
}

/// The replays of a connection.
#[derive(Debug, Default)]
pub(super) struct RetainedReplays {
    /// Boxed, because most connections have none.
    replays: Option<Box<Replays>>,
    /// How much the client must have got before the next page. It outlasts the replays, so that a client gets no more
    /// by subscribing again and again.
    next_at: u64,
}

#[derive(Debug, Default)]
struct Replays {
    /// The client chooses filters, so they are hashed with a random seed.
    by_filter: HashMap<Arc<str>, Replay>,
    /// Those that begin when a SUBSCRIBE is acknowledged.
    unacknowledged: FxHashMap<RequestId, Vec<ReplayId>>,
    /// Those under way, in order; some may have ended, but never the first.
    ready: VecDeque<ReplayId>,
    last_number: u64,
    /// Bytes of `by_filter`, about.
    bytes: usize,
}

/// Replays of one filter that follow each other have different numbers.
type ReplayId = (Arc<str>, u64);

impl RetainedReplays {
    /// A SUBSCRIBE was applied as the log entry `index`: its subscriptions, each with whether it is new. What it asks
    /// for begins with [`RetainedReplays::acknowledged`].
    pub(super) fn subscribed(
        &mut self,
        request_id: RequestId,
        made: impl Iterator<Item = (Subscription, bool)>,
        index: LogIndex,
    ) {
        for (subscription, is_new) in made {
            if subscription.sends_retained(is_new) {
                let replays = self.replays.get_or_insert_default();
                replays.start(request_id, subscription, index);
            } else if let Some(replays) = &mut self.replays
                && let Some(replay) = replays.by_filter.get_mut(&subscription.filter)
            {
                replay.subscription = subscription;
            }
        }
        self.tidy();
    }

    /// A subscription has ended.
    pub(super) fn unsubscribed(&mut self, filter: &str) {
        if let Some(replays) = &mut self.replays {
            replays.remove(filter);
        }
        self.tidy();
    }

    /// A subscription has this QoS at most from now on.
    pub(super) fn lower(&mut self, filter: &str, qos: QoS) {
        let replays = self.replays.as_deref_mut();
        if let Some(replay) = replays.and_then(|replays| replays.by_filter.get_mut(filter)) {
            replay.subscription.qos = qos.min(replay.subscription.qos);
        }
    }

    /// A SUBSCRIBE is acknowledged: its replays begin.
    pub(super) fn acknowledged(&mut self, request_id: RequestId) {
        if let Some(replays) = &mut self.replays {
            let begin = replays.unacknowledged.remove(&request_id);
            replays.ready.extend(begin.into_iter().flatten());
        }
        self.tidy();
    }

    /// Whether a page is to be read, for a client that has got so many bytes; `None` if it has got everything.
    pub(super) fn is_due(&self, drained: Option<u64>) -> bool {
        self.is_ready() && drained.is_none_or(|drained| drained >= self.next_at)
    }

    /// Whether a replay is under way.
    pub(super) fn is_ready(&self) -> bool {
        self.replays
            .as_ref()
            .is_some_and(|replays| !replays.ready.is_empty())
    }

    /// Bytes that are kept, about.
    pub(super) fn bytes(&self) -> usize {
        self.replays.as_ref().map_or(0, |replays| replays.bytes)
    }

    /// Reads the next page into empty buffers.
    pub(super) fn read_page(&mut self, to: Reading<'_>, contents: &mut Contents) {
        let Some(replays) = &mut self.replays else {
            return;
        };
        let Some((filter, _)) = replays.ready.front().cloned() else {
            return;
        };
        if let Some(replay) = replays.by_filter.get_mut(&filter) {
            let mut has_more = false;
            to.mailbox
                .fill(contents, |filling| has_more = replay.read_page(to, filling));
            if !has_more {
                replays.remove(&filter);
            }
        }
        self.next_at = to.mailbox.drained() + contents.packets.len() as u64;
        self.tidy();
    }

    /// Keeps nothing of what has ended.
    fn tidy(&mut self) {
        let Some(replays) = &mut self.replays else {
            return;
        };
        replays.drop_ended();
        if replays.by_filter.is_empty() && replays.unacknowledged.is_empty() {
            self.replays = None;
        }
    }
}

/// What the replay of a filter takes, with its place in the order.
fn replay_bytes(filter: &str) -> usize {
    size_of::<Replay>() + 4 * size_of::<ReplayId>() + filter.len()
}

impl Replays {
    fn start(&mut self, request_id: RequestId, subscription: Subscription, index: LogIndex) {
        self.last_number += 1;
        let (filter, number) = (subscription.filter.clone(), self.last_number);
        let begin = self.unacknowledged.entry(request_id).or_default();
        begin.push((filter.clone(), number));
        let replay = Replay {
            subscription,
            number,
            index,
            from: Vec::new(),
        };
        self.bytes += replay_bytes(&filter);
        if self.by_filter.insert(filter.clone(), replay).is_some() {
            self.bytes -= replay_bytes(&filter);
        }
    }

    fn remove(&mut self, filter: &str) {
        if self.by_filter.remove(filter).is_some() {
            self.bytes -= replay_bytes(filter);
        }
    }

    fn drop_ended(&mut self) {
        let by_filter = &self.by_filter;
        let is_running = |(filter, number): &ReplayId| {
            let replay = by_filter.get(filter);
            replay.is_some_and(|replay| replay.number == *number)
        };
        while self.ready.front().is_some_and(|first| !is_running(first)) {
            self.ready.pop_front();
        }
        // One filter may be subscribed to again and again while another one's replay is the first.
        if self.ready.len() > 2 * by_filter.len() {
            self.ready.retain(is_running);
        }
    }
}

/// The retained messages of one subscription.
#[derive(Debug)]
struct Replay {
    subscription: Subscription,
    number: u64,
    /// The log entry that made the subscription.
    index: LogIndex,
    /// The topic to go on from; empty at the beginning.
    from: Vec<u8>,
}

impl Replay {
    /// Makes packets of the next page; tells whether there is more.
    fn read_page(&mut self, to: Reading<'_>, filling: &mut Filling<'_>) -> bool {
        if self.from.is_empty() {
            for (topic, value) in to.broker.sys.matching(&self.subscription.filter) {
                if !to.rights.may_receive(topic, Share::None) {
                    continue;
                }
                let message = sys::message(topic, &value);
                Router::put(filling, to.mailbox, &message, self.identifier());
            }
        }
        let mut messages = 0;
        let mut next = None;
        let backing = &*to.broker.services.backing;
        let (filter, from) = (&self.subscription.filter, &self.from);
        let budget = ListBudget::of(PAGE_ROWS, PAGE_BYTES);
        let used_up = read::retained_page(backing, filter, from, budget, |topic, row| {
            if messages == PAGE_MESSAGES {
                next = Some(topic.as_bytes().to_vec());
                return false;
            }
            if self.is_owed(&row, to) && to.rights.may_receive(topic, Share::None) {
                messages += 1;
                self.put(topic, &row, to, filling);
            }
            true
        });
        // The name after it, of all there may be.
        let after = |last: String| [last.as_bytes(), &[0]].concat();
        let next = next.or(used_up.map(after));
        let has_more = next.is_some();
        self.from = next.unwrap_or_default();
        has_more
    }

    fn identifier(&self) -> Option<u32> {
        Some(self.subscription.identifier).filter(|identifier| *identifier != 0)
    }

    fn qos(&self, row: &state::Retained) -> QoS {
        QoS::from_number(row.qos).min(self.subscription.qos)
    }

    fn is_owed(&self, row: &state::Retained, to: Reading<'_>) -> bool {
        let is_own = self.subscription.no_local && row.publisher == to.session.0;
        let is_queued = to.is_durable && self.qos(row) != QoS::AtMostOnce;
        row.index <= self.index.0 && !is_own && !is_queued
    }

    fn put(&self, topic: &str, row: &state::Retained, to: Reading<'_>, filling: &mut Filling<'_>) {
        let expiry = match row.expires_at_ms {
            None => None,
            Some(at) => match remaining_s(Millis(at), to.broker.services.clock.now()) {
                None => return,
                left => left,
            },
        };
        let message = Message {
            publisher: None,
            qos: self.qos(row),
            retain: true,
            topic,
            properties: &row.properties,
            expiry,
            direct: true,
            payload: &row.payload,
        };
        Router::put(filling, to.mailbox, &message, self.identifier());
    }
}
