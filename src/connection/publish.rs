//! PUBLISH from the client.

use std::sync::Arc;

use bytes::Bytes;

use super::end::Ended;
use super::requests::Request;
use super::{Connection, Flow};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::codec::{Ack, PacketId, Publish, QoS, ReasonCode, encode};
use crate::connection::sys;
use crate::mailbox::back_pressure::BackPressureState;
use crate::mailbox::{DeferredAck, Mailbox, RequestId};
use crate::router::{Delivered, Message, Route};
use crate::session::inbound::Published;
use crate::store::topics::INVOKE;
use crate::telemetry::labels::{DisconnectReason, DropReason, Qos};

impl Connection {
    pub(super) fn handle_publish(&mut self, publish: &Publish<'_>) -> Result<Flow, Ended> {
        if self.subscribing > 0 {
            return Ok(Flow::Stall);
        }
        let named;
        let topic = match publish.properties.topic_alias() {
            None => publish.topic,
            Some(alias) => {
                named = self.resolve_alias(alias.get(), publish.topic)?;
                &*named
            }
        };
        let flow = if topic == INVOKE {
            self.handle_store_request(publish)?
        } else {
            match publish.packet_id {
                None => self.handle_qos_0(topic, publish),
                Some(packet_id) => self.handle_acknowledged(topic, publish, packet_id)?,
            }
        };
        if flow == Flow::Continue {
            self.count_received(publish.qos);
        }
        Ok(flow)
    }

    fn handle_qos_0(&mut self, topic: &str, publish: &Publish<'_>) -> Flow {
        if topic.starts_with(sys::PREFIX) {
            return Flow::Continue;
        }
        if self.is_logged(topic, publish) {
            // Nothing else slows a client down that publishes with QoS 0.
            if self.is_busy() {
                return Flow::Stall;
            }
            return self.propose_publish(topic, publish);
        }
        if !self.has_routing_lease {
            return Flow::Stall;
        }
        self.route(topic, publish, None);
        Flow::Continue
    }

