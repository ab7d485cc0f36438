//! PUBLISH from the client: where a message goes, and when it is acknowledged.
//!
//! A message goes through the log when a durable session or a shared subscription waits for it there, when it is to be
//! retained, or when it follows such a message. Every other message goes straight to its subscribers.

mod aliases;
mod exchanges;
pub(super) mod request;

use std::num::NonZeroU16;
use std::sync::Arc;

use super::context::{Context, Flow};
use super::end::Ended;
use super::hub::confinement::reserved;
use super::refusal::DISK_LOW;
use super::route_cache::{CurrentRoute, RouteCache};
use crate::base::ids::LogIndex;
use crate::codec::{PacketId, Publish, QoS, ReasonCode};
use crate::config::RefusedPublish;
use crate::machine::effect::Reply;
use crate::mailbox::RequestId;
use crate::mailbox::back_pressure::BackPressureState;
use crate::replica::share::Share;
use crate::router::Route;
use crate::telemetry::labels::DropReason;
use aliases::TopicAliases;
use exchanges::Exchanges;

/// The client's side of publishing.
pub(super) struct Publishing {
    aliases: TopicAliases,
    routes: RouteCache,
    exchanges: Exchanges,
    /// The message that was offered last waits until its subscribers have room.
    awaits_room: bool,
}

impl Publishing {
    /// `received` are the packet ids of QoS 2 messages whose PUBREL has not come yet. What the client has published on
    /// other connections is in the log up to `logged_through`.
    pub(super) fn new(
        receive_maximum: NonZeroU16,
        received: Vec<u16>,
        logged_through: LogIndex,
    ) -> Publishing {
        Publishing {
            aliases: TopicAliases::default(),
            routes: RouteCache::default(),
            exchanges: Exchanges::new(receive_maximum, received, logged_through),
            awaits_room: false,
        }
    }

    /// The topic behind an alias.
    ///
    /// # Errors
    /// The client breaks the rules for aliases.
    pub(super) fn resolve_alias(
        &mut self,
        context: &Context,
        alias: NonZeroU16,
        topic: &str,
    ) -> Result<Arc<str>, Ended> {
        let maximum = context.broker.settings.mqtt.topic_alias_maximum;
        self.aliases.resolve(maximum, alias, topic)
    }

    /// Takes a PUBLISH to `topic`.
    ///
    /// # Errors
    /// The client exceeds the receive maximum.
    pub(super) fn handle_publish(
        &mut self,
        context: &mut Context,
        topic: &str,
        publish: &Publish<'_>,
    ) -> Result<Flow, Ended> {
        self.awaits_room = false;
        if !context.has_routing_lease {
            return Ok(context.await_routing_lease());
        }
        match publish.packet_id {
            None => Ok(self.handle_qos_0(context, topic, publish)),
            Some(packet_id) => self.handle_acknowledged(context, topic, publish, packet_id),
        }
    }

    fn handle_qos_0(&mut self, context: &mut Context, topic: &str, publish: &Publish<'_>) -> Flow {
        if reserved(context, topic).is_some() {
            return Flow::Continue;
        }
        if !context.rights.may_publish(topic, publish) {
            context
                .rights
                .refuse_publish(topic, &context.broker.metrics);
            return Flow::Continue;
        }
        if !context.accepts_topic(topic) {
            count_refused_topic(context);
            return Flow::Continue;
        }
        let Publishing {
            routes, exchanges, ..
        } = self;
        let Some(route) = direct_route(routes, exchanges, context, topic, publish) else {
            // Nothing else slows a client down that publishes with QoS 0.
            let peers = context.broker.services.router.peers();
            if context.is_busy() || exchanges.is_on_the_way(peers, &context.mailbox) {
                return Flow::Retry;
            }
            if is_stored(publish) && context.refuses_write() {
                let dropped = &context.broker.metrics.messages_dropped;
                dropped.of(DropReason::DiskLow).increment();
                return Flow::Continue;
            }
            if !has_room(context) {
                return Flow::Retry;
            }
            let weight = logged_weight(routes, context, topic, publish.qos);
            return exchanges.propose(context, topic, publish, weight);
        };
        exchanges.deliver_qos_0(context, &route, topic, publish);
        Flow::Continue
    }

