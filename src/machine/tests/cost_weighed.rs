//! As [`super::cost`]: as much as one proposal may hold of what weighs more than its bytes.

use super::cost::MANY;
use super::queues::{acknowledge, durable, publish, subscribe};
use super::{Replica, open, set};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{Output, Reply};
use crate::machine::schema;
use crate::store::Condition;

#[test]
fn publications_into_as_many_queues_as_each_may_have_in_any_case() {
    let mut replica = Replica::new();
    for number in 0..limits::QUEUES_AT_LEAST as u64 {
        let client_id = number.to_string();
        replica.present(durable(&client_id, number + 1, 1));
        let filter = match number % 2 {
            0 => "t".to_owned(),
            _ => format!("$share/{number}/t"),
        };
        replica.run(vec![subscribe(&client_id, number + 1, &filter, 1)]);
    }
    let together = limits::PROPOSAL_BYTES / (limits::QUEUES_AT_LEAST * limits::LOGGED_QUEUE_BYTES);
    for _ in 0..3 {
        replica.run(vec![publish("t", 1, "x"); together]);
        replica.check_cost();
    }
    let queued = super::queues::rows::<schema::Entry>(&replica);
    assert!(
        queued >= 3 * together * limits::QUEUES_AT_LEAST / 2,
        "{queued}"
    );
}

#[test]
fn acknowledgements_of_many_messages() {
    const EACH: usize = 64;
    let sessions = (limits::PROPOSAL_BYTES / limits::LOGGED_QUEUE_BYTES / EACH) as u64;
    let mut replica = Replica::new();
    for number in 1..=sessions {
        let client_id = number.to_string();
        replica.present(durable(&client_id, number, EACH as u32));
        replica.run(vec![subscribe(&client_id, number, "t", 1)]);
    }
    for _ in 0..EACH {
        replica.run(vec![publish("t", 1, "x")]);
        replica.settle_cheaply();
    }
    let entries = || sessions as usize * EACH;
    assert_eq!(super::queues::rows::<schema::Entry>(&replica), entries());
    let all: Vec<u64> = (1..=EACH as u64).collect();
    replica.run(
        (1..=sessions)
            .map(|number| acknowledge(number, &all, &[]))
            .collect(),
    );
    replica.check_cost();
    assert_eq!(super::queues::rows::<schema::Entry>(&replica), 0);
}

/// What a batch tells connections is bounded like the rows that it touches.
#[test]
fn keys_that_expire_at_the_same_moment_and_have_many_watchers() {
    const WATCHERS: usize = 100;
    let keys = MANY / WATCHERS;
    let mut replica = Replica::new();
    for number in 0..WATCHERS as u64 {
        let client_id = number.to_string();
        replica.present(open(&client_id, number + 1));
        let watches = (0..keys).map(|key| {
            Kind::KeyNotify(command::KeyNotify {
                client_id: client_id.clone(),
                connection: number + 1,
                key: key.to_be_bytes().to_vec().into(),
                ..Default::default()
            })
        });
        replica.run_all(watches.collect::<Vec<_>>());
    }
    let expires_at = replica.now + 60_000;
    for key in 0..keys {
        let left = expires_at - replica.now;
        let correlation = key.to_be_bytes();
        let write = set(
            &correlation,
            b"v",
            Condition::None,
            Some(left),
            &correlation,
        );
        replica.run(vec![Kind::StoreWrite(write)]);
    }
    replica.now = expires_at;
    let (mut told, mut batches) = (0, 0);
    while told < MANY {
        let outputs = replica.pass(1);
        replica.check_cost();
        let some = outputs
            .iter()
            .filter(|output| matches!(output, Output::Notify { .. }));
        let some = some.count();
        assert!(some <= limits::ROW_OPERATIONS_AT_ONCE, "{some} at once");
        assert!(some > 0, "it goes on after {told}");
        (told, batches) = (told + some, batches + 1);
    }
    assert_eq!(told, MANY);
    assert!(batches > 2, "{batches}");
}

