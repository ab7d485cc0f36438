//! Rules on what arrived: D1 to D5, D9, S1 to S3. [`super::redelivery`] has the rules on single packets.

mod copies;
mod shared;
#[cfg(test)]
mod tests;

use crate::record::Label;
use crate::record::{Arrival, Event, Record, Sent, SubscriberRecord};
use copies::{allowed, first};
use std::collections::{BTreeMap, BTreeSet, HashMap};

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
        found.extend(
            publisher
                .protocol_errors
                .iter()
                .map(|error| format!("{name}: {error}")),
        );
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
                Event::ProtocolError(error) => found.push(format!("{name}: {error}")),
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
        shared::violations(members, &sent, &mut found);
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
    for (label, count) in first(&[subscriber]) {
        let most = allowed(sent, label);
        if count > most {
            found.push(format!(
                "D2: {name} got {count} copies of {label} without DUP, and it was published {most} times"
            ));
        }
    }
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
