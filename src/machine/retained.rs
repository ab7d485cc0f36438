//! Retained messages: the last one of every topic `[MQTT-3.3.1-5]`, until it expires or an empty one deletes it.

use std::sync::Arc;

use prost::Message as _;

use super::effect::ApplicationMessage;
use super::schema::timer::Kind;
use super::{Context, Machine, schema};
use crate::base::proto::{command, state};
use crate::base::time::Millis;

impl Machine {
    /// Whether a message would be one retained message more than there may be.
    pub(super) fn exceeds_retained(
        &self,
        context: &Context<'_, '_>,
        message: &command::PublishedMessage,
        max_retained: u64,
    ) -> bool {
        message.retain
            && !message.payload.is_empty()
            && max_retained != 0
            && self.meta.retained >= max_retained
            && context
                .tables
                .get(&schema::retained::encode(message.topic.as_bytes()))
                .is_none()
    }

    /// Stores a message as the retained one of its topic, or deletes that when its payload is empty `[MQTT-3.3.1-6]`
    /// `[MQTT-3.3.1-7]`.
    pub(super) fn retain(
        &mut self,
        context: &mut Context<'_, '_>,
        message: &Arc<ApplicationMessage>,
    ) {
        let row_key = schema::retained::encode(message.topic.as_bytes());
        if let Some(former) = context.tables.get(&row_key) {
            let former = state::Retained::decode(former).expect("this machine wrote the row");
            self.forget_retained_expiry(context, &message.topic, &former);
            self.meta.retained = self.meta.retained.saturating_sub(1);
        }
        if message.payload.is_empty() {
            context.tables.delete(row_key);
            return;
        }
        let row = state::Retained {
            qos: message.qos as u32,
            payload: message.payload.clone(),
            properties: message.properties.clone(),
            expires_at_ms: message.expires_at.map(|at| at.0),
            index: context.index.0,
            publisher: message.publisher.map_or(0, |session| session.0),
        };
        context.tables.put(row_key, row.encode_to_vec());
        self.meta.retained += 1;
        if let Some(at) = message.expires_at {
            let subject = message.topic.as_bytes();
            // What expires at a time is still delivered at that time.
            self.set_timer(context, at.plus(1), Kind::RetainedExpiry, subject);
        }
    }

    fn forget_retained_expiry(
        &mut self,
        context: &mut Context<'_, '_>,
        topic: &str,
        row: &state::Retained,
    ) {
        if let Some(at) = row.expires_at_ms {
            let due = Millis(at).plus(1);
            self.clear_timer(context, due, Kind::RetainedExpiry, topic.as_bytes());
        }
    }

    pub(super) fn expire_retained(
        &mut self,
        context: &mut Context<'_, '_>,
        topic: &[u8],
        deadline: Millis,
    ) {
        let row_key = schema::retained::encode(topic);
        let Some(row) = context.tables.get(&row_key) else {
            return;
        };
        let row = state::Retained::decode(row).expect("this machine wrote the row");
        if row.expires_at_ms.map(|at| Millis(at).plus(1)) == Some(deadline) {
            context.tables.delete(row_key);
            self.meta.retained = self.meta.retained.saturating_sub(1);
        }
    }
}
