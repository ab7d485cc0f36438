//! As [`super::cost`]: every kind of command, many of it together, in a state that has much of everything.

use std::collections::BTreeSet;

use serde_json::json;

use super::cost::TOGETHER;
use super::events::set_events;
use super::events_subscriptions::{progress, put as put_subscription};
use super::hub::{create, delete, patch, put, report, with_keys};
use super::hub_connections::{hub_open, observe};
use super::queues::{acknowledge, durable, message, publish, subscribe};
use super::{INCARNATION, NODE, Replica, directory, set, with_will};
use crate::base::directory::Kind as DirectoryKind;
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::registry::IfMatch;
use crate::store::Condition;

const KINDS: usize = 26;

/// Each kind that ends sessions has clients of its own.
const CLIENTS: usize = 3 * TOGETHER;

/// A number of each kind. Whoever adds a kind adds it to [`worst`], too.
fn number(kind: &Kind) -> usize {
    match kind {
        Kind::Nothing(_) => 0,
        Kind::NodeDisk(_) => 1,
        Kind::HashState(_) => 2,
        Kind::StateHash(_) => 3,
        Kind::OpenSession(_) => 4,
        Kind::Subscribe(_) => 5,
        Kind::Publish(_) => 6,
        Kind::Acknowledge(_) => 7,
        Kind::StoreWrite(_) => 8,
        Kind::KeyNotify(_) => 9,
        Kind::Relay(_) => 10,
        Kind::WriteDirectory(_) => 11,
        Kind::PutIdentity(_) => 12,
        Kind::UpdateTwin(_) => 13,
        Kind::PatchReported(_) => 14,
        Kind::SetEvents(_) => 15,
        Kind::PutEventSubscription(_) => 16,
        Kind::EventProgress(_) => 17,
        Kind::ReplayDeadLetters(_) => 18,
        Kind::DeleteEventSubscription(_) => 19,
        Kind::Unsubscribe(_) => 20,
        Kind::Disconnect(_) => 21,
        Kind::CloseSession(_) => 22,
        Kind::DeleteIdentity(_) => 23,
        Kind::DeleteSession(_) => 24,
        Kind::NodeDown(_) => 25,
    }
}

fn client_id(n: usize) -> String {
    format!("c{n}")
}

fn device(n: usize) -> String {
    format!("d{n}")
}

/// Connections of devices have these numbers, and those of other clients smaller ones.
fn of_device(n: usize) -> u64 {
    (CLIENTS + n + 1) as u64
}

fn session(n: usize) -> Kind {
    let session = durable(&client_id(n), n as u64 + 1, 4);
    Kind::OpenSession(with_will(session, 0))
}

fn watch(n: usize) -> Kind {
    Kind::KeyNotify(command::KeyNotify {
        client_id: client_id(n),
        connection: n as u64 + 1,
        key: (n % 50).to_be_bytes().to_vec().into(),
        ..Default::default()
    })
}

fn write(n: usize) -> Kind {
    let correlation = n.to_be_bytes();
    let key = (n % 50).to_be_bytes();
    Kind::StoreWrite(set(&key, b"v", Condition::None, Some(60_000), &correlation))
}

fn retained(n: usize) -> Kind {
    let message = command::PublishedMessage {
        retain: true,
        ..message(&format!("own/{n}"), 2, "x")
    };
    Kind::Publish(command::Publish {
        connection: n as u64 + 1,
        packet_id: 1,
        message: Some(message),
        ..Default::default()
    })
}

/// Sessions with messages under way and waiting, watches, wills and retained messages; devices that are connected and
/// observe their twins; an event subscription with all their events.
fn replica() -> Replica {
    let mut replica = Replica::new();
    replica.run(vec![
        set_events(|settings| settings.keep_s = 1_000_000),
        Kind::PutEventSubscription(put_subscription("s")),
    ]);
    for n in 0..CLIENTS {
        let own = ["own/#".to_owned(), format!("$share/{}/all", n % 20)];
        let filters: Vec<String> = own
            .into_iter()
            .chain((0..10).map(|n| format!("s/{n}")))
            .collect();
        let mut kinds = vec![session(n), watch(n), write(n), create(&device(n))];
        kinds.extend(
            filters
                .iter()
                .map(|filter| subscribe(&client_id(n), n as u64 + 1, filter, 1)),
        );
        let opened = hub_open(&device(n), of_device(n), n as u64 + 1, 1);
        kinds.push(Kind::OpenSession(opened));
        kinds.push(observe(&device(n), of_device(n)));
        replica.run(kinds);
        replica.settle_cheaply();
    }
    for n in 0..10 {
        replica.run(vec![retained(n), publish("all", 1, "x")]);
        replica.settle_cheaply();
    }
    replica
}

