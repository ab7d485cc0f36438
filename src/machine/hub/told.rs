//! Events of the hub: what has become of identities and twins, for those who ask.
//!
//! Invariant: nothing is rendered while nobody asks.
//! Invariant: an event has at most [`limits::EVENT_BYTES`] of data, those of one command `COMMAND_BYTES` together.
//! What would have more says that it is cut short. Of what devices report it has much less while the outbox is crowded.

use super::{Writer, rows, spend_bytes};
use crate::events::HubOperation;
use crate::machine::batch::Batch;
use crate::machine::events::HubEvent;
use crate::machine::lifecycle::Lifecycle;
use crate::registry::IdentityId;
use crate::twin::{TwinChange, limits};

/// Bytes of data in the events of one command.
const COMMAND_BYTES: usize = 1 << 20;

/// What the events of one command may still say.
pub(super) struct Room(usize);

impl Room {
    /// Of a command that has made no event.
    pub fn new() -> Room {
        Room(COMMAND_BYTES)
    }
}

/// An identity was made or is about to be deleted, or its twin was replaced: the event says all of the twin.
pub(super) fn whole(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    operation: HubOperation,
    room: &mut Room,
) {
    if lifecycle.events.wants_hub_events()
        && let Some(twin) = rows::twin(batch.tables, id)
    {
        let most = room.0.min(limits::EVENT_BYTES);
        let data = rows::readable(twin.render_event(most));
        // What was rendered in vain has been work, too.
        let stored = twin.stored_bytes().min(most);
        room.0 = room.0.saturating_sub(stored.max(data.len()));
        let writer = Writer::BackEnd;
        spend_bytes(batch, writer, stored, 0);
        record(batch, lifecycle, id, (writer, operation), data);
    }
}

/// A twin was patched.
pub(super) fn changed(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    change: &TwinChange,
) {
    let writer = match change.reported {
        Some(_) => Writer::Device,
        None => Writer::BackEnd,
    };
    let most = match writer {
        Writer::Device if lifecycle.events.is_crowded(batch) => limits::CROWDED_EVENT_BYTES,
        Writer::Device | Writer::BackEnd => limits::EVENT_BYTES,
    };
    let (data, rendered) = change.render(most);
    // What was rendered in vain has been work, too.
    spend_bytes(batch, writer, 0, rendered - data.len());
    record(
        batch,
        lifecycle,
        id,
        (writer, HubOperation::UpdateTwin),
        data,
    );
}

fn record(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    (writer, operation): (Writer, HubOperation),
    data: String,
) {
    spend_bytes(batch, writer, 0, data.len());
    let (device, module) = id.parts();
    let event = HubEvent {
        operation,
        device,
        module,
        data: data.into(),
    };
    let message = lifecycle.events.hub_event(batch, event);
    lifecycle.publish_event(batch, message);
}
