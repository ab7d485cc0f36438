//! Look-ups against the definition of a match, and routes that are kept against fresh ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::super::route::Logged;
use super::super::{Route, Router};
use super::*;
use crate::base::ids::{Incarnation, LogIndex, Owner};
use crate::base::proto::state;
use crate::codec::Version;
use crate::forward::outbox::Outboxes;
use crate::machine::effect::ApplicationMessage;
use crate::machine::subscriptions::Queueing;
use crate::mailbox::WakeList;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::topic::matches;

pub(super) fn router(index: &Arc<SubscriptionIndex>) -> Arc<Router> {
    Router::new(NodeId(1), index.clone(), Arc::new(Outboxes::default()))
}

pub(super) fn owner(node: u64, connection: u64) -> Owner {
    Owner {
        node: NodeId(node),
        incarnation: Incarnation(1),
        connection: ConnectionId(connection),
    }
}

fn register(router: &Router, connection: u64) -> Arc<Mailbox> {
    let mailbox = Mailbox::new(
        ConnectionId(connection),
        Version::V5,
        u32::MAX,
        0,
        OutboxLimits::of(1 << 20),
    );
    router.register(mailbox.clone());
    mailbox
}

/// All that a route says, for comparison.
fn shown(found: &Found) -> String {
    let local = |subscriber: &LocalSubscriber| {
        let identifiers: BTreeSet<u32> =
            subscriber.identifiers.as_slice().iter().copied().collect();
        let (session, connection) = (subscriber.session, subscriber.mailbox.connection);
        let options = (
            subscriber.qos,
            subscriber.durable,
            subscriber.retain_as_published,
        );
        format!("{session:?} {connection:?} {options:?} {identifiers:?}")
    };
    let all: BTreeSet<String> = found.local.iter().map(local).collect();
    let own: Vec<_> = found
        .own
        .iter()
        .map(|own| (own.session, own.copy.as_ref().map(local)))
        .collect();
    let remote: BTreeSet<NodeId> = found.remote.iter().copied().collect();
    let groups: Vec<_> = found.groups.iter().map(Group::shown).collect();
    format!(
        "{all:?} {own:?} {remote:?} {groups:?} {:?} {:?}",
        found.logged, found.logged_qos_0
    )
}

#[derive(Clone, Debug)]
enum Step {
    Open {
        session: u64,
        node: u64,
        connection: u64,
        durable: bool,
    },
    Close(u64),
    End(u64),
    Subscribe {
        session: u64,
        filter: &'static str,
        qos: u32,
        no_local: bool,
        identifier: u32,
    },
    Unsubscribe {
        session: u64,
        filter: &'static str,
    },
    Publish {
        topic: &'static str,
        publisher: u64,
    },
}

const FILTERS: [&str; 12] = [
    "#",
    "+/x",
    "a/#",
    "a/+",
    "a/x",
    "b/x",
    "b/+",
    "a",
    "$share/g/a/x",
    "$share/h/a/+",
    "$share/g/#",
    "+",
];
const TOPICS: [&str; 5] = ["a/x", "b/x", "a", "c", "a/y"];

fn step() -> impl Strategy<Value = Step> {
    let (session, filter) = (1..5u64, || prop::sample::select(FILTERS.to_vec()));
    let topic = prop::sample::select(TOPICS.to_vec());
    prop_oneof![
        3 => (session.clone(), 1..3u64, 1..6u64, any::<bool>())
            .prop_map(|(session, node, connection, durable)| Step::Open { session, node, connection, durable }),
        1 => session.clone().prop_map(Step::Close),
        1 => session.clone().prop_map(Step::End),
        5 => (session.clone(), filter(), 0..3u32, any::<bool>(), 0..3u32).prop_map(
            |(session, filter, qos, no_local, identifier)| Step::Subscribe { session, filter, qos, no_local, identifier }
        ),
        2 => (session.clone(), filter()).prop_map(|(session, filter)| Step::Unsubscribe { session, filter }),
        8 => (topic, session).prop_map(|(topic, publisher)| Step::Publish { topic, publisher }),
    ]
}

/// What the index was told.
#[derive(Default)]
struct Model {
    owners: BTreeMap<u64, Option<Owner>>,
    subscriptions: BTreeMap<(u64, &'static str), (u32, bool, u32)>,
}

impl Model {
    fn apply(&mut self, index: &SubscriptionIndex, step: &Step) {
        match *step {
            Step::Open {
                session,
                node,
                connection,
                durable,
            } => {
                let queueing = Queueing {
                    durable,
                    qos_0: durable,
                };
                index.put(
                    SessionId(session),
                    Some(owner(node, connection)),
                    queueing,
                    &[],
                );
                self.owners.insert(session, Some(owner(node, connection)));
            }
            Step::Close(session) => {
                index.leave(SessionId(session), false);
                self.owners.entry(session).and_modify(|owner| *owner = None);
            }
            Step::End(session) => {
                for filter in FILTERS {
                    index.take(SessionId(session), filter);
                }
                index.leave(SessionId(session), true);
                self.owners.remove(&session);
                self.subscriptions.retain(|(known, _), _| *known != session);
            }
            Step::Subscribe {
                session,
                filter,
                qos,
                no_local,
                identifier,
            } => {
                let no_local = no_local && !filter.starts_with("$share");
                let row = state::Subscription {
                    qos,
                    no_local,
                    identifier,
                    ..Default::default()
                };
                index.put_row(SessionId(session), filter, &row, LogIndex(1));
                if self.owners.contains_key(&session) {
                    self.subscriptions
                        .insert((session, filter), (qos, no_local, identifier));
                }
            }
            Step::Unsubscribe { session, filter } => {
                index.take(SessionId(session), filter);
                self.subscriptions.remove(&(session, filter));
            }
            Step::Publish { .. } => {}
        }
    }

