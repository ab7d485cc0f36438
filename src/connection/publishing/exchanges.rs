//! The client's PUBLISH packets with QoS 1 and 2 from their arrival to their acknowledgement, on either way: through
//! the log, or past it to the subscribers of this and other nodes.
//!
//! Invariant: no message overtakes an earlier one of the same QoS (P5). While a message is in the log, later ones of
//! its QoS follow it there; while other nodes have messages to confirm, none goes into the log. Once it is applied
//! here, later ones go past the log again, but other nodes deliver them only when they have applied it, too.

use std::num::NonZeroU16;
use std::sync::Arc;

use bytes::Bytes;

use super::request::{DirectPublish, LoggedPublish};
use crate::base::ids::LogIndex;
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::codec::{PacketId, Publish, QoS, ReasonCode};
use crate::connection::context::{Context, Flow};
use crate::connection::end::Ended;
use crate::connection::requests::Request;
use crate::mailbox::back_pressure::BackPressureState;
use crate::mailbox::{DeferredAck, Mailbox, RequestId};
use crate::replica::share::Share;
use crate::router::{Delivered, Message, OnTheWay, Origin, PeerNodes, Route};
use crate::session::inbound::{Inbound, Reception, Release};
use crate::telemetry::labels::DropReason;

/// What the log has no room for.
const QUOTA_EXCEEDED: &str = "there are as many retained or queued messages as there may be";

/// Messages of the client that are on their way.
pub(super) struct Exchanges {
    inbound: Inbound,
    /// QoS 2 messages that came again before they were answered; each gets an answer of its own `[MQTT-4.3.3-10]`.
    repeated: Vec<PacketId>,
    /// Messages in the log, by QoS.
    logged: [u32; 3],
    /// The log holds all earlier messages of this publisher up to this index.
    logged_through: LogIndex,
    /// Messages that other nodes have not confirmed.
    unconfirmed: u32,
    /// The last batch with a message of QoS 0 per node, as far as it may not be there yet. Boxed, because few clients
    /// need it.
    on_the_way: Option<Box<OnTheWay>>,
    /// Bytes of messages with QoS 1 and 2 that are not acknowledged.
    unacknowledged_bytes: usize,
}

impl Exchanges {
    /// `received` are the packet ids of QoS 2 messages whose PUBREL has not come yet. What the client has published on
    /// other connections is in the log up to `logged_through`.
    pub(super) fn new(
        receive_maximum: NonZeroU16,
        received: Vec<u16>,
        logged_through: LogIndex,
    ) -> Exchanges {
        let received = received.into_iter().filter_map(NonZeroU16::new);
        Exchanges {
            inbound: Inbound::new(receive_maximum, received),
            repeated: Vec::new(),
            logged: [0; 3],
            logged_through,
            unconfirmed: 0,
            on_the_way: None,
            unacknowledged_bytes: 0,
        }
    }

    /// Whether the packet id belongs to a QoS 2 exchange.
    pub(super) fn knows(&self, packet_id: PacketId) -> bool {
        self.inbound.knows(packet_id)
    }

    /// Whether the client may not begin another exchange.
    pub(super) fn is_full(&self) -> bool {
        self.inbound.is_full()
    }

    /// Whether that is so because PUBRELs of the client are missing.
    pub(super) fn awaits_release(&self) -> bool {
        self.inbound.awaits_release()
    }

    /// Whether the session remembers so many QoS 2 exchanges that it takes no more.
    pub(super) fn remembers_too_many(&self) -> bool {
        self.inbound.remembers_too_many()
    }

    /// Whether the client has as many messages unacknowledged as it may, when `others` are not of these exchanges.
    pub(super) fn is_full_with(&self, others: usize) -> bool {
        self.inbound.is_full_with(others)
    }

    /// Whether a message must follow earlier ones into the log (P5).
    pub(super) fn follows_into_log(&self, qos: QoS) -> bool {
        self.logged[qos as usize] > 0
    }

    /// Whether a message must wait until other nodes have confirmed earlier ones, which it would overtake in the log.
    pub(super) fn awaits_confirmation(&self) -> bool {
        self.unconfirmed > 0
    }

