//! Messages for more sessions and groups than one log entry serves: who gets them, in which order, and what is refused.

use super::queues::{BOUNDS, durable, granted, message, publish, rows, sent, subscribe};
use super::{Replica, close, open, with_will};
use crate::base::limits;
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::machine::batch::Budget;
use crate::machine::effect::{DropReason, Output, Reply};
use crate::machine::schema::{self, Table as _};

/// One queue at the message's own entry, one with each later one.
pub(super) const TIGHT: Budget = Budget {
    row_operations: 4,
    items_at_least: 1,
    overdraft: 0,
    queues_at_least: 1,
    looked_up_anew: 1,
};

const CLIENTS: u8 = 4;

/// Sessions `0` to `3`, each with the connection that is its number and one, all subscribed to `t`.
fn four() -> Replica {
    let mut replica = Replica::new();
    replica.set_budget(TIGHT);
    for client in 0..CLIENTS {
        let (client_id, connection) = (client.to_string(), u64::from(client) + 1);
        let bounds = command::QueueBounds {
            max_bytes: u64::MAX,
            ..BOUNDS
        };
        replica.present(command::OpenSession {
            bounds: Some(bounds),
            ..durable(&client_id, connection, 100)
        });
        replica.run(vec![subscribe(&client_id, connection, "t", 2)]);
    }
    replica
}

/// Connection and payload of what is sent through queues.
fn deliveries(outputs: &[Output]) -> Vec<(u64, String)> {
    let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
    let granted = granted(outputs).into_iter();
    granted
        .map(|granted| (granted.connection.0, text(&granted.message.payload)))
        .collect()
}

fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    let pairs = expected.iter();
    pairs.map(|(to, what)| (*to, (*what).to_owned())).collect()
}

pub(super) fn unsubscribe(client_id: &str, connection: u64, filter: &str) -> Kind {
    Kind::Unsubscribe(command::Unsubscribe {
        client_id: client_id.to_owned(),
        connection,
        filters: vec![filter.to_owned()],
    })
}

pub(super) fn delete(client_id: &str) -> Kind {
    Kind::DeleteSession(command::DeleteSession {
        client_id: client_id.to_owned(),
    })
}

#[test]
fn a_message_goes_on_with_later_entries_and_the_next_one_waits_behind_it() {
    let mut replica = four();
    let outputs = replica.run(vec![publish("t", 1, "x"), publish("t", 2, "y")]);
    assert_eq!(deliveries(&outputs), pairs(&[(1, "x")]));
    let replies = |output: &&Output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::Published { matched: true },
                ..
            }
        )
    };
    assert_eq!(outputs.iter().filter(replies).count(), 2, "both are stored");
    assert_eq!(rows::<schema::FanOut>(&replica), 2);
    replica.restart();
    // A message of another topic does not wait.
    replica.run(vec![subscribe("3", 4, "u", 1)]);
    let outputs = replica.run(vec![publish("u", 1, "z")]);
    assert!(deliveries(&outputs).contains(&(4, "z".to_owned())));
    let last = deliveries(&replica.settle());
    let to_last: Vec<_> = last.iter().filter(|(to, _)| *to == 4).collect();
    assert_eq!(to_last, [&(4, "x".to_owned()), &(4, "y".to_owned())]);
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
    assert_eq!(rows::<schema::Message>(&replica), 3);
    assert_eq!(rows::<schema::WorkTimer>(&replica), 0);
}

#[test]
fn who_subscribes_afterwards_gets_nothing_and_who_leaves_is_passed_over() {
    let mut replica = four();
    for client in ["late", "again", "twice"] {
        replica.present(durable(client, 10 + client.len() as u64, 100));
    }
    replica.run(vec![
        subscribe("again", 15, "t", 1),
        subscribe("twice", 15, "t", 1),
    ]);
    replica.run(vec![publish("t", 1, "x"), subscribe("late", 14, "t", 1)]);
    // The timer has come to the second session when these leave; one of them comes back.
    let leave = vec![
        unsubscribe("2", 3, "t"),
        unsubscribe("again", 15, "t"),
        delete("3"),
    ];
    let mut outputs = replica.run(leave);
    outputs.extend(replica.run(vec![subscribe("again", 15, "t", 1)]));
    replica.restart();
    outputs.extend(replica.settle());
    let got = |to: u64| deliveries(&outputs).contains(&(to, "x".to_owned()));
    assert!(!got(14), "it subscribed afterwards");
    assert!(!got(3) && !got(4), "it left before");
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
    let outputs = replica.run(vec![publish("t", 1, "y")]);
    let mut all = deliveries(&outputs);
    all.extend(deliveries(&replica.settle()));
    assert!(all.contains(&(14, "y".to_owned())));
}