/// Sessions whose clients never released what they sent, all of which are resumed in one log entry.
#[test]
fn sessions_that_are_resumed_with_many_packet_ids() {
    const EACH: u32 = 1_000;
    let sessions = (MANY / EACH as usize) as u64;
    let mut replica = Replica::new();
    for number in 1..=sessions {
        let client_id = number.to_string();
        replica.present(durable(&client_id, number, 1));
        let received = (1..=EACH).map(|packet_id| {
            Kind::Publish(command::Publish {
                connection: number,
                packet_id,
                message: Some(super::queues::message("nobody", 2, "x")),
                ..Default::default()
            })
        });
        replica.run_all(received.collect::<Vec<_>>());
    }
    let mut left: Vec<u64> = (1..=sessions).collect();
    let mut entries = 0;
    while !left.is_empty() {
        let resume = |number: &u64| {
            let connection = 1_000 * (entries + 1) + number;
            Kind::OpenSession(durable(&number.to_string(), connection, 1))
        };
        let outputs = replica.run(left.iter().map(resume).collect());
        replica.check_cost();
        let replies = outputs.into_iter().filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        });
        let mut waiting = Vec::new();
        for (number, reply) in left.iter().zip(replies) {
            match reply {
                Reply::Opened {
                    present, received, ..
                } => {
                    assert!(present);
                    assert_eq!(received.len(), EACH as usize);
                }
                Reply::NotNow => waiting.push(*number),
                other => panic!("{other:?}"),
            }
        }
        assert!(waiting.len() < left.len(), "it goes on");
        left = waiting;
        entries += 1;
    }
    assert!(entries > 1, "not all at once");
    // Whoever has nothing to be read does not wait.
    let mut together: Vec<_> = (1..=sessions)
        .map(|number| Kind::OpenSession(durable(&number.to_string(), 1_000_000 + number, 1)))
        .collect();
    together.push(Kind::OpenSession(durable("without", 2_000_000, 1)));
    let outputs = replica.run(together);
    let last = outputs.iter().rev().find_map(|output| match output {
        Output::Reply { reply, .. } => Some(reply),
        _ => None,
    });
    assert!(matches!(last, Some(Reply::Opened { .. })), "{last:?}");
}

/// Connections propose so many filters in one command, and answer the client as if all were done: so they are, however
/// many such requests share a proposal.
#[test]
fn requests_of_a_few_filters_are_never_done_in_part() {
    let filters = |number: u64| {
        let of_client = (0..limits::ITEMS_AT_LEAST).map(move |filter| format!("{number}/{filter}"));
        of_client.collect::<Vec<_>>()
    };
    let most = limits::PROPOSAL_BYTES / (limits::ITEMS_AT_LEAST * limits::LOGGED_QUEUE_BYTES);
    let mut replica = Replica::new();
    for number in 1..=most as u64 {
        replica.present(open(&number.to_string(), number));
    }
    let subscribe = |number: u64| {
        let subscription = |filter| command::Subscription {
            filter,
            ..Default::default()
        };
        Kind::Subscribe(command::Subscribe {
            client_id: number.to_string(),
            connection: number,
            subscriptions: filters(number).into_iter().map(subscription).collect(),
            ..Default::default()
        })
    };
    replica.run((1..=most as u64).map(subscribe).collect());
    replica.check_cost();
    let all = most * limits::ITEMS_AT_LEAST;
    assert_eq!(super::queues::rows::<schema::Subscription>(&replica), all);
    let unsubscribe = |number: u64| {
        Kind::Unsubscribe(command::Unsubscribe {
            client_id: number.to_string(),
            connection: number,
            filters: filters(number),
        })
    };
    replica.run((1..=most as u64).map(unsubscribe).collect());
    replica.check_cost();
    assert_eq!(super::queues::rows::<schema::Subscription>(&replica), 0);
}
