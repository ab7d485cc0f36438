//! Where a message goes: from a topic name to the connections of this node, and to the nodes that have others.
//!
//! The subscription index is replicated, so every node knows every match; a message goes at most once to each node, and
//! that node delivers it to its own connections. Nothing here reads sockets, and nothing here is stored.

pub mod shared;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::ids::{ConnectionId, NodeId, SessionId};
use crate::base::limits;
use crate::codec::{EncodeError, PacketId, PublishHeader, QoS, encode_publish, frame};
use crate::forward::inbox::DeferAcks;
use crate::forward::outbox::Remote;
use crate::forward::wire::{Forwarded, Groups, Message};
use crate::machine::effect::{ApplicationMessage, Granted};
use crate::machine::subscriptions::{Subscription, SubscriptionIndex};
use crate::mailbox::back_pressure::State;
use crate::mailbox::{Filling, Item, Mailbox, Put, Refused, RequestId, WakeList};
use shared::{Group, Turns};

/// A connection of this node that a topic name matches. Overlapping subscriptions of one session are merged into one
/// copy with the highest granted QoS and all identifiers `[MQTT-3.3.4-2]` `[MQTT-3.3.4-4]`.
#[derive(Debug)]
pub struct LocalSubscriber {
    session: SessionId,
    mailbox: Arc<Mailbox>,
    qos: QoS,
    /// Its messages with QoS 1 and 2 go through its session's queue.
    durable: bool,
    retain_as_published: bool,
    identifiers: SmallVec<[u32; 2]>,
}

impl LocalSubscriber {
    fn new(session: SessionId, mailbox: &Arc<Mailbox>, qos: QoS) -> LocalSubscriber {
        LocalSubscriber {
            session,
            mailbox: mailbox.clone(),
            qos,
            durable: false,
            retain_as_published: false,
            identifiers: SmallVec::new(),
        }
    }

    /// Takes over what one more subscription asks for.
    fn merge(&mut self, subscription: &Subscription) {
        self.retain_as_published |= subscription.retain_as_published;
        if subscription.identifier != 0 && !self.identifiers.contains(&subscription.identifier) {
            self.identifiers.push(subscription.identifier);
        }
    }

    /// How the client gets a message.
    fn delivery(&self, message: &Message<'_>, qos: QoS) -> PublishHeader<'_> {
        PublishHeader {
            version: self.mailbox.version,
            qos,
            dup: false,
            // [MQTT-3.3.1-12] [MQTT-3.3.1-13]
            retain: message.retain && self.retain_as_published,
            packet_id: (qos != QoS::AtMostOnce).then_some(PacketId::MAX),
            subscription_ids: &self.identifiers,
            remaining_expiry: message.expiry,
            topic_alias: None,
            max_packet_size: self.mailbox.max_packet_size,
        }
    }

    fn push_qos_0(&self, message: &Message<'_>, wake: &mut WakeList) -> Result<(), Refused> {
        let delivery = self.delivery(message, QoS::AtMostOnce);
        let first = self.mailbox.push_qos_0(message.topic, |out, topic_alias| {
            let delivery = PublishHeader {
                topic_alias,
                ..delivery
            };
            encode(out, message, &delivery)
        })?;
        if first {
            wake.add(&self.mailbox);
        }
        Ok(())
    }

    /// With QoS 1 or 2. If the publisher is to wait, tells for what.
    fn push(
        &self,
        message: &Message<'_>,
        qos: QoS,
        wake: &mut WakeList,
    ) -> Result<Option<u64>, Refused> {
        let delivery = self.delivery(message, qos);
        let pushed = self
            .mailbox
            .push_packet(qos, message.expiry, |out| encode(out, message, &delivery));
        if matches!(pushed, Ok(Put { wake: true, .. }) | Err(Refused::Ended)) {
            wake.add(&self.mailbox);
        }
        // What the node itself sends answers to somebody who waits already.
        Ok(pushed?.behind.filter(|_| !message.direct))
    }
}

/// The result of a look-up, valid for one topic name and one publisher while the index keeps its generation.
#[derive(Debug, Default)]
pub struct Route {
    generation: u64,
    local: Vec<LocalSubscriber>,
    remote: SmallVec<[NodeId; 4]>,
    /// For messages with QoS 0; the others go through the log.
    groups: Vec<Group>,
    /// Some match is served from the log: a durable session or a group.
    logged: bool,
    /// The same for messages with QoS 0.
    logged_qos_0: bool,
    /// Whether it depends on who publishes: some match has No Local.
    for_one_publisher: bool,
}

impl Route {
    /// Nobody is subscribed.
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && self.remote.is_empty() && self.groups.is_empty()
    }

