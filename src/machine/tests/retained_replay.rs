//! Retained messages of new subscriptions, in budgets so small that everything happens in between.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::Replica;
use super::queues::{BOUNDS, acknowledge, assert_empty, durable, granted, message, rows, rows_of};
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::machine::effect::{Granted, Output};
use crate::machine::retained::replay::Budget;
use crate::machine::schema::{self, Table as _};
use crate::session::QoS;
use crate::topic::matches;

const CLIENT: &str = "a";
const CONNECTION: u64 = 1;

fn replica(budget: Budget, max_messages: u64) -> Replica {
    let mut replica = Replica::new();
    replica.machine.parts.messaging.set_replay_budget(budget);
    replica.present(command::OpenSession {
        bounds: Some(command::QueueBounds {
            max_messages,
            ..BOUNDS
        }),
        ..durable(CLIENT, CONNECTION, 100)
    });
    replica
}

fn budget(rows: usize) -> Budget {
    Budget {
        rows,
        ..Budget::default()
    }
}

fn publish(topic: &str, qos: u32, payload: &str, retain: bool) -> Kind {
    Kind::Publish(command::Publish {
        message: Some(command::PublishedMessage {
            retain,
            ..message(topic, qos, payload)
        }),
        ..Default::default()
    })
}

fn subscribe(filter: &str, qos: u32, identifier: u32) -> Kind {
    Kind::Subscribe(command::Subscribe {
        client_id: CLIENT.to_owned(),
        connection: CONNECTION,
        subscriptions: vec![command::Subscription {
            filter: filter.to_owned(),
            qos,
            identifier,
            ..Default::default()
        }],
        ..Default::default()
    })
}

fn unsubscribe(filter: &str) -> Kind {
    Kind::Unsubscribe(command::Unsubscribe {
        client_id: CLIENT.to_owned(),
        connection: CONNECTION,
        filters: vec![filter.to_owned()],
    })
}

fn payloads(outputs: &[Output]) -> Vec<String> {
    let text = |granted: &&Granted| String::from_utf8_lossy(&granted.message.payload).into_owned();
    granted(outputs).iter().map(text).collect()
}

fn retained(replica: &mut Replica, count: usize) {
    let messages = (0..count).map(|n| publish(&format!("r/{n}"), 1, &format!("r{n}"), true));
    replica.run(messages.collect());
}

#[test]
fn a_batch_looks_at_so_many_rows_whatever_is_subscribed() {
    let mut replica = replica(budget(3), 1000);
    retained(&mut replica, 8);
    let subscriptions = vec![subscribe("r/+", 1, 0), subscribe("+/7", 1, 0)];
    let outputs = replica.run(subscriptions);
    assert_eq!(payloads(&outputs), ["r0", "r1", "r2"]);
    // The replays go on in the order in which they are due, that which has had nothing first; other commands are done
    // in between.
    let outputs = replica.run(vec![publish("r/9", 1, "live", false)]);
    assert_eq!(payloads(&outputs), ["r7", "live"]);
    assert_eq!(payloads(&replica.pass(1)), ["r3", "r4", "r5"]);
    replica.restart();
    replica.machine.parts.messaging.set_replay_budget(budget(3));
    let mut rest = payloads(&replica.pass(1));
    assert!(rest.len() <= 3);
    for _ in 0..9 {
        rest.extend(payloads(&replica.pass(1)));
    }
    rest.sort_unstable();
    assert_eq!(rest, ["r6", "r7"]);
    assert_eq!(rows::<schema::RetainedReplay>(&replica), 0);
    assert_eq!(rows::<schema::WorkTimer>(&replica), 0);
}

