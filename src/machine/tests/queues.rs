//! Queues of sessions and retained messages over a map: what is delivered to whom, and what is left on disk.

use super::{Replica, close, open};
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::machine::effect::{Granted, Output, Reply};
use crate::machine::schema::{self, Table};
use crate::session::QoS;

pub(super) const BOUNDS: command::QueueBounds = command::QueueBounds {
    max_messages: 1_000,
    max_bytes: 1_000_000,
    policy: 0,
    qos_0: false,
};

pub(super) fn durable(
    client_id: &str,
    connection: u64,
    receive_maximum: u32,
) -> command::OpenSession {
    command::OpenSession {
        receive_maximum,
        bounds: Some(BOUNDS),
        ..open(client_id, connection)
    }
}

pub(super) fn subscribe(client_id: &str, connection: u64, filter: &str, qos: u32) -> Kind {
    Kind::Subscribe(command::Subscribe {
        client_id: client_id.to_owned(),
        connection,
        subscriptions: vec![command::Subscription {
            filter: filter.to_owned(),
            qos,
            ..Default::default()
        }],
        ..Default::default()
    })
}

pub(super) fn message(topic: &str, qos: u32, payload: &str) -> command::PublishedMessage {
    command::PublishedMessage {
        topic: topic.to_owned(),
        qos,
        payload: payload.to_owned().into(),
        ..Default::default()
    }
}

/// Published by the node itself.
pub(super) fn publish(topic: &str, qos: u32, payload: &str) -> Kind {
    Kind::Publish(command::Publish {
        message: Some(message(topic, qos, payload)),
        ..Default::default()
    })
}

fn retain(topic: &str, qos: u32, payload: &str) -> Kind {
    let retained = command::PublishedMessage {
        retain: true,
        ..message(topic, qos, payload)
    };
    Kind::Publish(command::Publish {
        message: Some(retained),
        max_retained: 3,
        ..Default::default()
    })
}

pub(super) fn acknowledge(connection: u64, completed: &[u64], received: &[u64]) -> Kind {
    Kind::Acknowledge(command::Acknowledge {
        connection,
        completed: completed.to_vec(),
        received: received.to_vec(),
        released: Vec::new(),
    })
}

pub(super) fn granted(outputs: &[Output]) -> Vec<&Granted> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Deliver(granted) => Some(&**granted),
            _ => None,
        })
        .collect()
}

/// Sequence, DUP and payload of what is sent.
pub(super) fn sent(outputs: &[Output]) -> Vec<(u64, bool, String)> {
    granted(outputs)
        .into_iter()
        .map(|granted| {
            let payload = String::from_utf8_lossy(&granted.message.payload).into_owned();
            (granted.sequence.0, granted.dup, payload)
        })
        .collect()
}

fn first(sequence: u64, payload: &str) -> (u64, bool, String) {
    (sequence, false, payload.to_owned())
}

fn again(sequence: u64, payload: &str) -> (u64, bool, String) {
    (sequence, true, payload.to_owned())
}

/// Number of rows of a table.
pub(super) fn rows<T: Table>(replica: &Replica) -> usize {
    rows_of(replica, T::ORDINAL)
}

pub(super) fn rows_of(replica: &Replica, table: u8) -> usize {
    replica.stored.keys().filter(|key| key[0] == table).count()
}

/// Nothing of any queue is left.
pub(super) fn assert_empty(replica: &Replica) {
    for table in [
        schema::Entry::ORDINAL,
        schema::Message::ORDINAL,
        schema::References::ORDINAL,
        schema::Waiting::ORDINAL,
    ] {
        assert_eq!(rows_of(replica, table), 0, "table {table:#x}");
    }
}

