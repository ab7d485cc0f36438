//! What there may be of sessions and queued bytes: what is one too many is refused and leaves nothing behind.

use super::queues::{acknowledge, assert_empty, durable, granted, message, publish, subscribe};
use super::{Replica, open};
use crate::base::ids::SessionId;
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::machine::effect::{DropReason, Output, Reply};
use crate::machine::subscriptions::{Held, size_of_filter};

fn one_of(max_sessions: u64, client_id: &str, connection: u64) -> command::OpenSession {
    command::OpenSession {
        max_sessions,
        ..open(client_id, connection)
    }
}

fn queued(qos: u32, max_queued_bytes: u64) -> Kind {
    Kind::Publish(command::Publish {
        message: Some(message("t", qos, "payload")),
        max_queued_bytes,
        ..Default::default()
    })
}

#[test]
fn a_session_too_many_is_refused_and_those_there_are_can_be_resumed() {
    let mut replica = Replica::new();
    assert!(!replica.present(one_of(2, "a", 1)));
    assert!(!replica.present(one_of(2, "b", 2)));
    let stored = replica.stored.clone();
    for restarted in [false, true] {
        if restarted {
            replica.restart();
        }
        let refused = replica.reply(Kind::OpenSession(one_of(2, "c", 3)));
        assert!(matches!(refused, Reply::QuotaExceeded), "{refused:?}");
        assert!(replica.present(one_of(2, "a", 4)));
        assert!(replica.present(one_of(2, "a", 1)));
    }
    let rows = |stored: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>| stored.len();
    assert_eq!(rows(&replica.stored), rows(&stored));
    let clean = command::OpenSession {
        clean_start: true,
        ..one_of(2, "b", 5)
    };
    assert!(!replica.present(clean), "it takes the place of its former");
    let delete = command::DeleteSession {
        client_id: "a".to_owned(),
    };
    replica.run(vec![Kind::DeleteSession(delete)]);
    assert!(!replica.present(one_of(2, "c", 6)), "there is room again");
    let unbounded = replica.reply(Kind::OpenSession(one_of(0, "d", 7)));
    assert!(matches!(unbounded, Reply::Opened { .. }));
}

#[test]
fn a_message_that_would_be_queued_is_refused_above_the_bytes_of_all_queues() {
    let mut replica = Replica::new();
    assert!(matches!(
        replica.reply(queued(1, 1)),
        Reply::Published { matched: false }
    ));
    replica.present(durable("a", 1, 10));
    replica.run(vec![subscribe("a", 1, "t", 1)]);
    assert!(matches!(
        replica.reply(queued(1, 1)),
        Reply::Published { matched: true }
    ));
    let usage = replica.machine.queue_usage();
    assert!(matches!(replica.reply(queued(1, 1)), Reply::QuotaExceeded));
    assert_eq!(replica.machine.queue_usage(), usage);
    assert!(matches!(
        replica.reply(queued(1, 0)),
        Reply::Published { matched: true }
    ));
    replica.run(vec![acknowledge(1, &[1, 2], &[])]);
    assert!(matches!(
        replica.reply(queued(1, 1)),
        Reply::Published { matched: true }
    ));
}

#[test]
fn a_message_with_qos_0_that_is_not_queued_is_counted() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        qos_0: true,
        ..super::queues::BOUNDS
    };
    replica.present(command::OpenSession {
        bounds: Some(bounds),
        ..durable("a", 1, 10)
    });
    replica.run(vec![subscribe("a", 1, "t", 1), super::close("a", 1)]);
    replica.run(vec![queued(1, 0)]);
    let outputs = replica.run(vec![queued(0, 1)]);
    let dropped = outputs.iter().filter(|output| {
        matches!(
            output,
            Output::Dropped {
                reason: DropReason::QueueFull,
                count: 1
            }
        )
    });
    assert_eq!(dropped.count(), 1, "{outputs:?}");
    assert_eq!(replica.machine.queue_usage().messages, 1);
}