#[test]
fn no_more_goes_into_a_queue_than_half_of_what_it_holds() {
    let mut replica = replica(budget(100), 6);
    retained(&mut replica, 10);
    let mut came = payloads(&replica.run(vec![subscribe("#", 1, 0)]));
    assert_eq!(came.len(), 3);
    assert_eq!(
        payloads(&replica.pass(1)),
        [""; 0],
        "it waits for its client"
    );
    let mut acknowledged = 0;
    while acknowledged < came.len() {
        acknowledged += 1;
        replica.run(vec![acknowledge(CONNECTION, &[acknowledged as u64], &[])]);
        came.extend(payloads(&replica.pass(1)));
        assert!(came.len() <= acknowledged + 3, "{came:?}");
    }
    let all: Vec<String> = (0..10).map(|n| format!("r{n}")).collect();
    assert_eq!(came, all, "nothing was dropped");
    assert_empty(&replica);
    assert_eq!(rows::<schema::RetainedReplay>(&replica), 0);
}

#[test]
fn a_large_message_goes_alone() {
    let mut replica = Replica::new();
    replica.present(command::OpenSession {
        bounds: Some(command::QueueBounds {
            max_bytes: 100,
            ..BOUNDS
        }),
        ..durable(CLIENT, CONNECTION, 100)
    });
    for topic in ["r/1", "r/2"] {
        replica.run(vec![publish(topic, 1, &"x".repeat(90), true)]);
    }
    assert_eq!(payloads(&replica.run(vec![subscribe("#", 1, 0)])).len(), 1);
    replica.run(vec![acknowledge(CONNECTION, &[1], &[])]);
    assert_eq!(payloads(&replica.pass(1)).len(), 1);
}

/// A timer that finds no room would fire in every batch, and an idle cluster would commit without end.
#[test]
fn a_replay_that_waits_for_room_has_no_timer() {
    for (max_bytes, size, fit) in [(100, 60, 1), (100_000, 1, 3)] {
        let mut replica = Replica::new();
        replica.present(command::OpenSession {
            bounds: Some(command::QueueBounds {
                max_messages: 6,
                max_bytes,
                ..BOUNDS
            }),
            ..durable(CLIENT, CONNECTION, 100)
        });
        for number in 0..8 {
            let payload = "x".repeat(size);
            replica.run(vec![publish(&format!("r/{number}"), 1, &payload, true)]);
        }
        let mut came = payloads(&replica.run(vec![subscribe("#", 1, 0)])).len();
        assert_eq!(came, fit);
        let mut acknowledged = 0;
        while acknowledged < came {
            came += payloads(&replica.settle()).len();
            assert!(came <= acknowledged + fit);
            acknowledged += 1;
            replica.run(vec![acknowledge(CONNECTION, &[acknowledged as u64], &[])]);
            came += payloads(&replica.pass(1)).len();
        }
        assert_eq!(came, 8);
        assert_empty(&replica);
    }
}

#[test]
fn replays_take_turns_however_many_there_are() {
    let mut replica = replica(budget(2), 1000);
    retained(&mut replica, 8);
    let mut subscribing = vec![subscribe("#", 1, 0)];
    for connection in 2..=4 {
        let client_id = connection.to_string();
        replica.present(durable(&client_id, connection, 100));
        subscribing.push(super::queues::subscribe(&client_id, connection, "#", 1));
    }
    let mut outputs = replica.run(subscribing);
    for _ in 0..3 {
        outputs.extend(replica.pass(1));
    }
    let served: BTreeSet<u64> = granted(&outputs)
        .iter()
        .map(|granted| granted.connection.0)
        .collect();
    assert_eq!(
        served,
        BTreeSet::from([1, 2, 3, 4]),
        "each has two of eight"
    );
}