#[test]
fn messages_are_granted_up_to_the_receive_maximum_and_wait_for_the_others() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 2));
    replica.run(vec![subscribe("a", 1, "t/+", 1)]);
    let outputs = replica.run(vec![
        publish("t/1", 1, "one"),
        publish("t/1", 2, "two"),
        publish("t/1", 1, "three"),
        publish("other", 1, "nobody's"),
    ]);
    assert_eq!(sent(&outputs), [first(1, "one"), first(2, "two")]);
    assert_eq!(granted(&outputs)[1].qos, QoS::AtLeastOnce, "the lower one");
    let outputs = replica.run(vec![acknowledge(1, &[2], &[])]);
    assert_eq!(sent(&outputs), [first(3, "three")]);
    replica.run(vec![acknowledge(1, &[1, 3, 3, 99], &[])]);
    assert_empty(&replica);
}

#[test]
fn a_resumed_session_is_sent_again_what_it_has_not_acknowledged() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 10));
    replica.run(vec![subscribe("a", 1, "t", 2)]);
    replica.run(vec![
        publish("t", 1, "one"),
        publish("t", 2, "two"),
        publish("t", 2, "three"),
        publish("t", 2, "four"),
    ]);
    replica.run(vec![acknowledge(1, &[1], &[3, 2])]);
    replica.restart();
    replica.run(vec![Kind::CloseSession(command::CloseSession {
        client_id: "a".to_owned(),
        connection: 1,
        sent_through: 3,
        ..Default::default()
    })]);
    replica.run(vec![publish("t", 1, "while away")]);
    let outputs = replica.run(vec![Kind::OpenSession(durable("a", 2, 10))]);
    let releases: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::SendPubRel { sequence, .. } => Some(sequence.0),
            _ => None,
        })
        .collect();
    assert_eq!(releases, [3, 2], "in the order of their PUBRECs");
    assert_eq!(
        sent(&outputs),
        [first(4, "four"), first(5, "while away")],
        "close said that the fourth was not sent"
    );
    replica.run(vec![Kind::CloseSession(command::CloseSession {
        client_id: "a".to_owned(),
        connection: 2,
        sent_through: 4,
        ..Default::default()
    })]);
    let outputs = replica.run(vec![Kind::OpenSession(durable("a", 3, 10))]);
    assert_eq!(sent(&outputs), [again(4, "four"), first(5, "while away")]);
    replica.run(vec![acknowledge(3, &[2, 3, 5], &[4])]);
    assert_eq!(
        rows::<schema::Message>(&replica),
        0,
        "a released message is not needed any more"
    );
    replica.run(vec![acknowledge(3, &[4], &[])]);
    assert_empty(&replica);
}

#[test]
fn a_message_is_stored_once_however_many_sessions_wait_for_it() {
    let mut replica = Replica::new();
    let clients = ["a", "b", "c"];
    for (client, connection) in clients.iter().zip(1..) {
        replica.present(durable(client, connection, 10));
        replica.run(vec![subscribe(client, connection, "t", 1)]);
    }
    replica.run(vec![close("c", 3)]);
    replica.run(vec![publish("t", 1, "one")]);
    assert_eq!(rows::<schema::Message>(&replica), 1);
    assert_eq!(rows::<schema::Entry>(&replica), 3);
    replica.restart();
    replica.run(vec![acknowledge(1, &[1], &[]), acknowledge(2, &[1], &[])]);
    assert_eq!(rows::<schema::Message>(&replica), 1);
    replica.pass(100_000);
    assert_empty(&replica);
    assert_eq!(
        rows::<schema::Queue>(&replica),
        2,
        "the third session has expired"
    );
}

#[test]
fn a_session_that_starts_clean_or_ends_leaves_nothing() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 1));
    replica.run(vec![
        subscribe("a", 1, "t", 2),
        publish("t", 2, "one"),
        publish("t", 2, "two"),
    ]);
    replica.run(vec![Kind::Publish(command::Publish {
        connection: 1,
        packet_id: 7,
        message: Some(message("t", 2, "own")),
        ..Default::default()
    })]);
    assert_eq!(rows::<schema::Received>(&replica), 1);
    let clean = command::OpenSession {
        clean_start: true,
        ..durable("a", 2, 1)
    };
    assert!(!replica.present(clean));
    assert_empty(&replica);
    assert_eq!(
        rows::<schema::Received>(&replica) + rows::<schema::Queue>(&replica),
        0
    );
}

