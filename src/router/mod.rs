//! The router: from a topic name to the connections of this node, and to the nodes that have other subscribers.
//!
//! The subscription index is replicated, so every node knows every match. Nothing here reads sockets, and nothing is
//! stored.
//!
//! Invariant: a message goes at most once to each node, and each node delivers it to its own connections only.
//! Invariant: a topic is looked up once per node as long as nothing changes that concerns it, and routes take no more
//! memory than [`cache`] says.
//! Invariant: nothing here waits. A mailbox or a node that can take no more refuses, and every drop is counted.

mod cache;
mod counted;
mod local;
mod look_up;
mod message;
mod peers;
mod route;
mod shared;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::acl::Share;
use crate::base::ids::{ConnectionId, LogIndex, NodeId, SessionId};
#[cfg(doc)]
use crate::base::limits;
use crate::codec::QoS;
use crate::machine::effect::{ApplicationMessage, Granted, RelayedBatch};
use crate::machine::hub::DesiredChanged;
use crate::machine::subscriptions::SubscriptionIndex;
use crate::mailbox::{Filling, Item, Mailbox, Refused, WakeList};
use crate::telemetry::labels::DropReason;
use cache::SharedRoutes;
use local::{GrantedBody, LocalSubscriber};
use look_up::LookUp;
use shared::RoundRobins;

pub use local::Throttled;
pub use message::{Message, Recipients};
pub use peers::{Origin, PeerNodes};
use route::Found;
pub use route::Route;

/// What became of a message.
#[derive(Debug, Default)]
pub struct Delivered {
    /// Nodes that must confirm before the publisher gets its acknowledgement; each confirms to the publisher's request
    /// id.
    pub unconfirmed: u32,
    /// Nodes that do not get the message because too much waits for them.
    pub dropped: u32,
    /// Nodes that get the message.
    pub forwarded: u32,
    /// Connections of this node that the acknowledgement must wait for.
    pub throttled: Throttled,
    /// Why the publisher does not get the message, if it has subscribed to it.
    pub to_publisher: Option<Refused>,
    /// Where a message with QoS 0 is on its way: nodes, and the numbers of their batches.
    pub on_the_way: OnTheWay,
}

/// Nodes, each with the number of a batch that is on its way there.
pub type OnTheWay = SmallVec<[(NodeId, u64); 4]>;

impl Delivered {
    /// Counts what became of the message for one node.
    fn count(&mut self, node: NodeId, sequence: Option<u64>, confirms: bool) {
        let Some(sequence) = sequence else {
            self.dropped += 1;
            return;
        };
        self.forwarded += 1;
        match confirms {
            true => self.unconfirmed += 1,
            false => self.on_the_way.push((node, sequence)),
        }
    }
}

/// The router of a node.
pub struct Router {
    node: NodeId,
    subscriptions: Arc<SubscriptionIndex>,
    connections: RwLock<FxHashMap<ConnectionId, Arc<Mailbox>>>,
    peers: Arc<dyn PeerNodes>,
    /// Whose turn it is in shared subscriptions.
    round_robins: RoundRobins,
    routes: SharedRoutes,
    /// The large body of the last message of a session's queue: the next one is often the same message for another
    /// session.
    granted_body: Mutex<GrantedBody>,
}

impl Router {
    /// A router of `node` over its replica's subscription index.
    pub fn new(
        node: NodeId,
        subscriptions: Arc<SubscriptionIndex>,
        peers: Arc<dyn PeerNodes>,
    ) -> Arc<Router> {
        Arc::new(Router {
            node,
            subscriptions,
            connections: RwLock::default(),
            peers,
            round_robins: RoundRobins::new(node),
            routes: SharedRoutes::default(),
            granted_body: Mutex::default(),
        })
    }

    /// The other nodes.
    pub fn peers(&self) -> &dyn PeerNodes {
        &*self.peers
    }

    /// The subscription index.
    pub fn subscriptions(&self) -> &Arc<SubscriptionIndex> {
        &self.subscriptions
    }

    /// Makes a connection known. A connection is registered before its session is opened, so that no message is missed.
    pub fn register(&self, mailbox: Arc<Mailbox>) {
        self.connections.write().insert(mailbox.connection, mailbox);
    }