/// What goes first is remembered until the replay comes there, also when that is never.
#[test]
fn what_has_ended_leaves_nothing() {
    let ends: [fn() -> Kind; 3] = [
        || unsubscribe("#"),
        || subscribe("#", 0, 0),
        || {
            Kind::CloseSession(command::CloseSession {
                client_id: CLIENT.to_owned(),
                connection: CONNECTION,
                expiry_interval_s: Some(0),
                ..Default::default()
            })
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut replica = replica(budget(2), 1000);
        retained(&mut replica, 8);
        replica.run(vec![subscribe("#", 1, 0)]);
        let outputs = replica.run(vec![publish("r/7", 1, "live", false)]);
        assert_eq!(payloads(&outputs), ["r7", "live"]);
        assert_eq!(rows::<schema::ReplayedTopic>(&replica), 1);
        replica.run(vec![end()]);
        assert_eq!(payloads(&replica.pass(1)), [""; 0], "{number}");
        for table in [
            schema::RetainedReplay::ORDINAL,
            schema::ReplayedTopic::ORDINAL,
        ] {
            assert_eq!(rows_of(&replica, table), 0, "{number}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish {
        topic: usize,
        qos: u32,
        retain: bool,
        empty: bool,
    },
    Subscribe {
        filter: usize,
        qos: u32,
    },
    Unsubscribe {
        filter: usize,
    },
    /// What was sent first.
    Acknowledge(usize),
}

const FILTERS: [&str; 5] = ["#", "t/+", "+/1", "t/1", "t/#"];
const TOPICS: [&str; 7] = ["a/1", "t", "t/0", "t/1", "t/2", "u", "z/1"];

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        8 => (0..TOPICS.len(), 0u32..3, any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(topic, qos, retain, empty)| Step::Publish { topic, qos, retain, empty: empty && retain }),
        3 => (0..FILTERS.len(), 1u32..3).prop_map(|(filter, qos)| Step::Subscribe { filter, qos }),
        1 => (0..FILTERS.len()).prop_map(|filter| Step::Unsubscribe { filter }),
        3 => (1usize..6).prop_map(Step::Acknowledge),
    ];
    // Commands of one batch have the same index; an empty batch is time that passes.
    prop::collection::vec(prop::collection::vec(step, 0..4), 0..60)
}

/// What is owed to one SUBSCRIBE.
#[derive(Debug)]
struct Owed {
    /// Messages so far, when it was made.
    since: usize,
    /// Topic and number of the messages that were retained.
    messages: BTreeMap<&'static str, usize>,
    is_over: bool,
}

/// What must come, and what has come.
#[derive(Default)]
struct Model {
    /// Messages published so far: each is known by its number.
    published: usize,
    retained: BTreeMap<&'static str, (usize, u32)>,
    subscriptions: BTreeMap<usize, u32>,
    /// By subscription identifier, from 1 on.
    owed: Vec<Owed>,
    /// Numbers of messages that went to the client when they were published.
    live: Vec<usize>,
    live_came: Vec<usize>,
    /// The last one that came, by topic.
    last: BTreeMap<String, usize>,
    in_flight: Vec<(u64, QoS)>,
}

impl Model {
    fn command(&mut self, step: &Step) -> Vec<Kind> {
        match step {
            Step::Publish {
                topic,
                qos,
                retain,
                empty,
            } => {
                self.published += 1;
                let (topic, number) = (TOPICS[*topic], self.published);
                match (retain, empty) {
                    (true, true) => self.retained.remove(topic),
                    (true, false) => self.retained.insert(topic, (number, *qos)),
                    (false, _) => None,
                };
                let is_matched = |filter: &usize| matches(FILTERS[*filter], topic);
                // An empty message has no number to know it by.
                if *qos > 0 && !empty && self.subscriptions.keys().any(is_matched) {
                    self.live.push(number);
                }
                let payload = if *empty {
                    String::new()
                } else {
                    number.to_string()
                };
                vec![publish(topic, *qos, &payload, *retain)]
            }
            Step::Subscribe { filter, qos } => {
                self.end(*filter);
                self.subscriptions
                    .insert(*filter, self.owed.len() as u32 + 1);
                let messages = self.retained.iter();
                let messages = messages
                    .filter(|(topic, (_, qos))| *qos > 0 && matches(FILTERS[*filter], topic))
                    .map(|(topic, (number, _))| (*topic, *number));
                self.owed.push(Owed {
                    since: self.published,
                    messages: messages.collect(),
                    is_over: false,
                });
                vec![subscribe(FILTERS[*filter], *qos, self.owed.len() as u32)]
            }
            Step::Unsubscribe { filter } => {
                self.end(*filter);
                vec![unsubscribe(FILTERS[*filter])]
            }
            Step::Acknowledge(count) => {
                let count = (*count).min(self.in_flight.len());
                let acknowledged = self.in_flight.drain(..count);
                let all: Vec<u64> = acknowledged.map(|(sequence, _)| sequence).collect();
                vec![
                    acknowledge(CONNECTION, &[], &all),
                    acknowledge(CONNECTION, &all, &[]),
                ]
            }
        }
    }

    fn end(&mut self, filter: usize) {
        if let Some(identifier) = self.subscriptions.remove(&filter) {
            self.owed[identifier as usize - 1].is_over = true;
        }
    }

    fn came(&mut self, outputs: &[Output]) -> Result<(), TestCaseError> {
        for granted in granted(outputs) {
            self.in_flight.push((granted.sequence.0, granted.qos));
            let (topic, payload) = (&granted.message.topic, &granted.message.payload);
            let Ok(number) = String::from_utf8_lossy(payload).parse() else {
                continue;
            };
            if !granted.retain {
                self.live_came.push(number);
                self.last.insert(topic.clone(), number);
                continue;
            }
            let identifier = granted.identifiers[0] as usize;
            let owed = &mut self.owed[identifier - 1];
            let expected = owed.messages.remove(&**topic);
            prop_assert_eq!(expected, Some(number), "{} of {}", topic, identifier);
            // P5: nothing that was published after the SUBSCRIBE has come before it.
            let last = self.last.get(topic).copied().unwrap_or(0);
            prop_assert!(last <= owed.since, "{topic} {number} after {last}");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// P6: everything that was retained when SUBSCRIBE was done comes once, as long as the subscription is there,
    /// whatever is published meanwhile; P5: nothing older after anything newer of its topic.
    #[test]
    fn every_retained_message_comes_once_and_before_what_is_newer(
        steps in steps(),
        restarts in prop::collection::btree_set(0usize..60, 0..6),
        looks in 1usize..4,
        room in prop_oneof![Just(2u64), Just(6), Just(10_000)],
    ) {
        let budget = Budget { rows: looks, waiting: room, ..Budget::default() };
        let mut replica = replica(budget, 100_000);
        let mut model = Model::default();
        for (number, batch) in steps.iter().enumerate() {
            if restarts.contains(&number) {
                replica.restart();
                replica.machine.parts.messaging.set_replay_budget(budget);
            }
            let kinds: Vec<Kind> = batch.iter().flat_map(|step| model.command(step)).collect();
            let outputs = if kinds.is_empty() { replica.pass(1) } else { replica.run(kinds) };
            model.came(&outputs)?;
        }
        for _ in 0..2_000 {
            if model.in_flight.is_empty() && rows::<schema::RetainedReplay>(&replica) == 0 {
                break;
            }
            let acknowledged = model.command(&Step::Acknowledge(usize::MAX));
            model.came(&replica.run(acknowledged))?;
            model.came(&replica.pass(1))?;
        }
        for owed in model.owed.iter().filter(|owed| !owed.is_over) {
            prop_assert!(owed.messages.is_empty(), "never came: {owed:?}");
        }
        prop_assert_eq!(model.live_came, model.live);
        assert_empty(&replica);
        let left: BTreeSet<u8> = replica.stored.keys().map(|key| key[0]).collect();
        for table in [schema::RetainedReplay::ORDINAL, schema::ReplayedTopic::ORDINAL, schema::WorkTimer::ORDINAL] {
            prop_assert!(!left.contains(&table), "table {table:#x}");
        }
    }
}