    /// Whether other nodes get the message.
    pub fn has_remote(&self) -> bool {
        !self.remote.is_empty()
    }

    /// Whether somebody on this node who gets messages with QoS 1 or 2 straight is waited for, and whether nothing more
    /// fits there.
    pub fn pressure(&self) -> BackPressureState {
        let targets = self.local.iter();
        let states = targets
            .filter(|target| target.qos != QoS::AtMostOnce && !target.durable)
            .map(|target| target.mailbox.state());
        states.fold(BackPressureState::Normal, |worst, state| {
            match (worst, state) {
                (BackPressureState::Full, _) | (_, BackPressureState::Full) => {
                    BackPressureState::Full
                }
                (BackPressureState::Throttled, _) | (_, BackPressureState::Throttled) => {
                    BackPressureState::Throttled
                }
                _ => BackPressureState::Normal,
            }
        })
    }

    /// Whether a message with this QoS must go through the log.
    pub fn is_logged(&self, qos: QoS) -> bool {
        match qos {
            QoS::AtMostOnce => self.logged_qos_0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => self.logged,
        }
    }
}

/// Mailboxes that hold much, and the end of a message in each: its publisher is to wait, see [`Mailbox::defer_ack`].
pub type Throttled = Vec<(Arc<Mailbox>, u64)>;

/// What became of a message.
#[derive(Debug, Default)]
pub struct Delivered {
    /// Nodes that must confirm before the publisher may be told; each confirms to the request id it was given.
    pub unconfirmed: u32,
    /// Nodes that do not get it because the way to them is full.
    pub dropped: u32,
    /// Nodes the message was handed to.
    pub forwarded: u32,
    /// Connections of this node that are to be waited for.
    pub throttled: Throttled,
}

/// The router of a node.
pub struct Router {
    local: NodeId,
    subscriptions: Arc<SubscriptionIndex>,
    connections: RwLock<FxHashMap<ConnectionId, Arc<Mailbox>>>,
    remote: Remote,
    /// Whose turn it is in groups.
    turns: Turns,
    /// Routes of recent messages from the log, which only apply delivers.
    logged_routes: Mutex<FxHashMap<Box<str>, Route>>,
}

impl Router {
    /// A router of `local` over its replica's subscription index.
    pub fn new(local: NodeId, subscriptions: Arc<SubscriptionIndex>) -> Arc<Router> {
        Arc::new(Router {
            local,
            subscriptions,
            connections: RwLock::default(),
            remote: Remote::default(),
            turns: Turns::new(local),
            logged_routes: Mutex::default(),
        })
    }

    /// The way to other nodes.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The index.
    pub fn subscriptions(&self) -> &Arc<SubscriptionIndex> {
        &self.subscriptions
    }

    /// Makes a connection known. Done before its session is opened, so that nothing for it is missed.
    pub fn register(&self, mailbox: Arc<Mailbox>) {
        self.connections.write().insert(mailbox.connection, mailbox);
    }

    /// Forgets a connection.
    pub fn unregister(&self, connection: ConnectionId) {
        let mailbox = self.connections.write().remove(&connection);
        self.subscriptions.advance();
        if let Some(mailbox) = mailbox {
            mailbox.close(&mut WakeList::default());
        }
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.read().len()
    }

    /// Leaves an item for one connection; nothing happens when it is gone.
    pub fn post(&self, connection: ConnectionId, item: Item, wake: &mut WakeList) {
        let mailbox = self.connections.read().get(&connection).cloned();
        if let Some(mailbox) = mailbox
            && mailbox.push_item(item)
        {
            wake.add(&mailbox);
        }
    }

    /// Leaves an item for every connection.
    pub fn post_to_all(&self, item: impl Fn() -> Item) {
        let mut wake = WakeList::default();
        for mailbox in self.connections.read().values() {
            if mailbox.push_item(item()) {
                wake.add(mailbox);
            }
        }
    }

    /// Whether `route` may still be used.
    pub fn is_current(&self, route: &Route) -> bool {
        route.generation == self.subscriptions.generation()
    }

