//! The result of a look-up in the subscription index: where messages with one topic name go.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::local::{LocalSubscriber, Throttled};
use super::message::Message;
use super::shared::{Group, RoundRobins};
use crate::base::ids::{ConnectionId, NodeId, SessionId};
use crate::base::limits;
use crate::codec::QoS;
use crate::machine::subscriptions::{Subscription, SubscriptionIndex};
use crate::mailbox::back_pressure::BackPressureState;
use crate::mailbox::{Mailbox, WakeList};

/// Bytes that are copied into a mailbox in the time that a delivery takes anyway.
const COPIED_PER_UNIT: usize = 1024;

/// Where the messages of one publisher with one topic name go. A route is current while the subscription index keeps
/// its generation.
#[derive(Debug, Default)]
pub struct Route {
    pub(super) generation: u64,
    local: Vec<LocalSubscriber>,
    pub(super) remote: SmallVec<[NodeId; 4]>,
    /// Shared subscriptions, for messages with QoS 0; the others go through the log.
    pub(super) groups: Vec<Group>,
    /// Messages with QoS 1 and 2 go through the log: some match is a durable session or a group.
    logged: bool,
    /// Messages with QoS 0 go through the log: some match keeps them while no client is connected.
    logged_qos_0: bool,
    /// The route holds for one publisher only: some match has No Local.
    pub(super) for_one_publisher: bool,
}

impl Route {
    /// Whether nobody is subscribed.
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && self.remote.is_empty() && self.groups.is_empty()
    }

    /// Whether other nodes get the message.
    pub fn has_remote(&self) -> bool {
        !self.remote.is_empty()
    }

    /// The worst state of the connections of this node that get messages with QoS 1 or 2 straight. A stalled one
    /// counts as [`BackPressureState::Normal`], because nobody waits for it.
    pub fn back_pressure(&self) -> BackPressureState {
        let mut worst = BackPressureState::Normal;
        for subscriber in self.waited_for() {
            match subscriber.mailbox.state() {
                BackPressureState::Full => return BackPressureState::Full,
                BackPressureState::Throttled => worst = BackPressureState::Throttled,
                BackPressureState::Normal | BackPressureState::Stalled => {}
            }
        }
        worst
    }

    /// Connections that get messages with QoS 1 or 2 straight.
    fn waited_for(&self) -> impl Iterator<Item = &LocalSubscriber> {
        let all = self.local.iter();
        all.filter(|subscriber| subscriber.qos != QoS::AtMostOnce && !subscriber.durable)
    }

    /// Whether a message with this QoS must go through the log.
    pub fn is_logged(&self, qos: QoS) -> bool {
        match qos {
            QoS::AtMostOnce => self.logged_qos_0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => self.logged,
        }
    }

    /// Writes the packet into the mailbox of every subscriber of this node, and adds those that throttle the publisher
    /// to `throttled`.
    pub(super) fn deliver_local(
        &self,
        message: &Message<'_>,
        throttled: &mut Throttled,
        wake: &mut WakeList,
    ) {
        // All subscribers share a large body.
        let first = self.local.first();
        let body = first.and_then(|first| first.shared_body(message));
        for subscriber in &self.local {
            subscriber.deliver(message, body.as_ref(), throttled, wake);
        }
    }

    /// What a delivery to the subscribers of this node costs, in units of [`limits::TURN_WORK`].
    pub fn work(&self, payload_bytes: usize) -> usize {
        let copied = payload_bytes.min(limits::SHARED_BODY_BYTES);
        self.local.len() * (1 + copied / COPIED_PER_UNIT)
    }

    /// Has `publisher` offer its next packet again when the connections that get the messages have room.
    pub fn await_room(&self, publisher: &Arc<Mailbox>) {
        let full = self.waited_for().find(|subscriber| {
            let mailbox = &subscriber.mailbox;
            mailbox.state() == BackPressureState::Full
        });
        match full {
            Some(subscriber) => subscriber.mailbox.await_room(publisher),
            None => publisher.offer_again(),
        }
    }
}

/// One look-up.
pub(super) struct LookUp<'a> {
    /// The node that looks up.
    pub(super) node: NodeId,
    /// The connections of this node.
    pub(super) connections: &'a FxHashMap<ConnectionId, Arc<Mailbox>>,
    /// Whose turn it is in groups.
    pub(super) round_robins: &'a RoundRobins,
    /// Who publishes.
    pub(super) publisher: Option<SessionId>,
}

impl LookUp<'_> {
    /// Looks a topic name up.
    pub(super) fn route(&self, subscriptions: &SubscriptionIndex, topic: &str) -> Route {
        // The generation is read first: a change during the look-up makes the route outdated.
        let mut route = Route {
            generation: subscriptions.generation(),
            ..Route::default()
        };
        subscriptions.for_each_match(topic, |group, subscription| {
            if let Some(group) = group {
                // With QoS 1 and 2, apply assigns the message to a member.
                route.logged = true;
                self.add_member(&mut route.groups, group, subscription);
                return;
            }
            route.for_one_publisher |= subscription.no_local;
            if subscription.no_local && self.publisher == Some(subscription.subscriber.session) {
                return;
            }
            self.add_match(&mut route, subscription);
        });
        route.logged_qos_0 |= route.groups.iter().any(Group::must_queue);
        route
    }

    fn add_member(&self, groups: &mut Vec<Group>, filter: &Arc<str>, subscription: &Subscription) {
        let found = groups.iter().position(|group| group.filter() == filter);
        let group = match found {
            Some(found) => &mut groups[found],
            None => {
                groups.push(Group::new(filter, self.round_robins));
                groups.last_mut().expect("it was pushed just now")
            }
        };
        let subscriber = &subscription.subscriber;
        match subscriber.owner() {
            Some(owner) if owner.node != self.node => {
                group.add_remote(subscriber.session, owner.node);
            }
            Some(owner) => {
                if let Some(mailbox) = self.connections.get(&owner.connection) {
                    let mut member =
                        LocalSubscriber::new(subscriber.session, mailbox, QoS::AtMostOnce);
                    member.merge(subscription);
                    group.add_local(member);
                }
            }
            None if subscriber.queues(QoS::AtMostOnce) => group.add_queueing(),
            None => {}
        }
    }

    fn add_match(&self, route: &mut Route, subscription: &Subscription) {
        let subscriber = &subscription.subscriber;
        let durable = subscriber.queues(QoS::AtLeastOnce);
        route.logged |= durable && subscription.qos != QoS::AtMostOnce;
        route.logged_qos_0 |= subscriber.queues(QoS::AtMostOnce);
        let Some(owner) = subscriber.owner() else {
            return;
        };
        if owner.node != self.node {
            if !route.remote.contains(&owner.node) {
                route.remote.push(owner.node);
            }
            return;
        }
        let Some(mailbox) = self.connections.get(&owner.connection) else {
            return;
        };
        let found = route
            .local
            .iter()
            .position(|known| known.session == subscriber.session);
        let target = match found {
            Some(found) => &mut route.local[found],
            None => {
                let target = LocalSubscriber::new(subscriber.session, mailbox, subscription.qos);
                route.local.push(LocalSubscriber { durable, ..target });
                route.local.last_mut().expect("it was pushed just now")
            }
        };
        target.qos = target.qos.max(subscription.qos);
        target.merge(subscription);
    }
}
