//! How many retained messages there may be: in all, and of one device or module; by PUBLISH and by will.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::hub::{create, delete};
use super::queues::message;
use super::{Replica, close, open, with_will};
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::machine::batch::Budget;
use crate::machine::effect::Reply;
use crate::machine::schema::{self, StoredRow, Table};
use crate::registry::IfMatch;
use crate::registry::messages::publisher;

const TOPICS: [&str; 7] = [
    "devices/d/messages/events/",
    "devices/d/messages/events/a=b",
    "devices/d/messages/events/c",
    "devices/d/modules/m/messages/events/",
    "devices/d/modules/m/messages/events/x",
    "devices/e/messages/events",
    "other",
];

fn retained(topic: &str, payload: &str, expiry_s: Option<u32>) -> command::PublishedMessage {
    command::PublishedMessage {
        retain: true,
        expiry_interval_s: expiry_s,
        ..message(topic, 1, payload)
    }
}

/// A PUBLISH of whoever may have so many in all and of its own.
fn retain(topic: &str, payload: &str, all: u64, own: Option<u32>) -> Kind {
    Kind::Publish(command::Publish {
        message: Some(retained(topic, payload, None)),
        max_retained: all,
        max_retained_of_identity: own,
        ..Default::default()
    })
}

fn topics(replica: &Replica) -> Vec<String> {
    let topics = replica.stored.keys().filter_map(|key| {
        let is_retained = key.first() == Some(&schema::Retained::ORDINAL);
        is_retained.then(|| String::from_utf8(key[1..].to_vec()).expect("a topic"))
    });
    topics.collect()
}

/// What the rows count is what there is.
fn assert_counted(replica: &Replica) {
    let mut expected = BTreeMap::new();
    let topics = topics(replica);
    for of in topics.iter().filter_map(|topic| publisher(topic)) {
        *expected.entry(of.to_owned()).or_insert(0) += 1;
    }
    let counted = replica.stored.iter().filter_map(|(key, row)| {
        let of = schema::RetainedCount::decode(key)?;
        let count = StoredRow::<schema::RetainedCount>::new(row).decode();
        Some((of.to_owned(), count.0))
    });
    assert_eq!(counted.collect::<BTreeMap<_, _>>(), expected);
    let all = replica.machine.queue_usage().retained;
    assert_eq!(all, topics.len() as u64);
}

#[test]
fn a_device_has_so_many_retained_messages_and_no_more() {
    let mut replica = Replica::new();
    let mut take = |topic: &str, payload: &str, own| {
        let reply = replica.reply(retain(topic, payload, 100, own));
        assert!(matches!(reply, Reply::Published { .. }), "{reply:?}");
        assert_counted(&replica);
        topics(&replica).iter().any(|it| it == topic)
    };
    assert!(take(TOPICS[0], "x", Some(2)) && take(TOPICS[1], "x", Some(2)));
    assert!(!take(TOPICS[2], "x", Some(2)), "it has two");
    assert!(take(TOPICS[0], "y", Some(2)), "in the place of its own");
    assert!(take(TOPICS[3], "x", Some(2)), "a module has its own");
    assert!(take(TOPICS[5], "x", Some(2)), "so has another device");
    assert!(!take(TOPICS[1], "", Some(2)) && take(TOPICS[2], "x", Some(2)));
    assert!(!take(TOPICS[1], "x", Some(0)), "none is allowed");
    assert!(take(TOPICS[1], "x", None), "whoever is no device");
    assert!(take(TOPICS[6], "x", Some(2)), "nobody's");
}

#[test]
fn what_an_identity_has_retained_goes_with_it_and_not_what_a_new_one_of_its_name_has() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m"), create("e")]);
    let long = |number: usize| format!("devices/d/messages/events/{number:03}");
    let beside = "devices/d/messages/events!";
    for topic in TOPICS
        .into_iter()
        .map(str::to_owned)
        .chain((0..100).map(long))
    {
        let message = retained(&topic, "x", (topic.len() % 2 == 0).then_some(1_000));
        let publish = command::Publish {
            message: Some(message),
            ..Default::default()
        };
        replica.run(vec![Kind::Publish(publish)]);
    }
    replica.run(vec![retain(beside, "x", 0, None)]);
    replica.run(vec![delete("d/m", IfMatch::Any)]);
    replica.settle();
    assert!(!topics(&replica).contains(&TOPICS[3].to_owned()));
    assert!(topics(&replica).contains(&TOPICS[0].to_owned()));
    replica.set_budget(Budget {
        row_operations: 60,
        items_at_least: 1,
        ..replica.budget
    });
    replica.run(vec![delete("d", IfMatch::Any)]);
    let newer = [create("d"), retain(&long(7), "new", 0, Some(100))];
    replica.run(newer.into());
    assert_counted(&replica);
    let mut batches = 0;
    while replica.machine.next_due().0 <= replica.now + 1 {
        replica.restart();
        replica.pass(1);
        assert_counted(&replica);
        let operations = replica.operations;
        assert!(operations < 4 * 60, "{operations} row operations");
        batches += 1;
    }
    assert!(batches > 3, "some at a time: {batches}");
    assert_eq!(topics(&replica), [beside, &long(7), TOPICS[5], TOPICS[6]]);
    replica.pass(2_000_000);
    assert_eq!(
        topics(&replica).len(),
        4,
        "no timer is left of those that went"
    );
}

#[test]
fn a_will_that_is_one_too_many_is_published_and_not_retained() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.run(vec![retain(TOPICS[0], "x", 100, None)]);
    for (all, own, kept) in [
        (1, None, false),
        (100, Some(1), false),
        (100, Some(2), true),
        (0, None, true),
    ] {
        let mut open = with_will(open("d", 9), 0);
        let will = open.will.as_mut().expect("it has one");
        will.message = Some(retained(TOPICS[1], "gone", None));
        (will.max_retained, will.max_retained_of_identity) = (all, own);
        replica.run(vec![Kind::OpenSession(open)]);
        replica.restart();
        replica.run(vec![close("d", 9)]);
        assert_counted(&replica);
        let is_kept = topics(&replica).iter().any(|topic| topic == TOPICS[1]);
        assert_eq!(is_kept, kept, "{all} {own:?}");
        replica.run(vec![retain(TOPICS[1], "", 0, None)]);
    }
}

proptest! {
    #[test]
    fn what_is_retained_is_counted(
        steps in prop::collection::vec((0..TOPICS.len(), 0..5_u32, prop::option::of(1..4_u32)), 1..80),
    ) {
        let mut replica = Replica::new();
        for (topic, what, expiry_s) in steps {
            match what {
                0 => { replica.pass(1_500); }
                1 => replica.restart(),
                _ => {
                    let payload = if what == 2 { "" } else { "x" };
                    replica.run(vec![Kind::Publish(command::Publish {
                        message: Some(retained(TOPICS[topic], payload, expiry_s)),
                        max_retained: 5,
                        max_retained_of_identity: Some(2),
                        ..Default::default()
                    })]);
                }
            }
            assert_counted(&replica);
        }
        let of = |named: &str| {
            let own = |topic: &String| publisher(topic) == Some(named);
            topics(&replica).into_iter().filter(own).count()
        };
        prop_assert!(of("devices/d") <= 2 && topics(&replica).len() <= 5);
    }
}