    /// The same for a message with QoS 0, whose confirmations are not told one by one. `publisher` offers it again when
    /// there may be another answer.
    pub(super) fn is_on_the_way(
        &mut self,
        peers: &dyn PeerNodes,
        publisher: &Arc<Mailbox>,
    ) -> bool {
        let Some(on_the_way) = &mut self.on_the_way else {
            return false;
        };
        let mut forget_confirmed = || {
            on_the_way.retain(|(node, sequence)| !peers.is_confirmed(*node, *sequence));
            on_the_way.first().map(|(node, _)| *node)
        };
        let Some(node) = forget_confirmed() else {
            return false;
        };
        // It is asked again afterwards: the confirmation may have come between the two.
        peers.await_confirmed(node, publisher);
        forget_confirmed().is_some()
    }

    /// Delivers a message with QoS 0 past the log.
    pub(super) fn deliver_qos_0(
        &mut self,
        context: &mut Context,
        route: &Route,
        topic: &str,
        publish: &Publish<'_>,
    ) {
        let delivered = deliver(context, route, topic, publish, self.logged_through, None);
        if delivered.on_the_way.is_empty() {
            return;
        }
        let on_the_way = self.on_the_way.get_or_insert_default();
        for (node, sequence) in delivered.on_the_way {
            match on_the_way.iter_mut().find(|(known, _)| *known == node) {
                Some((_, last)) => *last = sequence,
                None => on_the_way.push((node, sequence)),
            }
        }
    }

    /// Whether a message must not be read yet, because slow subscribers defer the acknowledgements of enough messages
    /// already. Receive maximums bound the number of messages, this bounds their bytes. `is_outdated`: what is not
    /// acknowledged may be on its way to subscribers, so that the pressure does not show it yet.
    pub(super) fn is_throttled(&self, pressure: BackPressureState, is_outdated: bool) -> bool {
        let is_much = self.unacknowledged_bytes >= limits::PUBLISHER_UNACKNOWLEDGED_BYTES;
        pressure == BackPressureState::Full
            || (is_much && (pressure != BackPressureState::Normal || is_outdated))
    }

    /// A PUBLISH with QoS 2 and a known packet id `[MQTT-4.3.3-10]`.
    pub(super) fn handle_repeated(&mut self, context: &mut Context, packet_id: PacketId) -> Flow {
        let qos = QoS::ExactlyOnce;
        match self.inbound.handle_qos_2(packet_id) {
            Reception::Duplicate => {
                context.acknowledge(packet_id, qos, ReasonCode::Success, None);
            }
            Reception::PacketIdInUse => {
                let text = Some("the packet id is in use until its PUBCOMP");
                context.acknowledge(packet_id, qos, ReasonCode::PacketIdentifierInUse, text);
            }
            // Each is answered when the first one is.
            Reception::UnderWay if self.repeated.len() >= context.requests.len() => {
                return Flow::Retry;
            }
            Reception::UnderWay => self.repeated.push(packet_id),
            Reception::New | Reception::TooMany => {}
        }
        Flow::Continue
    }

    /// A new exchange begins.
    pub(super) fn begin(&mut self, packet_id: PacketId, qos: QoS) {
        let reception = match qos {
            QoS::ExactlyOnce => self.inbound.handle_qos_2(packet_id),
            _ => self.inbound.handle_qos_1(),
        };
        debug_assert_eq!(reception, Reception::New);
    }

    /// Proposes a message of any QoS for the log.
    pub(super) fn propose(
        &mut self,
        context: &mut Context,
        topic: &str,
        publish: &Publish<'_>,
        weight: usize,
    ) -> Flow {
        let command = command::Publish {
            connection: context.mailbox.connection.0,
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
            max_retained: match publish.retain {
                true => context.broker.settings.mqtt.retained_max,
                false => 0,
            },
            max_queued_bytes: context.broker.settings.mqtt.queued_max_bytes,
            max_retained_of_identity: context.rights.max_retained(),
        };
        let request = LoggedPublish {
            packet_id: publish.packet_id,
            qos: publish.qos,
            retain: publish.retain,
            deferred: 0,
            bytes: size(topic, publish),
        };
        let bytes = request.bytes;
        let (command, request) = (Kind::Publish(command), Request::LoggedPublish(request));
        let flow = context.propose_weighing(Share::Common, command, request, weight);
        if flow == Flow::Continue {
            self.logged[publish.qos as usize] += 1;
            self.unacknowledged_bytes += publish.packet_id.map_or(0, |_| bytes);
        }
        flow
    }