    /// Looks up where messages of `publisher` to `topic` go.
    pub fn route(&self, topic: &str, publisher: Option<SessionId>) -> Route {
        // Read first: what changes during the look-up makes the route outdated.
        let mut route = Route {
            generation: self.subscriptions.generation(),
            ..Route::default()
        };
        let connections = self.connections.read();
        self.subscriptions
            .for_each_match(topic, |group, subscription| {
                if let Some(group) = group {
                    // With QoS 1 and 2 members are chosen in apply.
                    route.logged = true;
                    self.add_member(&mut route.groups, &connections, group, subscription);
                    return;
                }
                route.for_one_publisher |= subscription.no_local;
                if subscription.no_local && publisher == Some(subscription.subscriber.session) {
                    return;
                }
                self.add_match(&mut route, &connections, subscription);
            });
        route.logged_qos_0 |= route.groups.iter().any(Group::waits);
        route
    }

    fn add_member(
        &self,
        groups: &mut Vec<Group>,
        connections: &FxHashMap<ConnectionId, Arc<Mailbox>>,
        filter: &Arc<str>,
        subscription: &Subscription,
    ) {
        let found = groups.iter().position(|group| group.filter() == filter);
        let group = match found {
            Some(found) => &mut groups[found],
            None => {
                groups.push(Group::new(filter, &self.turns));
                groups.last_mut().expect("just pushed")
            }
        };
        let subscriber = &subscription.subscriber;
        match subscriber.owner() {
            Some(owner) if owner.node != self.local => {
                group.add_there(subscriber.session, owner.node);
            }
            Some(owner) => {
                if let Some(mailbox) = connections.get(&owner.connection) {
                    let mut target =
                        LocalSubscriber::new(subscriber.session, mailbox, QoS::AtMostOnce);
                    target.merge(subscription);
                    group.add_here(target);
                }
            }
            None if subscriber.queues(QoS::AtMostOnce) => group.keep(),
            None => {}
        }
    }

    fn add_match(
        &self,
        route: &mut Route,
        connections: &FxHashMap<ConnectionId, Arc<Mailbox>>,
        subscription: &Subscription,
    ) {
        let subscriber = &subscription.subscriber;
        let durable = subscriber.queues(QoS::AtLeastOnce);
        route.logged |= durable && subscription.qos != QoS::AtMostOnce;
        route.logged_qos_0 |= subscriber.queues(QoS::AtMostOnce);
        let Some(owner) = subscriber.owner() else {
            return;
        };
        if owner.node != self.local {
            if !route.remote.contains(&owner.node) {
                route.remote.push(owner.node);
            }
            return;
        }
        let Some(mailbox) = connections.get(&owner.connection) else {
            return;
        };
        let found = route
            .local
            .iter()
            .position(|target| target.session == subscriber.session);
        let target = match found {
            Some(found) => &mut route.local[found],
            None => {
                let target = LocalSubscriber::new(subscriber.session, mailbox, subscription.qos);
                route.local.push(LocalSubscriber { durable, ..target });
                route.local.last_mut().expect("just pushed")
            }
        };
        target.qos = target.qos.max(subscription.qos);
        target.merge(subscription);
    }

    /// Hands a message to this node's connections and to the other nodes of the route. With QoS 1 or 2 every other node
    /// confirms to `publisher` when its connections have the message.
    pub fn deliver(
        &self,
        route: &Route,
        message: &Message<'_>,
        publisher: Option<(&Arc<Mailbox>, RequestId)>,
        wake: &mut WakeList,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        deliver_here(route, message, &mut delivered.throttled, wake);
        if message.qos == QoS::AtMostOnce && !message.direct && !route.groups.is_empty() {
            self.deliver_to_groups(route, message, &mut delivered, wake);
            return delivered;
        }
        let confirm = publisher.filter(|_| message.qos != QoS::AtMostOnce);
        for node in &route.remote {
            if self.remote.send(*node, &(*message).into(), confirm) {
                delivered.forwarded += 1;
                delivered.unconfirmed += u32::from(confirm.is_some());
            } else {
                delivered.dropped += 1;
            }
        }
        delivered
    }