#[test]
fn a_long_queue_of_an_ended_session_goes_some_rows_at_a_time() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        max_messages: u64::MAX,
        ..BOUNDS
    };
    replica.present(command::OpenSession {
        bounds: Some(bounds),
        ..durable("a", 1, 1)
    });
    replica.run(vec![subscribe("a", 1, "t", 1), close("a", 1)]);
    let count = crate::base::limits::ROW_OPERATIONS_AT_ONCE;
    replica.run((0..count).map(|_| publish("t", 1, "x")).collect());
    assert_eq!(rows::<schema::Entry>(&replica), count);
    replica.pass(100_000);
    let left = rows::<schema::Entry>(&replica);
    assert!(left > 0 && left < count, "{left}");
    replica.restart();
    replica.settle();
    assert_empty(&replica);
}

#[test]
fn qos_2_of_a_durable_publisher_is_taken_once_until_its_pubrel() {
    let mut replica = Replica::new();
    replica.present(durable("p", 1, 10));
    replica.present(durable("s", 2, 10));
    replica.run(vec![subscribe("s", 2, "t", 2)]);
    let publish = |connection| {
        Kind::Publish(command::Publish {
            connection,
            packet_id: 7,
            message: Some(message("t", 2, "once")),
            ..Default::default()
        })
    };
    assert_eq!(sent(&replica.run(vec![publish(1)])).len(), 1);
    assert_eq!(
        sent(&replica.run(vec![publish(1)])).len(),
        0,
        "[MQTT-4.3.3-10]"
    );
    replica.restart();
    let reply = replica.reply(Kind::OpenSession(durable("p", 3, 10)));
    assert!(
        matches!(&reply, Reply::Opened { received, present: true, .. } if received == &[7]),
        "{reply:?}"
    );
    assert!(
        matches!(replica.reply(publish(1)), Reply::NotOwner),
        "taken over"
    );
    assert_eq!(sent(&replica.run(vec![publish(3)])).len(), 0);
    replica.run(vec![Kind::Acknowledge(command::Acknowledge {
        connection: 3,
        released: vec![7],
        ..Default::default()
    })]);
    assert_eq!(
        sent(&replica.run(vec![publish(3)])).len(),
        1,
        "a new message"
    );
}

#[test]
fn what_expires_is_not_sent_but_what_was_sent_stays() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 1));
    replica.run(vec![subscribe("a", 1, "t", 1)]);
    let expiring = |payload: &str| {
        Kind::Publish(command::Publish {
            message: Some(command::PublishedMessage {
                expiry_interval_s: Some(10),
                ..message("t", 1, payload)
            }),
            ..Default::default()
        })
    };
    let outputs = replica.run(vec![
        expiring("sent"),
        expiring("waits"),
        publish("t", 1, "stays"),
    ]);
    assert_eq!(granted(&outputs)[0].expiry_s, Some(10));
    replica.pass(4_500);
    replica.run(vec![Kind::CloseSession(command::CloseSession {
        client_id: "a".to_owned(),
        connection: 1,
        sent_through: 1,
        ..Default::default()
    })]);
    let outputs = replica.run(vec![Kind::OpenSession(durable("a", 2, 1))]);
    assert_eq!(granted(&outputs)[0].expiry_s, Some(6), "[MQTT-3.3.2-6]");
    replica.pass(10_000);
    let outputs = replica.run(vec![acknowledge(2, &[1], &[])]);
    assert_eq!(sent(&outputs), [first(3, "stays")], "[MQTT-3.3.2-5]");
    replica.run(vec![acknowledge(2, &[3], &[])]);
    assert_empty(&replica);
}