    /// A message is in the log, or was refused there.
    ///
    /// # Errors
    /// It was refused, and MQTT 3 has no reason to give with an acknowledgement: its connection ends, so that the
    /// client keeps the message (P1).
    pub(super) fn handle_logged(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reason: ReasonCode,
    ) -> Result<(), Ended> {
        let Some(request) = context.requests.get_mut(request_id) else {
            return Ok(());
        };
        let Request::LoggedPublish(logged) = request else {
            return Ok(());
        };
        let &mut LoggedPublish {
            packet_id,
            qos,
            retain,
            deferred,
            bytes,
        } = logged;
        self.logged[qos as usize] -= 1;
        self.logged_through = context.broker.services.view.applied();
        if let Some(packet_id) = packet_id.filter(|_| deferred > 0) {
            // It has reached its subscribers, so it succeeded.
            *request = Request::DirectPublish(DirectPublish {
                packet_id,
                qos,
                unconfirmed: 0,
                deferred,
                bytes,
            });
            return Ok(());
        }
        context.requests.remove(request_id);
        self.unacknowledged_bytes -= packet_id.map_or(0, |_| bytes);
        let Some(packet_id) = packet_id else {
            if reason == ReasonCode::QuotaExceeded {
                let dropped = &context.broker.metrics.messages_dropped;
                dropped.of(DropReason::QueueFull).increment();
            }
            return Ok(());
        };
        let reason = match reason {
            // Retaining it is a use, too.
            ReasonCode::NoMatchingSubscribers if retain => ReasonCode::Success,
            reason => reason,
        };
        let text = (reason == ReasonCode::QuotaExceeded).then_some(QUOTA_EXCEEDED);
        if text.is_some() && !context.options.version.is_v5() {
            return Err(Ended::quota_exceeded(QUOTA_EXCEEDED));
        }
        self.acknowledge(context, packet_id, qos, reason, text);
        Ok(())
    }

    /// Delivers a message past the log, and acknowledges it as soon as nothing defers that.
    pub(super) fn deliver(
        &mut self,
        context: &mut Context,
        route: &Route,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
    ) {
        let request = DirectPublish {
            packet_id,
            qos: publish.qos,
            unconfirmed: 0,
            deferred: 0,
            bytes: size(topic, publish),
        };
        if route.has_remote() {
            let request_id = self.await_acknowledgement(context, request);
            let after = self.logged_through;
            let delivered = deliver(context, route, topic, publish, after, Some(request_id));
            self.defer_acknowledgement(context, request_id, delivered);
            return;
        }
        let delivered = deliver(context, route, topic, publish, self.logged_through, None);
        if delivered.throttled.is_empty() {
            let reason = match route.is_empty() {
                true => ReasonCode::NoMatchingSubscribers,
                false => ReasonCode::Success,
            };
            self.acknowledge(context, packet_id, publish.qos, reason, None);
        } else {
            let request_id = self.await_acknowledgement(context, request);
            self.defer_acknowledgement(context, request_id, delivered);
        }
    }

    fn await_acknowledgement(
        &mut self,
        context: &mut Context,
        request: DirectPublish,
    ) -> RequestId {
        self.unacknowledged_bytes += request.bytes;
        context.requests.insert(Request::DirectPublish(request))
    }

    /// Notes whom the acknowledgement waits for.
    fn defer_acknowledgement(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        delivered: Delivered,
    ) {
        let mut deferred = 0;
        for (subscriber, end) in delivered.throttled {
            let ack = DeferredAck::Local(context.mailbox.clone(), request_id);
            deferred += u32::from(subscriber.defer_ack(end, ack, &mut context.wake));
        }
        if let Some(Request::DirectPublish(request)) = context.requests.get_mut(request_id) {
            request.unconfirmed = delivered.unconfirmed;
            request.deferred = deferred;
        }
        self.unconfirmed += u32::from(delivered.unconfirmed > 0);
        self.acknowledge_when_done(context, request_id);
    }

    /// Another node has handed the message to its connections.
    pub(super) fn handle_forward_confirmed(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
    ) {
        if let Some(Request::DirectPublish(request)) = context.requests.get_mut(request_id) {
            request.unconfirmed -= 1;
            self.unconfirmed -= u32::from(request.unconfirmed == 0);
            self.acknowledge_when_done(context, request_id);
        }
    }