    /// Forgets a connection and closes its mailbox. Routes that lead there stay as they are: a closed mailbox takes
    /// nothing, and the log tells soon that the connection has ended.
    pub fn unregister(&self, connection: ConnectionId) {
        let mailbox = self.connections.write().remove(&connection);
        if let Some(mailbox) = mailbox {
            mailbox.close(&mut WakeList::default());
        }
    }

    /// Number of registered connections.
    pub fn connections(&self) -> usize {
        self.connections.read().len()
    }

    /// Posts an item to one connection; nothing happens when it is gone.
    pub fn post(&self, connection: ConnectionId, item: Item, wake: &mut WakeList) {
        if let Some(mailbox) = self.mailbox(connection)
            && mailbox.push_item(item)
        {
            wake.add_receiving(&mailbox);
        }
    }

    /// Has one connection tell its client of changed desired properties; nothing happens when it is gone.
    pub fn notify_desired(&self, change: DesiredChanged, wake: &mut WakeList) {
        if let Some(mailbox) = self.mailbox(change.connection)
            && mailbox.push_desired(change)
        {
            wake.add_receiving(&mailbox);
        }
    }

    /// Asks a connection to hand its session over; `done` is dropped when there is none.
    pub fn ask_for_hand_over(&self, connection: ConnectionId, done: oneshot::Sender<()>) {
        if let Some(mailbox) = self.mailbox(connection) {
            mailbox.ask_for_hand_over(done);
        }
    }

    /// Posts an item to every connection.
    pub fn post_to_all(&self, item: impl Fn() -> Item) {
        let mut wake = WakeList::default();
        for mailbox in self.connections.read().values() {
            if mailbox.push_item(item()) {
                wake.add(mailbox);
            }
        }
    }

    /// Has every connection look at what it may still do, also if its client does not read.
    pub fn offer_again_to_all(&self) {
        for mailbox in self.connections.read().values() {
            mailbox.offer_again();
        }
    }

    fn mailbox(&self, connection: ConnectionId) -> Option<Arc<Mailbox>> {
        self.connections.read().get(&connection).cloned()
    }

    /// Whether `route` may still be used.
    #[inline]
    pub fn is_current(&self, route: &Route) -> bool {
        self.subscriptions.is_current(&route.found.validity)
    }

    /// Where messages of `publisher` to `topic` go. The topic is looked up unless some publisher of this node has asked
    /// for it since the last change that concerns it.
    pub fn route(&self, topic: &str, publisher: Option<SessionId>) -> Route {
        if let Some(found) = self.routes.get(topic)
            && self.subscriptions.is_current(&found.validity)
        {
            return Route::new(found, publisher, false);
        }
        let found = self.routes.put(topic, self.look_up(topic));
        Route::new(found, publisher, true)
    }

    fn look_up(&self, topic: &str) -> Found {
        LookUp::find(
            self.node,
            &self.connections.read(),
            &self.round_robins,
            &self.subscriptions,
            topic,
        )
    }

    /// Delivers a message to this node's connections and hands it to the other nodes of the route. With QoS 1 or 2,
    /// every other node confirms to `origin` when its connections have the message.
    pub fn deliver(
        &self,
        route: &Route,
        message: &Message<'_>,
        origin: Origin<'_>,
        wake: &mut WakeList,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        delivered.to_publisher = route.deliver_local(message, &mut delivered.throttled, wake);
        if message.qos == QoS::AtMostOnce && !message.direct && !route.groups().is_empty() {
            self.deliver_to_groups(route, message, origin.after, &mut delivered, wake);
            return delivered;
        }
        let confirm_to = origin.confirm_to.filter(|_| message.qos != QoS::AtMostOnce);
        let origin = Origin {
            confirm_to,
            ..origin
        };
        for node in route.remote() {
            let recipients = Recipients::default();
            let sequence = self.peers.forward(*node, message, recipients, origin);
            delivered.count(*node, sequence, origin.confirm_to.is_some());
        }
        delivered
    }

