//! The subscription index: which sessions match a topic name, and on which node each is.
//!
//! It is derived from the tables and shared with the router, which reads it for every PUBLISH. Only
//! `apply` changes it. Readers keep what they have looked up with a [`Validity`], which tells when that is outdated: a
//! change concerns the topics that the changed filter can match, and a session that comes or goes those that its own
//! filters can match. Nothing else has to be looked up anew.
//!
//! Invariant: the index is changed first and its [`Generations`] are raised afterwards, before the change is
//! acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::base::ids::{Incarnation, LogIndex, NodeId, Owner, SessionId};
use crate::base::proto::state;
use crate::session::{MessageId, QoS};
use crate::topic::generations::{Bucket, FilterBuckets, Generations, Validity};
use crate::topic::patterns::{Missing, OwnPatterns, Patterns};
use crate::topic::{Filter, Trie};

/// A session as routing knows it.
#[derive(Debug)]
pub struct Subscriber {
    /// The session.
    pub session: SessionId,
    /// Its client.
    pub client_id: Arc<str>,
    /// With the flag of its incarnation.
    owner: Mutex<Option<(Owner, EndedFlag)>>,
    queueing: AtomicU8,
}

/// Whether an incarnation has ended: one flag ends the ownership of all its connections.
type EndedFlag = Arc<AtomicBool>;

/// Which messages for a session go through its queue in the log, and not straight to its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queueing {
    /// Those with QoS 1 and 2.
    pub durable: bool,
    /// Those with QoS 0, while it has no connection.
    pub qos_0: bool,
}

const DURABLE: u8 = 1;
const QOS_0: u8 = 2;

impl Subscriber {
    /// Whether a message that the session gets with this QoS goes through its queue.
    pub fn queues(&self, qos: QoS) -> bool {
        let bits = self.queueing.load(Ordering::Relaxed);
        match qos {
            QoS::AtMostOnce => bits & QOS_0 != 0 && self.owner().is_none(),
            QoS::AtLeastOnce | QoS::ExactlyOnce => bits & DURABLE != 0,
        }
    }

    fn set_queueing(&self, queueing: Queueing) {
        let bits =
            if queueing.durable { DURABLE } else { 0 } | if queueing.qos_0 { QOS_0 } else { 0 };
        self.queueing.store(bits, Ordering::Relaxed);
    }

    /// The connection that owns the session, if any.
    pub fn owner(&self) -> Option<Owner> {
        let owner = self.owner.lock();
        let (owner, ended) = owner.as_ref()?;
        (!ended.load(Ordering::Acquire)).then_some(*owner)
    }
}

/// One subscription of one session, as routing knows it.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The session it belongs to.
    pub subscriber: Arc<Subscriber>,
    /// Maximum QoS, as granted.
    pub qos: QoS,
    /// `[MQTT-3.8.3-3]`: the client's own messages do not come back to it.
    pub no_local: bool,
    /// `[MQTT-3.3.1-13]`: RETAIN is passed on as received.
    pub retain_as_published: bool,
    /// Subscription identifier, 0 when there is none.
    pub identifier: u32,
    /// The log entry that made it, other options than the present ones included; 0 if that is long ago. What came up to
    /// there is not for it, but for its retained replay.
    pub since: LogIndex,
    /// The last message that was numbered before it was made: up to there, none that goes into queues is for it.
    pub after: MessageId,
}

/// What tells subscriptions of one filter apart: a session may hold a filter plainly and shared. A shared one is named
/// by its whole filter, `$share/{name}/{filter}`: that is its group.
type Key = (SessionId, Option<Arc<str>>);

/// A session, and which look-ups depend on it.
#[derive(Debug)]
struct Known {
    subscriber: Arc<Subscriber>,
    buckets: FilterBuckets,
    held: Held,
    patterns: OwnPatterns,
}

/// The subscriptions of a session, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// How many there are.
    pub count: u64,
    /// What they count in memory, see [`size_of_filter`].
    pub bytes: u64,
}

