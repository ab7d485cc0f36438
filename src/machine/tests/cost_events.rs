//! Events at their worst: a batch does no more than it may.

use super::cost::{MANY, TOGETHER};
use super::events::{close_for, outbox, set_events, told};
use super::events_subscriptions::{progress, put};
use super::queues::{durable, publish, rows, subscribe};
use super::{Budget, INCARNATION, Replica, open, proposal, with_will};
use crate::base::ids::{CLUSTER, Incarnation, NodeId};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::events::DisconnectionReason;
use crate::machine::effect::{EventDrop, Output, Reply};
use crate::machine::{read_events, schema};

fn connect_many(replica: &mut Replica) {
    let opened: Vec<Kind> = (1..=MANY as u64)
        .map(|number| Kind::OpenSession(open(&number.to_string(), number)))
        .collect();
    for (sequence, some) in (1..).zip(opened.chunks(TOGETHER)) {
        let kinds = some.to_vec();
        replica.apply(vec![proposal(NodeId(2), INCARNATION, sequence, kinds)]);
        replica.check_cost();
    }
}

#[test]
fn the_end_of_a_node_with_many_connections_is_told_bit_by_bit_and_in_order() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1_000_000;
        settings.mqtt = true;
    })]);
    // Somebody gets each of them.
    let watcher = command::OpenSession {
        bounds: Some(command::QueueBounds {
            max_messages: 10 * MANY as u64,
            max_bytes: 1 << 30,
            ..super::queues::BOUNDS
        }),
        ..durable("watcher", 1, 1)
    };
    let all = subscribe("watcher", 1, "$events/#", 1);
    replica.run(vec![Kind::OpenSession(watcher), all]);
    connect_many(&mut replica);
    let down = Kind::NodeDown(command::NodeDown {
        node: 2,
        incarnation: INCARNATION.0,
    });
    let before = outbox(&replica).len();
    replica.apply(vec![proposal(CLUSTER, Incarnation(0), 0, vec![down])]);
    replica.check_cost();
    assert!(outbox(&replica).len() - before < MANY, "the rest follows");
    replica.settle_cheaply();
    let ends: Vec<String> = told(&replica).split_off(before);
    let expected: Vec<String> = (1..=MANY)
        .map(|number| format!("{number} -1 ConnectionLost"))
        .collect();
    assert!(
        ends == expected,
        "once each, in the order of their connections"
    );
    assert_eq!(rows::<schema::Entry>(&replica), before + MANY - 1);
}

#[test]
fn many_numbers_go_bit_by_bit() {
    let mut replica = Replica::new();
    let settings = |sequences_max: u64| {
        set_events(move |settings| {
            settings.keep_s = 1;
            settings.sequences_max = sequences_max;
        })
    };
    replica.run(vec![settings(u64::MAX)]);
    let mut connection = 0;
    let pairs = (0..MANY).map(|number| {
        connection += 1;
        let client_id = number.to_string();
        let reason = DisconnectionReason::ClientInitiatedDisconnect;
        let opened = Kind::OpenSession(open(&client_id, connection));
        [opened, close_for(&client_id, connection, reason)]
    });
    let kinds: Vec<Kind> = pairs.flatten().collect();
    replica.run_all(kinds);
    replica.check_cost();
    replica.run(vec![settings(10)]);
    replica.check_cost();
    replica.now += 10_000;
    let (_, batches) = replica.settle_cheaply();
    assert!(batches > 5, "{batches} batches");
    assert_eq!(rows::<schema::EventSequence>(&replica), 10);
    assert_eq!(rows::<schema::EventSequenceEnd>(&replica), 10);
    assert_eq!(rows::<schema::Event>(&replica), 0);
    assert_eq!(replica.machine.event_usage().sequences, 10);
}

/// A full house is what every large fleet has: who comes then costs as much as one pair does.
#[test]
fn a_new_pair_beyond_the_bound_has_one_place_looked_at() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1;
        settings.sequence_keep_s = 1_000_000;
        settings.sequences_max = 5_000;
    })]);
    let pairs = (1..=5_000).flat_map(|number| {
        let client_id = number.to_string();
        let reason = DisconnectionReason::ClientInitiatedDisconnect;
        let opened = Kind::OpenSession(open(&client_id, number));
        [opened, close_for(&client_id, number, reason)]
    });
    replica.run_all(pairs.collect::<Vec<Kind>>());
    replica.now += 10_000;
    replica.settle_cheaply();
    for number in 0..3 {
        let client_id = format!("new-{number}");
        replica.run(vec![Kind::OpenSession(open(&client_id, 10_000 + number))]);
        assert_eq!(rows::<schema::EventSequence>(&replica), 5_001);
        replica.pass(1);
        assert!(replica.operations < 40, "{}", replica.operations);
        assert_eq!(rows::<schema::EventSequence>(&replica), 5_000);
    }
}