    /// QoS 1 and 2.
    fn handle_acknowledged(
        &mut self,
        context: &mut Context,
        topic: &str,
        publish: &Publish<'_>,
        packet_id: PacketId,
    ) -> Result<Flow, Ended> {
        let Publishing {
            routes,
            exchanges,
            awaits_room,
            ..
        } = self;
        if publish.qos == QoS::ExactlyOnce && exchanges.knows(packet_id) {
            return Ok(exchanges.handle_repeated(context, packet_id));
        }
        // [MQTT-3.3.4-7]: messages with QoS 1 and 2 alone count; before MQTT 5 nothing bounds them but the reading.
        if context.options.version.is_v5() && exchanges.is_full_with(context.requests.stores()) {
            return Err(Ended::receive_maximum());
        }
        if context.is_busy() || exchanges.is_full() {
            return Ok(Flow::Retry);
        }
        if publish.qos == QoS::ExactlyOnce && exchanges.remembers_too_many() {
            let text = "too many QoS 2 messages of the session wait for their PUBREL";
            return refuse_stored(context, publish.qos, packet_id, text);
        }
        if let Some(refused) = refuse_topic(context, topic, publish, packet_id) {
            return refused;
        }
        let Some(route) = direct_route(routes, exchanges, context, topic, publish) else {
            if exchanges.awaits_confirmation() {
                return Ok(Flow::Retry);
            }
            if is_stored(publish) && context.refuses_write() {
                return refuse_stored(context, publish.qos, packet_id, DISK_LOW);
            }
            // Who has no queue gets it straight when it is applied.
            let route = current_route(routes, context, topic);
            let is_waited_for = route.has_waited_for();
            *awaits_room = is_held_back(exchanges, context, &route, is_waited_for);
            if *awaits_room || !has_room(context) {
                return Ok(Flow::Retry);
            }
            let weight = route.logged_weight(publish.qos);
            return Ok(propose(
                exchanges, context, topic, publish, packet_id, weight,
            ));
        };
        *awaits_room = is_held_back(exchanges, context, &route, route.has_remote());
        if *awaits_room {
            return Ok(Flow::Retry);
        }
        exchanges.begin(packet_id, publish.qos);
        exchanges.deliver(context, &route, topic, publish, packet_id);
        Ok(Flow::Continue)
    }

    /// Bytes that are kept for the client's aliases and its routes.
    pub(super) fn memory(&self) -> usize {
        self.aliases.memory() + self.routes.memory()
    }

    /// Whether the client has as many messages unacknowledged as it may.
    pub(super) fn is_full(&self, context: &Context) -> bool {
        self.exchanges.is_full_with(context.requests.stores())
    }

    /// Whether the next message waits for acknowledgements of the client.
    pub(super) fn awaits_client(&self) -> bool {
        self.exchanges.awaits_release()
    }

    /// Whether the next message waits for its subscribers, which back-pressure bounds.
    pub(super) fn awaits_room(&self) -> bool {
        self.awaits_room
    }

    /// PUBREL; tells whether the log must know of it before PUBCOMP.
    pub(super) fn handle_pubrel(&mut self, context: &mut Context, packet_id: PacketId) -> bool {
        self.exchanges.handle_pubrel(context, packet_id)
    }

    /// The log knows of a PUBREL: sends PUBCOMP.
    pub(super) fn handle_pubrel_logged(&mut self, context: &mut Context, packet_id: PacketId) {
        self.exchanges.complete_qos_2(context, packet_id);
    }

    /// The machine has applied a PUBLISH.
    ///
    /// # Errors
    /// It was refused, and the client can't be told otherwise.
    pub(super) fn handle_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &Reply,
    ) -> Result<(), Ended> {
        let reason = match reply {
            Reply::Published { matched: true } => ReasonCode::Success,
            Reply::Published { matched: false } => ReasonCode::NoMatchingSubscribers,
            Reply::QuotaExceeded => ReasonCode::QuotaExceeded,
            // The session has a new owner; this connection is about to end.
            _ => {
                context.requests.remove(request_id);
                return Ok(());
            }
        };
        self.exchanges.handle_logged(context, request_id, reason)
    }

    /// Another node has handed a message to its connections.
    pub(super) fn handle_forward_confirmed(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
    ) {
        self.exchanges.handle_forward_confirmed(context, request_id);
    }

    /// A message has reached its subscribers, but one of them reads slowly.
    pub(super) fn handle_deferred(&mut self, context: &mut Context, request_id: RequestId) {
        self.exchanges.handle_deferred(context, request_id);
    }

    /// A slow subscriber defers an acknowledgement no longer.
    pub(super) fn handle_released(&mut self, context: &mut Context, request_id: RequestId) {
        self.exchanges.handle_released(context, request_id);
    }
}

#[cold]
fn count_refused_topic(context: &Context) {
    let dropped = &context.broker.metrics.messages_dropped;
    dropped.of(DropReason::TopicRefused).increment();
}

/// Whether a message is not read yet because its subscribers have no room. Then the client is read again when they
/// have, or when there is more to acknowledge. See [`Exchanges::is_throttled`].
fn is_held_back(
    exchanges: &Exchanges,
    context: &Context,
    route: &Route,
    is_outdated: bool,
) -> bool {
    let back_pressure = route.back_pressure();
    let is_throttled = exchanges.is_throttled(back_pressure, is_outdated);
    // Otherwise an acknowledgement of its own is under way, and wakes the connection.
    if is_throttled && back_pressure == BackPressureState::Full {
        route.await_room(&context.mailbox);
    }
    is_throttled
}