impl Held {
    fn add(&mut self, filter: &str) {
        self.count += 1;
        self.bytes += size_of_filter(filter);
    }

    fn remove(&mut self, filter: &str) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size_of_filter(filter));
    }
}

/// The wildcard patterns that a filter would add, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatternsNeeded {
    pub missing: Missing,
    /// Of the session.
    pub own: usize,
    /// Deep ones of all.
    pub deep: usize,
}

/// What a level of a filter counts beside its name: a node and an edge of the tree.
const LEVEL_BYTES: u64 = 64;

/// What a subscription counts beside its filter.
const SUBSCRIPTION_BYTES: u64 = 256;

/// What a subscription to a filter counts in memory. It follows from the filter alone, so that all replicas refuse the
/// same ones.
pub(super) fn size_of_filter(filter: &str) -> u64 {
    let levels = 1 + filter.bytes().filter(|byte| *byte == b'/').count();
    SUBSCRIPTION_BYTES + filter.len() as u64 + levels as u64 * LEVEL_BYTES
}

#[derive(Default)]
struct Inner {
    trie: Trie<Key, Subscription>,
    /// Of all sessions.
    held: Held,
    patterns: Patterns,
    sessions: FxHashMap<SessionId, Known>,
    incarnations: FxHashMap<(NodeId, Incarnation), EndedFlag>,
}

impl Inner {
    fn ended_flag(&mut self, node: NodeId, incarnation: Incarnation) -> EndedFlag {
        let incarnations = &mut self.incarnations;
        incarnations.entry((node, incarnation)).or_default().clone()
    }
}

/// The index. Cheap to read from many threads.
#[derive(Default)]
pub struct SubscriptionIndex {
    inner: RwLock<Inner>,
    /// Changes of subscriptions.
    filters: Generations,
    /// The same, and changes of their sessions.
    all: Generations,
}

impl SubscriptionIndex {
    /// To be taken before a look-up whose result depends on the sessions' owners, too.
    pub fn validity(&self, topic: &str) -> Validity {
        self.all.validity(topic)
    }

    /// Whether what was looked up after [`SubscriptionIndex::validity`] still holds.
    #[inline]
    pub fn is_current(&self, validity: &Validity) -> bool {
        self.all.is_current(validity)
    }

    /// To be taken before a look-up whose result depends on subscriptions alone.
    pub(super) fn filters_validity(&self, topic: &str) -> Validity {
        self.filters.validity(topic)
    }

    /// Whether what was looked up after [`SubscriptionIndex::filters_validity`] still holds.
    pub(super) fn are_filters_current(&self, validity: &Validity) -> bool {
        self.filters.is_current(validity)
    }

    /// No look-up is current any more, whatever it is of: what sessions may get has changed.
    pub fn outdate(&self) {
        self.all.advance_all();
    }

    /// The same, of what a session has subscribed to: what that one may get has changed. It costs others no more than
    /// if the session subscribed to its filters anew.
    pub fn outdate_session(&self, session: SessionId) {
        if let Some(known) = self.inner.read().sessions.get(&session) {
            self.all.advance(known.buckets.iter());
        }
    }

    /// Visits every subscription whose filter matches `topic`, with its group if it is shared: filter by filter, those
    /// of one filter in the order of their sessions. Returns how much it looked at: subscriptions, and parts of filters
    /// that may match none.
    pub fn for_each_match(
        &self,
        topic: &str,
        mut visit: impl FnMut(Option<&Arc<str>>, &Subscription),
    ) -> usize {
        let mut matches = 0;
        let inner = self.inner.read();
        let nodes = inner
            .trie
            .for_each_match(topic, |(_, group), subscription| {
                matches += 1;
                visit(group.as_ref(), subscription);
            });
        nodes + matches
    }

