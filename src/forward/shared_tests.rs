//! Shared subscriptions with QoS 0, on two nodes with the same subscription index and the way between them.

use std::sync::Arc;
use std::time::Instant;

use super::inbox::{InboundStream, Inbox};
use super::outbox::Outboxes;
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner, SessionId};
use crate::base::proto::cluster::DeliverResponse;
use crate::codec::{QoS, Version};
use crate::machine::subscriptions::{Queueing, SubscriptionIndex};
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Mailbox, WakeList};
use crate::router::{Message, Origin, Router};
use crate::telemetry::labels::DropReason;

const AWAY: Option<Owner> = None;

struct Nodes {
    index: Arc<SubscriptionIndex>,
    outboxes: Arc<Outboxes>,
    routers: [Arc<Router>; 2],
    limits: Arc<OutboxLimits>,
}

impl Nodes {
    fn new() -> Nodes {
        let index = Arc::new(SubscriptionIndex::default());
        let outboxes = Arc::new(Outboxes::default());
        Nodes {
            routers: [1, 2].map(|node| Router::new(NodeId(node), index.clone(), outboxes.clone())),
            outboxes,
            index,
            limits: OutboxLimits::of(4096),
        }
    }

    /// A client of a node, whose session has its connection's number.
    fn client(&self, node: usize, number: u64, filters: &[&str]) -> Arc<Mailbox> {
        let mailbox = Mailbox::new(
            ConnectionId(number),
            Version::V5,
            u32::MAX,
            0,
            self.limits.clone(),
        );
        self.routers[node].register(mailbox.clone());
        let owner = Owner {
            node: NodeId(node as u64 + 1),
            incarnation: Incarnation(1),
            connection: ConnectionId(number),
        };
        let queueing = Queueing::default();
        self.index
            .put(SessionId(number), Some(owner), queueing, filters);
        mailbox
    }

    /// Publishes with QoS 0 on the first node, and carries over what is for the second.
    fn publish(&self, topic: &str, payload: &[u8]) {
        let mut wake = WakeList::default();
        let message = Message {
            publisher: Some(SessionId(99)),
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            properties: &[],
            expiry: None,
            direct: false,
            payload,
        };
        let route = self.routers[0].route(topic, message.publisher);
        assert!(!route.is_logged(QoS::AtMostOnce));
        assert!(!route.is_empty());
        self.routers[0].deliver(&route, &message, Origin::default(), &mut wake);
        self.carry_over(&self.routers[1]);
    }

    /// Hands a batch for the second node over to `router`; tells whether there was one.
    fn carry_over(&self, router: &Router) -> bool {
        let outbox = self.outboxes.outbox(NodeId(2));
        let Some(batch) = outbox.next_after(0, Incarnation(1)) else {
            return false;
        };
        let sequence = batch.sequence;
        let request = batch.into_request(NodeId(1));
        let mut stream = InboundStream::new(Arc::new(Inbox::default()));
        let mut delivery = router.batch();
        let handled = stream.handle(&request, Instant::now(), |forwarded, wake| {
            let groups = forwarded.groups.iter();
            let throttled =
                delivery.deliver(&forwarded.message, groups, forwarded.only_groups, wake);
            assert!(throttled.is_empty(), "nobody waits for QoS 0");
            (throttled, 0)
        });
        assert_eq!(handled, Ok(true));
        outbox.handle_answer(&DeliverResponse {
            sequence,
            ..DeliverResponse::default()
        });
        true
    }
}

/// How many messages came since the last call.
fn received(mailbox: &Mailbox) -> u32 {
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    mailbox.progress(0, &mut WakeList::default());
    contents.counts[0]
}

#[test]
fn members_of_all_nodes_take_turns() {
    let nodes = Nodes::new();
    let members: Vec<_> = [(0, 1), (1, 2), (1, 3), (0, 4), (1, 5)]
        .map(|(node, number)| nodes.client(node, number, &["$share/g/t/+"]))
        .into();
    for _ in 0..50 {
        nodes.publish("t/1", b"x");
        nodes.publish("t/2", b"x");
    }
    let counts: Vec<u32> = members.iter().map(|member| received(member)).collect();
    assert_eq!(counts, [20; 5]);
}

