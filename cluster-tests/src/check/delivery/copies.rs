//! How often a QoS 1 message may come, and how often it came.

use crate::record::Label;
use crate::record::{Event, Sent, SubscriberRecord};
use std::collections::{BTreeMap, HashMap};

/// How many messages the broker may have for one label: every PUBLISH of a QoS 1 message may count as one.
pub(super) fn allowed(sent: &HashMap<Label, &Sent>, label: Label) -> u32 {
    match sent.get(&label) {
        Some(message) if label.qos == 1 => message.attempts,
        _ => 1,
    }
}

/// How many QoS 1 PUBLISHes with DUP 0 came for each label.
pub(super) fn first(subscribers: &[&SubscriberRecord]) -> BTreeMap<Label, u32> {
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
