//! How many retained messages there may be: in all, and of one device or module; by PUBLISH and by will.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::hub::{create, delete};
use super::queues::message;
use super::{Replica, close, open, with_will};
use crate::base::limits;
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
        overdraft: 0,
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

/// Most devices could not be told, and would send the same message again for ever.
#[test]
fn what_a_device_retains_where_no_more_is_retained_is_published() {
    let mut replica = Replica::new();
    replica.reply(retain(TOPICS[6], "x", 1, None));
    let refused = replica.reply(retain("another", "x", 1, None));
    assert!(matches!(refused, Reply::QuotaExceeded), "{refused:?}");
    let reply = replica.reply(retain(TOPICS[0], "x", 1, Some(16)));
    assert!(matches!(reply, Reply::Published { .. }), "{reply:?}");
    assert_eq!(topics(&replica), [TOPICS[6]]);
    assert_counted(&replica);
}

#[test]
fn what_others_have_retained_goes_where_an_identity_begins() {
    let mut replica = Replica::new();
    let below = |number: usize| format!("devices/d/messages/events/{number}");
    for topic in (0..40).map(below).chain([TOPICS[3].into(), "other".into()]) {
        replica.run(vec![retain(&topic, "x", 0, None)]);
    }
    replica.run(vec![create("d")]);
    replica.settle();
    assert_eq!(topics(&replica), [TOPICS[3], "other"]);
    assert_counted(&replica);
    replica.run(vec![create("d/m"), retain(TOPICS[3], "x", 0, Some(1))]);
    replica.settle();
    assert_eq!(topics(&replica), [TOPICS[3], "other"], "it is its own now");
}

/// As there are in a directory of a build that did not count them.
#[test]
fn what_is_not_counted_goes_with_its_identity_too() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    for topic in [TOPICS[0], "devices/d/messages/events"] {
        replica.run(vec![retain(topic, "x", 0, Some(2))]);
    }
    let is_count = |key: &Vec<u8>| key.first() == Some(&schema::RetainedCount::ORDINAL);
    replica.stored.retain(|key, _| !is_count(key));
    replica.run(vec![delete("d", IfMatch::Any)]);
    replica.settle();
    assert_eq!(topics(&replica), [""; 0]);
    assert_counted(&replica);
}

#[test]
fn what_a_new_identity_retains_at_once_is_not_counted_beside_that_of_the_former_one() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    let name = |of, number| format!("devices/d/messages/events/{of}{number}");
    let all = |of| (0..16).map(move |number| retain(&name(of, number), "x", 0, Some(16)));
    replica.run(all("a").collect());
    assert_eq!(topics(&replica).len(), 16);
    let again = [delete("d", IfMatch::Any), create("d")];
    replica.run(again.into_iter().chain(all("b")).collect());
    replica.settle();
    let kept = topics(&replica);
    assert!(
        kept.len() == 16 && kept.contains(&name("b", 15)),
        "{kept:?}"
    );
    assert_counted(&replica);
}

/// How many retained messages each of the next batches deletes, and the most row operations of one.
fn purged(replica: &mut Replica) -> (Vec<usize>, u64) {
    let (mut deleted, mut most) = (Vec::new(), 0);
    while replica.machine.next_due().0 <= replica.now + 1 {
        let before = topics(replica).len();
        replica.pass(1);
        deleted.push(before - topics(replica).len());
        most = most.max(replica.operations);
    }
    (deleted, most)
}

/// However many identities go at once, and whatever it is that is large.
#[test]
fn a_batch_looks_at_so_many_bytes_of_what_was_retained() {
    const LARGE: usize = 512 << 10;
    for (payload, topic) in [(LARGE, 1), (1, 30_000)] {
        let mut replica = Replica::new();
        replica.run(vec![create("d")]);
        for module in 0..8 {
            replica.run(vec![create(&format!("d/m{module}"))]);
            for number in 0..20 {
                let name = format!("{number:02}").repeat(topic);
                let topic = format!("devices/d/modules/m{module}/messages/events/{name}");
                replica.run(vec![retain(&topic, &"x".repeat(payload), 0, None)]);
            }
        }
        let before = topics(&replica).len();
        replica.run(vec![delete("d", IfMatch::Any)]);
        let mut deleted = vec![before - topics(&replica).len()];
        deleted.extend(purged(&mut replica).0);
        assert_eq!(topics(&replica), [""; 0]);
        let each = payload + 2 * topic;
        let most = limits::RETAINED_PURGED_BYTES as usize / each + 1;
        let is_bounded = deleted.iter().all(|deleted| *deleted <= most);
        assert!(is_bounded, "at most {most}: {deleted:?}");
        assert!(deleted.len() < 3 * 8 * 20 / most + 8, "{deleted:?}");
    }
}

/// Anybody may publish there.
#[test]
fn topics_that_only_begin_like_those_of_an_identity_are_not_looked_at() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), retain(TOPICS[0], "x", 0, None)]);
    for number in 0..2_000 {
        let beside = format!("devices/d/messages/events!{number}");
        replica.run(vec![retain(&beside, "x", 0, None)]);
    }
    replica.run(vec![delete("d", IfMatch::Any)]);
    let most = replica.operations.max(purged(&mut replica).1);
    assert!(most < 200, "{most} row operations");
    assert_eq!(topics(&replica).len(), 2_000);
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