    /// Hands a message with QoS 0 to one member of each group, and to the other nodes of the route.
    fn deliver_to_groups(
        &self,
        route: &Route,
        message: &Message<'_>,
        delivered: &mut Delivered,
        wake: &mut WakeList,
    ) {
        let chosen: SmallVec<[(NodeId, &str); 4]> = route
            .groups
            .iter()
            .filter_map(|group| Some((group.send(message, wake)?, &**group.filter())))
            .collect();
        let others = chosen.iter().map(|(node, _)| *node);
        let mut nodes = route.remote.clone();
        for node in others {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        for node in nodes {
            let mut names: SmallVec<[u8; 64]> = SmallVec::new();
            for (_, group) in chosen.iter().filter(|(chosen, _)| *chosen == node) {
                Groups::add(&mut names, group);
            }
            let forwarded = Forwarded {
                message: *message,
                groups: Groups::new(&names),
                only_groups: !route.remote.contains(&node),
            };
            if self.remote.send(node, &forwarded, None) {
                delivered.forwarded += 1;
            } else {
                delivered.dropped += 1;
            }
        }
    }

    /// Hands a message to one connection of this node, whatever it has subscribed to; tells whether it was taken.
    pub fn deliver_to(&self, mailbox: &Arc<Mailbox>, message: &Message<'_>) -> bool {
        let target = LocalSubscriber::new(SessionId::default(), mailbox, QoS::ExactlyOnce);
        let route = Route {
            local: vec![target],
            ..Route::default()
        };
        deliver_here(
            &route,
            message,
            &mut Throttled::new(),
            &mut WakeList::default(),
        )
    }

    /// Puts a message into a mailbox that its own connection fills.
    pub fn put(
        filling: &mut Filling<'_>,
        mailbox: &Mailbox,
        message: &Message<'_>,
        identifier: Option<u32>,
    ) {
        let delivery = PublishHeader {
            version: mailbox.version,
            qos: message.qos,
            dup: false,
            retain: message.retain,
            packet_id: (message.qos != QoS::AtMostOnce).then_some(PacketId::MAX),
            subscription_ids: identifier.as_slice(),
            remaining_expiry: message.expiry,
            topic_alias: None,
            max_packet_size: mailbox.max_packet_size,
        };
        filling.push(message.qos, message.expiry, |out| {
            encode(out, message, &delivery)
        });
    }

    /// Hands a message of the node's own to its connections, and to no other node.
    pub fn deliver_own(&self, message: &Message<'_>, wake: &mut WakeList) {
        let route = self.route(message.topic, None);
        deliver_here(&route, message, &mut Throttled::new(), wake);
    }

    /// Hands a message from the log to this node's connections, as far as it does not go through their sessions' queues;
    /// every node does so for its own. Returns those that are to be waited for, if anybody can.
    pub fn deliver_logged(
        &self,
        published: &ApplicationMessage,
        expiry_s: Option<u32>,
        wake: &mut WakeList,
    ) -> Throttled {
        let mut throttled = Throttled::new();
        let message = logged_message(published, expiry_s);
        let mut routes = self.logged_routes.lock();
        if let Some(route) = routes.get(message.topic)
            && self.is_current(route)
        {
            deliver_here(route, &message, &mut throttled, wake);
            return throttled;
        }
        let route = self.route(message.topic, message.publisher);
        deliver_here(&route, &message, &mut throttled, wake);
        if !route.for_one_publisher {
            if routes.len() >= limits::CACHED_ROUTES {
                routes.clear();
            }
            routes.insert(message.topic.into(), route);
        }
        throttled
    }

    /// Sends a message that was chosen for one connection of this node, with QoS 0.
    pub fn deliver_chosen(
        &self,
        connection: ConnectionId,
        published: &ApplicationMessage,
        retain: bool,
        expiry_s: Option<u32>,
        identifiers: SmallVec<[u32; 2]>,
        wake: &mut WakeList,
    ) {
        let Some(mailbox) = self.connections.read().get(&connection).cloned() else {
            return;
        };
        let target = LocalSubscriber {
            retain_as_published: true,
            identifiers,
            ..LocalSubscriber::new(SessionId::default(), &mailbox, QoS::AtMostOnce)
        };
        let message = Message {
            retain,
            ..logged_message(published, expiry_s)
        };
        if let Err(refused) = target.push_qos_0(&message, wake) {
            mailbox.count_refused(refused);
        }
    }

    /// Sends a message of a session's queue to the connection that owns the session; nothing happens when it is gone.
    pub fn deliver_granted(&self, granted: &Granted, wake: &mut WakeList) {
        let Some(mailbox) = self.connections.read().get(&granted.connection).cloned() else {
            return;
        };
        let qos = granted.qos;
        let delivery = PublishHeader {
            version: mailbox.version,
            qos,
            dup: granted.dup,
            retain: granted.retain,
            packet_id: (qos != QoS::AtMostOnce).then(|| granted.sequence.packet_id()),
            subscription_ids: &granted.identifiers,
            remaining_expiry: granted.expiry_s,
            topic_alias: None,
            max_packet_size: mailbox.max_packet_size,
        };
        let message = logged_message(&granted.message, granted.expiry_s);
        let pushed = mailbox.push_granted(qos, granted.expiry_s, granted.sequence, |out| {
            encode(out, &message, &delivery)
        });
        let first = match pushed {
            Ok(first) => first,
            Err(_) if qos == QoS::AtMostOnce => false,
            Err(_) => mailbox.push_item(Item::Undeliverable(granted.sequence)),
        };
        if first {
            wake.add(&mailbox);
        }
    }

    /// Hands messages another node forwarded to this node's connections; `hold` gets the places of those whose publishers
    /// are to wait. `None` when the bytes are malformed.
    pub fn deliver_forwarded(
        &self,
        mut messages: &[u8],
        hold: &mut DeferAcks<'_>,
        wake: &mut WakeList,
    ) -> Option<()> {
        let mut throttled = Throttled::new();
        let mut last: Option<(&str, Option<SessionId>, Route)> = None;
        let mut place = 0;
        while !messages.is_empty() {
            let Forwarded {
                message,
                groups,
                only_groups,
            } = Forwarded::decode(&mut messages)?;
            let known = last.take().filter(|(topic, publisher, route)| {
                *topic == message.topic && *publisher == message.publisher && self.is_current(route)
            });
            let (.., route) = last.insert(known.unwrap_or_else(|| {
                (
                    message.topic,
                    message.publisher,
                    self.route(message.topic, message.publisher),
                )
            }));
            if !only_groups {
                deliver_here(route, &message, &mut throttled, wake);
            }
            for name in groups.iter() {
                let found = route.groups.iter().find(|group| &**group.filter() == name);
                if let Some(group) = found {
                    group.send_here(&message, wake);
                }
            }
            if !throttled.is_empty() {
                hold(place, std::mem::take(&mut throttled), wake);
            }
            place += 1;
        }
        Some(())
    }
}

fn logged_message(published: &ApplicationMessage, expiry_s: Option<u32>) -> Message<'_> {
    Message {
        publisher: published.publisher,
        qos: published.qos,
        retain: published.retain,
        topic: &published.topic,
        properties: &published.properties,
        expiry: expiry_s,
        direct: false,
        payload: &published.payload,
    }
}

