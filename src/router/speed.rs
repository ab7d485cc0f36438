//! How look-ups, publishes, connects and subscribes grow with what there is, in a table; not a pass or fail.
//!
//! `cargo test --release --lib router::speed -- --ignored --nocapture`
//!
//! In one row the figures say how a cost grows; without `--release` they are some ten times higher and grow alike.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Message, Origin, Router};
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner, SessionId};
use crate::codec::{QoS, Version};
use crate::forward::outbox::Outboxes;
use crate::machine::subscriptions::{Queueing, SubscriptionIndex};
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Mailbox, WakeList};

/// How many there are of what grows.
const SIZES: [u64; 3] = [10, 1_000, 100_000];

/// What one figure may take.
const AT_MOST: Duration = Duration::from_secs(3);

struct Node {
    index: Arc<SubscriptionIndex>,
    router: Arc<Router>,
    mailbox: Arc<Mailbox>,
}

impl Node {
    fn new() -> Node {
        let index: Arc<SubscriptionIndex> = Arc::default();
        let router = Router::new(NodeId(1), index.clone(), Arc::new(Outboxes::default()));
        let limits = OutboxLimits::dropping(1 << 20);
        let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
        router.register(mailbox.clone());
        Node {
            index,
            router,
            mailbox,
        }
    }

    /// A session whose connection is that of all others.
    fn open(&self, session: u64, filters: &[&str]) {
        let owner = Owner {
            node: NodeId(1),
            incarnation: Incarnation(1),
            connection: ConnectionId(1),
        };
        let queueing = Queueing::default();
        self.index
            .put(SessionId(session), Some(owner), queueing, filters);
    }

    /// A publisher's message with QoS 0 to a topic that it knows.
    fn publish(&self, route: &mut super::Route, topic: &str) {
        if !self.router.is_current(route) {
            *route = self.router.route(topic, None);
        }
        let message = Message {
            publisher: None,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            properties: &[],
            expiry: None,
            direct: false,
            payload: b"0123456789abcdef",
        };
        let mut wake = WakeList::default();
        self.router
            .deliver(route, &message, Origin::default(), &mut wake);
        self.mailbox.take(&mut Contents::default());
    }
}

/// The best of several calls, which are fewer where one takes long.
fn measure(mut call: impl FnMut()) -> Duration {
    let began = Instant::now();
    let mut best = Duration::MAX;
    for _ in 0..1_000 {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed());
        if began.elapsed() > AT_MOST {
            break;
        }
    }
    best
}

fn row(what: &str, mut of_size: impl FnMut(u64) -> Duration) {
    let figures: Vec<String> = SIZES
        .into_iter()
        .map(|size| format!("{:>12.2} µs", of_size(size).as_nanos() as f64 / 1_000.0))
        .collect();
    println!("{what:62}{}", figures.join(""));
}

/// A node with so many subscribers of `t`.
fn subscribers(count: u64) -> Node {
    let node = Node::new();
    for session in 1..=count {
        node.open(session, &["t"]);
    }
    node
}

/// A node with so many sessions, each with a filter of its own, and one subscriber of `t`.
fn filters(count: u64) -> Node {
    let node = Node::new();
    for session in 2..=count {
        node.open(session, &[&format!("clients/{session}/+")]);
    }
    node.open(1, &["t"]);
    node
}

#[test]
#[ignore = "a measurement"]
fn microseconds_by_size() {
    println!("{:62}{:>15}{:>15}{:>15}", "", SIZES[0], SIZES[1], SIZES[2]);
    row("subscribers of one topic: look-up", |size| {
        let node = subscribers(size);
        let mut session = 0;
        measure(|| {
            session = session % size + 1;
            node.open(session, &[]);
            black_box(node.router.route("t", None));
        })
    });
    row(
        "subscribers of one topic: publish, nothing has changed",
        |size| {
            let node = subscribers(size);
            let mut route = node.router.route("t", None);
            measure(|| node.publish(&mut route, "t"))
        },
    );
    row("subscribers of one topic: one of them connects", |size| {
        let node = subscribers(size);
        let mut session = 0;
        measure(|| {
            session = session % size + 1;
            node.open(session, &[]);
        })
    });
    row("subscribers of one topic: one more", |size| {
        let node = subscribers(size);
        let mut session = size;
        measure(|| {
            session += 1;
            node.open(session, &["t"]);
        })
    });
    row("groups of one topic: look-up", |size| {
        let node = Node::new();
        let groups: Vec<String> = (0..size).map(|group| format!("$share/{group}/t")).collect();
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        node.open(1, &groups);
        measure(|| {
            node.open(1, &[]);
            black_box(node.router.route("t", None));
        })
    });
    row(
        "connections with filters of their own: look-up of t",
        |size| {
            let node = filters(size);
            measure(|| {
                node.open(1, &[]);
                black_box(node.router.route("t", None));
            })
        },
    );
    row(
        "connections with filters of their own: one connects, publish",
        |size| {
            let node = filters(size);
            let mut route = node.router.route("t", None);
            let mut session = 1;
            measure(|| {
                session = session % size + 1;
                node.open(session.max(2), &[]);
                node.publish(&mut route, "t");
            })
        },
    );
    row(
        "subscribers of one topic: another client connects, publish",
        |size| {
            let node = subscribers(size);
            node.open(size + 1, &["clients/x/+"]);
            let mut route = node.router.route("t", None);
            measure(|| {
                node.open(size + 1, &[]);
                node.publish(&mut route, "t");
            })
        },
    );
}