/// Dead letters as the largest accounts bring them, from the first event of the outbox on.
fn give_up_all(replica: &mut Replica) {
    let most = limits::EVENT_PROGRESS_ITEMS as u64;
    for from in (1..=MANY as u64).step_by(most as usize) {
        let numbers = from..(from + most).min(MANY as u64 + 1);
        let dead = numbers.map(|number| command::DeadEvent {
            number,
            reason: 1,
            ..Default::default()
        });
        let account = command::EventProgress {
            dead: dead.collect(),
            ..progress(replica, "s", (from + most - 1).min(MANY as u64))
        };
        replica.run(vec![Kind::EventProgress(account)]);
        replica.check_cost();
        let of_account = 12 * most + 50;
        assert!(replica.operations < of_account, "{}", replica.operations);
    }
}

#[test]
fn the_largest_accounts_where_there_is_no_room_for_their_letters() {
    let mut replica = Replica::new();
    let settings = |dead_letters_max: u64| {
        set_events(move |settings| settings.dead_letters_max = dead_letters_max)
    };
    replica.run(vec![settings(100)]);
    replica.run(vec![Kind::PutEventSubscription(put("s"))]);
    connect_many(&mut replica);
    give_up_all(&mut replica);
    assert_eq!(rows::<schema::DeadLetter>(&replica), 100);
    replica.settle_cheaply();
    // A smaller bound holds without a further letter.
    replica.run(vec![settings(7)]);
    replica.settle_cheaply();
    assert_eq!(rows::<schema::DeadLetter>(&replica), 7);
    let row = read_events::subscription(&replica.stored, "s").expect("a row");
    assert_eq!((row.dead, row.dead_dropped), (7, MANY as u64 - 7));
}

/// Who is paused, or down, has the outbox stay as it is; that costs next to nothing, and keeps nothing else from being
/// done.
#[test]
fn a_trim_that_removes_nothing_costs_nothing() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.run(vec![set_events(|_| {})]);
    replica.run(vec![Kind::PutEventSubscription(put("paused"))]);
    replica.run(vec![Kind::PutEventSubscription(put("s"))]);
    connect_many(&mut replica);
    let opened = with_will(durable("w", 1, 1), 2);
    replica.run(vec![Kind::OpenSession(opened)]);
    replica.run(vec![super::close("w", 1)]);
    let all = rows::<schema::Event>(&replica);
    let account = progress(&replica, "s", MANY as u64);
    replica.run(vec![Kind::EventProgress(account)]);
    let outputs = replica.pass(3_000);
    assert!(replica.operations < 50, "{}", replica.operations);
    assert_eq!(super::wills(&outputs), 1, "{outputs:?}");
    assert!(all > MANY / 2);
    assert_eq!(rows::<schema::Event>(&replica), all);
    // What was passed goes.
    let account = progress(&replica, "paused", 10);
    replica.run(vec![Kind::EventProgress(account)]);
    replica.pass(2_000);
    assert!(replica.operations < 100, "{}", replica.operations);
    assert_eq!(rows::<schema::Event>(&replica), all - 10);
}

/// Sessions that are sent every event.
fn watchers(replica: &mut Replica, count: u64) {
    for connection in 1..=count {
        let client_id = format!("watcher-{connection}");
        let opened = command::OpenSession {
            bounds: Some(command::QueueBounds {
                max_messages: u64::MAX,
                max_bytes: u64::MAX,
                ..super::queues::BOUNDS
            }),
            ..durable(&client_id, connection, 1)
        };
        let all = subscribe(&client_id, connection, "$events/#", 1);
        replica.run(vec![Kind::OpenSession(opened), all]);
    }
}

#[test]
fn events_never_take_the_room_of_what_clients_publish() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.mqtt = true)]);
    watchers(&mut replica, 4);
    replica.settle();
    replica.set_budget(Budget {
        row_operations: 1,
        items_at_least: 1,
        overdraft: 0,
        queues_at_least: 1,
        looked_up_anew: 1_000,
    });
    let opened = (0..200).map(|number| {
        let client_id = format!("{number}{}", "x".repeat(20_000));
        Kind::OpenSession(open(&client_id, 10 + number))
    });
    let outputs = replica.run(opened.collect());
    let dropped = outputs.iter().map(|output| match output {
        Output::EventsDropped {
            reason: EventDrop::Crowded,
            count,
        } => *count,
        _ => 0,
    });
    let dropped: u64 = dropped.sum();
    assert!((1..200).contains(&dropped), "{dropped} of 200");
    let on_their_way = rows::<schema::FanOut>(&replica) as u64;
    assert_eq!(on_their_way, 200 - dropped);
    assert!(on_their_way * 80_000 < 2 * limits::FAN_OUT_BYTES / limits::FAN_OUT_SHARES as u64);
    // Others go on, however many get it.
    let all = (1..=4).map(|number| subscribe(&format!("watcher-{number}"), number, "t", 1));
    replica.run(all.collect());
    let published = replica.reply(publish("t", 1, "x"));
    assert!(
        matches!(published, Reply::Published { matched: true }),
        "{published:?}"
    );
}