/// Whether a message that goes through the log adds to what is stored. One that deletes a retained message makes room.
fn is_stored(publish: &Publish<'_>) -> bool {
    !(publish.retain && publish.payload.is_empty())
}

/// Refuses a message because disks are nearly full. MQTT 3 has no reason to give with an acknowledgement, so its
/// connection ends: the client keeps the message.
fn refuse_stored(
    context: &mut Context,
    qos: QoS,
    packet_id: PacketId,
    text: &'static str,
) -> Result<Flow, Ended> {
    let reason = ReasonCode::QuotaExceeded;
    if !context.options.version.is_v5() {
        return Err(Ended::quota_exceeded(text));
    }
    context.acknowledge(packet_id, qos, reason, Some(text));
    Ok(Flow::Continue)
}

/// Refuses a message to a topic that its client may not publish to, or that this server does not take.
fn refuse_topic(
    context: &mut Context,
    topic: &str,
    publish: &Publish<'_>,
    packet_id: PacketId,
) -> Option<Result<Flow, Ended>> {
    let (reason, text) = if let Some(text) = reserved(context, topic) {
        (ReasonCode::NotAuthorized, text)
    } else if !context.rights.may_publish(topic, publish) {
        context
            .rights
            .refuse_publish(topic, &context.broker.metrics);
        return Some(refuse_not_authorized(context, publish.qos, packet_id));
    } else if !context.accepts_topic(topic) {
        count_refused_topic(context);
        let text = "the topic name is longer or deeper than this server takes";
        (ReasonCode::TopicNameInvalid, text)
    } else {
        return None;
    };
    context.acknowledge(packet_id, publish.qos, reason, Some(text));
    Some(Ok(Flow::Continue))
}

/// Refuses a message that its client may not publish. An acknowledgement of MQTT 3 has no reason: the message is
/// dropped behind it, or the connection ends, as it is configured `[MQTT-3.3.5-2]`.
fn refuse_not_authorized(
    context: &mut Context,
    qos: QoS,
    packet_id: PacketId,
) -> Result<Flow, Ended> {
    let policy = context.broker.settings.mqtt.refused_publish;
    if !context.options.version.is_v5() && policy == RefusedPublish::Disconnect {
        return Err(Ended::not_authorized(
            "the rules do not let the client publish this",
        ));
    }
    let text = Some("the rules do not allow it");
    context.acknowledge(packet_id, qos, ReasonCode::NotAuthorized, text);
    Ok(Flow::Continue)
}

/// The route of a message that goes past the log; `None` when it must go through the log.
fn direct_route<'a>(
    routes: &'a mut RouteCache,
    exchanges: &Exchanges,
    context: &mut Context,
    topic: &str,
    publish: &Publish<'_>,
) -> Option<CurrentRoute<'a>> {
    // What a durable session has sent with QoS 2 must be known wherever it connects next.
    let is_remembered = context.is_durable && publish.qos == QoS::ExactlyOnce;
    if publish.retain || is_remembered || exchanges.follows_into_log(publish.qos) {
        return None;
    }
    let route = current_route(routes, context, topic);
    (!route.is_logged(publish.qos)).then_some(route)
}

/// Whether there is room for a proposal. It is asked before the look-up is weighed: that counts once, and would be lost
/// with a proposal that is refused.
fn has_room(context: &Context) -> bool {
    let proposer = &context.broker.services.proposer;
    proposer.has_room_for(Share::Common, &context.mailbox)
}

/// What a message counts in its proposal because connections and queues get it from the log. One look-up in the route
/// cache: so that one publisher can't have all nodes deliver millions of copies while everybody waits for apply.
fn logged_weight(routes: &mut RouteCache, context: &mut Context, topic: &str, qos: QoS) -> usize {
    current_route(routes, context, topic).logged_weight(qos)
}

/// Where messages of the client to a topic go now.
fn current_route<'a>(
    routes: &'a mut RouteCache,
    context: &mut Context,
    topic: &str,
) -> CurrentRoute<'a> {
    let router = &context.broker.services.router;
    routes.current(router, topic, Some(context.session), &mut context.work)
}

/// Proposes a message that the client wants to have acknowledged.
fn propose(
    exchanges: &mut Exchanges,
    context: &mut Context,
    topic: &str,
    publish: &Publish<'_>,
    packet_id: PacketId,
    weight: usize,
) -> Flow {
    let flow = exchanges.propose(context, topic, publish, weight);
    if flow == Flow::Continue {
        exchanges.begin(packet_id, publish.qos);
    }
    flow
}

#[cfg(test)]
mod tests;
