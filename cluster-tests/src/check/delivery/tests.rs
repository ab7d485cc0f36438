//! The judge finds what it should, and nothing else.

use super::shared::STORED_WITHIN_MS;
use super::*;
use crate::record::{Interest, PublisherRecord, SubscriberShape};

fn label(qos: u8, sequence: u32) -> Label {
    Label {
        publisher: 0,
        topic: 1,
        qos,
        sequence,
    }
}

fn sent(label: Label, attempts: u32, accepted: bool) -> Sent {
    Sent {
        label,
        sent: 1,
        attempts,
        accepted: accepted.then_some(2),
        refused: None,
    }
}

fn arrival(packet_id: u16, label: Label) -> Arrival {
    Arrival {
        packet_id,
        duplicate: false,
        qos: label.qos,
        retain: false,
        topic: format!("t{}", label.topic),
        label: Some(label),
        identifiers: vec![7],
    }
}

fn again(packet_id: u16, label: Label) -> Event {
    Event::Publish(Arrival {
        duplicate: true,
        ..arrival(packet_id, label)
    })
}

fn new(packet_id: u16, label: Label) -> Event {
    Event::Publish(arrival(packet_id, label))
}

fn subscriber(name: &str, events: Vec<Event>) -> SubscriberRecord {
    let connected = Event::Connected { present: false };
    SubscriberRecord {
        shape: SubscriberShape::new(name),
        identifier: Some(7),
        first_uncertain: false,
        events: [connected]
            .into_iter()
            .chain(events)
            .enumerate()
            .map(|(index, event)| (index as u64, event))
            .collect(),
    }
}

fn member(name: &str, events: Vec<Event>) -> SubscriberRecord {
    let mut member = subscriber(name, events);
    member.shape.group = Some("g".into());
    member
}

fn record(messages: Vec<Sent>, subscribers: Vec<SubscriberRecord>) -> Record {
    Record {
        publishers: vec![PublisherRecord {
            client_id: "p".into(),
            messages,
            present: vec![false],
            ..PublisherRecord::default()
        }],
        subscribers,
    }
}

/// The rules that are broken, in order and once each.
fn broken(record: &Record) -> Vec<String> {
    let mut rules: Vec<String> = violations(record)
        .iter()
        .map(|line| line.split(':').next().unwrap_or_default().to_owned())
        .collect();
    rules.dedup();
    rules
}

fn two_of_each() -> Vec<Sent> {
    vec![
        sent(label(1, 0), 1, true),
        sent(label(1, 1), 1, true),
        sent(label(2, 0), 1, true),
        sent(label(2, 1), 1, true),
    ]
}

fn all_four() -> Vec<Event> {
    vec![
        new(1, label(1, 0)),
        new(2, label(2, 0)),
        new(3, label(1, 1)),
        new(4, label(2, 1)),
    ]
}

#[test]
fn a_good_record_is_good() {
    let good = record(two_of_each(), vec![subscriber("s", all_four())]);
    assert_eq!(violations(&good), Vec::<String>::new());
}

#[test]
fn a_lost_message_is_found_if_it_was_acknowledged() {
    let three = all_four()[..3].to_vec();
    let judge =
        |messages: Vec<Sent>| broken(&record(messages, vec![subscriber("s", three.clone())]));
    assert_eq!(judge(two_of_each()), ["D1"]);
    let mut unknown = two_of_each();
    unknown[3].accepted = None;
    assert!(judge(unknown).is_empty());
}

#[test]
fn a_subscriber_misses_only_what_it_asked_for() {
    let mut other = subscriber("s", Vec::new());
    other.shape.interest = Interest::Topic(2);
    assert!(broken(&record(two_of_each(), vec![other])).is_empty());
}

#[test]
fn a_qos_2_message_given_twice_is_found() {
    let judge = |extra: Vec<Event>| {
        let events = [all_four(), extra].concat();
        broken(&record(two_of_each(), vec![subscriber("s", events)]))
    };
    // Open until PUBREL: a duplicate, not a second message.
    assert!(judge(vec![again(4, label(2, 1))]).is_empty());
    let released = Event::Pubrel { packet_id: 4 };
    assert_eq!(judge(vec![released, again(4, label(2, 1))]), ["D2"]);
    assert_eq!(judge(vec![new(9, label(2, 1))]), ["D2"]);
}

#[test]
fn a_second_copy_of_a_qos_1_message_needs_dup_or_a_second_publish() {
    let judge = |attempts: u32, extra: Event| {
        let mut messages = two_of_each();
        messages[0].attempts = attempts;
        let events = [all_four(), vec![extra]].concat();
        broken(&record(messages, vec![subscriber("s", events)]))
    };
    assert!(judge(1, again(1, label(1, 0))).is_empty());
    assert_eq!(judge(1, new(9, label(1, 0))), ["D2"]);
    assert!(judge(2, new(9, label(1, 0))).is_empty());
}