/// Writes the packet into the mailbox of every target of this node, and adds those that are to be waited for; tells
/// whether all have taken it. What is dropped is counted.
fn deliver_here(
    route: &Route,
    message: &Message<'_>,
    throttled: &mut Throttled,
    wake: &mut WakeList,
) -> bool {
    let mut taken = true;
    for target in &route.local {
        let qos = message.qos.min(target.qos);
        if qos == QoS::AtMostOnce {
            if let Err(refused) = target.push_qos_0(message, wake) {
                target.mailbox.count_refused(refused);
                taken = false;
            }
        } else if !target.durable || message.direct {
            match target.push(message, qos, wake) {
                Ok(Some(end)) => throttled.push((target.mailbox.clone(), end)),
                Ok(None) => {}
                Err(_) => taken = false,
            }
        }
    }
    taken
}

/// Appends the packet; returns where its packet id is.
fn encode(
    out: &mut Vec<u8>,
    message: &Message<'_>,
    delivery: &PublishHeader<'_>,
) -> Result<Option<usize>, Refused> {
    let at = out.len();
    match encode_publish(
        out,
        message.topic,
        message.properties,
        message.payload,
        delivery,
    ) {
        Ok(_) if delivery.qos == QoS::AtMostOnce => Ok(None),
        Ok(_) => {
            let header = frame::header(&out[at..], u32::MAX)
                .ok()
                .flatten()
                .expect("just encoded");
            Ok(Some(at + header.length + 2 + message.topic.len()))
        }
        Err(EncodeError::TooLarge { .. }) => Err(Refused::TooLarge),
        // Topic and properties were checked when they came in, so this is the one thing left that can be wrong.
        Err(_) => Err(Refused::TooLarge),
    }
}
