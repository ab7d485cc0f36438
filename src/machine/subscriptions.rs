//! The subscription index: which sessions match a topic name, and on which node each is.
//!
//! It is derived from the tables and shared with the router, which reads it for every PUBLISH. Only
//! `apply` changes it. A generation number tells readers when what they looked up may be outdated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::base::ids::{Incarnation, NodeId, Owner, SessionId};
use crate::base::proto::state;
use crate::session::QoS;
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
}

/// What tells subscriptions of one filter apart: a session may hold a filter plainly and shared. A shared one is named
/// by its whole filter, `$share/{name}/{filter}`: that is its group.
type Key = (SessionId, Option<Arc<str>>);

#[derive(Default)]
struct Inner {
    trie: Trie<Key, Subscription>,
    subscribers: FxHashMap<SessionId, Arc<Subscriber>>,
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
    generation: AtomicU64,
}

impl SubscriptionIndex {
    /// Rises whenever a look-up made earlier may no longer hold.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Marks earlier look-ups outdated; also called when a connection of this node comes or goes.
    pub fn advance(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Visits every subscription whose filter matches `topic`, with its group if it is shared.
    pub fn for_each_match(
        &self,
        topic: &str,
        mut visit: impl FnMut(Option<&Arc<str>>, &Subscription),
    ) {
        self.inner
            .read()
            .trie
            .for_each_match(topic, |(_, group), subscription| {
                visit(group.as_ref(), subscription)
            });
    }

    /// Number of sessions and of subscriptions.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.read();
        (inner.subscribers.len(), inner.trie.len())
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
        let subscriber = inner
            .subscribers
            .entry(session)
            .or_insert_with(|| {
                Arc::new(Subscriber {
                    session,
                    client_id: client_id.into(),
                    owner: Mutex::new(None),
                    queueing: AtomicU8::new(0),
                })
            })
            .clone();
        drop(inner);
        *subscriber.owner.lock() = owner;
        subscriber.set_queueing(queueing);
        self.advance();
        subscriber
    }

    /// A session.
    pub(super) fn subscriber(&self, session: SessionId) -> Option<Arc<Subscriber>> {
        self.inner.read().subscribers.get(&session).cloned()
    }

    /// The session has no connection any more.
    pub(super) fn close(&self, session: SessionId) {
        if let Some(subscriber) = self.inner.read().subscribers.get(&session) {
            *subscriber.owner.lock() = None;
        }
        self.advance();
    }

    /// Adds or replaces a subscription; tells whether it is new.
    pub(super) fn subscribe(
        &self,
        session: SessionId,
        filter: &str,
        row: &state::Subscription,
    ) -> bool {
        let mut inner = self.inner.write();
        let Some(subscriber) = inner.subscribers.get(&session).cloned() else {
            return false;
        };
        let subscription = Subscription {
            subscriber,
            qos: QoS::from_number(row.qos),
            no_local: row.no_local,
            retain_as_published: row.retain_as_published,
            identifier: row.identifier,
        };
        let (group, inner_filter) = split(filter);
        let new = inner
            .trie
            .insert(inner_filter, (session, group), subscription)
            .is_none();
        drop(inner);
        self.advance();
        new
    }

    /// Removes a subscription; tells whether there was one.
    pub(super) fn unsubscribe(&self, session: SessionId, filter: &str) -> bool {
        let (group, inner_filter) = split(filter);
        let removed = self
            .inner
            .write()
            .trie
            .remove(inner_filter, &(session, group))
            .is_some();
        self.advance();
        removed
    }

    /// Removes a session whose subscriptions are gone already.
    pub(super) fn remove(&self, session: SessionId) {
        self.inner.write().subscribers.remove(&session);
        self.advance();
    }

    /// The connections of an incarnation own nothing any more.
    pub(super) fn end_incarnation(&self, node: NodeId, incarnation: Incarnation) {
        let ended = self.inner.write().ended_flag(node, incarnation);
        ended.store(true, Ordering::Release);
        self.advance();
    }

    /// No session is owned by a connection of an ended incarnation any more.
    pub(super) fn forget_incarnation(&self, node: NodeId, incarnation: Incarnation) {
        self.inner.write().incarnations.remove(&(node, incarnation));
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.inner.write() = Inner::default();
        self.advance();
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
            self.subscribe(session, filter, &row);
        }
    }
}