    /// The message has reached its subscribers, but one of them reads slowly.
    pub(super) fn handle_deferred(&mut self, context: &mut Context, request_id: RequestId) {
        match context.requests.get_mut(request_id) {
            Some(Request::DirectPublish(request)) => {
                request.unconfirmed -= 1;
                request.deferred += 1;
                self.unconfirmed -= u32::from(request.unconfirmed == 0);
            }
            Some(Request::LoggedPublish(request)) => request.deferred += 1,
            _ => {}
        }
    }

    /// A slow subscriber defers the acknowledgement no longer.
    pub(super) fn handle_released(&mut self, context: &mut Context, request_id: RequestId) {
        match context.requests.get_mut(request_id) {
            Some(Request::DirectPublish(request)) => {
                request.deferred -= 1;
                self.acknowledge_when_done(context, request_id);
            }
            Some(Request::LoggedPublish(request)) => request.deferred -= 1,
            _ => {}
        }
    }

    fn acknowledge_when_done(&mut self, context: &mut Context, request_id: RequestId) {
        if let Some(&mut Request::DirectPublish(DirectPublish {
            packet_id,
            qos,
            unconfirmed: 0,
            deferred: 0,
            bytes,
        })) = context.requests.get_mut(request_id)
        {
            context.requests.remove(request_id);
            self.unacknowledged_bytes -= bytes;
            self.acknowledge(context, packet_id, qos, ReasonCode::Success, None);
        }
    }

    /// PUBACK, or PUBREC for the message and for each time it came again.
    fn acknowledge(
        &mut self,
        context: &mut Context,
        packet_id: PacketId,
        qos: QoS,
        reason: ReasonCode,
        text: Option<&str>,
    ) {
        context.acknowledge(packet_id, qos, reason, text);
        if qos != QoS::ExactlyOnce {
            self.inbound.acknowledged_qos_1();
            return;
        }
        // [MQTT-4.3.3-9]
        let refused = reason as u8 >= 0x80;
        self.inbound.received_qos_2(packet_id, refused);
        if !self.repeated.is_empty() {
            let before = self.repeated.len();
            self.repeated.retain(|repeated| *repeated != packet_id);
            for _ in self.repeated.len()..before {
                context.acknowledge(packet_id, qos, reason, text);
            }
        }
    }

    /// PUBREL; tells whether the log must know of it before PUBCOMP.
    pub(super) fn handle_pubrel(&mut self, context: &mut Context, packet_id: PacketId) -> bool {
        match self.inbound.handle_pubrel(packet_id) {
            Release::Propose if context.is_durable => return true,
            // The session ends with the connection, so nothing of it is remembered elsewhere.
            Release::Propose => self.complete_qos_2(context, packet_id),
            Release::UnderWay => {}
            Release::Unknown => {
                context.send_pubcomp(packet_id, ReasonCode::PacketIdentifierNotFound);
            }
        }
        false
    }

    /// A QoS 2 exchange ends with its PUBCOMP.
    pub(super) fn complete_qos_2(&mut self, context: &mut Context, packet_id: PacketId) {
        self.inbound.completed_qos_2(packet_id);
        context.send_pubcomp(packet_id, ReasonCode::Success);
    }
}

/// Hands a message to its subscribers on this node, and to the other nodes that have some. Those confirm to the request
/// id, if there is one, and deliver it when they have applied the log up to `after`.
fn deliver(
    context: &mut Context,
    route: &Route,
    topic: &str,
    publish: &Publish<'_>,
    after: LogIndex,
    request_id: Option<RequestId>,
) -> Delivered {
    let properties = publish.properties.forwardable();
    let message = Message {
        publisher: Some(context.session),
        qos: publish.qos,
        retain: publish.retain,
        topic,
        properties: &properties,
        expiry: publish.properties.message_expiry(),
        direct: false,
        payload: publish.payload,
    };
    context.work += route.work(&message);
    let origin = Origin {
        confirm_to: request_id.map(|request_id| (&context.mailbox, request_id)),
        after,
    };
    let router = &context.broker.services.router;
    let delivered = router.deliver(route, &message, origin, &mut context.wake);
    let metrics = &context.broker.metrics;
    if delivered.forwarded > 0 {
        metrics.messages_forwarded.add(delivered.forwarded.into());
    }
    if delivered.dropped > 0 {
        let dropped = &metrics.messages_dropped;
        dropped
            .of(DropReason::PeerQueueFull)
            .add(delivered.dropped.into());
    }
    delivered
}

/// Size of a message: what it takes in a mailbox, headers left out.
fn size(topic: &str, publish: &Publish<'_>) -> usize {
    topic.len() + publish.payload.len()
}
