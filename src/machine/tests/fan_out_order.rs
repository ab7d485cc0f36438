//! Whatever is published, subscribed and retained while messages are on their way into queues: everybody gets what was
//! published while it was subscribed, nothing else, and each topic's messages in order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::fan_out::{TIGHT, delete, unsubscribe};
use super::queues::{assert_empty, durable, granted, message, rows, subscribe};
use super::{Replica, close};
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::machine::effect::Output;
use crate::machine::schema;

const CLIENTS: u8 = 4;

#[derive(Clone, Debug)]
enum Step {
    Subscribe(u8, usize),
    Unsubscribe(u8, usize),
    Close(u8),
    Open(u8),
    Publish {
        topic: usize,
        qos: u32,
        retain: bool,
    },
    Pass,
    Restart,
}

const TOPICS: [&str; 2] = ["t/0", "t/1"];
const FILTERS: [&str; 3] = ["t/0", "t/+", "#"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = 0..CLIENTS;
    let step = prop_oneof![
        3 => (client.clone(), 0..FILTERS.len()).prop_map(|(client, filter)| Step::Subscribe(client, filter)),
        1 => (client.clone(), 0..FILTERS.len()).prop_map(|(client, filter)| Step::Unsubscribe(client, filter)),
        1 => client.clone().prop_map(Step::Close),
        2 => client.prop_map(Step::Open),
        8 => (0..TOPICS.len(), 1u32..3, prop::bool::weighted(0.3))
            .prop_map(|(topic, qos, retain)| Step::Publish { topic, qos, retain }),
        2 => Just(Step::Pass),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

/// What the clients are subscribed to, what they may and must get, and what they got.
struct Model {
    replica: Replica,
    connections: BTreeMap<u8, u64>,
    next_connection: u64,
    subscribed: BTreeSet<(u8, usize)>,
    may: BTreeSet<(u8, u64)>,
    must: BTreeSet<(u8, u64)>,
    got: BTreeMap<(u8, String), BTreeSet<u64>>,
    retained: BTreeMap<usize, u64>,
    published: u64,
}

impl Model {
    fn new() -> Model {
        let mut replica = Replica::new();
        replica.set_budget(TIGHT);
        let mut model = Model {
            replica,
            connections: BTreeMap::new(),
            next_connection: 100,
            subscribed: BTreeSet::new(),
            may: BTreeSet::new(),
            must: BTreeSet::new(),
            got: BTreeMap::new(),
            retained: BTreeMap::new(),
            published: 0,
        };
        for client in 0..CLIENTS {
            model.step(&Step::Open(client));
        }
        // One member each: a group gets its messages as a session does.
        for (client, filter) in [(CLIENTS, "$share/g/t/+"), (CLIENTS + 1, "$share/h/#")] {
            model.step(&Step::Open(client));
            let connection = model.connections[&client];
            let joins = subscribe(&client.to_string(), connection, filter, 2);
            model.run(vec![joins]);
        }
        model
    }

    fn run(&mut self, kinds: Vec<Kind>) {
        let outputs = self.replica.run(kinds);
        self.note(&outputs);
    }

    fn note(&mut self, outputs: &[Output]) {
        for granted in granted(outputs) {
            let by_connection = |(client, connection): (&u8, &u64)| {
                (*connection == granted.connection.0).then_some(*client)
            };
            let Some(client) = self.connections.iter().find_map(by_connection) else {
                continue;
            };
            let text = String::from_utf8_lossy(&granted.message.payload);
            let number: u64 = text.parse().expect("a number");
            assert!(
                self.may.contains(&(client, number)),
                "{number} is not for {client}"
            );
            let topic = granted.message.topic.clone();
            let got = self.got.entry((client, topic)).or_default();
            let is_first = got.insert(number);
            let is_last = got.last() == Some(&number);
            assert!(
                !is_first || is_last,
                "{number} comes to {client} after {got:?}"
            );
        }
    }

    fn matches(filter: usize, topic: usize) -> bool {
        crate::topic::matches(FILTERS[filter], TOPICS[topic])
    }

    fn step(&mut self, step: &Step) {
        let id = |client: &u8| client.to_string();
        let connection = |model: &Model, client| model.connections.get(client).copied();
        match step {
            Step::Open(client) => {
                self.next_connection += 1;
                self.connections.insert(*client, self.next_connection);
                let opened = durable(&id(client), self.next_connection, 1_000);
                self.run(vec![Kind::OpenSession(opened)]);
            }
            Step::Close(client) => {
                if let Some(connection) = self.connections.remove(client) {
                    self.run(vec![close(&id(client), connection)]);
                }
            }
            Step::Subscribe(client, filter) => {
                if let Some(connection) = connection(self, client) {
                    self.subscribed.insert((*client, *filter));
                    for (topic, number) in &self.retained {
                        if Self::matches(*filter, *topic) {
                            self.may.insert((*client, *number));
                        }
                    }
                    self.run(vec![subscribe(
                        &id(client),
                        connection,
                        FILTERS[*filter],
                        2,
                    )]);
                }
            }
            Step::Unsubscribe(client, filter) => {
                if let Some(connection) = connection(self, client) {
                    self.subscribed.remove(&(*client, *filter));
                    self.must.retain(|(other, _)| other != client);
                    self.run(vec![unsubscribe(&id(client), connection, FILTERS[*filter])]);
                }
            }
            Step::Publish { topic, qos, retain } => {
                self.published += 1;
                for client in 0..CLIENTS + 2 {
                    let matching = |filter| {
                        self.subscribed.contains(&(client, filter)) && Self::matches(filter, *topic)
                    };
                    if client >= CLIENTS || (0..FILTERS.len()).any(matching) {
                        self.may.insert((client, self.published));
                        self.must.insert((client, self.published));
                    }
                }
                if *retain {
                    self.retained.insert(*topic, self.published);
                }
                let message = command::PublishedMessage {
                    retain: *retain,
                    ..message(TOPICS[*topic], *qos, &self.published.to_string())
                };
                self.run(vec![Kind::Publish(command::Publish {
                    message: Some(message),
                    ..Default::default()
                })]);
            }
            Step::Pass => {
                let outputs = self.replica.pass(1);
                self.note(&outputs);
            }
            Step::Restart => self.replica.restart(),
        }
    }

    fn finish(mut self) {
        for client in 0..CLIENTS {
            self.step(&Step::Close(client));
            self.step(&Step::Open(client));
        }
        let outputs = self.replica.settle();
        self.note(&outputs);
        for (client, number) in &self.must {
            let has = |((to, _), got): (&(u8, String), &BTreeSet<u64>)| {
                to == client && got.contains(number)
            };
            assert!(self.got.iter().any(has), "{number} never came to {client}");
        }
        assert_eq!(rows::<schema::FanOut>(&self.replica), 0);
        assert_eq!(rows::<schema::RetainedReplay>(&self.replica), 0);
        for client in 0..CLIENTS + 2 {
            self.run(vec![delete(&client.to_string())]);
        }
        self.replica.settle();
        assert_empty(&self.replica);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn everybody_gets_what_was_published_while_subscribed_and_in_order(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.finish();
    }
}