fn subscribe_within(filters: &[&str], max_subscriptions: u64, max_groups: u64) -> Kind {
    Kind::Subscribe(command::Subscribe {
        max_subscriptions,
        max_groups,
        ..subscribe_command(filters)
    })
}

fn subscribe_command(filters: &[&str]) -> command::Subscribe {
    let subscription = |filter: &&str| command::Subscription {
        filter: (*filter).to_owned(),
        ..Default::default()
    };
    command::Subscribe {
        client_id: "a".to_owned(),
        connection: 1,
        subscriptions: filters.iter().map(subscription).collect(),
        ..Default::default()
    }
}

/// Positions of the filters that were refused.
fn refused(reply: Reply) -> Vec<usize> {
    match reply {
        Reply::Subscribed { new, refused, .. } => {
            assert!(refused.iter().all(|at| !new[*at]));
            refused
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_subscription_too_many_is_refused_and_those_there_are_can_be_replaced() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 10));
    let three = subscribe_within(&["x", "y", "z"], 2, 0);
    assert_eq!(refused(replica.reply(three)), [2]);
    for restarted in [false, true] {
        if restarted {
            replica.restart();
        }
        let again = subscribe_within(&["w", "y", "v"], 2, 0);
        assert_eq!(refused(replica.reply(again)), [0, 2]);
    }
    let unsubscribe = command::Unsubscribe {
        client_id: "a".to_owned(),
        connection: 1,
        filters: vec!["x".to_owned()],
    };
    replica.run(vec![Kind::Unsubscribe(unsubscribe)]);
    let room = subscribe_within(&["w", "v"], 2, 0);
    assert_eq!(refused(replica.reply(room)), [1]);
    let unbounded = subscribe_within(&["1", "2", "3"], 0, 0);
    assert_eq!(refused(replica.reply(unbounded)), [] as [usize; 0]);
}

/// Every node keeps filters in memory: 10,000 of 64 KiB each would be 640 MB for one session.
#[test]
fn subscriptions_too_large_are_refused_and_those_there_are_can_be_replaced() {
    let long = "x".repeat(1_000);
    let deep = "y/".repeat(14) + "y";
    let size = [long.as_str(), &deep].map(size_of_filter);
    assert!(size[0] > 1_000 && size[1] > 15 * 64);
    for of_session in [true, false] {
        let mut replica = Replica::new();
        replica.present(durable("a", 1, 10));
        replica.present(durable("b", 2, 10));
        replica.run(vec![subscribe("b", 2, &"b".repeat(3_000), 1)]);
        let others = if of_session { 0 } else { 3_000 };
        let within = |bytes: u64, filters: &[&str]| {
            let mut command = subscribe_command(filters);
            match of_session {
                true => command.max_session_bytes = bytes,
                false => command.max_total_bytes = bytes + others + size_of_filter(""),
            }
            Kind::Subscribe(command)
        };
        let both = size[0] + size[1];
        let first = replica.reply(within(both - 1, &[&long, &deep]));
        assert_eq!(refused(first), [1]);
        let both_fit = replica.reply(within(both, &[&deep, "z", &long]));
        assert_eq!(refused(both_fit), [1]);
        replica.restart();
        assert_eq!(refused(replica.reply(within(both, &["z", &deep]))), [0]);
        let unsubscribe = command::Unsubscribe {
            client_id: "a".to_owned(),
            connection: 1,
            filters: vec![deep.clone()],
        };
        replica.run(vec![Kind::Unsubscribe(unsubscribe)]);
        assert_eq!(refused(replica.reply(within(both, &["z", &deep]))), [1]);
        let ended = ["a", "b"].map(super::fan_out::delete);
        replica.run(ended.into());
        let (_, all) = replica.machine.parts.messaging.index().held(SessionId(1));
        assert_eq!(all, Held::default());
    }
}

