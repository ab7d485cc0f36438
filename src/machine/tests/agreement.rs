//! Whatever happens to sessions in whatever order: replicas agree byte for byte, also when their memory is thrown away
//! in between, no message is kept longer than a queue refers to it, and nothing is left when all sessions have ended.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::queues::{
    BOUNDS, acknowledge, assert_empty, durable, message, rows, rows_of, sent, subscribe,
};
use super::{INCARNATION, NODE, Replica, proposal};
use crate::base::ids::{Incarnation, SessionId};
use crate::base::proto::command::command::Kind;
use crate::base::proto::{command, state};
use crate::machine::batch;
use crate::machine::effect::Output;
use crate::machine::retained::replay::Budget;
use crate::machine::schema::{self, Table as _};
use crate::machine::state_hash::hash_tables;
use crate::session::Sequence;

#[derive(Clone, Debug)]
enum Step {
    Open {
        client: u8,
        clean: bool,
        transient: bool,
        receive_maximum: u32,
    },
    Close {
        client: u8,
        sent: u64,
    },
    Subscribe {
        client: u8,
        filter: usize,
        qos: u32,
    },
    Unsubscribe {
        client: u8,
        filter: usize,
    },
    Publish {
        client: Option<u8>,
        topic: usize,
        qos: u32,
        retain: bool,
        expiry: Option<u32>,
    },
    Acknowledge {
        client: u8,
        from: u64,
        count: u64,
        received: bool,
    },
    Pass(u64),
    NodeDown,
}

const FILTERS: [&str; 6] = ["t/0", "t/+", "#", "$share/g/t/+", "$share/h/#", "+/+"];

/// Wildcard patterns of a session: those of all filters but one.
const MAX_PATTERNS: u64 = 3;
const TOPICS: [&str; 6] = ["t/0", "t/1", "t/2", "t/3", "u", "v"];

/// So small that most retained replays take several batches.
const BUDGET: Budget = Budget {
    rows: 2,
    bytes: 20,
    waiting: 2,
};

/// So small that nearly everything is continued in later batches.
const TIGHT: batch::Budget = batch::Budget {
    row_operations: 10,
    items_at_least: 1,
    overdraft: 0,
    queues_at_least: 1,
    looked_up_anew: 3,
};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = 0u8..4;
    let step = prop_oneof![
        3 => (client.clone(), prop::bool::weighted(0.2), prop::bool::weighted(0.3), 1u32..4).prop_map(
            |(client, clean, transient, receive_maximum)| Step::Open { client, clean, transient, receive_maximum }
        ),
        1 => (client.clone(), 0u64..6).prop_map(|(client, sent)| Step::Close { client, sent }),
        3 => (client.clone(), 0..FILTERS.len(), 0u32..3)
            .prop_map(|(client, filter, qos)| Step::Subscribe { client, filter, qos }),
        1 => (client.clone(), 0..FILTERS.len())
            .prop_map(|(client, filter)| Step::Unsubscribe { client, filter }),
        8 => (
            prop::option::of(client.clone()),
            0..TOPICS.len(),
            0u32..3,
            prop::bool::weighted(0.2),
            prop::option::weighted(0.2, 0u32..3),
        )
            .prop_map(|(client, topic, qos, retain, expiry)| Step::Publish { client, topic, qos, retain, expiry }),
        6 => (client, 1u64..20, 1u64..4, any::<bool>())
            .prop_map(|(client, from, count, received)| Step::Acknowledge { client, from, count, received }),
        1 => (0u64..3_000).prop_map(Step::Pass),
        1 => Just(Step::NodeDown),
    ];
    prop::collection::vec(step, 0..80)
}

/// Carries steps out, with memory thrown away before some of them.
struct Run {
    replica: Replica,
    incarnation: u64,
    sequence: u64,
    next_connection: u64,
    connections: BTreeMap<u8, u64>,
}