    /// QoS 1 and 2.
    fn handle_acknowledged(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
    ) -> Result<Flow, Ended> {
        let exactly_once = publish.qos == QoS::ExactlyOnce;
        if exactly_once && self.inbound.knows(packet_id) {
            // [MQTT-4.3.3-10]
            match self.inbound.handle_qos_2(packet_id) {
                Published::Again => self.acknowledge(packet_id, true, ReasonCode::Success, None),
                Published::InUse => {
                    let text = "the packet id is in use until its PUBCOMP";
                    let reason = ReasonCode::PacketIdentifierInUse;
                    self.refuse_publish(packet_id, reason, text);
                }
                // Each is answered, when the first one is.
                Published::UnderWay if self.repeated.len() >= self.requests.len() => {
                    return Ok(Flow::Stall);
                }
                Published::UnderWay => self.repeated.push(packet_id),
                Published::New | Published::TooMany => {}
            }
            return Ok(Flow::Continue);
        }
        if self.is_busy() || self.inbound.is_full() {
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
        if topic.starts_with(sys::PREFIX) {
            let text = Some("$SYS is the broker's own");
            self.acknowledge(packet_id, exactly_once, ReasonCode::NotAuthorized, text);
            return Ok(Flow::Continue);
        }
        // What a durable session was received with QoS 2 must be known wherever it connects next.
        if self.is_logged(topic, publish) || (exactly_once && self.durable) {
            if self.unconfirmed > 0 {
                // Earlier messages are on their way to other nodes beside the log: they must not be overtaken.
                return Ok(Flow::Stall);
            }
            let flow = self.propose_publish(topic, publish);
            if flow == Flow::Continue {
                self.begin_inbound(packet_id, exactly_once);
            }
            return Ok(flow);
        }
        // Looked up when the message was judged.
        let route = self.routes.get(topic);
        let has_remote = route.is_some_and(Route::has_remote);
        let pressure = route.map_or(BackPressureState::Normal, Route::back_pressure);
        if !self.has_routing_lease || self.is_held_up(pressure, has_remote) {
            return Ok(Flow::Stall);
        }
        self.begin_inbound(packet_id, exactly_once);
        if has_remote {
            self.forward_acknowledged(topic, publish, packet_id, exactly_once);
        } else {
            self.deliver_acknowledged(topic, publish, packet_id, exactly_once);
        }
        Ok(Flow::Continue)
    }

    /// Whether a message must not be read yet, because slow subscribers hold up enough of this publisher's already.
    /// Receive maximums bound messages, this bounds their bytes.
    fn is_held_up(&self, pressure: BackPressureState, has_remote: bool) -> bool {
        let much = self.unacknowledged_bytes >= limits::PUBLISHER_HELD_BYTES;
        let held_up = pressure == BackPressureState::Full
            || (much && (pressure != BackPressureState::Normal || has_remote));
        // What this client has to acknowledge itself comes behind its messages: two clients that wait for each other's
        // acknowledgements must both be read.
        held_up && self.outbound.is_free() && self.mailbox.unsent() == 0
    }

    fn begin_inbound(&mut self, packet_id: PacketId, exactly_once: bool) {
        let begun = if exactly_once {
            self.inbound.handle_qos_2(packet_id)
        } else {
            self.inbound.handle_qos_1()
        };
        debug_assert_eq!(begun, Published::New);
    }

    /// Whether the message must go through the log: somebody waits for it there, or an earlier one of this publisher's is
    /// still in it (P5).
    fn is_logged(&mut self, topic: &str, publish: &Publish<'_>) -> bool {
        publish.retain
            || self.logging[publish.qos as usize] > 0
            || self.route_of(topic).is_logged(publish.qos)
    }

    fn propose_publish(&mut self, topic: &str, publish: &Publish<'_>) -> Flow {
        let command = command::Publish {
            connection: self.mailbox.connection.0,
            packet_id: match (publish.packet_id, publish.qos) {
                (Some(packet_id), QoS::ExactlyOnce) => packet_id.get().into(),
                _ => 0,
            },
            message: Some(command::PublishedMessage {
                topic: topic.to_owned(),
                qos: publish.qos as u32,
                retain: publish.retain,
                payload: Bytes::copy_from_slice(publish.payload),
                properties: Bytes::copy_from_slice(&publish.properties.forwardable()),
                expiry_interval_s: publish.properties.message_expiry(),
            }),
            max_retained: if publish.retain {
                self.broker.config.retained_max
            } else {
                0
            },
        };
        let request = Request::Logged {
            packet_id: publish.packet_id,
            qos: publish.qos,
            retain: publish.retain,
            held: 0,
            bytes: size(topic, publish),
        };
        let flow = self.propose(Kind::Publish(command), request);
        if flow == Flow::Continue {
            self.logging[publish.qos as usize] += 1;
        }
        flow
    }

    /// A message is in the log, or was refused there.
    pub(super) fn logged(&mut self, request_id: RequestId, reason: ReasonCode) {
        let Some(&mut Request::Logged {
            packet_id,
            qos,
            retain,
            held,
            bytes,
        }) = self.requests.get_mut(request_id)
        else {
            return;
        };
        self.logging[qos as usize] -= 1;
        if let Some(packet_id) = packet_id.filter(|_| held > 0) {
            // It has reached its subscribers, so it succeeded.
            if let Some(request) = self.requests.get_mut(request_id) {
                *request = Request::Publish {
                    packet_id,
                    exactly_once: qos == QoS::ExactlyOnce,
                    unconfirmed: 0,
                    held,
                    bytes,
                };
            }
            self.unacknowledged_bytes += bytes;
            return;
        }
        self.requests.remove(request_id);
        let Some(packet_id) = packet_id else {
            if reason == ReasonCode::QuotaExceeded {
                self.broker
                    .metrics
                    .messages_dropped
                    .of(DropReason::QueueFull)
                    .increment();
            }
            return;
        };
        let reason = match reason {
            // Retaining it is a use, too.
            ReasonCode::NoMatchingSubscribers if retain => ReasonCode::Success,
            reason => reason,
        };
        let text = (reason == ReasonCode::QuotaExceeded)
            .then_some("there are as many retained messages as there may be");
        self.acknowledge_inbound(packet_id, qos == QoS::ExactlyOnce, reason, text);
    }

    /// Nobody on another node gets it.
    fn deliver_acknowledged(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
        exactly_once: bool,
    ) {
        let (delivered, matched) = self.route(topic, publish, None);
        if delivered.throttled.is_empty() {
            let reason = match matched {
                true => ReasonCode::Success,
                false => ReasonCode::NoMatchingSubscribers,
            };
            self.acknowledge_inbound(packet_id, exactly_once, reason, None);
            return;
        }
        let request_id = self.await_publish(topic, publish, packet_id, exactly_once);
        self.await_delivered(request_id, delivered);
    }

    fn forward_acknowledged(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
        exactly_once: bool,
    ) {
        let request_id = self.await_publish(topic, publish, packet_id, exactly_once);
        let mailbox = self.mailbox.clone();
        let (delivered, _) = self.route(topic, publish, Some((&mailbox, request_id)));
        self.await_delivered(request_id, delivered);
    }

    fn await_publish(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
        exactly_once: bool,
    ) -> RequestId {
        let bytes = size(topic, publish);
        self.unacknowledged_bytes += bytes;
        self.requests.insert(Request::Publish {
            packet_id,
            exactly_once,
            unconfirmed: 0,
            held: 0,
            bytes,
        })
    }

    /// Notes whom the acknowledgement waits for.
    fn await_delivered(&mut self, request_id: RequestId, delivered: Delivered) {
        let mut waits_for = 0;
        for (slow, end) in delivered.throttled {
            let waiter = DeferredAck::Local(self.mailbox.clone(), request_id);
            waits_for += u32::from(slow.defer_ack(end, waiter, &mut self.wake));
        }
        if let Some(Request::Publish {
            unconfirmed, held, ..
        }) = self.requests.get_mut(request_id)
        {
            *unconfirmed = delivered.unconfirmed;
            *held = waits_for;
        }
        self.unconfirmed += u32::from(delivered.unconfirmed > 0);
        self.acknowledge_when_through(request_id);
    }

    /// Where messages with this topic go.
    fn route_of(&mut self, topic: &str) -> &Route {
        let router = &self.broker.router;
        if self
            .routes
            .get(topic)
            .is_none_or(|route| !router.is_current(route))
        {
            let route = router.route(topic, Some(self.session));
            remember(&mut self.routes, topic, route);
        }
        &self.routes[topic]
    }

    /// Hands a message to whoever is subscribed; tells what became of it and whether anybody was.
    fn route(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        publisher: Option<(&Arc<Mailbox>, RequestId)>,
    ) -> (Delivered, bool) {
        let properties = publish.properties.forwardable();
        let message = Message {
            publisher: Some(self.session),
            qos: publish.qos,
            retain: publish.retain,
            topic,
            properties: &properties,
            expiry: publish.properties.message_expiry(),
            direct: false,
            payload: publish.payload,
        };
        // Looked up when the message was judged.
        let Some(route) = self.routes.get(topic) else {
            return (Delivered::default(), false);
        };
        let router = &self.broker.router;
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
        let matched = !route.is_empty();
        (delivered, matched)
    }

    /// A node has handed the message to its connections.
    pub(super) fn handle_forwarded(&mut self, request_id: RequestId) {
        if let Some(Request::Publish { unconfirmed, .. }) = self.requests.get_mut(request_id) {
            *unconfirmed -= 1;
            self.unconfirmed -= u32::from(*unconfirmed == 0);
            self.acknowledge_when_through(request_id);
        }
    }

    /// The message has reached its subscribers, but one reads slowly.
    pub(super) fn handle_held(&mut self, request_id: RequestId) {
        match self.requests.get_mut(request_id) {
            Some(Request::Publish {
                unconfirmed, held, ..
            }) => {
                *unconfirmed -= 1;
                *held += 1;
                self.unconfirmed -= u32::from(*unconfirmed == 0);
            }
            Some(Request::Logged { held, .. }) => *held += 1,
            _ => {}
        }
    }

    /// A slow subscriber is not waited for any more.
    pub(super) fn handle_released(&mut self, request_id: RequestId) {
        match self.requests.get_mut(request_id) {
            Some(Request::Publish { held, .. }) => {
                *held -= 1;
                self.acknowledge_when_through(request_id);
            }
            Some(Request::Logged { held, .. }) => *held -= 1,
            _ => {}
        }
    }

    fn acknowledge_when_through(&mut self, request_id: RequestId) {
        if let Some(&mut Request::Publish {
            packet_id,
            exactly_once,
            unconfirmed: 0,
            held: 0,
            bytes,
        }) = self.requests.get_mut(request_id)
        {
            self.requests.remove(request_id);
            self.unacknowledged_bytes -= bytes;
            self.acknowledge_inbound(packet_id, exactly_once, ReasonCode::Success, None);
        }
    }

    /// PUBACK or PUBREC of a message that was taken in.
    fn acknowledge_inbound(
        &mut self,
        packet_id: PacketId,
        exactly_once: bool,
        reason: ReasonCode,
        text: Option<&str>,
    ) {
        if exactly_once {
            // [MQTT-4.3.3-9]
            let refused = reason as u8 >= 0x80;
            self.inbound.received_qos_2(packet_id, refused);
        } else {
            self.inbound.acknowledged_qos_1();
        }
        self.acknowledge(packet_id, exactly_once, reason, text);
        if exactly_once && !self.repeated.is_empty() {
            let before = self.repeated.len();
            self.repeated.retain(|repeated| *repeated != packet_id);
            for _ in self.repeated.len()..before {
                self.acknowledge(packet_id, exactly_once, reason, text);
            }
        }
    }

    /// PUBREC with an error.
    fn refuse_publish(&mut self, packet_id: PacketId, reason: ReasonCode, text: &'static str) {
        self.acknowledge(packet_id, true, reason, Some(text));
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

/// Bytes of a message, which is what it takes in a mailbox and a little less.
fn size(topic: &str, publish: &Publish<'_>) -> usize {
    topic.len() + publish.payload.len()
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
