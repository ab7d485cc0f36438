//! Messages that queues refer to: stored once, freed with the last reference.

use std::sync::Arc;

use prost::Message as _;

use super::effect::ApplicationMessage;
use super::{Context, Machine, schema};
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::session::{MessageId, QoS};

/// A message that is being handed to queues; its row is written once it is known how many took it.
pub(super) struct Storing {
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

    /// One more queue refers to it.
    pub fn refer(&mut self) {
        self.references += 1;
    }
}

impl Machine {
    /// The id under which the message is, or will be, stored.
    pub(super) fn message_id(&mut self, storing: &mut Storing) -> MessageId {
        *storing.id.get_or_insert_with(|| {
            self.meta.next_message_id += 1;
            MessageId(self.meta.next_message_id)
        })
    }

    /// Writes the message if a queue took it.
    pub(super) fn store_message(&self, context: &mut Context<'_, '_>, storing: &Storing) {
        let Some(id) = storing.id.filter(|_| storing.references > 0) else {
            return;
        };
        let message = &storing.message;
        let row = state::Message {
            topic: message.topic.clone(),
            payload: message.payload.clone(),
            properties: message.properties.clone(),
            expires_at_ms: message.expires_at.map(|at| at.0),
            references: storing.references,
        };
        context
            .tables
            .put_new(schema::message::encode(id), row.encode_to_vec());
        if storing.references > 1 {
            context.tables.put(
                schema::references::encode(id),
                storing.references.to_be_bytes().to_vec(),
            );
        }
    }

    /// A message has entered a queue or a group.
    pub(super) fn count_in(&mut self, size: u32) {
        self.meta.queued_messages += 1;
        self.meta.queued_bytes += u64::from(size);
    }

    /// A message has left a queue or a group.
    pub(super) fn count_out(&mut self, size: u32) {
        self.meta.queued_messages = self.meta.queued_messages.saturating_sub(1);
        self.meta.queued_bytes = self.meta.queued_bytes.saturating_sub(size.into());
    }

    /// A queue no longer refers to the message.
    pub(super) fn release_message(&self, context: &mut Context<'_, '_>, id: MessageId) {
        let references_key = schema::references::encode(id);
        let left = context.tables.get(&references_key).map_or(0, |row| {
            let row: [u8; 4] = row[..].try_into().expect("this machine wrote the row");
            u32::from_be_bytes(row).saturating_sub(1)
        });
        match left {
            0 => context.tables.delete(schema::message::encode(id)),
            // One reference is what a message without a row has.
            1 => context.tables.delete(references_key),
            _ => context
                .tables
                .put(references_key, left.to_be_bytes().to_vec()),
        }
    }

    /// Reads a stored message.
    pub(super) fn message(
        &self,
        context: &Context<'_, '_>,
        id: MessageId,
        qos: QoS,
    ) -> Option<Arc<ApplicationMessage>> {
        let row = context.tables.get(&schema::message::encode(id))?;
        let row = state::Message::decode(row).expect("this machine wrote the row");
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
}
