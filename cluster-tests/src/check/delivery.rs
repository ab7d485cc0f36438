//! Rules on what arrived: D1 to D5, D9, S1 to S3. How it arrived, packet by packet, is [`super::redelivery`]'s.

use crate::delivery::label::Label;
use crate::delivery::record::{Arrival, Event, Record, Sent, SubscriberRecord};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An acknowledgement sent this long before a connection was cut has been stored. Later ones may be lost with it.
const SETTLED_MS: u64 = 2000;

/// Every violation of a whole record, one line each.
pub fn violations(record: &Record) -> Vec<String> {
    let sent: HashMap<Label, &Sent> = record
        .publishers
        .iter()
        .flat_map(|publisher| &publisher.messages)
        .map(|message| (message.label, message))
        .collect();
    let mut found = lost(record);
    for publisher in &record.publishers {
        let name = &publisher.client_id;
        sessions(
            name,
            publisher.first_uncertain,
            &publisher.present,
            &mut found,
        );
        found.extend(publisher.odd.iter().map(|odd| format!("{name}: {odd}")));
    }
    for subscriber in &record.subscribers {
        let name = &subscriber.shape.client_id;
        let present: Vec<bool> = subscriber
            .events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Connected { present } => Some(*present),
                _ => None,
            })
            .collect();
        sessions(name, subscriber.first_uncertain, &present, &mut found);
        for (_, event) in &subscriber.events {
            match event {
                Event::Odd(odd) => found.push(format!("{name}: {odd}")),
                Event::Publish(arrival) => arrived(subscriber, arrival, &sent, &mut found),
                _ => {}
            }
        }
        if subscriber.shape.group.is_none() {
            doubled(subscriber, &sent, &mut found);
            order(subscriber, &mut found);
        }
    }
    for members in groups(record).values() {
        shared(members, &sent, &mut found);
    }
    found
}

/// The members of each shared subscription.
fn groups(record: &Record) -> BTreeMap<&str, Vec<&SubscriberRecord>> {
    let mut groups: BTreeMap<&str, Vec<&SubscriberRecord>> = BTreeMap::new();
    for subscriber in &record.subscribers {
        if let Some(group) = &subscriber.shape.group {
            groups.entry(group).or_default().push(subscriber);
        }
    }
    groups
}

/// D1: what was acknowledged and has not arrived, at a subscriber or at any member of a shared subscription.
pub fn lost(record: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let mut missing = |who: &str, interest: &SubscriberRecord, had: &BTreeSet<Label>| {
        for message in record.accepted() {
            let label = message.label;
            if interest.shape.interest.covers(label.topic) && !had.contains(&label) {
                let at = message.accepted.unwrap_or(0);
                found.push(format!(
                    "D1: {who} never got {label}, acknowledged at {at} ms"
                ));
            }
        }
    };
    for subscriber in &record.subscribers {
        if subscriber.shape.group.is_none() {
            missing(
                &subscriber.shape.client_id,
                subscriber,
                &subscriber.labels(),
            );
        }
    }
    for (group, members) in groups(record) {
        let had = members.iter().flat_map(|member| member.labels()).collect();
        missing(&format!("the group {group}"), members[0], &had);
    }
    found
}

/// S1 and S2: `session present` is 0 on the first connection and 1 on every other.
fn sessions(name: &str, first_uncertain: bool, present: &[bool], found: &mut Vec<String>) {
    for (index, present) in present.iter().enumerate() {
        if index == 0 && *present && !first_uncertain {
            found.push(format!("S2: {name}'s first connection found a session"));
        }
        if index > 0 && !present {
            found.push(format!(
                "S1: {name}'s connection {} found no session",
                index + 1
            ));
        }
    }
}

/// D3 and D5 of one PUBLISH, and that the subscription still has its options (S3).
fn arrived(
    subscriber: &SubscriberRecord,
    arrival: &Arrival,
    sent: &HashMap<Label, &Sent>,
    found: &mut Vec<String>,
) {
    let shape = &subscriber.shape;
    let name = &shape.client_id;
    let Some(label) = arrival.label.filter(|label| sent.contains_key(label)) else {
        found.push(format!("D3: {name} got what nobody sent: {arrival:?}"));
        return;
    };
    let right = arrival.topic == format!("t{}", label.topic) && shape.interest.covers(label.topic);
    if !right {
        found.push(format!("D5: {name} got {label} as {:?}", arrival.topic));
    }
    let wanted: Vec<u32> = subscriber.identifier.into_iter().collect();
    if arrival.qos != label.qos.min(shape.qos) || arrival.retain || arrival.identifiers != wanted {
        found.push(format!(
            "S3: {name} subscribed at QoS {} with identifiers {wanted:?}, and got {label} as {arrival:?}",
            shape.qos
        ));
    }
}

/// How many messages the broker may rightly hold for one label: each PUBLISH of a QoS 1 message may count as one.
fn copies(sent: &HashMap<Label, &Sent>, label: Label) -> u32 {
    match sent.get(&label) {
        Some(message) if label.qos == 1 => message.attempts,
        _ => 1,
    }
}