    /// Number of sessions and of subscriptions.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.read();
        (inner.sessions.len(), inner.trie.len())
    }

    /// Makes `owner` the owner of a session, which is added when it is new.
    pub(super) fn open(
        &self,
        session: SessionId,
        client_id: &str,
        owner: Option<Owner>,
        queueing: Queueing,
    ) -> Arc<Subscriber> {
        let mut inner = self.inner.write();
        let owner = owner.map(|owner| (owner, inner.ended_flag(owner.node, owner.incarnation)));
        let known = inner.sessions.entry(session).or_insert_with(|| Known {
            subscriber: Arc::new(Subscriber {
                session,
                client_id: client_id.into(),
                owner: Mutex::new(None),
                queueing: AtomicU8::new(0),
            }),
            buckets: FilterBuckets::default(),
            held: Held::default(),
            patterns: OwnPatterns::default(),
        });
        *known.subscriber.owner.lock() = owner;
        known.subscriber.set_queueing(queueing);
        self.all.advance(known.buckets.iter());
        known.subscriber.clone()
    }

    /// A session.
    pub fn subscriber(&self, session: SessionId) -> Option<Arc<Subscriber>> {
        let inner = self.inner.read();
        let known = inner.sessions.get(&session);
        known.map(|known| known.subscriber.clone())
    }

    /// The subscriptions of a session, and those of all.
    pub(super) fn held(&self, session: SessionId) -> (Held, Held) {
        let inner = self.inner.read();
        let known = inner.sessions.get(&session);
        (
            known.map_or(Held::default(), |known| known.held),
            inner.held,
        )
    }

    /// How many wildcard patterns there are.
    #[cfg(test)]
    pub(super) fn patterns(&self) -> usize {
        self.inner.read().patterns.count()
    }

    /// How much of the tree a look-up of a topic name visits at most: no more than there are wildcard patterns, or than
    /// can be of as many levels.
    pub(super) fn patterns_visited(&self, topic: &str) -> usize {
        let levels = 1 + topic.bytes().filter(|byte| *byte == b'/').count();
        let patterns = self.inner.read().patterns.count();
        let of_levels = 2_usize.checked_pow(levels as u32 + 1);
        of_levels.map_or(patterns, |of_levels| patterns.min(of_levels))
    }

    /// The wildcard patterns that a session's subscription to a filter needs.
    pub(super) fn patterns_needed(&self, session: SessionId, filter: &str) -> PatternsNeeded {
        let (_, inner_filter) = split(filter);
        let inner = self.inner.read();
        let none = OwnPatterns::default();
        let known = inner.sessions.get(&session);
        let own = known.map_or(&none, |known| &known.patterns);
        PatternsNeeded {
            missing: inner.patterns.missing(inner_filter, own),
            own: own.count(),
            deep: inner.patterns.deep(),
        }
    }

    /// Whether a session has subscribed to a filter.
    pub(super) fn has_subscription(&self, session: SessionId, filter: &str) -> bool {
        let (group, inner_filter) = split(filter);
        let inner = self.inner.read();
        inner.trie.get(inner_filter, &(session, group)).is_some()
    }

    /// The session has no connection any more.
    pub(super) fn close(&self, session: SessionId) {
        if let Some(known) = self.inner.read().sessions.get(&session) {
            *known.subscriber.owner.lock() = None;
            self.all.advance(known.buckets.iter());
        }
    }

    /// Adds or replaces a subscription, by the log entry `index`; tells whether it is new.
    pub(super) fn subscribe(
        &self,
        session: SessionId,
        filter: &str,
        row: &state::Subscription,
        index: LogIndex,
    ) -> bool {
        let mut inner = self.inner.write();
        let Inner {
            trie,
            sessions,
            held,
            patterns,
            ..
        } = &mut *inner;
        let Some(known) = sessions.get_mut(&session) else {
            return false;
        };
        let (group, inner_filter) = split(filter);
        let key = (session, group);
        let subscription = Subscription {
            subscriber: known.subscriber.clone(),
            qos: QoS::from_number(row.qos),
            no_local: row.no_local,
            retain_as_published: row.retain_as_published,
            identifier: row.identifier,
            after: MessageId(row.after_message),
            since: trie.get(inner_filter, &key).map_or(index, |old| old.since),
        };
        let bucket = Bucket::of_filter(inner_filter);
        let new = trie.insert(inner_filter, key, subscription).is_none();
        if new {
            known.buckets.add(bucket);
            known.held.add(filter);
            held.add(filter);
            patterns.add(inner_filter, &mut known.patterns);
        }
        drop(inner);
        self.advance(bucket);
        new
    }

    /// Removes a subscription; tells whether there was one.
    pub(super) fn unsubscribe(&self, session: SessionId, filter: &str) -> bool {
        let (group, inner_filter) = split(filter);
        let mut inner = self.inner.write();
        let Inner {
            trie,
            sessions,
            held,
            patterns,
            ..
        } = &mut *inner;
        if trie.remove(inner_filter, &(session, group)).is_none() {
            return false;
        }
        held.remove(filter);
        let bucket = Bucket::of_filter(inner_filter);
        let mut known = sessions.get_mut(&session);
        if let Some(known) = &mut known {
            known.buckets.remove(bucket);
            known.held.remove(filter);
        }
        let own = known.map(|known| &mut known.patterns);
        patterns.remove(inner_filter, own);
        drop(inner);
        self.advance(bucket);
        true
    }

    fn advance(&self, bucket: Bucket) {
        self.filters.advance([bucket]);
        self.all.advance([bucket]);
    }

    /// Removes a session. Subscriptions that it still has go to nobody until they are removed, too.
    pub(super) fn remove(&self, session: SessionId) {
        let removed = self.inner.write().sessions.remove(&session);
        if let Some(known) = removed {
            *known.subscriber.owner.lock() = None;
            known.subscriber.set_queueing(Queueing::default());
            self.all.advance(known.buckets.iter());
        }
    }

    /// The connections of an incarnation own nothing any more.
    pub(super) fn end_incarnation(&self, node: NodeId, incarnation: Incarnation) {
        let ended = self.inner.write().ended_flag(node, incarnation);
        ended.store(true, Ordering::Release);
        self.all.advance_all();
    }

    /// No session is owned by a connection of an ended incarnation any more.
    pub(super) fn forget_incarnation(&self, node: NodeId, incarnation: Incarnation) {
        self.inner.write().incarnations.remove(&(node, incarnation));
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.inner.write() = Inner::default();
        self.filters.advance_all();
        self.all.advance_all();
    }
}

