//! Whatever happens to sessions and nodes in whatever order: each connection has one event of its beginning and one of
//! its end, numbers rise by one, all replicas have the same events, and a reader that goes by the numbers alone ends
//! with the truth.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::events::{outbox, set_events};
use super::events_subscriptions::{progress, put};
use super::{INCARNATION, Replica, proposal};
use crate::base::ids::{CLUSTER, Incarnation, NodeId};
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::state;
use crate::events::{DisconnectionReason, Kind as EventKind};
use crate::machine::batch;
use crate::machine::state_hash::hash_tables;

const CLIENTS: [&str; 4] = ["a", "b", "c", "auto-1"];
const NAMES: [&str; 3] = ["", "ann", "bob"];
const NODES: u64 = 3;

/// So small that nearly everything is continued in later batches.
const TIGHT: batch::Budget = batch::Budget {
    row_operations: 10,
    items_at_least: 1,
    overdraft: 0,
    queues_at_least: 1,
    looked_up_anew: 1_000,
};

#[derive(Clone, Debug)]
enum Step {
    Open {
        node: u64,
        client: usize,
        name: usize,
        clean: bool,
        expiry_s: u32,
    },
    Close {
        node: u64,
        client: usize,
        reason: u32,
    },
    Delete(usize),
    Disconnect(usize),
    Publish,
    NodeDown(u64),
    NodeStarts(u64),
    Pass(u64),
    Progress(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (node, client) = (1..=NODES, 0..CLIENTS.len());
    let step = prop_oneof![
        8 => (node.clone(), client.clone(), 0..NAMES.len(), any::<bool>(), prop::sample::select(vec![0, 1, 100]))
            .prop_map(|(node, client, name, clean, expiry_s)| Step::Open { node, client, name, clean, expiry_s }),
        4 => (node.clone(), client.clone(), 0u32..13)
            .prop_map(|(node, client, reason)| Step::Close { node, client, reason }),
        1 => client.clone().prop_map(Step::Delete),
        1 => client.prop_map(Step::Disconnect),
        2 => Just(Step::Publish),
        1 => node.clone().prop_map(Step::NodeDown),
        1 => node.prop_map(Step::NodeStarts),
        2 => (0u64..3_000).prop_map(Step::Pass),
        2 => (0u64..200).prop_map(Step::Progress),
    ];
    prop::collection::vec(step, 0..60)
}

/// Carries steps out on one replica.
struct Run {
    replica: Replica,
    incarnations: BTreeMap<u64, u64>,
    sequences: BTreeMap<u64, u64>,
    /// The connection that a node has opened last for a client.
    connections: BTreeMap<(u64, usize), u64>,
    next_connection: u64,
}

impl Run {
    /// `forgets`: numbers of sessions are soon too old, or too many.
    fn new(is_tight: bool, mqtt: bool, forgets: bool) -> Run {
        let mut replica = Replica::new();
        replica.run(vec![
            set_events(|settings| {
                settings.keep_s = 1_000_000;
                settings.mqtt = mqtt;
                if forgets {
                    (settings.sequence_keep_s, settings.sequences_max) = (1, 2);
                }
            }),
            Kind::PutEventSubscription(put("s")),
        ]);
        if is_tight {
            replica.set_budget(TIGHT);
        }
        Run {
            replica,
            incarnations: (1..=NODES).map(|node| (node, INCARNATION.0 + 1)).collect(),
            sequences: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
        }
    }

    fn run(&mut self, node: u64, kinds: Vec<Kind>) {
        let sequence = self.sequences.entry(node).or_default();
        *sequence += 1;
        let incarnation = Incarnation(self.incarnations[&node]);
        let proposal = proposal(NodeId(node), incarnation, *sequence, kinds);
        self.replica.apply(vec![proposal]);
    }

