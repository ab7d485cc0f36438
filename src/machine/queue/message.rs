//! Messages that queues and groups refer to: stored once, freed with the last reference.

use std::sync::Arc;

use crate::base::proto::state;
use crate::base::time::Millis;
use crate::machine::batch::Batch;
use crate::machine::effect::ApplicationMessage;
use crate::machine::schema;
use crate::machine::schema::Count;
use crate::session::{MessageId, QoS};

/// A message that is being handed to queues; its row is written once it is known how many took it.
pub(in crate::machine) struct Storing {
    pub message: Arc<ApplicationMessage>,
    id: Option<MessageId>,
    references: u32,
}

impl Storing {
    pub fn new(message: Arc<ApplicationMessage>) -> Self {
        Storing {
            message,
            id: None,
            references: 0,
        }
    }

    /// What it counts for in a queue's bounds, bytes.
    pub fn size(&self) -> u32 {
        let message = &self.message;
        let size = message.topic.len() + message.payload.len() + message.properties.len();
        // An MQTT packet is below 2^28 bytes.
        u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// One more queue refers to it: the id under which it is, or will be, stored.
    pub fn refer(&mut self, batch: &mut Batch<'_, '_>) -> MessageId {
        self.references += 1;
        *self.id.get_or_insert_with(|| batch.meta.new_message())
    }

    /// Writes the message if a queue took it.
    pub fn store(&self, batch: &mut Batch<'_, '_>) {
        let Some(id) = self.id else {
            return;
        };
        let message = &self.message;
        let row = state::Message {
            topic: message.topic.clone(),
            payload: message.payload.clone(),
            properties: message.properties.clone(),
            expires_at_ms: message.expires_at.map(|at| at.0),
            references: self.references,
        };
        batch.tables.put_new::<schema::Message>(id, &row);
        if self.references > 1 {
            let count = Count(self.references);
            batch.tables.put::<schema::References>(id, &count);
        }
    }
}

/// A queue no longer refers to the message.
pub(in crate::machine) fn release(batch: &mut Batch<'_, '_>, id: MessageId) {
    let count = batch.tables.get::<schema::References>(id);
    match count.map_or(0, |Count(count)| count.saturating_sub(1)) {
        0 => batch.tables.delete::<schema::Message>(id),
        // One reference is what a message without a row in that table has.
        1 => batch.tables.delete::<schema::References>(id),
        left => batch.tables.put::<schema::References>(id, &Count(left)),
    }
}

/// Reads a stored message.
pub(in crate::machine) fn read(
    batch: &Batch<'_, '_>,
    id: MessageId,
    qos: QoS,
) -> Option<Arc<ApplicationMessage>> {
    let row = batch.tables.get::<schema::Message>(id)?;
    Some(Arc::new(ApplicationMessage {
        topic: row.topic,
        qos,
        retain: false,
        payload: row.payload,
        properties: row.properties,
        expires_at: row.expires_at_ms.map(Millis),
        publisher: None,
    }))
}
