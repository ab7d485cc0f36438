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
    /// References that were counted in advance for what is stored already; see [`Storing::go_on`].
    reserved: Option<u32>,
    /// No more than one queue takes it.
    is_for_one: bool,
}

impl Storing {
    pub fn new(message: Arc<ApplicationMessage>) -> Self {
        Storing {
            message,
            id: None,
            references: 0,
            reserved: None,
            is_for_one: false,
        }
    }

    /// The same for a message that goes into one queue at most, so that its references never need to be looked up.
    pub fn for_one(message: Arc<ApplicationMessage>) -> Self {
        Storing {
            is_for_one: true,
            ..Storing::new(message)
        }
    }

    /// A message that is stored, and referred to by whoever goes on with it, is handed to at most `most` further
    /// queues. They count in advance: what one of them drops again must not free the message for the others.
    pub fn go_on(
        batch: &mut Batch<'_, '_>,
        id: MessageId,
        message: Arc<ApplicationMessage>,
        most: usize,
    ) -> Self {
        // No more sessions and groups than fit into memory.
        let reserved = u32::try_from(most).unwrap_or(u32::MAX);
        let count = references(batch, id).saturating_add(reserved);
        batch.tables.put::<schema::References>(id, &Count(count));
        Storing {
            message,
            id: Some(id),
            references: 0,
            reserved: Some(reserved),
            is_for_one: false,
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
        let is_for_one = self.is_for_one;
        *self.id.get_or_insert_with(|| match is_for_one {
            true => batch.meta.new_message().for_one(),
            false => batch.meta.new_message(),
        })
    }

    /// A fan-out refers to it, and goes on with it later: the id under which it will be stored.
    pub fn refer_for_more(&mut self, batch: &mut Batch<'_, '_>) -> MessageId {
        debug_assert!(
            self.id.is_none_or(|id| !id.is_for_one()),
            "one queue is all"
        );
        self.is_for_one = false;
        self.refer(batch)
    }

    /// Writes the message if a queue took it and it is not stored yet.
    pub fn store(&self, batch: &mut Batch<'_, '_>) {
        let Some(id) = self.id else {
            return;
        };
        if let Some(reserved) = self.reserved {
            let unused = reserved.saturating_sub(self.references);
            let count = references(batch, id).saturating_sub(unused);
            put_references(batch, id, count);
            return;
        }
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
    match references(batch, id) {
        1 => batch.tables.delete::<schema::Message>(id),
        count => put_references(batch, id, count.saturating_sub(1)),
    }
}

/// How many refer to a stored message. One reference is what a message without a row in that table has.
fn references(batch: &Batch<'_, '_>, id: MessageId) -> u32 {
    if id.is_for_one() {
        return 1;
    }
    let count = batch.tables.get::<schema::References>(id);
    count.map_or(1, |Count(count)| count)
}

fn put_references(batch: &mut Batch<'_, '_>, id: MessageId, count: u32) {
    match count {
        0 | 1 => batch.tables.delete::<schema::References>(id),
        count => batch.tables.put::<schema::References>(id, &Count(count)),
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