    fn open(&mut self, node: u64, client: usize, name: usize, clean: bool, expiry_s: u32) {
        self.next_connection += 1;
        let connection = self.next_connection;
        self.connections.insert((node, client), connection);
        let bounds = command::QueueBounds {
            max_messages: 2,
            policy: 2,
            ..super::queues::BOUNDS
        };
        let principal = (name > 0).then(|| command::Principal {
            name: NAMES[name].to_owned(),
            proofs: Vec::new(),
        });
        let opened = command::OpenSession {
            clean_start: clean,
            expiry_interval_s: expiry_s,
            principal,
            bounds: Some(bounds),
            assigned_client_id: CLIENTS[client].starts_with("auto") && clean,
            ..super::queues::durable(CLIENTS[client], connection, 1)
        };
        let all = super::queues::subscribe(CLIENTS[client], connection, "#", 1);
        let events = super::queues::subscribe(CLIENTS[client], connection, "$events/#", 1);
        self.run(node, vec![Kind::OpenSession(opened), all, events]);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Open {
                node,
                client,
                name,
                clean,
                expiry_s,
            } => self.open(node, client, name, clean, expiry_s),
            Step::Close {
                node,
                client,
                reason,
            } => {
                let close = command::CloseSession {
                    client_id: CLIENTS[client].to_owned(),
                    connection: self
                        .connections
                        .get(&(node, client))
                        .copied()
                        .unwrap_or(999),
                    reason,
                    ..Default::default()
                };
                self.run(node, vec![Kind::CloseSession(close)]);
            }
            Step::Delete(client) => {
                let client_id = CLIENTS[client].to_owned();
                self.run(
                    1,
                    vec![Kind::DeleteSession(command::DeleteSession { client_id })],
                );
            }
            Step::Disconnect(client) => {
                let client_id = CLIENTS[client].to_owned();
                self.run(1, vec![Kind::Disconnect(command::Disconnect { client_id })]);
            }
            Step::Publish => self.run(2, vec![super::queues::publish("t", 1, "x")]),
            Step::NodeDown(node) => self.declare_down(node),
            Step::NodeStarts(node) => self.start(node),
            Step::Pass(ms) => {
                self.replica.pass(ms);
            }
            Step::Progress(through) => {
                let progress = progress(&self.replica, "s", through);
                self.run(3, vec![Kind::EventProgress(progress)]);
            }
        }
    }

    /// The leader ends an incarnation; what it still proposes is refused, and it begins a new one.
    fn declare_down(&mut self, node: u64) {
        let down = Kind::NodeDown(command::NodeDown {
            node,
            incarnation: self.incarnations[&node],
        });
        self.replica
            .apply(vec![proposal(CLUSTER, Incarnation(0), 0, vec![down])]);
        self.run(node, vec![super::queues::publish("late", 1, "x")]);
        self.start(node);
    }

    fn start(&mut self, node: u64) {
        *self.incarnations.entry(node).or_default() += 1;
        self.sequences.insert(node, 0);
        self.run(node, Vec::new());
    }
}

type Pair = (String, String);

/// Every connection has one beginning and one end, in this order; numbers rise by one from 1 on, or by more where some
/// are forgotten. Who is connected.
fn check_pairs(events: &[(u64, state::Event)], forgets: bool) -> BTreeMap<Pair, (u64, bool)> {
    let mut known: BTreeMap<Pair, (u64, bool)> = BTreeMap::new();
    let mut last_number = 0;
    for (number, event) in events {
        assert_eq!(*number, last_number + 1, "the outbox has no gap");
        last_number = *number;
        let pair = (event.name.clone(), event.session.clone());
        let state = known.entry(pair.clone()).or_default();
        match EventKind::of(event) {
            Some(EventKind::Connected) => {
                assert!(!state.1, "{pair:?} connects twice");
                let next = state.0 + 1;
                assert!(
                    event.sequence == next || forgets && event.sequence > next,
                    "{pair:?} {event:?}"
                );
                *state = (event.sequence, true);
            }
            Some(EventKind::Disconnected) => {
                assert!(state.1, "{pair:?} ends without a beginning: {event:?}");
                assert_eq!(event.sequence, state.0, "{pair:?}");
                state.1 = false;
            }
            kind => panic!("{kind:?}"),
        }
    }
    known
}