/// As many commands of each kind as a test has in one batch, each of which has work to do; those that end something
/// last.
fn worst(replica: &Replica) -> Vec<Vec<Kind>> {
    let each = |kind: &dyn Fn(usize) -> Kind| (0..TOGETHER).map(kind).collect::<Vec<_>>();
    let some =
        |from: usize, kind: &dyn Fn(usize) -> Kind| (from..from + TOGETHER).map(kind).collect();
    let twin = json!({"tags": {"a": 1}, "properties": {"desired": {"b": 1}}});
    let account = progress(replica, "s", 100);
    let (first, all) = (command::HashState { voters: vec![1] }, 1..=4);
    vec![
        each(&|_| Kind::Nothing(command::Nothing {})),
        each(&|n| Kind::NodeDisk(command::NodeDisk { low: n % 2 == 0 })),
        each(&|_| Kind::HashState(first.clone())),
        each(&|n| {
            Kind::StateHash(command::StateHash {
                index: n as u64,
                tables: vec![1; 17 * 40].into(),
            })
        }),
        each(&session),
        each(&|n| subscribe(&client_id(n), n as u64 + 1, "own/+", 1)),
        // A publication into many queues is bounded by what it weighs (`cost_weighed`).
        each(&|n| retained(n))
            .into_iter()
            .take(TOGETHER / 10)
            .collect(),
        each(&|n| acknowledge(n as u64 + 1, &all.clone().collect::<Vec<_>>(), &[])),
        each(&|n| write(n + TOGETHER)),
        each(&|n| watch(n + 1)),
        each(&|n| {
            Kind::Relay(command::Relay {
                to: 2,
                incarnation: INCARNATION.0,
                sequence: n as u64 + 1,
                messages: vec![0; 100].into(),
            })
        }),
        each(&|n| {
            directory::write(vec![directory::put(
                DirectoryKind::Ban,
                &n.to_string(),
                "{}",
            )])
        }),
        each(&|n| patch(&device(n), &twin)),
        each(&|n| Kind::PatchReported(report(&device(n), of_device(n), &json!({"c": n})))),
        // The keys change, which ends the connections.
        each(&|n| put(&device(n), IfMatch::Any, with_keys([3, 4]))),
        each(&|n| set_events(|settings| settings.sequences_max = 1_000 + n as u64)),
        each(&|n| Kind::PutEventSubscription(put_subscription(&n.to_string()))),
        each(&|_| Kind::EventProgress(account.clone())),
        each(&|_| {
            Kind::ReplayDeadLetters(command::ReplayDeadLetters {
                name: "s".to_owned(),
                from: 1,
                through: u64::MAX,
                purge: true,
            })
        }),
        each(&|n| {
            Kind::DeleteEventSubscription(command::DeleteEventSubscription {
                name: n.to_string(),
            })
        }),
        each(&|n| {
            Kind::Unsubscribe(command::Unsubscribe {
                client_id: client_id(n),
                connection: n as u64 + 1,
                filters: vec!["own/#".to_owned(), format!("$share/{}/all", n % 20)],
            })
        }),
        some(0, &|n| {
            Kind::Disconnect(command::Disconnect {
                client_id: client_id(n),
            })
        }),
        some(TOGETHER, &|n| {
            Kind::CloseSession(command::CloseSession {
                client_id: client_id(n),
                connection: n as u64 + 1,
                expiry_interval_s: Some(0),
                ..Default::default()
            })
        }),
        each(&|n| delete(&device(n), IfMatch::Any)),
        some(2 * TOGETHER, &|n| {
            Kind::DeleteSession(command::DeleteSession {
                client_id: client_id(n),
            })
        }),
        vec![Kind::NodeDown(command::NodeDown {
            node: NODE.0,
            incarnation: INCARNATION.0,
        })],
    ]
}

#[test]
fn every_kind_of_command_many_together() {
    let mut replica = replica();
    let mut seen = BTreeSet::new();
    for commands in worst(&replica) {
        let kind = number(&commands[0]);
        let together = commands.len();
        let outputs = replica.run(commands);
        let operations = replica.operations;
        eprintln!("{together} commands of kind {kind}: {operations} row operations");
        replica.check_cost();
        let told = outputs.len() as u64;
        assert!(
            told <= 4 * limits::ROW_OPERATIONS_AT_ONCE as u64,
            "{together} commands of kind {kind} tell connections {told} things",
        );
        replica.settle_cheaply();
        seen.insert(kind);
    }
    assert_eq!(seen.len(), KINDS, "every kind is tried");
}
