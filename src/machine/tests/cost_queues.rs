//! As [`super::cost`]: full queues that make room, messages that have expired, and sessions with many retained replays.

use super::cost::{MANY, TOGETHER};
use super::queues::{durable, message, publish, rows, sent, subscribe};
use super::{Replica, close};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::schema;

/// A queue that holds `MANY` bytes at most, in any number of messages.
fn bounded_by_bytes() -> command::QueueBounds {
    command::QueueBounds {
        max_messages: u64::MAX,
        max_bytes: MANY as u64,
        ..super::queues::BOUNDS
    }
}

/// Messages of one byte that fill a queue or a group; the last batches drop as many as they add.
fn fill_with_tiny_messages(replica: &mut Replica) {
    replica.run_all(vec![publish("t", 1, ""); MANY]);
    let usage = replica.machine.queue_usage();
    assert_eq!((usage.messages, usage.bytes), (MANY as u64, MANY as u64));
    for _ in 0..4 {
        replica.run(vec![publish("t", 1, ""); TOGETHER]);
        replica.check_cost();
    }
    assert_eq!(replica.machine.queue_usage(), usage);
}

/// Large messages come until one of them is in; each makes some of the room that it needs.
fn make_room_for_a_large_message(replica: &mut Replica) {
    let payload = "x".repeat(MANY / 2);
    let mut tries = 0;
    loop {
        let before = replica.machine.queue_usage();
        replica.run(vec![publish("t", 1, &payload)]);
        replica.check_cost();
        tries += 1;
        let after = replica.machine.queue_usage();
        if after.bytes > after.messages {
            break;
        }
        assert!(after.bytes < before.bytes, "it goes on");
    }
    assert!(tries > 1, "not all at once");
}

#[test]
fn a_full_queue_of_tiny_messages_makes_room_for_large_ones() {
    let mut replica = Replica::new();
    replica.present(command::OpenSession {
        bounds: Some(bounded_by_bytes()),
        ..durable("a", 1, 1)
    });
    replica.run(vec![subscribe("a", 1, "t", 1), close("a", 1)]);
    fill_with_tiny_messages(&mut replica);
    make_room_for_a_large_message(&mut replica);
    // Whoever drops in an entry that has done enough already drops few.
    let payload = "x".repeat(MANY / 4);
    replica.run(vec![publish("t", 1, &payload); TOGETHER]);
    replica.check_cost();
}

#[test]
fn a_full_group_of_tiny_messages_makes_room_for_large_ones() {
    let mut replica = Replica::new();
    replica.present(command::OpenSession {
        bounds: Some(bounded_by_bytes()),
        ..durable("a", 1, 1)
    });
    replica.run(vec![subscribe("a", 1, "$share/g/t", 1), close("a", 1)]);
    fill_with_tiny_messages(&mut replica);
    make_room_for_a_large_message(&mut replica);
}

#[test]
fn a_queue_of_messages_that_have_expired() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        max_messages: u64::MAX,
        ..super::queues::BOUNDS
    };
    let opened = |connection| command::OpenSession {
        bounds: Some(bounds),
        ..durable("a", connection, 1)
    };
    replica.present(opened(1));
    replica.run(vec![subscribe("a", 1, "t", 1), close("a", 1)]);
    let expiring = Kind::Publish(command::Publish {
        message: Some(command::PublishedMessage {
            expiry_interval_s: Some(1),
            ..message("t", 1, "x")
        }),
        ..Default::default()
    });
    replica.run_all(vec![expiring; MANY]);
    replica.run(vec![publish("t", 1, "stays")]);
    replica.now += 5_000;
    let mut outputs = replica.run(vec![Kind::OpenSession(opened(2))]);
    replica.check_cost();
    outputs.extend(replica.settle_cheaply().0);
    let came = sent(&outputs);
    assert_eq!(came, [(MANY as u64 + 1, false, "stays".to_owned())]);
    assert_eq!(rows::<schema::Entry>(&replica), 1);
}