/// The rule for readers: the first event counts; a beginning counts if its number is greater, an end if it is greater
/// or equal.
fn read(events: impl IntoIterator<Item = state::Event>) -> BTreeMap<Pair, (u64, bool)> {
    let mut known: BTreeMap<Pair, (u64, bool)> = BTreeMap::new();
    for event in events {
        let pair = (event.name.clone(), event.session.clone());
        let is_connected = event.kind == EventKind::Connected as u32;
        let counts = known
            .get(&pair)
            .is_none_or(|(sequence, _)| match is_connected {
                true => event.sequence > *sequence,
                false => event.sequence >= *sequence,
            });
        if counts {
            known.insert(pair, (event.sequence, is_connected));
        }
    }
    known
}

/// Who is connected, as the rows of sessions say.
fn connected(replica: &Replica) -> BTreeSet<Pair> {
    use prost::Message as _;
    let rows = replica.stored.iter().filter(|(key, _)| key[0] == 0x10);
    let rows = rows.map(|(key, row)| {
        let client_id = String::from_utf8_lossy(&key[1..]).into_owned();
        (client_id, state::Session::decode(&row[..]).expect("a row"))
    });
    let owned = rows.filter(|(_, row)| row.owner_node != 0);
    owned
        .map(|(client_id, row)| match row.principal.is_empty() {
            true => (client_id.clone(), client_id),
            false => (row.principal, client_id),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_connection_begins_once_and_ends_once(
        steps in steps(),
        restarts in prop::collection::btree_set(0usize..60, 0..10),
        is_tight in any::<bool>(),
        mqtt in any::<bool>(),
        forgets in any::<bool>(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
    ) {
        let mut whole = Run::new(is_tight, mqtt, forgets);
        let mut restarted = Run::new(is_tight, mqtt, forgets);
        for (number, step) in steps.iter().enumerate() {
            if restarts.contains(&number) {
                restarted.replica.restart();
            }
            whole.step(step);
            restarted.step(step);
            prop_assert_eq!(&whole.replica.stored, &restarted.replica.stored, "after {} {:?}", number, step);
            let hashes = |run: &Run| hash_tables(&run.replica.stored, &mut |_| true);
            prop_assert_eq!(hashes(&whole), hashes(&restarted));
        }
        whole.replica.settle();
        let events = outbox(&whole.replica);
        let known = check_pairs(&events, forgets);
        let open: BTreeSet<Pair> = known
            .iter()
            .filter(|(_, (_, is_connected))| *is_connected)
            .map(|(pair, _)| pair.clone())
            .collect();
        prop_assert_eq!(open, connected(&whole.replica));
        // All nodes lose power and return.
        for node in 1..=NODES {
            whole.start(node);
        }
        whole.replica.settle();
        let events = outbox(&whole.replica);
        let known = check_pairs(&events, forgets);
        prop_assert!(known.values().all(|(_, is_connected)| !is_connected));
        // Any order with repetitions, after which everything came at least once.
        let of_made_up = |event: &state::Event| event.session.starts_with("auto");
        let mut all: Vec<state::Event> = events
            .into_iter()
            .map(|(_, event)| event)
            .filter(|event| !of_made_up(event))
            .collect();
        let truth: BTreeMap<Pair, (u64, bool)> = known
            .into_iter()
            .filter(|((_, session), _)| !session.starts_with("auto"))
            .collect();
        if !all.is_empty() {
            let repeated: Vec<state::Event> = order.iter().map(|index| index.get(&all).clone()).collect();
            for index in &order {
                let other = index.index(all.len());
                all.swap(0, other);
            }
            prop_assert_eq!(read(repeated.into_iter().chain(all)), truth);
        }
    }
}

/// The numbers of the reasons are those of the log.
#[test]
fn a_reason_that_is_not_known_is_a_loss() {
    let lost = DisconnectionReason::ConnectionLost;
    assert_eq!(DisconnectionReason::of_number(0), lost);
}
