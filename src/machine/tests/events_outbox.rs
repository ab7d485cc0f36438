//! The bounds of the outbox, and how long events are kept.

use super::events::{outbox, set_events, told};
use super::events_subscriptions::put;
use super::{Budget, Replica, close, open};
use crate::base::proto::command::command::Kind;
use crate::machine::effect::{EventDrop, Output};
use crate::machine::read_events;

fn dropped(outputs: &[Output]) -> u64 {
    let dropped = outputs.iter().map(|output| match output {
        Output::EventsDropped {
            reason: EventDrop::OutboxFull,
            count,
        } => *count,
        _ => 0,
    });
    dropped.sum()
}

impl Replica {
    fn come_and_go(&mut self, client_id: &str) -> Vec<Output> {
        self.run(vec![
            Kind::OpenSession(open(client_id, 1)),
            close(client_id, 1),
        ])
    }

    fn check_usage(&self) {
        let usage = self.machine.event_usage();
        assert_eq!(usage.events, outbox(self).len() as u64);
        if usage.events == 0 {
            assert_eq!(usage.bytes, 0);
        }
    }
}

#[test]
fn events_are_kept_as_long_as_they_are_to_be() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.keep_s = 10)]);
    replica.come_and_go("a");
    replica.pass(5_000);
    replica.come_and_go("a");
    replica.restart();
    replica.pass(4_900);
    replica.settle();
    assert_eq!(told(&replica).len(), 4, "ten seconds are not over");
    replica.pass(1_500);
    replica.settle();
    assert_eq!(told(&replica), ["a +2", "a -2 ConnectionLost"]);
    replica.pass(5_000);
    replica.settle();
    assert!(told(&replica).is_empty());
    replica.check_usage();
    replica.come_and_go("b");
    assert_eq!(read_events::numbers(&replica.stored).first, 5);
    replica.pass(20_000);
    replica.settle();
    replica.check_usage();
    assert!(told(&replica).is_empty(), "it begins anew");
}

#[test]
fn beyond_the_number_of_events_the_oldest_go() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.outbox_max_events = 5)]);
    replica.run(vec![Kind::PutEventSubscription(put("s"))]);
    let mut all = 0;
    for _ in 0..4 {
        all += dropped(&replica.come_and_go("a"));
        replica.check_usage();
    }
    assert_eq!(all, 3);
    let kept: Vec<u64> = outbox(&replica)
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert_eq!(kept, [4, 5, 6, 7, 8]);
    assert_eq!(read_events::numbers(&replica.stored).first, 4);
}

#[test]
fn beyond_the_bytes_of_events_the_oldest_go() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.outbox_max_bytes = 1_000;
        settings.keep_s = 100;
    })]);
    for _ in 0..30 {
        replica.come_and_go("short");
        replica.check_usage();
    }
    let many = replica.machine.event_usage().events;
    assert!(many > 10, "{many}");
    // A long one takes the place of many, some at once and some by the timer.
    let outputs = replica.come_and_go(&"long".repeat(100));
    assert_eq!(dropped(&outputs), 4, "two for each");
    let outputs = replica.settle();
    assert!(dropped(&outputs) > 2);
    replica.check_usage();
    let usage = replica.machine.event_usage();
    assert!(usage.bytes <= 1_000, "{usage:?}");
    // Larger than all there may be: it is not kept.
    let one = "long".repeat(1_000);
    replica.come_and_go(&one);
    replica.settle();
    replica.check_usage();
    assert_eq!(replica.machine.event_usage().events, 0);
}

/// An outbox that has grown is trimmed in portions, the same after a restart.
#[test]
fn other_bounds_take_effect_at_once() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.keep_s = 100)]);
    for _ in 0..100 {
        replica.come_and_go("a");
    }
    replica.set_budget(Budget {
        row_operations: 20,
        items_at_least: 1,
        overdraft: 0,
        queues_at_least: 1,
        looked_up_anew: 1_000,
    });
    let outputs = replica.run(vec![set_events(|settings| {
        settings.keep_s = 100;
        settings.outbox_max_events = 10;
    })]);
    assert_eq!(dropped(&outputs), 0, "the timer does it");
    replica.restart();
    let outputs = replica.settle();
    assert!(dropped(&outputs) <= 190);
    assert_eq!(replica.machine.event_usage().events, 10);
    replica.check_usage();
    replica.run(vec![set_events(|_| {})]);
    replica.pass(2_000);
    replica.settle();
    assert!(told(&replica).is_empty(), "nobody asks for any");
    replica.check_usage();
}

#[test]
fn settings_that_are_the_same_change_nothing() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.keep_s = 100)]);
    let before = replica.stored.clone();
    let outputs = replica.run(vec![set_events(|settings| settings.keep_s = 100)]);
    assert!(
        !outputs
            .iter()
            .any(|output| matches!(output, Output::EventsChanged))
    );
    let event_rows = |stored: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>| {
        let rows = stored.iter().filter(|(key, _)| key[0] >= 0x50);
        rows.map(|(key, row)| (key.clone(), row.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(event_rows(&replica.stored), event_rows(&before));
}

/// A name that no topic can hold: the event is kept all the same, and counted where it is not published.
#[test]
fn a_topic_that_is_too_long_is_counted() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 100;
        settings.mqtt = true;
    })]);
    let outputs = replica.come_and_go(&"ü".repeat(32_000));
    let too_long = |output: &&Output| {
        let reason = EventDrop::TopicTooLong;
        matches!(output, Output::EventsDropped { reason: found, count: 1 } if *found == reason)
    };
    assert_eq!(outputs.iter().filter(too_long).count(), 2);
    assert_eq!(told(&replica).len(), 2);
}