#[test]
fn every_group_gets_one_and_others_their_own() {
    let nodes = Nodes::new();
    let both = nodes.client(1, 1, &["$share/a/t", "$share/b/t", "t"]);
    let plain = nodes.client(1, 2, &["t"]);
    let shared = nodes.client(1, 3, &["$share/a/t"]);
    let here = nodes.client(0, 4, &["$share/c/t", "t"]);
    for _ in 0..10 {
        nodes.publish("t", b"x");
    }
    assert_eq!(received(&both), 10 + 10 + 5);
    assert_eq!(received(&plain), 10);
    assert_eq!(received(&shared), 5);
    assert_eq!(received(&here), 20);
}

#[test]
fn full_members_are_passed_over_and_what_nobody_can_take_is_counted() {
    for node in [0, 1] {
        let nodes = Nodes::new();
        let slow = nodes.client(node, 1, &["$share/g/t"]);
        let quick = nodes.client(node, 2, &["$share/g/t"]);
        let dropped = || {
            let dropped = &nodes.limits.metrics.messages_dropped;
            dropped.of(DropReason::OutboxFull).get()
        };
        let mut to_quick = 0;
        for _ in 0..20 {
            nodes.publish("t", &[0; 1000]);
            to_quick += received(&quick);
        }
        assert_eq!(to_quick, 15, "five messages of 1,000 bytes fill the other");
        assert_eq!(dropped(), 0);
        for _ in 0..6 {
            nodes.publish("t", &[0; 1000]);
        }
        assert_eq!(dropped(), 1);
        assert_eq!(received(&slow) + received(&quick), 10);
    }
}

#[test]
fn members_that_are_away_get_nothing_unless_they_ask_for_it_to_be_kept() {
    let nodes = Nodes::new();
    let is_logged = || {
        let route = nodes.routers[0].route("t", None);
        route.is_logged(QoS::AtMostOnce)
    };
    let durable = |qos_0| Queueing {
        durable: true,
        qos_0,
    };
    let filters = &["$share/g/t"];
    nodes.index.put(SessionId(1), AWAY, durable(false), filters);
    assert!(!is_logged());
    nodes.index.put(SessionId(2), AWAY, durable(true), filters);
    assert!(is_logged(), "the log keeps it");
    let present = nodes.client(1, 3, filters);
    assert!(!is_logged());
    nodes.publish("t", b"x");
    assert_eq!(received(&present), 1);
    assert!(
        nodes.routers[0]
            .route("t", None)
            .is_logged(QoS::AtLeastOnce)
    );
}

#[test]
fn a_node_whose_members_have_left_gives_the_message_to_nobody() {
    let nodes = Nodes::new();
    let client = nodes.client(1, 1, &["$share/g/t", "$share/h/t", "u"]);
    let route = nodes.routers[0].route("t", None);
    // The other node knows already what the first does not.
    let later = Arc::new(SubscriptionIndex::default());
    let other = Router::new(NodeId(2), later.clone(), nodes.outboxes.clone());
    other.register(client.clone());
    let owner = Owner {
        node: NodeId(2),
        incarnation: Incarnation(1),
        connection: ConnectionId(1),
    };
    later.put(
        SessionId(1),
        Some(owner),
        Queueing::default(),
        &["$share/h/t", "t"],
    );
    let mut wake = WakeList::default();
    let message = Message {
        publisher: None,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        properties: &[],
        expiry: None,
        direct: false,
        payload: b"x",
    };
    nodes.routers[0].deliver(&route, &message, Origin::default(), &mut wake);
    assert!(nodes.carry_over(&other), "it is forwarded");
    assert_eq!(received(&client), 1, "only the group that is left");
}