#[test]
fn a_qos_2_message_lowered_to_qos_1_has_one_copy() {
    let judge = |duplicate: bool| {
        let lowered = |duplicate| {
            Event::Publish(Arrival {
                qos: 1,
                duplicate,
                ..arrival(1, label(2, 0))
            })
        };
        let mut low = subscriber("s", vec![lowered(false), lowered(duplicate)]);
        low.shape.qos = 1;
        broken(&record(vec![sent(label(2, 0), 3, true)], vec![low]))
    };
    assert!(judge(true).is_empty());
    assert_eq!(judge(false), ["D2"]);
}

#[test]
fn invented_messages_are_found() {
    for wrong in [Some(label(2, 2)), None] {
        let invented = Event::Publish(Arrival {
            label: wrong,
            ..arrival(5, label(2, 1))
        });
        let events = [all_four(), vec![invented]].concat();
        let found = broken(&record(two_of_each(), vec![subscriber("s", events)]));
        assert_eq!(found, ["D3"]);
    }
}

#[test]
fn wrong_order_is_found_by_first_delivery() {
    let mut swapped = all_four();
    swapped.swap(1, 3);
    assert_eq!(
        broken(&record(two_of_each(), vec![subscriber("s", swapped)])),
        ["D4"]
    );
    let mut repeated = all_four();
    repeated.push(again(1, label(1, 0)));
    assert!(broken(&record(two_of_each(), vec![subscriber("s", repeated)])).is_empty());
}

#[test]
fn wrong_topics_and_options_are_found() {
    let judge = |wrong: Arrival| {
        let mut events = all_four();
        events[3] = Event::Publish(wrong);
        broken(&record(two_of_each(), vec![subscriber("s", events)]))
    };
    let right = arrival(4, label(2, 1));
    let topic = "t2".to_owned();
    assert_eq!(
        judge(Arrival {
            topic,
            ..right.clone()
        }),
        ["D5"]
    );
    let identifiers = Vec::new();
    assert_eq!(
        judge(Arrival {
            identifiers,
            ..right.clone()
        }),
        ["S3"]
    );
    assert_eq!(
        judge(Arrival {
            qos: 1,
            ..right.clone()
        }),
        ["S3"]
    );
    let retain = true;
    assert_eq!(judge(Arrival { retain, ..right }), ["S3"]);
}

#[test]
fn lost_and_unexpected_sessions_are_found() {
    let judge = |present: bool| {
        let events = [all_four(), vec![Event::Cut, Event::Connected { present }]].concat();
        broken(&record(two_of_each(), vec![subscriber("s", events)]))
    };
    assert!(judge(true).is_empty());
    assert_eq!(judge(false), ["S1"]);
    let mut early = record(two_of_each(), vec![subscriber("s", all_four())]);
    early.publishers[0].present = vec![true, true];
    assert_eq!(broken(&early), ["S2"]);
    early.publishers[0].first_uncertain = true;
    assert!(broken(&early).is_empty());
    early.publishers[0].present = vec![true, false];
    assert_eq!(broken(&early), ["S1"]);
}

#[test]
fn what_clients_found_odd_is_passed_on() {
    let mut error = record(
        two_of_each(),
        vec![subscriber(
            "s",
            [all_four(), vec![Event::ProtocolError("x".into())]].concat(),
        )],
    );
    error.publishers[0].protocol_errors.push("y".into());
    assert_eq!(violations(&error), ["p: y", "s: x"]);
}

#[test]
fn a_group_gets_each_message_once() {
    let judge = |a: Vec<Event>, b: Vec<Event>| {
        broken(&record(two_of_each(), vec![member("a", a), member("b", b)]))
    };
    let (first, second) = (all_four()[..2].to_vec(), all_four()[2..].to_vec());
    assert!(judge(first.clone(), second.clone()).is_empty());
    assert_eq!(judge(first.clone(), Vec::new()), ["D1"]);
    assert_eq!(judge(all_four(), vec![new(1, label(2, 0))]), ["D9"]);
    assert_eq!(judge(all_four(), vec![new(1, label(1, 0))]), ["D9"]);
}

#[test]
fn a_group_may_give_again_what_a_cut_off_member_held() {
    let cut = vec![Event::Cut, Event::Connected { present: true }];
    let judge = |a: Vec<Event>| {
        let b = member("b", vec![new(1, label(1, 0))]);
        broken(&record(two_of_each(), vec![member("a", a), b]))
    };
    let acknowledged = vec![Event::SentPuback { packet_id: 1 }];
    assert!(judge([all_four(), cut.clone()].concat()).is_empty());
    assert!(judge([all_four(), acknowledged.clone(), cut.clone()].concat()).is_empty());
    // Acknowledged long before the cut.
    let mut stored = record(
        two_of_each(),
        vec![
            member("a", [all_four(), acknowledged, cut].concat()),
            member("b", vec![new(1, label(1, 0))]),
        ],
    );
    for (at, event) in &mut stored.subscribers[0].events {
        if *event == Event::Cut {
            *at += STORED_WITHIN_MS;
        }
    }
    assert_eq!(broken(&stored), ["D9"]);
    // QoS 2 is completed to the client that it began with, acknowledged or not.
    let members = vec![
        member("a", [all_four(), vec![Event::Cut]].concat()),
        member("b", vec![new(1, label(2, 0))]),
    ];
    assert_eq!(broken(&record(two_of_each(), members)), ["D9"]);
}
