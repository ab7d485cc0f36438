//! Wills: kept when a connection is made, published once when it ends without DISCONNECT 0x00, after their delay.
//!
//! A will is published by apply like any other message in the log, so it reaches each subscriber once, also when the
//! client's node has died. Nothing here publishes: what is to be published is handed back to [`super::lifecycle`].

use super::batch::Batch;
use super::effect::DropReason;
use super::retained;
use super::schema;
use super::schema::timer::Kind;
use crate::base::proto::{command, state};
use crate::base::time::Millis;

/// Keeps the will of a CONNECT, in place of any former one.
pub(super) fn keep(
    batch: &mut Batch<'_, '_>,
    client_id: &str,
    row: &mut state::Session,
    will: Option<command::Will>,
) {
    discard(batch, client_id, row);
    let Some(command::Will {
        message: Some(message),
        delay_s,
        max_retained,
        max_retained_of_identity,
    }) = will
    else {
        return;
    };
    let will = state::Will {
        topic: message.topic,
        qos: message.qos,
        retain: message.retain,
        payload: message.payload,
        properties: message.properties,
        expiry_interval_s: message.expiry_interval_s,
        delay_s,
        max_retained,
        max_retained_of_identity,
    };
    batch.tables.put::<schema::Will>(client_id, &will);
    row.has_will = true;
}

/// Forgets the will unpublished `[MQTT-3.14.4-3]` `[MQTT-3.1.3-9]`.
pub(super) fn discard(batch: &mut Batch<'_, '_>, client_id: &str, row: &mut state::Session) {
    if row.will_at_ms != 0 {
        let due = Millis(row.will_at_ms);
        batch.clear_timer(due, Kind::WillDelay, client_id.as_bytes());
        row.will_at_ms = 0;
    }
    if std::mem::take(&mut row.has_will) {
        batch.tables.delete::<schema::Will>(client_id);
    }
}

/// The connection ended abnormally and the session lives on: a will without delay is to be published now, another one
/// waits.
#[must_use]
pub(super) fn start(
    batch: &mut Batch<'_, '_>,
    client_id: &str,
    row: &mut state::Session,
) -> Option<command::PublishedMessage> {
    match find(batch, client_id, row)?.delay_s {
        0 => take(batch, client_id, row),
        delay_s => {
            let due = batch.now.plus(u64::from(delay_s) * 1000);
            row.will_at_ms = due.0;
            batch.set_timer(due, Kind::WillDelay, client_id.as_bytes());
            None
        }
    }
}

/// The connection was taken over and the session goes on: a will without delay is to be published, another one is
/// discarded with the next [`keep`].
#[must_use]
pub(super) fn taken_over(
    batch: &mut Batch<'_, '_>,
    client_id: &str,
    row: &mut state::Session,
) -> Option<command::PublishedMessage> {
    match find(batch, client_id, row)?.delay_s {
        0 => take(batch, client_id, row),
        _ => None,
    }
}

/// Forgets the will, if there is one, and gives it to be published `[MQTT-3.1.2-10]`. One that would be one retained
/// message too many is not to be retained: its client can't be told.
#[must_use]
pub(super) fn take(
    batch: &mut Batch<'_, '_>,
    client_id: &str,
    row: &mut state::Session,
) -> Option<command::PublishedMessage> {
    let will = find(batch, client_id, row);
    discard(batch, client_id, row);
    let will = will?;
    let mut message = command::PublishedMessage {
        topic: will.topic,
        qos: will.qos,
        retain: will.retain,
        payload: will.payload,
        properties: will.properties,
        expiry_interval_s: will.expiry_interval_s,
    };
    if retained::exceeds(batch, &message, will.max_retained)
        || retained::exceeds_share(batch, &message, will.max_retained_of_identity)
    {
        message.retain = false;
        batch.count_dropped(DropReason::QueueFull, 1);
    }
    Some(message)
}

/// Whether the will waits for its delay when the connection is lost.
pub(super) fn is_delayed(batch: &Batch<'_, '_>, client_id: &str, row: &state::Session) -> bool {
    find(batch, client_id, row).is_some_and(|will| will.delay_s > 0)
}

fn find(batch: &Batch<'_, '_>, client_id: &str, row: &state::Session) -> Option<state::Will> {
    if !row.has_will {
        return None;
    }
    batch.tables.get::<schema::Will>(client_id)
}
