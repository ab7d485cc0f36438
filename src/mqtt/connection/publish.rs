//! PUBLISH from the client.

use std::sync::Arc;

use super::end::Ended;
use super::requests::Request;
use super::{Connection, Flow};
use crate::limits;
use crate::mqtt::codec::{Ack, PacketId, Publish, QoS, ReasonCode, encode};
use crate::router::forward::Message;
use crate::router::mailbox::{Mailbox, Ticket};
use crate::router::{Delivered, Route};
use crate::store::topics::INVOKE;
use crate::telemetry::labels::{DisconnectReason, DropReason, Qos};

/// Topics below this are the broker's own.
const SYS_PREFIX: &str = "$SYS/";

impl Connection {
    pub(super) fn handle_publish(&mut self, publish: &Publish<'_>) -> Result<Flow, Ended> {
        if self.subscribing > 0 {
            return Ok(Flow::Stall);
        }
        self.count_received(publish.qos);
        if publish.retain && self.terms.version.is_v5() {
            // [MQTT-3.2.2-14]
            return Err(Ended::told(
                DisconnectReason::Protocol,
                ReasonCode::RetainNotSupported,
                "retained messages are not supported",
            ));
        }
        let named;
        let topic = match publish.properties.topic_alias() {
            None => publish.topic,
            Some(alias) => {
                named = self.resolve_alias(alias.get(), publish.topic)?;
                &*named
            }
        };
        if topic == INVOKE {
            return self.handle_store_request(publish);
        }
        let Some(packet_id) = publish.packet_id else {
            if !topic.starts_with(SYS_PREFIX) {
                self.route(topic, publish, None);
            }
            return Ok(Flow::Continue);
        };
        if publish.qos == QoS::ExactlyOnce && self.received.contains(&packet_id) {
            // [MQTT-4.3.3-10]
            self.acknowledge(packet_id, true, ReasonCode::Success, None);
            return Ok(Flow::Continue);
        }
        if self.is_busy() {
            return if self.terms.version.is_v5() {
                // [MQTT-3.3.4-7]
                Err(Ended::told(
                    DisconnectReason::ReceiveMaximum,
                    ReasonCode::ReceiveMaximumExceeded,
                    "more messages are unacknowledged than the receive maximum allows",
                ))
            } else {
                Ok(Flow::Stall)
            };
        }
        let exactly_once = publish.qos == QoS::ExactlyOnce;
        if topic.starts_with(SYS_PREFIX) {
            self.acknowledge(
                packet_id,
                exactly_once,
                ReasonCode::NotAuthorized,
                Some("$SYS is the broker's own"),
            );
            return Ok(Flow::Continue);
        }
        self.deliver_acknowledged(topic, publish, packet_id, exactly_once);
        Ok(Flow::Continue)
    }

    fn deliver_acknowledged(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
        exactly_once: bool,
    ) {
        if exactly_once {
            self.received.insert(packet_id);
        }
        let ticket = self.requests.insert(Request::Publish {
            packet_id,
            exactly_once,
            unconfirmed: 0,
        });
        let mailbox = self.mailbox.clone();
        let (delivered, matched) = self.route(topic, publish, Some((&mailbox, ticket)));
        if delivered.unconfirmed == 0 {
            self.requests.remove(ticket);
            let reason = if matched {
                ReasonCode::Success
            } else {
                ReasonCode::NoMatchingSubscribers
            };
            self.acknowledge(packet_id, exactly_once, reason, None);
        } else if let Some(Request::Publish { unconfirmed, .. }) = self.requests.get_mut(ticket) {
            *unconfirmed = delivered.unconfirmed;
        }
    }

    /// Hands a message to whoever is subscribed; tells what became of it and whether anybody was.
    fn route(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        publisher: Option<(&Arc<Mailbox>, Ticket)>,
    ) -> (Delivered, bool) {
        let properties = publish.properties.forwardable();
        let message = Message {
            publisher: Some(self.session),
            qos: publish.qos,
            retain: publish.retain,
            topic,
            properties: &properties,
            expiry: publish.properties.message_expiry(),
            payload: publish.payload,
        };
        let router = &self.broker.router;
        if self
            .routes
            .get(topic)
            .is_none_or(|route| !router.is_current(route))
        {
            let route = router.route(topic, Some(self.session));
            remember(&mut self.routes, topic, route);
        }
        let route = &self.routes[topic];
        let delivered = router.deliver(route, &message, publisher, &mut self.wake);
        if delivered.forwarded > 0 {
            self.broker
                .metrics
                .messages_forwarded
                .add(delivered.forwarded.into());
        }
        if delivered.dropped > 0 {
            let metrics = &self.broker.metrics;
            metrics
                .messages_dropped
                .of(DropReason::PeerQueueFull)
                .add(delivered.dropped.into());
        }
        (delivered, !route.is_empty())
    }

    /// A node has handed the message to its connections.
    pub(super) fn handle_forwarded(&mut self, ticket: Ticket) {
        if let Some(Request::Publish {
            packet_id,
            exactly_once,
            unconfirmed,
        }) = self.requests.get_mut(ticket)
        {
            *unconfirmed -= 1;
            if *unconfirmed == 0 {
                let (packet_id, exactly_once) = (*packet_id, *exactly_once);
                self.requests.remove(ticket);
                self.acknowledge(packet_id, exactly_once, ReasonCode::Success, None);
            }
        }
    }

    /// PUBACK or PUBREC.
    pub(super) fn acknowledge(
        &mut self,
        packet_id: PacketId,
        exactly_once: bool,
        reason: ReasonCode,
        text: Option<&str>,
    ) {
        let ack = Ack {
            reason_string: text,
            ..Ack::with_reason(packet_id, reason)
        };
        let (version, limits) = (self.terms.version, self.terms.limits);
        // What does not fit is left out, and the rest of an acknowledgement always fits.
        let _ = if exactly_once {
            if reason as u8 >= 0x80 {
                // [MQTT-4.3.3-9]
                self.received.remove(&packet_id);
            }
            encode::pubrec(&mut self.acks, version, &ack, limits)
        } else {
            encode::puback(&mut self.acks, version, &ack, limits)
        };
    }

    fn resolve_alias(&mut self, alias: u16, topic: &str) -> Result<Arc<str>, Ended> {
        if alias > self.broker.config.topic_alias_maximum {
            // [MQTT-3.2.2-17]
            return Err(Ended::told(
                DisconnectReason::Protocol,
                ReasonCode::TopicAliasInvalid,
                "the topic alias is above the announced maximum",
            ));
        }
        if topic.is_empty() {
            return self
                .aliases
                .get(&alias)
                .cloned()
                .ok_or(Ended::protocol("the topic alias was never set"));
        }
        let topic: Arc<str> = topic.into();
        self.aliases.insert(alias, topic.clone());
        Ok(topic)
    }

    fn count_received(&self, qos: QoS) {
        let qos = match qos {
            QoS::AtMostOnce => Qos::AtMostOnce,
            QoS::AtLeastOnce => Qos::AtLeastOnce,
            QoS::ExactlyOnce => Qos::ExactlyOnce,
        };
        self.broker.metrics.messages_received.of(qos).increment();
    }
}

/// Keeps a route for the next message, within bounds.
pub(super) fn remember(
    routes: &mut rustc_hash::FxHashMap<Box<str>, Route>,
    topic: &str,
    route: Route,
) {
    if let Some(known) = routes.get_mut(topic) {
        *known = route;
        return;
    }
    if routes.len() >= limits::CACHED_ROUTES {
        routes.clear();
    }
    routes.insert(topic.into(), route);
}