impl Run {
    fn new(is_tight: bool) -> Run {
        let mut replica = Replica::new();
        replica.machine.parts.messaging.set_replay_budget(BUDGET);
        if is_tight {
            replica.set_budget(TIGHT);
        }
        Run {
            replica,
            incarnation: INCARNATION.0 + 1,
            sequence: 0,
            next_connection: 0,
            connections: BTreeMap::new(),
        }
    }

    fn commands(&mut self, kinds: Vec<Kind>) -> Vec<Output> {
        self.sequence += 1;
        let batch = proposal(NODE, Incarnation(self.incarnation), self.sequence, kinds);
        self.replica.apply(vec![batch])
    }

    fn step(&mut self, step: &Step) -> Vec<Output> {
        let bounds = command::QueueBounds {
            max_messages: 6,
            qos_0: true,
            ..BOUNDS
        };
        let connection = |run: &Run, client| run.connections.get(client).copied().unwrap_or(999);
        let kind = match step {
            Step::Open {
                client,
                clean,
                transient,
                receive_maximum,
            } => {
                self.next_connection += 1;
                self.connections.insert(*client, self.next_connection);
                Kind::OpenSession(command::OpenSession {
                    clean_start: *clean,
                    expiry_interval_s: if *transient { 0 } else { 5 },
                    bounds: Some(bounds),
                    ..durable(&client.to_string(), self.next_connection, *receive_maximum)
                })
            }
            Step::Close { client, sent } => Kind::CloseSession(command::CloseSession {
                client_id: client.to_string(),
                connection: connection(self, client),
                sent_through: *sent,
                ..Default::default()
            }),
            Step::Subscribe {
                client,
                filter,
                qos,
            } => {
                let client_id = client.to_string();
                let connection = connection(self, client);
                let mut kind = subscribe(&client_id, connection, FILTERS[*filter], *qos);
                if let Kind::Subscribe(command) = &mut kind {
                    command.max_session_patterns = MAX_PATTERNS;
                }
                kind
            }
            Step::Unsubscribe { client, filter } => Kind::Unsubscribe(command::Unsubscribe {
                client_id: client.to_string(),
                connection: connection(self, client),
                filters: vec![FILTERS[*filter].to_owned()],
            }),
            Step::Publish {
                client,
                topic,
                qos,
                retain,
                expiry,
            } => Kind::Publish(command::Publish {
                connection: client.as_ref().map_or(0, |client| connection(self, client)),
                packet_id: if *qos == 2 { 1 } else { 0 },
                message: Some(command::PublishedMessage {
                    retain: *retain,
                    expiry_interval_s: *expiry,
                    ..message(TOPICS[*topic], *qos, "payload")
                }),
                max_retained: 5,
                ..Default::default()
            }),
            Step::Acknowledge {
                client,
                from,
                count,
                received,
            } => {
                let sequences: Vec<u64> = (*from..from + count).collect();
                let connection = connection(self, client);
                if *received {
                    acknowledge(connection, &[], &sequences)
                } else {
                    Kind::Acknowledge(command::Acknowledge {
                        released: vec![1],
                        connection,
                        completed: sequences,
                        received: Vec::new(),
                    })
                }
            }
            Step::Pass(ms) => return self.replica.pass(*ms),
            Step::NodeDown => {
                self.incarnation += 1;
                self.sequence = 0;
                return self.commands(Vec::new());
            }
        };
        self.commands(vec![kind])
    }
}