    /// Sessions of this node that get a message: the highest QoS, and the identifiers.
    fn local(&self, topic: &str, publisher: u64) -> BTreeMap<u64, (u32, BTreeSet<u32>)> {
        let mut all: BTreeMap<u64, (u32, BTreeSet<u32>)> = BTreeMap::new();
        for ((session, filter), (qos, no_local, identifier)) in &self.subscriptions {
            let is_here = matches!(self.owners[session], Some(owner) if owner.node == NodeId(1));
            let is_own = *no_local && *session == publisher;
            if is_here && !is_own && !filter.starts_with("$share") && matches(filter, topic) {
                let entry = all.entry(*session).or_default();
                entry.0 = entry.0.max(*qos);
                entry
                    .1
                    .extend(Some(*identifier).filter(|identifier| *identifier != 0));
            }
        }
        all
    }
}

fn local_of(route: &Route) -> BTreeMap<u64, (u32, BTreeSet<u32>)> {
    let entry = |subscriber: &LocalSubscriber| {
        let identifiers = subscriber.identifiers.as_slice().iter().copied().collect();
        (subscriber.session.0, (subscriber.qos as u32, identifiers))
    };
    route.local().map(entry).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// P6 depends on it: whatever changes, a route that is kept says what a look-up would.
    #[test]
    fn a_kept_route_is_what_a_fresh_look_up_finds(steps in prop::collection::vec(step(), 1..80)) {
        let index: Arc<SubscriptionIndex> = Arc::default();
        let router = router(&index);
        let _mailboxes: Vec<_> = (1..6).map(|connection| register(&router, connection)).collect();
        let mut model = Model::default();
        let mut kept: BTreeMap<&str, Route> = BTreeMap::new();
        for step in &steps {
            model.apply(&index, step);
            let Step::Publish { topic, publisher } = step else { continue };
            let publisher = SessionId(*publisher);
            let route = match kept.remove(topic) {
                Some(route) if router.is_current(&route) => Route::new(route.found, Some(publisher), false),
                _ => router.route(topic, Some(publisher)),
            };
            prop_assert_eq!(shown(&route.found), shown(&router.look_up(topic)), "{}", topic);
            prop_assert_eq!(local_of(&route), model.local(topic, publisher.0), "{}", topic);
            kept.insert(topic, route);
        }
    }
}

/// A change that comes while a topic is looked up must not be missed by what is kept of the look-up.
#[test]
fn a_route_is_outdated_by_a_change_during_its_look_up() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let _mailboxes: Vec<_> = (1..4)
        .map(|connection| register(&router, connection))
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    router.route("a/x", None);
                }
            });
        }
        for round in 0..2_000 {
            let session = SessionId(round % 3 + 1);
            match round % 7 {
                0 => index.leave(session, false),
                1 | 2 => index.take(session, "a/+"),
                _ => {
                    let owner = Some(owner(1, round % 3 + 1));
                    index.put(session, owner, Queueing::default(), &["a/+"]);
                }
            }
            // Nothing changes now: whatever route is kept, of whichever thread, says what is so.
            let kept = router.route("a/x", None);
            assert_eq!(shown(&kept.found), shown(&router.look_up("a/x")), "{round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn others_coming_and_going_leave_a_route_as_it_is() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let _mailbox = register(&router, 1);
    index.put(
        SessionId(1),
        Some(owner(1, 1)),
        Queueing::default(),
        &["a/+"],
    );
    let mut route = router.route("a/x", None);
    let mut outdated = 0;
    for session in 2..100 {
        let mailbox = register(&router, session);
        let filter = format!("clients/{session}");
        index.put(
            SessionId(session),
            Some(owner(1, session)),
            Queueing::default(),
            &[&filter],
        );
        index.leave(SessionId(session), false);
        router.unregister(mailbox.connection);
        if !router.is_current(&route) {
            outdated += 1;
            route = router.route("a/x", None);
        }
    }
    // Three counters of 4,096 belong to the topic, and by chance some of these filters share one.
    assert!(outdated <= 3, "{outdated}");
    index.leave(SessionId(1), false);
    assert!(!router.is_current(&route));
}

#[test]
fn no_local_changes_the_route_of_its_own_session_alone() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let _mailboxes: Vec<_> = (1..3)
        .map(|connection| register(&router, connection))
        .collect();
    let durable = Queueing {
        durable: true,
        qos_0: false,
    };
    index.put(SessionId(1), Some(owner(1, 1)), durable, &[]);
    let row = state::Subscription {
        qos: 1,
        no_local: true,
        ..Default::default()
    };
    index.put_row(SessionId(1), "t", &row, LogIndex(1));
    let (own, other) = (
        router.route("t", Some(SessionId(1))),
        router.route("t", Some(SessionId(2))),
    );
    assert!(Arc::ptr_eq(&own.found, &other.found), "looked up once");
    assert!(own.is_empty() && !own.is_logged(QoS::AtLeastOnce));
    assert!(!other.is_empty() && other.is_logged(QoS::AtLeastOnce));
    assert_eq!(own.found.logged, Logged::AllBut(SessionId(1)));
}