    /// Delivers a message with QoS 0 to one member of each group, and hands it to the other nodes of the route.
    fn deliver_to_groups(
        &self,
        route: &Route,
        message: &Message<'_>,
        after: LogIndex,
        delivered: &mut Delivered,
        wake: &mut WakeList,
    ) {
        // The groups whose turn has come to a member of another node.
        let chosen: SmallVec<[(NodeId, &str); 4]> = route
            .groups()
            .iter()
            .filter_map(|group| Some((group.deliver(message, wake)?, &**group.filter())))
            .collect();
        let mut nodes: SmallVec<[NodeId; 4]> = route.remote().into();
        for (node, _) in &chosen {
            if !nodes.contains(node) {
                nodes.push(*node);
            }
        }
        for node in nodes {
            let groups: SmallVec<[&str; 4]> = chosen
                .iter()
                .filter(|(chosen, _)| *chosen == node)
                .map(|(_, group)| *group)
                .collect();
            let recipients = Recipients {
                groups: &groups,
                only_groups: !route.remote().contains(&node),
            };
            let origin = Origin {
                confirm_to: None,
                after,
            };
            let sequence = self.peers.forward(node, message, recipients, origin);
            delivered.count(node, sequence, false);
        }
    }

    /// Notifies one connection of this node, whatever it has subscribed to, by a message with QoS 1 or 2.
    ///
    /// # Errors
    /// When it was not taken.
    pub fn notify(&self, mailbox: &Arc<Mailbox>, message: &Message<'_>) -> Result<(), Refused> {
        let session = mailbox.session().unwrap_or_default();
        LocalSubscriber::new(session, mailbox, message.qos).push_notification(message)
    }

    /// Puts a message into a mailbox that its own connection fills.
    pub fn put(
        filling: &mut Filling<'_>,
        mailbox: &Mailbox,
        message: &Message<'_>,
        identifier: Option<u32>,
    ) {
        local::put(filling, mailbox, message, identifier);
    }

    /// Delivers a message that the node itself publishes, to its own connections only.
    pub fn deliver_local(&self, message: &Message<'_>, wake: &mut WakeList) {
        let route = self.route(message.topic, None);
        route.deliver_local(message, &mut Throttled::new(), wake);
    }

    /// Delivers a message from the log entry `index` to this node's connections, unless it reaches them through their
    /// sessions' queues. Every node does so for its own connections. Returns those that throttle the publisher.
    pub fn deliver_logged(
        &self,
        published: &ApplicationMessage,
        index: LogIndex,
        expiry_s: Option<u32>,
        wake: &mut WakeList,
    ) -> Throttled {
        let mut throttled = Throttled::new();
        let message = local::logged(published, expiry_s);
        let route = self.route(message.topic, message.publisher);
        route.deliver_logged(&message, index, &mut throttled, wake);
        throttled
    }

    /// Delivers a message from the log, with QoS 0, to the connection that apply has assigned it to.
    pub fn deliver_assigned(
        &self,
        connection: ConnectionId,
        published: &ApplicationMessage,
        retain: bool,
        expiry_s: Option<u32>,
        identifiers: SmallVec<[u32; 2]>,
        wake: &mut WakeList,
    ) {
        let Some(mailbox) = self.mailbox(connection) else {
            return;
        };
        if !mailbox.may_receive(&published.topic, Share::Some) {
            mailbox.count(DropReason::NotAuthorized, 1);
            return;
        }
        let target = LocalSubscriber {
            retain_as_published: true,
            identifiers: identifiers.into(),
            ..LocalSubscriber::new(SessionId::default(), &mailbox, QoS::AtMostOnce)
        };
        let message = Message {
            retain,
            ..local::logged(published, expiry_s)
        };
        if let Err(refused) = target.push_qos_0(&message, None, wake) {
            mailbox.count_refused(refused);
        }
    }

    /// Delivers a message of a session's queue to the connection that owns the session; nothing happens when it is
    /// gone.
    pub fn deliver_granted(&self, granted: &Granted, wake: &mut WakeList) {
        let Some(mailbox) = self.mailbox(granted.connection) else {
            return;
        };
        if !may_receive_granted(&mailbox, granted) {
            if refuse_granted(&mailbox, granted) {
                wake.add(&mailbox);
            }
            return;
        }
        let body = self.granted_body.lock().of(granted, &mailbox);
        let must_wake = match local::put_granted(&mailbox, granted, body.as_ref()) {
            Ok(must_wake) => must_wake,
            Err(_) if granted.qos == QoS::AtMostOnce => false,
            Err(_) => mailbox.push_item(Item::Undeliverable(granted.sequence)),
        };
        if must_wake {
            wake.add_receiving(&mailbox);
        }
    }