/// Who keeps the queues of events full puts off neither the wills of a dead node's clients nor what others hear of
/// them.
#[test]
fn the_end_of_a_node_does_not_wait_for_events_on_their_way_into_queues() {
    const SESSIONS: u64 = 500;
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1_000_000;
        settings.mqtt = true;
    })]);
    watchers(&mut replica, 100);
    replica.settle();
    let opened = (1..=SESSIONS).map(|number| Kind::OpenSession(open(&number.to_string(), number)));
    let opened: Vec<Kind> = opened.collect();
    replica.apply(vec![proposal(NodeId(2), INCARNATION, 1, opened)]);
    replica.settle();
    let mut connection = 1_000;
    let mut storm = |replica: &mut Replica| {
        let clients = (0..200).map(|number| {
            connection += 1;
            Kind::OpenSession(open(&format!("storm-{number}"), connection))
        });
        replica.now += 1;
        replica.run(clients.collect());
    };
    while rows::<schema::FanOut>(&replica) < limits::FAN_OUTS / limits::FAN_OUT_SHARES {
        storm(&mut replica);
    }
    let before = outbox(&replica).len();
    let down = Kind::NodeDown(command::NodeDown {
        node: 2,
        incarnation: INCARNATION.0,
    });
    replica.apply(vec![proposal(CLUSTER, Incarnation(0), 0, vec![down])]);
    let mut batches = 0;
    loop {
        let lost = |text: &&String| text.ends_with("ConnectionLost");
        let all = told(&replica);
        if all[before..].iter().filter(lost).count() as u64 == SESSIONS {
            break;
        }
        storm(&mut replica);
        batches += 1;
        assert!(batches <= 20, "it waits");
        if batches % 3 == 0 {
            replica.restart();
        }
    }
    assert_eq!(rows::<schema::EndedIncarnation>(&replica), 0);
}

#[test]
fn the_largest_accounts_and_the_end_of_many_letters() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|_| {})]);
    replica.run(vec![Kind::PutEventSubscription(put("s"))]);
    connect_many(&mut replica);
    give_up_all(&mut replica);
    assert_eq!(rows::<schema::DeadLetter>(&replica), MANY);
    replica.now += 5_000;
    let (_, batches) = replica.settle_cheaply();
    assert!(batches > 5, "the outbox is emptied in {batches} batches");
    assert_eq!(rows::<schema::Event>(&replica), 0);
    let half = command::ReplayDeadLetters {
        name: "s".to_owned(),
        from: 1,
        through: MANY as u64 / 2,
        purge: true,
    };
    replica.run(vec![Kind::ReplayDeadLetters(half)]);
    replica.check_cost();
    replica.settle_cheaply();
    assert_eq!(rows::<schema::DeadLetter>(&replica), MANY / 2);
    let end = command::DeleteEventSubscription {
        name: "s".to_owned(),
    };
    replica.run(vec![Kind::DeleteEventSubscription(end)]);
    replica.check_cost();
    assert!(rows::<schema::DeadLetter>(&replica) > 0, "the rest follows");
    replica.settle_cheaply();
    assert_eq!(rows::<schema::DeadLetter>(&replica), 0);
    assert_eq!(rows::<schema::EventSubscription>(&replica), 0);
}

/// One entry may hold an account of every event subscription.
#[test]
fn the_largest_accounts_of_all_event_subscriptions_at_once() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.dead_letters_max = 10)]);
    let names = (0..limits::EVENT_SUBSCRIPTIONS).map(|number| format!("s-{number}"));
    let names: Vec<String> = names.collect();
    for name in &names {
        replica.run(vec![Kind::PutEventSubscription(put(name))]);
    }
    connect_many(&mut replica);
    let most = limits::EVENT_PROGRESS_ITEMS as u64;
    for round in 0..3 {
        let numbers = round * most + 1..=(round + 1) * most;
        let account = |name: &String| {
            let dead = numbers.clone().map(|number| command::DeadEvent {
                number,
                reason: 1,
                ..Default::default()
            });
            Kind::EventProgress(command::EventProgress {
                dead: dead.collect(),
                ..progress(&replica, name, (round + 1) * most)
            })
        };
        let accounts: Vec<Kind> = names.iter().map(account).collect();
        replica.run(accounts);
        replica.check_cost();
    }
    assert_eq!(rows::<schema::DeadLetter>(&replica), 10 * names.len());
}