/// Look-ups cost as much as there are wildcard patterns.
#[test]
fn filters_of_too_many_patterns_are_refused_and_those_of_known_ones_never() {
    let within = |client_id: &str, of_session: u64, deep: u64, filters: &[&str]| {
        Kind::Subscribe(command::Subscribe {
            client_id: client_id.to_owned(),
            connection: if client_id == "a" { 1 } else { 2 },
            max_session_patterns: of_session,
            max_deep_patterns: deep,
            ..subscribe_command(filters)
        })
    };
    let deep = |last: &str| "x/".repeat(10) + last;
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 10));
    replica.present(durable("b", 2, 10));
    let first = within(
        "a",
        3,
        0,
        &[
            "a/+/b",
            "plain/x/y/z",
            "+/b",
            "+",
            "c/+/d/#",
            "$share/g/x/+",
        ],
    );
    assert_eq!(refused(replica.reply(first)), [2, 3]);
    for restarted in [false, true] {
        if restarted {
            replica.restart();
        }
        let again = within("a", 3, 0, &["$share/g/+/x", "e/+/f", "a/+/b/+"]);
        assert_eq!(refused(replica.reply(again)), [0, 2]);
        let another = within("b", 3, 0, &["+/y", "+/+"]);
        assert_eq!(refused(replica.reply(another)), [] as [usize; 0]);
    }
    let filters = ["a/+/b", "c/+/d/#", "e/+/f", "$share/g/x/+"];
    replica.run(vec![Kind::Unsubscribe(command::Unsubscribe {
        client_id: "a".to_owned(),
        connection: 1,
        filters: filters.map(str::to_owned).into(),
    })]);
    let room = within("a", 3, 0, &["+/+/+", "x/+"]);
    assert_eq!(refused(replica.reply(room)), [1]);
    // Those of a few levels do not count among all.
    let of_all = within(
        "a",
        0,
        1,
        &["q/+/+/+/#", &deep("+"), &deep("y/#"), &deep("+/#")],
    );
    assert_eq!(refused(replica.reply(of_all)), [2]);
    let of_another = within("b", 0, 1, &[&deep("+"), &deep("y/#")]);
    assert_eq!(refused(replica.reply(of_another)), [1]);
    let ended = ["a", "b"].map(super::fan_out::delete);
    replica.run(ended.into());
    replica.settle();
    assert_eq!(replica.machine.parts.messaging.index().patterns(), 0);
}

#[test]
fn a_shared_subscription_too_many_is_refused_and_those_there_are_can_be_joined() {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 10));
    let shared = subscribe_within(&["$share/g/x", "plain", "$share/h/x"], 0, 1);
    assert_eq!(refused(replica.reply(shared)), [2]);
    replica.restart();
    let again = subscribe_within(&["$share/g/x", "$share/g/y"], 0, 1);
    assert_eq!(refused(replica.reply(again)), [1]);
}

#[test]
fn the_identifiers_of_overlapping_subscriptions_count_in_a_queue() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        max_bytes: 1_000,
        ..super::queues::BOUNDS
    };
    replica.present(command::OpenSession {
        bounds: Some(bounds),
        ..durable("a", 1, 100)
    });
    // All combinations of eight levels and `+` match: 256 filters.
    let subscriptions = (0..256u32).map(|number| command::Subscription {
        filter: (0..8)
            .map(|level| ["x", "+"][(number >> level & 1) as usize])
            .collect::<Vec<_>>()
            .join("/"),
        qos: 1,
        identifier: number + 1,
        ..Default::default()
    });
    replica.run(vec![Kind::Subscribe(command::Subscribe {
        client_id: "a".to_owned(),
        connection: 1,
        subscriptions: subscriptions.take(201).collect(),
        ..Default::default()
    })]);
    let topic = "x/x/x/x/x/x/x/x";
    let outputs = replica.run(vec![publish(topic, 1, "1"), publish(topic, 1, "2")]);
    assert_eq!(granted(&outputs).len(), 1, "1000 bytes hold one");
    assert_eq!(granted(&outputs)[0].identifiers.len(), 201);
    assert_eq!(replica.machine.queue_usage().bytes, 15 + 1 + 200 * 4);
    replica.run(vec![acknowledge(1, &[1], &[])]);
    assert_eq!(replica.machine.queue_usage().bytes, 0);
    assert_empty(&replica);
}