#[test]
fn a_full_queue_gives_way_as_its_policy_says() {
    for (policy, left) in [(0, vec!["2", "3"]), (1, vec!["1", "2"]), (2, vec![])] {
        let mut replica = Replica::new();
        let bounds = command::QueueBounds {
            max_messages: 2,
            policy,
            ..BOUNDS
        };
        let connect = |connection| command::OpenSession {
            bounds: Some(bounds),
            ..durable("a", connection, 10)
        };
        replica.present(connect(1));
        replica.run(vec![subscribe("a", 1, "t", 1), close("a", 1)]);
        let outputs = replica.run(vec![
            publish("t", 1, "1"),
            publish("t", 1, "2"),
            publish("t", 1, "3"),
        ]);
        let dropped: u64 = outputs
            .iter()
            .map(|output| match output {
                Output::Dropped { count, .. } => *count,
                _ => 0,
            })
            .sum();
        assert_eq!(
            dropped,
            3 - left.len() as u64,
            "every drop is told: {outputs:?}"
        );
        let outputs = replica.run(vec![Kind::OpenSession(connect(2))]);
        let got: Vec<_> = sent(&outputs)
            .into_iter()
            .map(|(_, _, payload)| payload)
            .collect();
        assert_eq!(got, left, "policy {policy}");
    }
}

pub(super) fn keeping_qos_0(connection: u64, qos_0: bool) -> command::OpenSession {
    command::OpenSession {
        bounds: Some(command::QueueBounds { qos_0, ..BOUNDS }),
        ..durable("a", connection, 10)
    }
}

#[test]
fn messages_with_qos_0_wait_only_where_they_were_asked_to() {
    for qos_0 in [false, true] {
        let mut replica = Replica::new();
        let connect = |connection| keeping_qos_0(connection, qos_0);
        replica.present(connect(1));
        replica.run(vec![subscribe("a", 1, "t", 1), close("a", 1)]);
        replica.run(vec![publish("t", 0, "zero")]);
        let outputs = replica.run(vec![Kind::OpenSession(connect(2))]);
        assert_eq!(sent(&outputs).len(), usize::from(qos_0));
        assert_empty(&replica);
        let outputs = replica.run(vec![publish("t", 0, "zero")]);
        assert!(
            outputs
                .iter()
                .any(|output| matches!(output, Output::Publish { .. })),
            "straight to a client that is there: {outputs:?}"
        );
    }
}

#[test]
fn the_retained_message_is_the_last_one_of_its_topic() {
    let mut replica = Replica::new();
    replica.run(vec![
        retain("r/1", 1, "old"),
        retain("r/2", 1, "b"),
        retain("r/1", 1, "new"),
    ]);
    assert_eq!(replica.machine.queue_usage().retained, 2);
    replica.restart();
    replica.present(durable("a", 1, 10));
    let outputs = replica.run(vec![subscribe("a", 1, "r/#", 1)]);
    assert_eq!(sent(&outputs), [first(1, "new"), first(2, "b")]);
    assert!(granted(&outputs).iter().all(|granted| granted.retain));
    replica.run(vec![acknowledge(1, &[1, 2], &[])]);
    assert_empty(&replica);
    assert!(matches!(
        replica.reply(retain("r/3", 1, "c")),
        Reply::Published { .. }
    ));
    assert!(
        matches!(replica.reply(retain("r/4", 1, "d")), Reply::QuotaExceeded),
        "three are allowed"
    );
    assert!(matches!(
        replica.reply(retain("r/3", 1, "")),
        Reply::Published { .. }
    ));
    assert!(matches!(
        replica.reply(retain("r/4", 1, "d")),
        Reply::Published { .. }
    ));
    assert_eq!(rows::<schema::Retained>(&replica), 3);
}

#[test]
fn a_retained_message_goes_when_it_expires_unless_it_was_replaced() {
    let mut replica = Replica::new();
    let expiring = |seconds| {
        Kind::Publish(command::Publish {
            message: Some(command::PublishedMessage {
                retain: true,
                expiry_interval_s: Some(seconds),
                ..message("r", 1, "x")
            }),
            ..Default::default()
        })
    };
    replica.run(vec![expiring(10)]);
    replica.run(vec![expiring(20)]);
    replica.pass(15_000);
    assert_eq!(rows::<schema::Retained>(&replica), 1);
    replica.restart();
    replica.pass(5_001);
    assert_eq!(rows::<schema::Retained>(&replica), 0);
    assert_eq!(replica.machine.queue_usage().retained, 0);
}