#[test]
fn who_connects_meanwhile_gets_it_once() {
    let mut replica = four();
    replica.run(vec![close("3", 4)]);
    replica.run(vec![publish("t", 2, "x")]);
    let mut outputs = replica.run(vec![Kind::OpenSession(durable("3", 9, 100))]);
    outputs.extend(replica.settle());
    let to_last = |(to, _): &(u64, String)| *to == 9;
    assert_eq!(deliveries(&outputs).into_iter().filter(to_last).count(), 1);
}

/// With QoS 0 only those get it whose session had no connection then and since: another one may have been sent it.
#[test]
fn at_most_once_is_kept() {
    let mut replica = Replica::new();
    replica.set_budget(TIGHT);
    for client in ["a", "b", "c", "d"] {
        let bounds = command::QueueBounds {
            qos_0: true,
            ..BOUNDS
        };
        let opened = command::OpenSession {
            bounds: Some(bounds),
            ..durable(client, 1, 100)
        };
        replica.run(vec![Kind::OpenSession(opened.clone())]);
        replica.run(vec![subscribe(client, 1, "t", 0)]);
        if client != "c" {
            replica.run(vec![close(client, 1)]);
        }
        replica.run(vec![delete("nobody")]);
        if client == "c" {
            replica.run(vec![publish("other", 0, "x")]);
        }
    }
    replica.run(vec![publish("t", 0, "x")]);
    assert_eq!(rows::<schema::FanOut>(&replica), 1);
    replica.run(vec![close("c", 1)]);
    replica.settle();
    assert_eq!(rows::<schema::Entry>(&replica), 3, "a, b and d");
}

#[test]
fn wills_go_on_as_well_and_groups_too() {
    let mut replica = four();
    for client in 0..CLIENTS {
        let (client_id, connection) = (client.to_string(), u64::from(client) + 1);
        replica.run(vec![
            subscribe(&client_id, connection, "will", 1),
            subscribe(&client_id, connection, &format!("$share/{client}/will"), 1),
        ]);
    }
    let mut opened = with_will(open("w", 8), 0);
    if let Some(message) = opened.will.as_mut().and_then(|will| will.message.as_mut()) {
        message.qos = 1;
        message.payload = "w".into();
    }
    replica.run(vec![Kind::OpenSession(opened)]);
    let mut outputs = replica.run(vec![close("w", 8)]);
    assert_eq!(rows::<schema::FanOut>(&replica), 1);
    // A group that is made anew does not get it.
    outputs.extend(replica.run(vec![unsubscribe("3", 4, "$share/3/will")]));
    outputs.extend(replica.run(vec![subscribe("3", 4, "$share/3/will", 1)]));
    let mut batches = 0;
    while replica.machine.next_due().0 <= replica.now {
        outputs.extend(replica.pass(0));
        replica.restart();
        batches += 1;
    }
    assert!(batches >= 3, "{batches} batches");
    let mut came = deliveries(&outputs);
    came.sort_unstable();
    let expected = [
        (1, "w"),
        (1, "w"),
        (2, "w"),
        (2, "w"),
        (3, "w"),
        (3, "w"),
        (4, "w"),
    ];
    assert_eq!(came, pairs(&expected));
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
}

#[test]
fn a_message_that_expires_on_its_way_is_counted() {
    let mut replica = four();
    let expires = command::PublishedMessage {
        expiry_interval_s: Some(1),
        ..message("t", 1, "x")
    };
    replica.run(vec![Kind::Publish(command::Publish {
        message: Some(expires),
        ..Default::default()
    })]);
    let outputs = replica.pass(5_000);
    let expired = |output: &Output| {
        matches!(
            output,
            Output::Dropped {
                reason: DropReason::Expired,
                ..
            }
        )
    };
    assert!(outputs.iter().any(expired));
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
}

