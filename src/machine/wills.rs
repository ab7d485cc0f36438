//! Wills: kept when a connection is made, published once when it ends without DISCONNECT 0x00, after their delay.
//!
//! A will is published by apply like any other message in the log, so it reaches each subscriber once, also when the
//! client's node has died.

use prost::Message as _;

use super::schema::timer::Kind;
use super::{Context, Machine, schema};
use crate::base::ids::SessionId;
use crate::base::proto::{command, state};
use crate::base::time::Millis;

impl Machine {
    /// Keeps the will of a CONNECT, in place of any former one.
    pub(super) fn keep_will(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
        will: Option<command::Will>,
    ) {
        self.drop_will(context, client_id, row);
        let Some(command::Will {
            message: Some(message),
            delay_s,
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
        };
        context
            .tables
            .put(schema::will::encode(client_id), will.encode_to_vec());
        row.has_will = true;
    }

    /// Forgets the will unpublished `[MQTT-3.14.4-3]` `[MQTT-3.1.3-9]`.
    pub(super) fn drop_will(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        if row.will_at_ms != 0 {
            let due = Millis(row.will_at_ms);
            self.clear_timer(context, due, Kind::WillDelay, client_id.as_bytes());
            row.will_at_ms = 0;
        }
        if std::mem::take(&mut row.has_will) {
            context.tables.delete(schema::will::encode(client_id));
        }
    }

    /// The connection ended abnormally and the session lives on: the will goes out now, or after its delay.
    pub(super) fn start_will(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        match self.will_delay_s(context, client_id, row) {
            None => {}
            Some(0) => self.publish_will(context, client_id, row),
            Some(delay_s) => {
                let due = context.now.plus(u64::from(delay_s) * 1000);
                row.will_at_ms = due.0;
                self.set_timer(context, due, Kind::WillDelay, client_id.as_bytes());
            }
        }
    }

    /// The connection was taken over and the session goes on: a will without delay goes out, another one is cancelled.
    pub(super) fn overtake_will(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        if self.will_delay_s(context, client_id, row) == Some(0) {
            self.publish_will(context, client_id, row);
        }
    }

    fn will(
        &self,
        context: &Context<'_, '_>,
        client_id: &str,
        row: &state::Session,
    ) -> Option<state::Will> {
        let will = context
            .tables
            .get(&schema::will::encode(client_id))
            .filter(|_| row.has_will)?;
        Some(state::Will::decode(will).expect("this machine wrote the row"))
    }

    fn will_delay_s(
        &self,
        context: &Context<'_, '_>,
        client_id: &str,
        row: &state::Session,
    ) -> Option<u32> {
        Some(self.will(context, client_id, row)?.delay_s)
    }

    /// Publishes the will, if there is one, and forgets it `[MQTT-3.1.2-10]`.
    pub(super) fn publish_will(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        if let Some(will) = self.will(context, client_id, row) {
            self.drop_will(context, client_id, row);
            let message = command::PublishedMessage {
                topic: will.topic,
                qos: will.qos,
                retain: will.retain,
                payload: will.payload,
                properties: will.properties,
                expiry_interval_s: will.expiry_interval_s,
            };
            self.publish_message(context, Some(SessionId(row.session_id)), message);
        }
        self.drop_will(context, client_id, row);
    }

    pub(super) fn will_due(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &[u8],
        deadline: Millis,
    ) {
        let Ok(client_id) = std::str::from_utf8(client_id) else {
            return;
        };
        if let Some(mut row) = self.session(context, client_id)
            && row.will_at_ms == deadline.0
        {
            self.publish_will(context, client_id, &mut row);
            self.put_session(context, client_id, &row);
        }
    }
}