/// Every message row is referred to, as often as it says, and no row refers to nothing.
fn check_references(replica: &Replica) {
    use prost::Message as _;
    let mut references: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let (mut messages, mut bytes) = (0, 0);
    for (key, row) in &replica.stored {
        if [schema::Entry::ORDINAL, schema::Waiting::ORDINAL].contains(&key[0])
            && let crate::session::Entry::Queued(queued) =
                crate::session::Entry::decode(row).expect("a row")
        {
            *references
                .entry(schema::Message::encode(queued.message))
                .or_default() += 1;
            messages += 1;
            bytes += u64::from(queued.size);
        }
    }
    for key in replica.stored.keys() {
        if key[0] == schema::FanOut::ORDINAL {
            let mut message = key.clone();
            message[0] = schema::Message::ORDINAL;
            *references.entry(message).or_default() += 1;
        }
    }
    let usage = replica.machine.queue_usage();
    assert_eq!((usage.messages, usage.bytes), (messages, bytes));
    for (key, count) in &references {
        assert!(replica.stored.contains_key(key), "a message is missing");
        let mut row = key.clone();
        row[0] = schema::References::ORDINAL;
        let known = replica.stored.get(&row).map_or(1, |row| {
            u32::from_be_bytes(row[..].try_into().expect("four bytes"))
        });
        assert_eq!(known, *count, "references of {key:?}");
    }
    assert_eq!(
        rows::<schema::Message>(replica),
        references.len(),
        "a message is left"
    );
    for (key, row) in &replica.stored {
        if key[0] == schema::Queue::ORDINAL {
            let row = state::Queue::decode(&row[..]).expect("a row");
            let session = SessionId(u64::from_be_bytes(
                key[1..].try_into().expect("eight bytes"),
            ));
            let range = schema::Entry::from(session, Sequence::NONE);
            let entries = replica.stored.range(range.from..range.to).count() as u64;
            assert_eq!(row.messages + u64::from(row.released), entries, "{row:?}");
        }
    }
}

/// What the replica would say of its state.
fn hashes(replica: &Replica) -> Option<Bytes> {
    hash_tables(&replica.stored, &mut |_| true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn replicas_agree_whatever_was_in_memory_and_leave_nothing_behind(
        steps in steps(), restarts in prop::collection::btree_set(0usize..80, 0..10), is_tight in any::<bool>(),
    ) {
        let mut whole = Run::new(is_tight);
        let mut restarted = Run::new(is_tight);
        for (number, step) in steps.iter().enumerate() {
            if restarts.contains(&number) {
                restarted.replica.restart();
                restarted.replica.machine.parts.messaging.set_replay_budget(BUDGET);
            }
            let outputs = whole.step(step);
            let others = restarted.step(step);
            prop_assert_eq!(format!("{:?}", sent(&outputs)), format!("{:?}", sent(&others)));
            prop_assert_eq!(&whole.replica.stored, &restarted.replica.stored, "after step {} {:?}", number, step);
            prop_assert_eq!(hashes(&whole.replica), hashes(&restarted.replica));
            check_references(&whole.replica);
        }
        // All sessions end, and what they leave behind goes: a replica that restarts before each batch does the same.
        for run in [&mut whole, &mut restarted] {
            run.step(&Step::NodeDown);
        }
        for ms in [1, 10_000] {
            let mut passes = ms;
            while passes > 1 || whole.replica.machine.next_due().0 <= whole.replica.now + 1 {
                restarted.replica.restart();
                restarted.replica.machine.parts.messaging.set_replay_budget(BUDGET);
                for run in [&mut whole, &mut restarted] {
                    run.replica.pass(passes);
                }
                prop_assert_eq!(&whole.replica.stored, &restarted.replica.stored, "while everything ends");
                passes = 1;
            }
        }
        assert_empty(&whole.replica);
        let tables = [
            schema::Queue::ORDINAL,
            schema::Received::ORDINAL,
            schema::Group::ORDINAL,
            schema::Session::ORDINAL,
            schema::Subscription::ORDINAL,
            schema::RetainedReplay::ORDINAL,
            schema::ReplayedTopic::ORDINAL,
            schema::EndedSession::ORDINAL,
            schema::FanOut::ORDINAL,
            schema::EndedIncarnation::ORDINAL,
            schema::Timer::ORDINAL,
            schema::WorkTimer::ORDINAL,
        ];
        for table in tables {
            prop_assert_eq!(rows_of(&whole.replica, table), 0, "table {:#x}", table);
        }
    }
}