#[test]
fn what_is_on_its_way_is_bounded_and_wills_count_but_are_not_refused() {
    let mut replica = four();
    let bounds = command::QueueBounds {
        max_bytes: u64::MAX,
        qos_0: true,
        ..BOUNDS
    };
    replica.present(command::OpenSession {
        bounds: Some(bounds),
        ..durable("away", 9, 100)
    });
    replica.run(vec![subscribe("away", 9, "t", 1), close("away", 9)]);
    replica.run(vec![subscribe("0", 1, "few", 1)]);
    let payload = "x".repeat(1 << 20);
    let large = |qos| publish("t", qos, &payload);
    let most = (limits::FAN_OUT_BYTES >> 20) as usize / limits::FAN_OUT_SHARES;
    replica.run(vec![large(1); most + 8]);
    assert!(rows::<schema::FanOut>(&replica) <= most);
    replica.restart();
    let mut opened = with_will(open("w", 8), 0);
    if let Some(message) = opened.will.as_mut().and_then(|will| will.message.as_mut()) {
        *message = super::queues::message("t", 1, &payload);
    }
    let outputs = replica.run(vec![
        large(1),
        large(0),
        publish("few", 1, "y"),
        large(1),
        large(1),
    ]);
    let refused = |output: &&Output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::QuotaExceeded,
                ..
            }
        )
    };
    assert_eq!(outputs.iter().filter(refused).count(), 4);
    let dropped = |output: &Output| {
        matches!(
            output,
            Output::Dropped {
                reason: DropReason::QueueFull,
                ..
            }
        )
    };
    assert!(outputs.iter().any(dropped), "QoS 0");
    assert!(
        deliveries(&outputs).contains(&(1, "y".to_owned())),
        "few receivers"
    );
    let newest = |replica: &Replica| {
        let mut keys = replica.stored.keys().rev();
        keys.find(|key| key[0] == schema::FanOut::ORDINAL).cloned()
    };
    let before = newest(&replica);
    replica.run(vec![Kind::OpenSession(opened), close("w", 8)]);
    assert!(newest(&replica) > before, "a will");
    replica.settle();
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
    assert!(matches!(replica.reply(large(1)), Reply::Published { .. }));
}

#[test]
fn who_publishes_to_another_topic_or_needs_no_queue_is_not_refused() {
    let mut replica = four();
    for client in 0..CLIENTS {
        let (client_id, connection) = (client.to_string(), u64::from(client) + 1);
        replica.run(vec![
            subscribe(&client_id, connection, "t/+", 1),
            subscribe(&client_id, connection, "live", 0),
        ]);
    }
    let payload = "x".repeat(1 << 20);
    let of_one_topic = (limits::FAN_OUT_BYTES >> 20) as usize / limits::FAN_OUT_SHARES;
    let accepted = |reply: &Reply| matches!(reply, Reply::Published { matched: true });
    for topic in 0..limits::FAN_OUT_SHARES {
        let large = publish(&format!("t/{topic}"), 1, &payload);
        assert!(accepted(&replica.reply(large.clone())), "{topic}");
        replica.run(vec![large.clone(); of_one_topic]);
        if topic == 0 {
            assert!(!accepted(&replica.reply(large)), "its share is used up");
        }
    }
    // Now all of it is.
    let mut kinds = vec![publish("t/0", 1, &payload); of_one_topic];
    kinds.push(publish("t/x", 1, "x"));
    kinds.push(publish("live", 1, "x"));
    let outputs = replica.run(kinds).into_iter();
    let replies = outputs.filter_map(|output| match output {
        Output::Reply { reply, .. } => Some(accepted(&reply)),
        _ => None,
    });
    let replies: Vec<bool> = replies.collect();
    assert!(replies.ends_with(&[false, true]), "{replies:?}");
}

#[test]
fn nothing_is_left_for_later_when_all_fit() {
    let mut replica = four();
    replica.set_budget(Budget::default());
    let outputs = replica.run(vec![publish("t", 1, "x")]);
    assert_eq!(sent(&outputs).len(), usize::from(CLIENTS));
    assert_eq!(
        rows::<schema::FanOut>(&replica) + rows::<schema::WorkTimer>(&replica),
        0
    );
}
