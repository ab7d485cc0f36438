//! As [`super::cost`]: members of very many groups, and subscriptions that change while messages come.

use super::Replica;
use super::queues::{acknowledge, durable, granted, publish, rows, subscribe};
use crate::base::ids::ConnectionId;
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::batch::Budget;
use crate::machine::effect::{Output, Reply};
use crate::machine::schema;

/// Sessions that are members of so many groups each that looking them through is much of what this budget allows.
const MEMBERS: u64 = 40;
const GROUPS: usize = 1_000;
const SMALL: Budget = Budget {
    row_operations: 512,
    items_at_least: limits::ITEMS_AT_LEAST,
    overdraft: 512,
    queues_at_least: limits::QUEUES_AT_LEAST,
    looked_up_anew: limits::LOOKED_UP_ANEW_AT_ONCE,
};

fn subscribe_all(client_id: &str, connection: u64, filters: Vec<String>) -> Vec<Kind> {
    let some = filters.chunks(limits::FILTERS_AT_ONCE);
    let subscription = |filter: &String| command::Subscription {
        filter: filter.clone(),
        qos: 1,
        ..Default::default()
    };
    some.map(|some| {
        Kind::Subscribe(command::Subscribe {
            client_id: client_id.to_owned(),
            connection,
            subscriptions: some.iter().map(subscription).collect(),
            ..Default::default()
        })
    })
    .collect()
}

/// To which connections messages were sent.
fn sent_to(outputs: &[Output]) -> Vec<u64> {
    let granted = granted(outputs).into_iter();
    granted.map(|granted| granted.connection.0).collect()
}

/// Whoever has room again is given what waits in its groups. To find that out, its groups are compared with those in
/// which messages wait, which may be as many; one entry does not do so for everybody.
#[test]
fn members_of_many_groups_that_have_room_again() {
    let mut replica = Replica::new();
    // Messages wait in as many groups of somebody who is away.
    replica.present(durable("away", 1, 1));
    let away = (0..GROUPS).map(|number| format!("$share/away-{number}/w"));
    for kind in subscribe_all("away", 1, away.collect()) {
        replica.run(vec![kind]);
    }
    replica.run(vec![super::close("away", 1), publish("w", 1, "x")]);
    replica.settle_cheaply();
    assert_eq!(rows::<schema::Waiting>(&replica), GROUPS);
    for member in 0..MEMBERS {
        let (client_id, connection) = (format!("member-{member}"), member + 10);
        replica.present(durable(&client_id, connection, 1));
        let filters = (0..GROUPS).map(|number| format!("$share/{number}/u"));
        for kind in subscribe_all(&client_id, connection, filters.collect()) {
            replica.run(vec![kind]);
        }
        // It has one message under way, and another one waits in a group of its own.
        let own = format!("$share/own-{member}/v");
        replica.run(vec![
            subscribe(&client_id, connection, "full", 1),
            subscribe(&client_id, connection, &own, 1),
        ]);
    }
    replica.run(vec![publish("full", 1, "x")]);
    replica.settle_cheaply();
    replica.run(vec![publish("v", 1, "y")]);
    replica.settle_cheaply();
    assert_eq!(rows::<schema::Waiting>(&replica), GROUPS + MEMBERS as usize);
    replica.set_budget(SMALL);
    let acknowledged = (0..MEMBERS).map(|member| acknowledge(member + 10, &[1], &[]));
    let outputs = replica.run(acknowledged.collect());
    let mut told = sent_to(&outputs);
    assert!(told.len() < MEMBERS as usize / 2, "{told:?} at once");
    let mut batches = 0;
    while replica.machine.next_due().0 <= replica.now + 1 {
        told.extend(sent_to(&replica.pass(1)));
        batches += 1;
        assert!(batches < 1_000, "there is no end");
        if batches % 3 == 0 {
            replica.restart();
        }
    }
    told.sort_unstable();
    let all: Vec<u64> = (0..MEMBERS).map(|member| member + 10).collect();
    assert_eq!(told, all, "each in its turn");
    assert!(batches > 2, "{batches}");
}

/// Subscriptions to a topic change, and messages are published to it, in turns within one entry.
#[test]
fn a_topic_is_not_looked_up_anew_as_often_as_subscriptions_change() {
    const TURNS: usize = 60;
    let mut replica = Replica::new();
    replica.present(durable("many", 1, 2_048));
    let filters = (0..GROUPS).map(|number| format!("$share/{number}/t"));
    for kind in subscribe_all("many", 1, filters.collect()) {
        replica.run(vec![kind]);
    }
    replica.present(durable("last", 2, 2_048));
    replica.run(vec![subscribe("last", 2, "t", 1)]);
    replica.present(durable("changes", 3, 2_048));
    let before = replica.machine.parts.messaging.look_ups_made();
    let turns = (0..TURNS).flat_map(|number| {
        let message = publish("t", 1, &number.to_string());
        [
            subscribe("changes", 3, &format!("$share/x/{}", number % 2), 1),
            subscribe("changes", 3, "t", 1),
            message,
        ]
    });
    let outputs = replica.run(turns.collect());
    let made = replica.machine.parts.messaging.look_ups_made() - before;
    let most = limits::LOOKED_UP_ANEW_AT_ONCE / GROUPS + 2;
    assert!(made <= most, "{made} look-ups");
    let replies = outputs.iter().filter(|output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::Published { matched: true },
                ..
            }
        )
    });
    assert_eq!(replies.count(), TURNS, "all are taken");
    // Everybody gets all of them, in order.
    let (rest, _) = replica.settle_cheaply();
    for connection in [2, 3] {
        let all = outputs.iter().chain(&rest);
        let payloads: Vec<String> = all
            .filter_map(|output| match output {
                Output::Deliver(granted) if granted.connection == ConnectionId(connection) => {
                    Some(String::from_utf8_lossy(&granted.message.payload).into_owned())
                }
                _ => None,
            })
            .collect();
        let expected: Vec<String> = (0..TURNS).map(|number| number.to_string()).collect();
        assert_eq!(payloads, expected, "connection {connection}");
    }
}

/// What was looked up to judge whether a message may be taken is known when it is published. It does not join those
/// that wait, least of all when as many as may wait do so.
#[test]
fn a_message_that_was_judged_by_a_look_up_does_not_wait() {
    let mut replica = Replica::new();
    for (client_id, connection) in [("away", 1), ("changes", 2)] {
        replica.present(durable(client_id, connection, 1));
    }
    replica.run(vec![subscribe("away", 1, "t", 1), super::close("away", 1)]);
    replica.run(vec![publish("t", 1, "x")]);
    replica.set_budget(Budget {
        looked_up_anew: 0,
        ..Budget::default()
    });
    let judged = |topic: &str| {
        let mut kind = publish(topic, 1, "y");
        if let Kind::Publish(command) = &mut kind {
            command.max_queued_bytes = 1;
        }
        kind
    };
    let changed = subscribe("changes", 2, "u", 0);
    let outputs = replica.run(vec![changed, judged("nobody"), judged("t")]);
    let replies: Vec<&Reply> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        })
        .collect();
    assert!(matches!(replies[1], Reply::Published { matched: false }));
    assert!(!matches!(replies[2], Reply::Published { .. }), "it is full");
    assert_eq!(replica.machine.fan_outs().messages, 0);
}
