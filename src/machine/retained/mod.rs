//! Retained messages: the last one of every topic `[MQTT-3.3.1-5]`, until it expires or an empty one deletes it. There
//! is nothing of them in memory.
//!
//! Invariant: the rows are counted, in all and for each device and module that has published some of them.

mod page;
pub(super) mod publication;
pub(super) mod purge;
pub(super) mod replay;
mod replay_end;

use super::batch::Batch;
use super::effect::ApplicationMessage;
use super::schema;
use super::schema::timer::Kind;
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::registry::messages::publisher;

/// Whether a message would be one retained message more than the `most` that there may be in all; 0 is no bound.
pub(super) fn exceeds(
    batch: &Batch<'_, '_>,
    message: &command::PublishedMessage,
    most: u64,
) -> bool {
    most != 0 && batch.meta.queue_usage().retained >= most && is_new(batch, message)
}

/// Whether it would be one more than the device or the module that publishes it may have.
pub(super) fn exceeds_share(
    batch: &Batch<'_, '_>,
    message: &command::PublishedMessage,
    most: Option<u32>,
) -> bool {
    let Some((most, publisher)) = most.zip(publisher(&message.topic)) else {
        return false;
    };
    count(batch, publisher) >= most && is_new(batch, message)
}

fn is_new(batch: &Batch<'_, '_>, message: &command::PublishedMessage) -> bool {
    let topic = message.topic.as_bytes();
    message.retain
        && !message.payload.is_empty()
        && !batch.tables.contains::<schema::Retained>(topic)
}

/// Of one device or module.
fn count(batch: &Batch<'_, '_>, publisher: &str) -> u32 {
    let count = batch.tables.get::<schema::RetainedCount>(publisher);
    count.map_or(0, |count| count.0)
}

/// There is one more, or one less.
fn change_count(batch: &mut Batch<'_, '_>, topic: &str, change: i32) {
    match change {
        1 => batch.meta.count_retained(),
        _ => batch.meta.uncount_retained(),
    }
    let Some(publisher) = publisher(topic) else {
        return;
    };
    match count(batch, publisher).saturating_add_signed(change) {
        0 => batch.tables.delete::<schema::RetainedCount>(publisher),
        count => {
            let count = schema::Count(count);
            batch.tables.put::<schema::RetainedCount>(publisher, &count);
        }
    }
}

/// Stores a message as the retained one of its topic, or deletes that when its payload is empty `[MQTT-3.3.1-6]`
/// `[MQTT-3.3.1-7]`.
pub(super) fn retain(batch: &mut Batch<'_, '_>, message: &ApplicationMessage) {
    let topic = message.topic.as_bytes();
    let former = batch.tables.get::<schema::Retained>(topic);
    if let Some(deadline) = former
        .as_ref()
        .and_then(|former| deadline(former.expires_at_ms))
    {
        batch.clear_timer(deadline, Kind::RetainedExpiry, topic);
    }
    if message.payload.is_empty() {
        // A tombstone for nothing would be one all the same.
        if former.is_some() {
            batch.tables.delete::<schema::Retained>(topic);
            change_count(batch, &message.topic, -1);
        }
        return;
    }
    let row = state::Retained {
        qos: message.qos as u32,
        payload: message.payload.clone(),
        properties: message.properties.clone(),
        expires_at_ms: message.expires_at.map(|at| at.0),
        index: batch.index.0,
        publisher: message.publisher.map_or(0, |session| session.0),
    };
    batch.tables.put::<schema::Retained>(topic, &row);
    if former.is_none() {
        change_count(batch, &message.topic, 1);
    }
    if let Some(deadline) = deadline(row.expires_at_ms) {
        batch.set_timer(deadline, Kind::RetainedExpiry, topic);
    }
}

/// A timer says that the message of a topic is over; another one may have taken its place.
pub(super) fn expire(batch: &mut Batch<'_, '_>, topic: &[u8], due: Millis) {
    let Some(row) = batch.tables.get::<schema::Retained>(topic) else {
        return;
    };
    if deadline(row.expires_at_ms) == Some(due) {
        batch.tables.delete::<schema::Retained>(topic);
        // A topic is UTF-8: what isn't is no publisher's.
        change_count(batch, std::str::from_utf8(topic).unwrap_or_default(), -1);
    }
}

/// When a message goes: what expires at a time is still delivered at that time.
fn deadline(expires_at_ms: Option<u64>) -> Option<Millis> {
    expires_at_ms.map(|at| Millis(at).plus(1))
}
