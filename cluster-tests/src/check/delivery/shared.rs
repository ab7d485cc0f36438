//! D9: the members of a shared subscription get each message once between them.

use super::copies::{allowed, first};
use crate::record::Label;
use crate::record::{Event, Sent, SubscriberRecord};
use std::collections::{BTreeMap, HashMap};

/// An acknowledgement sent this long before a connection was cut has been stored. Later ones may be lost with it.
pub(super) const STORED_WITHIN_MS: u64 = 2000;

/// One member gets each message. Another member may get it only when the first was cut off before it acknowledged it.
pub(super) fn violations(
    members: &[&SubscriberRecord],
    sent: &HashMap<Label, &Sent>,
    found: &mut Vec<String>,
) {
    let mut given: BTreeMap<Label, Vec<&str>> = BTreeMap::new();
    let mut unacknowledged: BTreeMap<Label, u32> = BTreeMap::new();
    for member in members {
        for delivery in member.deliveries() {
            if delivery.qos == 2 {
                let names = given.entry(delivery.label).or_default();
                names.push(&member.shape.client_id);
            } else if is_unacknowledged(member, delivery.event) {
                *unacknowledged.entry(delivery.label).or_default() += 1;
            }
        }
    }
    // [MQTT-4.8.2-4]: the delivery of a QoS 2 message is completed to the client that it began with.
    for (label, names) in given.iter().filter(|(_, names)| names.len() > 1) {
        found.push(format!("D9: {label} was given to {}", names.join(" and ")));
    }
    for (label, count) in first(members) {
        let most = allowed(sent, label) + unacknowledged.get(&label).unwrap_or(&0);
        if count > most {
            found.push(format!(
                "D9: members got {count} copies of {label} without DUP, {most} at most are explained"
            ));
        }
    }
}

/// Whether the connection was cut so early that the PUBACK of this QoS 1 message may not have been stored.
fn is_unacknowledged(subscriber: &SubscriberRecord, event: usize) -> bool {
    let Some((_, Event::Publish(arrival))) = subscriber.events.get(event) else {
        return false;
    };
    let mut acknowledged = None;
    for (at, later) in &subscriber.events[event + 1..] {
        match later {
            Event::SentPuback { packet_id } if *packet_id == arrival.packet_id => {
                acknowledged.get_or_insert(*at);
            }
            Event::Cut => return acknowledged.is_none_or(|then| at - then < STORED_WITHIN_MS),
            _ => {}
        }
    }
    false
}
