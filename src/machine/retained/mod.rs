//! Retained messages: the last one of every topic `[MQTT-3.3.1-5]`, until it expires or an empty one deletes it. There
//! is nothing of them in memory.

mod page;
pub(super) mod publication;
pub(super) mod replay;
mod replay_end;

use super::batch::Batch;
use super::effect::ApplicationMessage;
use super::schema;
use super::schema::timer::Kind;
use crate::base::proto::{command, state};
use crate::base::time::Millis;

/// Whether a message would be one retained message more than there may be.
pub(super) fn exceeds(
    batch: &Batch<'_, '_>,
    message: &command::PublishedMessage,
    max_retained: u64,
) -> bool {
    message.retain
        && !message.payload.is_empty()
        && max_retained != 0
        && batch.meta.queue_usage().retained >= max_retained
        && !batch
            .tables
            .contains::<schema::Retained>(message.topic.as_bytes())
}

/// Stores a message as the retained one of its topic, or deletes that when its payload is empty `[MQTT-3.3.1-6]`
/// `[MQTT-3.3.1-7]`.
pub(super) fn retain(batch: &mut Batch<'_, '_>, message: &ApplicationMessage) {
    let topic = message.topic.as_bytes();
    if let Some(former) = batch.tables.get::<schema::Retained>(topic) {
        if let Some(deadline) = deadline(former.expires_at_ms) {
            batch.clear_timer(deadline, Kind::RetainedExpiry, topic);
        }
        batch.meta.uncount_retained();
    }
    if message.payload.is_empty() {
        batch.tables.delete::<schema::Retained>(topic);
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
    batch.meta.count_retained();
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
        batch.meta.uncount_retained();
    }
}

/// When a message goes: what expires at a time is still delivered at that time.
fn deadline(expires_at_ms: Option<u64>) -> Option<Millis> {
    expires_at_ms.map(|at| Millis(at).plus(1))
}
