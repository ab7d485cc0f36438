//! Changes of clients: those of one client within `events.coalesce_ms` become one event, which says how things are at
//! its end. The window begins with the first change and is not prolonged by others.

use super::super::batch::Batch;
use super::super::schema;
use super::super::schema::timer::Kind as TimerKind;
use super::Events;
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::events::Kind;

/// A client as its row says.
pub(in crate::machine) struct Client {
    pub created: Millis,
    pub updated: Millis,
    pub disabled: bool,
}

impl Events {
    /// A client was made, changed or deleted, also when nothing of it is another than before.
    pub fn client_changed(&mut self, batch: &mut Batch<'_, '_>, client: &str) {
        if !self.is_recording() || batch.tables.contains::<schema::PendingClient>(client) {
            return;
        }
        let due = batch.now.plus(self.settings.coalesce_ms);
        let row = state::PendingClient {
            first_change_ms: batch.now.0,
            due_ms: due.0,
        };
        batch.tables.put::<schema::PendingClient>(client, &row);
        batch.set_timer(due, TimerKind::ClientChanged, client.as_bytes());
    }

    /// A timer says that the event of a client is due; `found` is the client, if there is one now.
    #[must_use]
    pub fn client_due(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client: &str,
        deadline: Millis,
        found: Option<Client>,
    ) -> Option<command::PublishedMessage> {
        let row = batch.tables.get::<schema::PendingClient>(client);
        row.filter(|row| row.due_ms == deadline.0)?;
        batch.tables.delete::<schema::PendingClient>(client);
        let mut event = state::Event {
            kind: Kind::ClientDeleted as u32,
            name: client.to_owned(),
            ..Default::default()
        };
        if let Some(found) = found {
            event.kind = Kind::ClientUpdated as u32;
            event.created_ms = found.created.0;
            event.updated_ms = found.updated.0;
            event.disabled = found.disabled;
        }
        self.record(batch, event)
    }
}