    /// Puts the first message that a mailbox withholds into it, or passes it over when it is no longer in the session's
    /// queue. Called by the connection's task.
    pub fn put_withheld(mailbox: &Mailbox, granted: Option<&Granted>) {
        let Some(granted) = granted else {
            // Without a packet there is nothing that could be refused.
            let _ = mailbox.push_withheld(None, |_| Ok(()));
            return;
        };
        if !may_receive_granted(mailbox, granted) {
            let _ = mailbox.push_withheld(None, |_| Ok(()));
            refuse_granted(mailbox, granted);
            return;
        }
        if local::put_withheld(mailbox, granted).is_err() {
            mailbox.push_item(Item::Undeliverable(granted.sequence));
        }
    }

    /// The connections of this node.
    pub fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.connections.read().values().cloned().collect()
    }

    /// Hands messages of another node to this node's connections, which came through the log.
    pub fn deliver_relayed(&self, batch: &RelayedBatch) {
        self.peers.take_relayed(self, batch);
    }

    /// Begins the delivery of a batch of messages from another node.
    pub fn batch<'m>(&self) -> BatchDelivery<'_, 'm> {
        BatchDelivery {
            router: self,
            last: None,
            work: 0,
        }
    }
}

fn may_receive_granted(mailbox: &Mailbox, granted: &Granted) -> bool {
    let share = match granted.is_shared {
        true => Share::Some,
        false => Share::None,
    };
    mailbox.may_receive(&granted.message.topic, share)
}

/// A message of a session's queue that the rules do not let the client get: it counts as delivered. Returns whether the
/// connection must be woken.
fn refuse_granted(mailbox: &Mailbox, granted: &Granted) -> bool {
    mailbox.count(DropReason::NotAuthorized, 1);
    granted.qos != QoS::AtMostOnce && mailbox.push_item(Item::Undeliverable(granted.sequence))
}

/// Delivers a batch of messages that another node has forwarded. Messages to the same topic follow each other often, so
/// the last route is kept.
pub struct BatchDelivery<'r, 'm> {
    router: &'r Router,
    last: Option<LastRoute<'m>>,
    work: usize,
}

struct LastRoute<'m> {
    topic: &'m str,
    publisher: Option<SessionId>,
    route: Route,
}

impl<'m> BatchDelivery<'_, 'm> {
    /// Delivers the next message to this node's connections: to one member of each of `groups`, and to subscriptions
    /// that are not shared unless `only_groups` holds. Returns the connections that throttle the publisher.
    pub fn deliver<'g>(
        &mut self,
        message: &Message<'m>,
        groups: impl Iterator<Item = &'g str>,
        only_groups: bool,
        wake: &mut WakeList,
    ) -> Throttled {
        let router = self.router;
        let known = self.last.take().filter(|last| {
            last.topic == message.topic
                && last.publisher == message.publisher
                && router.is_current(&last.route)
        });
        let work = &mut self.work;
        let last = self.last.insert(known.unwrap_or_else(|| {
            let route = router.route(message.topic, message.publisher);
            *work += route.look_up_work();
            LastRoute {
                topic: message.topic,
                publisher: message.publisher,
                route,
            }
        }));
        let mut throttled = Throttled::new();
        self.work += 1;
        if !only_groups {
            self.work += last.route.work(message);
            last.route.deliver_local(message, &mut throttled, wake);
        }
        for name in groups {
            self.work += 1;
            let known = last.route.groups();
            if let Ok(at) = known.binary_search_by(|group| (**group.filter()).cmp(name)) {
                known[at].deliver_local(message, wake);
            }
        }
        throttled
    }

    /// What was done since the last call, in units of [`limits::TURN_WORK`].
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }
}

#[cfg(test)]
mod speed;