/// D2: QoS 2 exactly once; and what arrives as QoS 1 comes again as the same message only, with DUP 1.
fn doubled(subscriber: &SubscriberRecord, sent: &HashMap<Label, &Sent>, found: &mut Vec<String>) {
    let name = &subscriber.shape.client_id;
    let mut times: BTreeMap<Label, u32> = BTreeMap::new();
    for delivery in subscriber.deliveries() {
        if delivery.qos == 2 {
            *times.entry(delivery.label).or_default() += 1;
        }
    }
    for (label, count) in times.into_iter().filter(|(_, count)| *count > 1) {
        found.push(format!("D2: {name} was given {label} {count} times"));
    }
    for (label, count) in first_copies(&[subscriber]) {
        let allowed = copies(sent, label);
        if count > allowed {
            found.push(format!(
                "D2: {name} got {count} copies of {label} without DUP, and it was published {allowed} times"
            ));
        }
    }
}

/// How many QoS 1 PUBLISHes with DUP 0 came for each label.
fn first_copies(subscribers: &[&SubscriberRecord]) -> BTreeMap<Label, u32> {
    let mut times: BTreeMap<Label, u32> = BTreeMap::new();
    for (_, event) in subscribers.iter().flat_map(|one| &one.events) {
        if let Event::Publish(arrival) = event
            && arrival.qos == 1
            && !arrival.duplicate
            && let Some(label) = arrival.label
        {
            *times.entry(label).or_default() += 1;
        }
    }
    times
}

/// D4: per publisher, topic and QoS, first deliveries come in the order of sending.
fn order(subscriber: &SubscriberRecord, found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    let mut highest: BTreeMap<(usize, usize, u8), Label> = BTreeMap::new();
    for delivery in subscriber.deliveries() {
        let label = delivery.label;
        if !seen.insert(label) {
            continue;
        }
        let last = highest
            .entry((label.publisher, label.topic, label.qos))
            .or_insert(label);
        if label.sequence < last.sequence {
            found.push(format!(
                "D4: {} was given {label} after {last}",
                subscriber.shape.client_id
            ));
        } else {
            *last = label;
        }
    }
}

/// D9: one member gets each message; another one only what the first may have held, unacknowledged, when it was cut off.
fn shared(members: &[&SubscriberRecord], sent: &HashMap<Label, &Sent>, found: &mut Vec<String>) {
    let mut given: BTreeMap<Label, Vec<&str>> = BTreeMap::new();
    let mut held: BTreeMap<Label, u32> = BTreeMap::new();
    for member in members {
        for delivery in member.deliveries() {
            if delivery.qos == 2 {
                let names = given.entry(delivery.label).or_default();
                names.push(&member.shape.client_id);
            } else if is_held(member, delivery.event) {
                *held.entry(delivery.label).or_default() += 1;
            }
        }
    }
    // [MQTT-4.8.2-4]: the delivery of a QoS 2 message is completed to the client that it began with.
    for (label, names) in given.iter().filter(|(_, names)| names.len() > 1) {
        found.push(format!("D9: {label} was given to {}", names.join(" and ")));
    }
    for (label, count) in first_copies(members) {
        let allowed = copies(sent, label) + held.get(&label).unwrap_or(&0);
        if count > allowed {
            found.push(format!(
                "D9: members got {count} copies of {label} without DUP, {allowed} at most are explained"
            ));
        }
    }
}

/// The connection was cut before this QoS 1 message's PUBACK was surely stored.
fn is_held(subscriber: &SubscriberRecord, event: usize) -> bool {
    let Some((_, Event::Publish(arrival))) = subscriber.events.get(event) else {
        return false;
    };
    let mut acknowledged = None;
    for (at, later) in &subscriber.events[event + 1..] {
        match later {
            Event::SentPuback { packet_id } if *packet_id == arrival.packet_id => {
                acknowledged.get_or_insert(*at);
            }
            Event::Cut => return acknowledged.is_none_or(|then| at - then < SETTLED_MS),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::record::{Interest, PublisherRecord, SubscriberShape};

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
        let mut odd = record(
            two_of_each(),
            vec![subscriber(
                "s",
                [all_four(), vec![Event::Odd("x".into())]].concat(),
            )],
        );
        odd.publishers[0].odd.push("y".into());
        assert_eq!(violations(&odd), ["p: y", "s: x"]);
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
        let mut settled = record(
            two_of_each(),
            vec![
                member("a", [all_four(), acknowledged, cut].concat()),
                member("b", vec![new(1, label(1, 0))]),
            ],
        );
        for (at, event) in &mut settled.subscribers[0].events {
            if *event == Event::Cut {
                *at += SETTLED_MS;
            }
        }
        assert_eq!(broken(&settled), ["D9"]);
        // QoS 2 is completed to the client that it began with, held or not.
        let held = vec![
            member("a", [all_four(), vec![Event::Cut]].concat()),
            member("b", vec![new(1, label(2, 0))]),
        ];
        assert_eq!(broken(&record(two_of_each(), held)), ["D9"]);
    }
}
