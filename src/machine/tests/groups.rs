//! Groups of shared subscriptions: which member is sent what, and what waits.

use std::collections::BTreeMap;

use super::queues::{
    acknowledge, assert_empty, durable, granted, keeping_qos_0, publish, rows, sent, subscribe,
};
use super::{Replica, close};
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::Output;
use crate::machine::schema;

/// Which connection was sent what.
fn shares(outputs: &[Output]) -> BTreeMap<u64, Vec<String>> {
    let mut shares: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for granted in granted(outputs) {
        let payload = String::from_utf8_lossy(&granted.message.payload).into_owned();
        shares
            .entry(granted.connection.0)
            .or_default()
            .push(payload);
    }
    shares
}

fn share(connection: u64, payloads: &[&str]) -> (u64, Vec<String>) {
    (
        connection,
        payloads.iter().map(|&payload| payload.to_owned()).collect(),
    )
}

/// Two members, the first of which may have one message under way.
fn group() -> Replica {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 1));
    let transient = command::OpenSession {
        expiry_interval_s: 0,
        ..durable("b", 2, 2)
    };
    replica.present(transient);
    replica.run(vec![
        subscribe("a", 1, "$share/g/t", 1),
        subscribe("b", 2, "$share/g/t", 1),
    ]);
    replica
}

#[test]
fn members_take_turns_and_what_none_can_take_waits() {
    let mut replica = group();
    let outputs = replica.run(
        ["1", "2", "3", "4", "5"]
            .map(|n| publish("t", 1, n))
            .to_vec(),
    );
    let expected = BTreeMap::from([share(1, &["1"]), share(2, &["2", "3"])]);
    assert_eq!(shares(&outputs), expected);
    assert_eq!(rows::<schema::Waiting>(&replica), 2);
    replica.restart();
    let outputs = replica.run(vec![acknowledge(2, &[1], &[])]);
    assert_eq!(shares(&outputs), BTreeMap::from([share(2, &["4"])]));
    let outputs = replica.run(vec![acknowledge(1, &[1], &[])]);
    assert_eq!(shares(&outputs), BTreeMap::from([share(1, &["5"])]));
    replica.run(vec![
        acknowledge(1, &[2], &[]),
        acknowledge(2, &[2, 3], &[]),
    ]);
    assert_empty(&replica);
}

#[test]
fn what_a_lost_member_was_sent_goes_to_the_others_first() {
    let mut replica = group();
    replica.run(["1", "2", "3", "4"].map(|n| publish("t", 1, n)).to_vec());
    replica.run(vec![close("b", 2)]);
    let outputs = replica.run(vec![acknowledge(1, &[1], &[])]);
    assert_eq!(shares(&outputs), BTreeMap::from([share(1, &["2"])]));
    let outputs = replica.run(vec![acknowledge(1, &[2], &[])]);
    assert_eq!(shares(&outputs), BTreeMap::from([share(1, &["3"])]));
    replica.run(vec![close("a", 1)]);
    let outputs = replica.run(vec![Kind::OpenSession(durable("a", 3, 5))]);
    assert_eq!(
        sent(&outputs).len(),
        2,
        "a durable member's group goes on collecting"
    );
    replica.pass(0);
    replica.run(vec![close("a", 3)]);
    replica.pass(200_000);
    assert_empty(&replica);
    assert_eq!(rows::<schema::Group>(&replica), 0);
}

#[test]
fn a_group_keeps_messages_with_qos_0_only_where_a_member_asks_for_it() {
    for qos_0 in [false, true] {
        let mut replica = Replica::new();
        let connect = |connection| keeping_qos_0(connection, qos_0);
        replica.present(connect(1));
        replica.run(vec![subscribe("a", 1, "$share/g/t", 1)]);
        let sent_at_once = |outputs: &[Output]| {
            let sends = outputs
                .iter()
                .filter(|output| matches!(output, Output::Send { .. }));
            sends.count()
        };
        let outputs = replica.run(vec![publish("t", 0, "now")]);
        assert_eq!(sent_at_once(&outputs), 1);
        replica.run(vec![close("a", 1)]);
        replica.run(vec![publish("t", 0, "one"), publish("t", 0, "two")]);
        assert_eq!(rows::<schema::Waiting>(&replica), 2 * usize::from(qos_0));
        replica.restart();
        let outputs = replica.run(vec![Kind::OpenSession(connect(2))]);
        assert_eq!(sent_at_once(&outputs), 2 * usize::from(qos_0));
        assert_empty(&replica);
    }
}

#[test]
fn a_group_is_its_name_and_its_filter() {
    let mut replica = group();
    replica.present(durable("c", 3, 9));
    replica.run(vec![
        subscribe("c", 3, "$share/g/+", 1),
        subscribe("c", 3, "$share/h/t", 1),
        subscribe("c", 3, "t", 1),
    ]);
    let outputs = replica.run(vec![publish("t", 1, "x")]);
    let expected = BTreeMap::from([share(1, &["x"]), share(3, &["x", "x", "x"])]);
    assert_eq!(shares(&outputs), expected);
}

#[test]
fn a_member_whose_queue_is_full_is_passed_over() {
    let mut replica = Replica::new();
    for (client_id, connection, max_messages) in [("a", 1, 1), ("b", 2, 2)] {
        replica.present(command::OpenSession {
            bounds: Some(command::QueueBounds {
                max_messages,
                ..super::queues::BOUNDS
            }),
            ..durable(client_id, connection, 100)
        });
        replica.run(vec![subscribe(client_id, connection, "$share/g/t", 1)]);
    }
    let outputs = replica.run(["1", "2", "3", "4"].map(|n| publish("t", 1, n)).to_vec());
    let expected = BTreeMap::from([share(1, &["1"]), share(2, &["2", "3"])]);
    assert_eq!(shares(&outputs), expected);
    let is_drop = |output: &&Output| matches!(output, Output::Dropped { .. });
    assert_eq!(outputs.iter().filter(is_drop).count(), 0);
    let outputs = replica.run(vec![acknowledge(1, &[1], &[])]);
    assert_eq!(shares(&outputs), BTreeMap::from([share(1, &["4"])]));
    replica.run(vec![
        acknowledge(1, &[2], &[]),
        acknowledge(2, &[1, 2], &[]),
    ]);
    assert_empty(&replica);
}

/// The numbers after those that are sent again were finished on the former connection.
#[test]
fn a_resumed_member_with_messages_under_way_is_given_new_ones() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 10));
    replica.run(vec![
        subscribe("a", 1, "own", 1),
        subscribe("a", 1, "$share/g/t", 1),
    ]);
    replica.run(["1", "2", "3"].map(|n| publish("own", 1, n)).to_vec());
    replica.run(vec![acknowledge(1, &[2, 3], &[])]);
    replica.run(vec![close("a", 1)]);
    replica.run(vec![publish("t", 1, "waits")]);
    let outputs = replica.run(vec![Kind::OpenSession(durable("a", 2, 10))]);
    assert_eq!(
        shares(&outputs),
        BTreeMap::from([share(2, &["1", "waits"])])
    );
    let outputs = replica.run(vec![publish("t", 1, "new")]);
    assert_eq!(shares(&outputs), BTreeMap::from([share(2, &["new"])]));
    replica.run(vec![acknowledge(2, &[1, 4, 5], &[])]);
    assert_empty(&replica);
}