/// Each of these takes minutes when matches are compared with each other.
#[test]
fn many_matches_of_any_kind_are_looked_up_in_linear_time() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let mailbox = register(&router, 1);
    let filters: Vec<String> = (0..30_000)
        .map(|group| format!("$share/{group}/t"))
        .collect();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    index.put(
        SessionId(1),
        Some(owner(1, 1)),
        Queueing::default(),
        &filters,
    );
    for session in 2..30_002 {
        let queueing = Queueing::default();
        index.put(SessionId(session), Some(owner(1, 1)), queueing, &["t", "#"]);
    }
    let started = std::time::Instant::now();
    let found = router.look_up("t");
    assert_eq!((found.local.len(), found.groups.len()), (30_000, 30_000));
    assert!(found.bytes > 30_000 * size_of::<LocalSubscriber>());
    assert!(found.copies >= 60_000, "groups are work, too");
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    drop(mailbox);
}

/// What was published up to the log entry of a subscription reaches it as a retained message, if at all; not twice.
#[test]
fn a_logged_message_is_not_for_subscriptions_that_are_newer() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let mailbox = register(&router, 1);
    index.put(SessionId(1), Some(owner(1, 1)), Queueing::default(), &[]);
    index.put_row(
        SessionId(1),
        "t",
        &state::Subscription::default(),
        LogIndex(7),
    );
    let message = ApplicationMessage {
        topic: "t".to_owned(),
        qos: QoS::AtMostOnce,
        retain: true,
        payload: bytes::Bytes::new(),
        properties: bytes::Bytes::new(),
        expires_at: None,
        publisher: None,
    };
    let deliver = |entry| {
        router.deliver_logged(&message, LogIndex(entry), None, &mut WakeList::default());
        mailbox.is_filled()
    };
    assert!(!deliver(6) && !deliver(7));
    // The subscription gets other options: it is as old as before, and loses nothing.
    let row = state::Subscription {
        qos: 1,
        ..Default::default()
    };
    index.put_row(SessionId(1), "t", &row, LogIndex(9));
    assert!(deliver(8));
}

#[test]
fn what_goes_through_the_log_weighs_as_much_as_it_is_delivered_straight() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let durable = Queueing {
        durable: true,
        qos_0: false,
    };
    for session in 1..=10 {
        let owner = owner(session % 3 + 1, session);
        index.put(SessionId(session), Some(owner), Queueing::default(), &["t"]);
    }
    index.put(SessionId(11), Some(owner(2, 11)), durable, &[]);
    let row = state::Subscription {
        qos: 1,
        ..state::Subscription::default()
    };
    index.put_row(SessionId(11), "t", &row, LogIndex(1));
    index.put(SessionId(12), None, Queueing::default(), &["t"]);
    let route = router.route("t", None);
    let weight = |copies: usize, queues: usize| {
        use crate::base::limits::{LOGGED_DELIVERY_BYTES, LOGGED_QUEUE_BYTES};
        copies * LOGGED_DELIVERY_BYTES + queues * LOGGED_QUEUE_BYTES
    };
    assert_eq!(route.logged_weight(QoS::AtLeastOnce), weight(10, 1));
    assert_eq!(route.logged_weight(QoS::AtMostOnce), weight(11, 0));
    // A session that is away keeps QoS 0, too, and a group is a queue.
    let keeps_all = Queueing {
        durable: true,
        qos_0: true,
    };
    index.put(SessionId(13), None, keeps_all, &[]);
    index.put_row(SessionId(13), "t", &row, LogIndex(1));
    index.put(SessionId(14), Some(owner(2, 14)), durable, &["$share/g/t"]);
    let route = router.route("t", None);
    assert_eq!(route.logged_weight(QoS::AtLeastOnce), weight(10, 3));
    assert_eq!(route.logged_weight(QoS::AtMostOnce), weight(11, 2));
    for session in 20..60 {
        let owner = owner(2, session);
        index.put(SessionId(session), Some(owner), durable, &[]);
        index.put_row(SessionId(session), "t", &row, LogIndex(1));
    }
    let most = crate::base::limits::QUEUES_AT_LEAST;
    let route = router.route("t", None);
    assert_eq!(route.logged_weight(QoS::AtLeastOnce), weight(10, most));
}
