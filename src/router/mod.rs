//! Where a message goes: from a topic name to the connections of this node, and to the nodes that have others.
//!
//! The subscription index is replicated, so every node knows every match; a message goes at most once to each node, and
//! that node delivers it to its own connections. Nothing here reads sockets, and nothing here is stored.

pub mod forward;
pub mod mailbox;
pub mod remote;

use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ids::{ConnectionId, NodeId, SessionId};
use crate::machine::subscriptions::SubscriptionIndex;
use crate::mqtt::codec::{Delivery, EncodeError, PacketId, QoS, encode_publish, frame};
use crate::proto::state;
use forward::Message;
use mailbox::{Item, Mailbox, Refused, Ticket, WakeList};
use remote::Remote;

/// A connection of this node that a topic name matches. Overlapping subscriptions of one session are merged into one
/// copy with the highest granted QoS and all identifiers `[MQTT-3.3.4-2]` `[MQTT-3.3.4-4]`.
#[derive(Debug)]
pub struct Target {
    session: SessionId,
    mailbox: Arc<Mailbox>,
    qos: QoS,
    retain_as_published: bool,
    identifiers: SmallVec<[u32; 2]>,
}

/// The result of a look-up, valid for one topic name and one publisher while the index keeps its generation.
#[derive(Debug, Default)]
pub struct Route {
    generation: u64,
    local: Vec<Target>,
    remote: SmallVec<[NodeId; 4]>,
}

impl Route {
    /// Nobody is subscribed.
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && self.remote.is_empty()
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Nodes that must confirm before the publisher may be told; each confirms to the ticket it was given.
    pub unconfirmed: u32,
    /// Packets that were dropped because a subscriber, or the way to its node, is full.
    pub dropped: u32,
    /// Nodes the message was handed to.
    pub forwarded: u32,
}

/// The router of a node.
pub struct Router {
    local: NodeId,
    subscriptions: Arc<SubscriptionIndex>,
    connections: RwLock<FxHashMap<ConnectionId, Arc<Mailbox>>>,
    remote: Remote,
}

impl Router {
    /// A router of `local` over its replica's subscription index.
    pub fn new(local: NodeId, subscriptions: Arc<SubscriptionIndex>) -> Arc<Router> {
        Arc::new(Router {
            local,
            subscriptions,
            connections: RwLock::default(),
            remote: Remote::default(),
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
        self.connections.write().remove(&connection);
        self.subscriptions.advance();
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
            .for_each_match(topic, |_share, subscription| {
                let subscriber = &subscription.subscriber;
                if subscription.no_local && publisher == Some(subscriber.session) {
                    return;
                }
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
                let qos = QoS::from_bits(subscription.qos).unwrap_or(QoS::ExactlyOnce);
                let target = match route
                    .local
                    .iter()
                    .position(|target| target.session == subscriber.session)
                {
                    Some(found) => &mut route.local[found],
                    None => {
                        route.local.push(Target {
                            session: subscriber.session,
                            mailbox: mailbox.clone(),
                            qos,
                            retain_as_published: false,
                            identifiers: SmallVec::new(),
                        });
                        route.local.last_mut().expect("just pushed")
                    }
                };
                target.qos = target.qos.max(qos);
                target.retain_as_published |= subscription.retain_as_published;
                if subscription.identifier != 0
                    && !target.identifiers.contains(&subscription.identifier)
                {
                    target.identifiers.push(subscription.identifier);
                }
            });
        route
    }

    /// Hands a message to this node's connections and to the other nodes of the route. With QoS 1 or 2 every other node
    /// confirms to `publisher` when its connections have the message.
    pub fn deliver(
        &self,
        route: &Route,
        message: &Message<'_>,
        publisher: Option<(&Arc<Mailbox>, Ticket)>,
        wake: &mut WakeList,
    ) -> Delivered {
        let mut delivered = Delivered {
            dropped: deliver_here(route, message, wake),
            ..Delivered::default()
        };
        for node in &route.remote {
            let confirm = publisher.filter(|_| message.qos != QoS::AtMostOnce);
            if self.remote.send(*node, message, confirm) {
                delivered.forwarded += 1;
                delivered.unconfirmed += u32::from(confirm.is_some());
            } else {
                delivered.dropped += 1;
            }
        }
        delivered
    }

    /// Hands a message to one connection of this node, whatever it has subscribed to; tells whether it was taken.
    pub fn deliver_to(&self, mailbox: &Arc<Mailbox>, message: &Message<'_>) -> bool {
        let target = Target {
            session: SessionId::default(),
            mailbox: mailbox.clone(),
            qos: QoS::ExactlyOnce,
            retain_as_published: false,
            identifiers: SmallVec::new(),
        };
        let route = Route {
            local: vec![target],
            ..Route::default()
        };
        deliver_here(&route, message, &mut WakeList::default()) == 0
    }

    /// Hands a will to this node's connections; every node does so for its own.
    pub fn deliver_will(&self, will: &state::Will, wake: &mut WakeList) {
        let message = Message {
            publisher: None,
            qos: u8::try_from(will.qos)
                .ok()
                .and_then(QoS::from_bits)
                .unwrap_or(QoS::AtMostOnce),
            retain: will.retain,
            topic: &will.topic,
            properties: &will.properties,
            expiry: will.expiry_interval_s,
            payload: &will.payload,
        };
        deliver_here(&self.route(&will.topic, None), &message, wake);
    }

    /// Hands messages another node forwarded to this node's connections; returns how many were dropped, `None` when the
    /// bytes are malformed.
    pub fn deliver_forwarded(&self, mut messages: &[u8], wake: &mut WakeList) -> Option<u32> {
        let mut dropped = 0;
        let mut last: Option<(&str, Option<SessionId>, Route)> = None;
        while !messages.is_empty() {
            let message = Message::decode(&mut messages)?;
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
            dropped += deliver_here(route, &message, wake);
        }
        Some(dropped)
    }
}

/// Writes the packet into the mailbox of every target of this node; returns how many dropped it.
fn deliver_here(route: &Route, message: &Message<'_>, wake: &mut WakeList) -> u32 {
    let mut dropped = 0;
    for target in &route.local {
        let mailbox = &target.mailbox;
        let qos = message.qos.min(target.qos);
        let delivery = Delivery {
            version: mailbox.version,
            qos,
            dup: false,
            // [MQTT-3.3.1-12] [MQTT-3.3.1-13]
            retain: message.retain && target.retain_as_published,
            packet_id: (qos != QoS::AtMostOnce).then_some(PacketId::MAX),
            subscription_ids: &target.identifiers,
            remaining_expiry: message.expiry,
            topic_alias: None,
            max_packet_size: mailbox.max_packet_size,
        };
        let pushed = mailbox.push_packet(qos, |out| encode(out, message, &delivery));
        match pushed {
            Ok(true) => wake.add(mailbox),
            Ok(false) => {}
            Err(_) => dropped += 1,
        }
    }
    dropped
}

/// Appends the packet; returns where its packet id is.
fn encode(
    out: &mut Vec<u8>,
    message: &Message<'_>,
    delivery: &Delivery<'_>,
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