/// A session whose queue is full, so that the replays of its subscriptions wait.
fn with_waiting_replays(filters: impl IntoIterator<Item = String>) -> Replica {
    let mut replica = Replica::new();
    replica.present(durable("a", 1, 1));
    replica.run(vec![subscribe("a", 1, "full", 1)]);
    replica.run_all(vec![
        publish("full", 1, "x");
        super::queues::BOUNDS.max_messages as usize
    ]);
    let filters = filters.into_iter();
    let filters: Vec<Kind> = filters
        .map(|filter| subscribe("a", 1, &filter, 1))
        .collect();
    let count = filters.len();
    replica.run_all(filters);
    assert_eq!(rows::<schema::RetainedReplay>(&replica), count);
    replica
}

fn retained_publish(topic: &str) -> Kind {
    Kind::Publish(command::Publish {
        message: Some(command::PublishedMessage {
            retain: true,
            ..message(topic, 1, "r")
        }),
        ..Default::default()
    })
}

/// Where each message is compared with each replay, this takes minutes.
#[test]
fn messages_for_a_session_with_many_replays_that_wait() {
    let mut replica = with_waiting_replays((0..MANY).map(|number| format!("f/{number}/+")));
    replica.run(vec![retained_publish("f/0/x")]);
    for topic in ["full", "f/0/x"] {
        replica.run_all(vec![publish(topic, 1, "x"); MANY / 4]);
        replica.check_cost();
    }
}

#[test]
fn messages_for_a_session_with_many_replays_that_match() {
    const LEVELS: usize = 12;
    let filter = |number: usize| {
        let level = |at: usize| if number >> at & 1 == 0 { "x" } else { "+" };
        let levels: Vec<&str> = (0..LEVELS).map(level).collect();
        levels.join("/")
    };
    let topic = filter(0);
    let retained = retained_publish(&topic);
    let mut replica = with_waiting_replays((0..1 << LEVELS).map(filter));
    replica.run(vec![retained]);
    replica.check_cost();
    replica.run(vec![publish(&topic, 1, "x"); 20]);
    replica.check_cost();
    assert!(rows::<schema::FanOut>(&replica) > 0, "the rest follows");
    replica.settle_cheaply();
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
}

#[test]
fn the_end_of_a_replay_with_many_topics_that_came_first() {
    let mut replica = with_waiting_replays(std::iter::once("f/+".to_owned()));
    let topics = (0..MANY).map(|number| format!("f/{number}"));
    let unsubscribe = |filter: &str| {
        Kind::Unsubscribe(command::Unsubscribe {
            client_id: "a".to_owned(),
            connection: 1,
            filters: vec![filter.to_owned()],
        })
    };
    replica.run(vec![unsubscribe("f/+")]);
    let topics: Vec<String> = topics.collect();
    replica.run_all(
        topics
            .iter()
            .map(|topic| retained_publish(topic))
            .collect::<Vec<_>>(),
    );
    replica.run(vec![subscribe("a", 1, "f/+", 1)]);
    replica.run_all(
        topics
            .iter()
            .map(|topic| publish(topic, 1, "x"))
            .collect::<Vec<_>>(),
    );
    assert_eq!(rows::<schema::ReplayedTopic>(&replica), MANY);
    replica.run(vec![unsubscribe("f/+")]);
    replica.check_cost();
    let (_, batches) = replica.settle_cheaply();
    assert!(batches > 1);
    assert_eq!(rows::<schema::ReplayedTopic>(&replica), 0);
    assert_eq!(rows::<schema::RetainedReplay>(&replica), 0);
}

#[test]
fn messages_for_a_group_with_many_members_that_are_away() {
    let mut replica = Replica::new();
    for number in 0..MANY / 2 {
        let client_id = number.to_string();
        let connection = number as u64 + 1;
        replica.run(vec![
            Kind::OpenSession(durable(&client_id, connection, 1)),
            subscribe(&client_id, connection, "$share/g/t", 1),
            close(&client_id, connection),
        ]);
    }
    let most = 2 * limits::ROW_OPERATIONS_AT_ONCE / (MANY / 2 / 64 * 6);
    replica.run(vec![publish("t", 1, "x"); TOGETHER / 5]);
    let kept = rows::<schema::Waiting>(&replica);
    assert!(kept > 0 && kept < most, "{kept} at once, the rest follows");
    replica.settle_cheaply();
    assert_eq!(rows::<schema::Waiting>(&replica), TOGETHER / 5);
}