/// The group, if the filter is shared, and what topic names are matched with.
fn split(filter: &str) -> (Option<Arc<str>>, &str) {
    match Filter::parse(filter) {
        Ok(Filter {
            share: Some(_),
            inner,
            ..
        }) => (Some(filter.into()), inner),
        _ => (None, filter),
    }
}

#[cfg(test)]
impl SubscriptionIndex {
    /// For tests of what reads the index: a session with these subscriptions.
    pub fn put(
        &self,
        session: SessionId,
        owner: Option<Owner>,
        queueing: Queueing,
        filters: &[&str],
    ) {
        self.open(session, "", owner, queueing);
        for filter in filters {
            let row = state::Subscription {
                identifier: session.0 as u32,
                ..state::Subscription::default()
            };
            self.subscribe(session, filter, &row, LogIndex::default());
        }
    }

    /// For tests of what reads the index: one subscription.
    pub fn put_row(
        &self,
        session: SessionId,
        filter: &str,
        row: &state::Subscription,
        index: LogIndex,
    ) {
        self.subscribe(session, filter, row, index);
    }

    /// For tests of what reads the index: a subscription ends.
    pub fn take(&self, session: SessionId, filter: &str) {
        self.unsubscribe(session, filter);
    }

    /// For tests of what reads the index: a session loses its connection, or ends.
    pub fn leave(&self, session: SessionId, ends: bool) {
        match ends {
            true => self.remove(session),
            false => self.close(session),
        }
    }
}