#[test]
fn what_a_timer_drops_is_counted_once() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        max_messages: 1,
        policy: 1,
        ..super::queues::BOUNDS
    };
    replica.present(command::OpenSession {
        bounds: Some(bounds),
        ..durable("a", 1, 10)
    });
    let mut opened = super::with_will(open("w", 2), 1);
    if let Some(message) = opened.will.as_mut().and_then(|will| will.message.as_mut()) {
        message.qos = 1;
    }
    replica.run(vec![
        subscribe("a", 1, "will", 1),
        super::close("a", 1),
        publish("will", 1, "x"),
        Kind::OpenSession(opened),
        super::close("w", 2),
    ]);
    let outputs = replica.pass(1_000);
    let counts = outputs.iter().filter_map(|output| match output {
        Output::Dropped { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(counts.collect::<Vec<_>>(), [1]);
}

/// Every node keeps who watches what in memory.
#[test]
fn keys_of_all_clients_that_are_too_much_are_not_watched() {
    let mut replica = Replica::new();
    for (client, connection) in [("a", 1), ("b", 2)] {
        replica.present(open(client, connection));
    }
    let command = |client_id: &str, connection, key: &[u8], stop| command::KeyNotify {
        client_id: client_id.to_owned(),
        connection,
        key: key.to_vec().into(),
        stop,
        max_watches: 0,
        max_total_bytes: 6 * 650,
    };
    let mut watch = |client_id: &str, connection, key: &[u8], stop| {
        replica.restart();
        match replica.reply(Kind::KeyNotify(command(client_id, connection, key, stop))) {
            Reply::Store(reply) => reply == crate::store::Reply::Notify,
            other => panic!("{other:?}"),
        }
    };
    let key = |number: u8| [number; 10];
    assert!((0..5).all(|number| watch("a", 1, &key(number), false)));
    assert!(!watch("a", 1, &[9; 11], false), "a byte too many");
    assert!(watch("a", 1, &key(5), false) && watch("a", 1, &key(5), false));
    assert!(!watch("a", 1, b"x", false));
    // The first few of another client are not refused because of that; a long one is several.
    assert!(!watch("b", 2, &[1; 1_025], false));
    assert!((0..4).all(|number| watch("b", 2, &key(number), false)));
    assert!(!watch("b", 2, &key(5), false));
    assert!((0..5).all(|number| watch("a", 1, &key(number), true)));
    assert!(watch("b", 2, &key(5), false));
    assert!(!watch("b", 2, &key(6), false));
    replica.run(vec![super::fan_out::delete("a")]);
    replica.settle();
    let reply = replica.reply(Kind::KeyNotify(command("b", 2, &key(6), false)));
    assert!(matches!(reply, Reply::Store(crate::store::Reply::Notify)));
}

#[test]
fn keys_too_many_are_not_watched_and_those_there_are_can_be_again() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    replica.present(open("b", 2));
    let mut watch = |client_id: &str, connection, key: &[u8], stop| {
        let command = command::KeyNotify {
            client_id: client_id.to_owned(),
            connection,
            key: key.to_vec().into(),
            stop,
            max_watches: 3,
            max_total_bytes: 0,
        };
        replica.restart();
        match replica.reply(Kind::KeyNotify(command)) {
            Reply::Store(reply) => reply == crate::store::Reply::Notify,
            other => panic!("{other:?}"),
        }
    };
    assert!(watch("a", 1, b"1", false) && watch("a", 1, b"2", false));
    assert!(!watch("a", 1, &[b'x'; 300], false), "it counts as two");
    assert!(watch("a", 1, b"3", false) && watch("a", 1, b"1", false));
    assert!(!watch("a", 1, b"4", false));
    assert!(watch("b", 2, b"4", false), "another client");
    assert!(watch("a", 1, b"2", true) && watch("a", 1, b"4", false));
}
