//! As [`super::cost`]: what the machine itself publishes is looked up and delivered while everybody waits, and nothing
//! has weighed it.

use super::cost::TOGETHER;
use super::{INCARNATION, NODE, Replica, close, open, proposal, wills, with_will};
use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::batch::Budget;
use crate::machine::effect::{Output, Reply};

const LEVELS: usize = 10;

/// Filters that match a topic of ten levels `a`, and patterns of those with a wildcard.
const MATCHES: usize = 1 << LEVELS;
const PATTERNS: usize = 2 * MATCHES - 3;

/// Wills of which the cost is all that a batch may do, its overdraft not included; one more begins it.
const PER_BUDGET: usize = limits::ROW_OPERATIONS_AT_ONCE / ((MATCHES + PATTERNS - 64) / 4) + 1;

/// A client of another node whose filters match whatever the others publish, in every way there is.
fn with_patterns() -> Replica {
    let mut replica = Replica::new();
    let mut sequence = 0;
    let mut run = |kind| {
        sequence += 1;
        let replica = &mut replica;
        replica.apply(vec![proposal(NodeId(2), INCARNATION, sequence, vec![kind])]);
    };
    run(Kind::OpenSession(open("watcher", 1)));
    let subscription = |number: usize| command::Subscription {
        filter: (0..LEVELS)
            .map(|level| ["a", "+"][number >> level & 1])
            .collect::<Vec<_>>()
            .join("/"),
        ..Default::default()
    };
    for from in (0..MATCHES).step_by(limits::FILTERS_AT_ONCE) {
        let some = from..from + limits::FILTERS_AT_ONCE;
        run(Kind::Subscribe(command::Subscribe {
            client_id: "watcher".to_owned(),
            connection: 1,
            subscriptions: some.map(subscription).collect(),
            ..Default::default()
        }));
    }
    assert_eq!(replica.machine.parts.messaging.index().patterns(), PATTERNS);
    replica
}

fn topic() -> String {
    ["a"; LEVELS].join("/")
}

fn opened(number: u64, connection: u64, delay_s: u32) -> command::OpenSession {
    let mut open = with_will(open(&number.to_string(), connection), delay_s);
    if let Some(message) = open.will.as_mut().and_then(|will| will.message.as_mut()) {
        message.topic = topic();
    }
    open
}

fn open_all(replica: &mut Replica, delay_s: u32) {
    let all =
        (2..2 + TOGETHER as u64).map(|number| Kind::OpenSession(opened(number, number, delay_s)));
    replica.run(all.collect());
}

/// Nothing is due any more when all wills have been published, a few in each batch.
fn publish_all(replica: &mut Replica, mut published: usize) {
    let mut batches = 1;
    assert!(published <= PER_BUDGET, "{published} at once");
    while replica.machine.next_due().0 <= replica.now + 1 {
        let now = wills(&replica.pass(1));
        assert!(now <= PER_BUDGET, "{now} in a batch");
        published += now;
        batches += 1;
        if batches % 5 == 0 {
            replica.restart();
        }
    }
    assert_eq!(published, TOGETHER);
}

#[test]
fn the_wills_of_a_lost_node() {
    let mut replica = with_patterns();
    open_all(&mut replica, 0);
    let down = Kind::NodeDown(command::NodeDown {
        node: NODE.0,
        incarnation: INCARNATION.0,
    });
    let outputs = replica.run(vec![down]);
    publish_all(&mut replica, wills(&outputs));
}

#[test]
fn wills_whose_delays_end_at_the_same_time() {
    let mut replica = with_patterns();
    open_all(&mut replica, 5);
    replica.run(
        (2..2 + TOGETHER as u64)
            .map(|number| close(&number.to_string(), number))
            .collect(),
    );
    let outputs = replica.pass(5_000);
    publish_all(&mut replica, wills(&outputs));
}

/// Their new owners are told to come again.
#[test]
fn the_wills_of_sessions_that_are_taken_over() {
    let mut replica = with_patterns();
    open_all(&mut replica, 0);
    let mut left: Vec<u64> = (2..2 + TOGETHER as u64).collect();
    let mut published = 0;
    for round in 1..1_000 {
        let again = |number: &u64| Kind::OpenSession(opened(*number, round * 1_000 + number, 0));
        let outputs = replica.run(left.iter().map(again).collect());
        let now = wills(&outputs);
        assert!(now <= 2 * PER_BUDGET, "{now} in a batch");
        published += now;
        let replies = outputs.into_iter().filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        });
        let waits = |reply: &Reply| match reply {
            Reply::Opened { present, .. } => {
                assert!(*present);
                false
            }
            Reply::NotNow => true,
            other => panic!("{other:?}"),
        };
        let waits: Vec<bool> = replies.map(|reply| waits(&reply)).collect();
        let before = left.len();
        let mut waits = waits.into_iter();
        left.retain(|_| waits.next().expect("a reply"));
        assert!(left.len() < before, "it goes on");
        if left.is_empty() {
            break;
        }
    }
    assert_eq!(published, TOGETHER);
}

/// What timers have done beyond their half is not taken from the commands', which is there.
#[test]
fn a_take_over_waits_for_no_timers() {
    let mut replica = with_patterns();
    replica.run(vec![Kind::OpenSession(opened(2, 2, 0))]);
    replica.set_budget(Budget {
        overdraft: 0,
        ..Budget::default()
    });
    let outputs = replica.run(vec![Kind::OpenSession(opened(2, 3, 0))]);
    let is_opened = |output: &Output| {
        let Output::Reply { reply, .. } = output else {
            return false;
        };
        matches!(reply, Reply::Opened { present: true, .. })
    };
    assert!(outputs.iter().any(is_opened), "{outputs:?}");
    assert_eq!(wills(&outputs), 1);
    replica.set_budget(Budget {
        row_operations: 0,
        overdraft: 0,
        ..Budget::default()
    });
    let outputs = replica.run(vec![Kind::OpenSession(opened(2, 4, 0))]);
    let waits = |output: &Output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::NotNow,
                ..
            }
        )
    };
    assert!(outputs.iter().any(waits), "{outputs:?}");
}
