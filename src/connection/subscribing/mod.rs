//! SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a new subscription gets.
//!
//! Invariant: SUBACK follows when every live node has applied the subscription, so no message that is accepted after it
//! misses the subscriber (P6).

pub(super) mod request;
mod retained;

use super::context::{Context, Flow};
use super::end::Ended;
use super::requests::Request;
use crate::base::ids::{LogIndex, NodeId};
use crate::base::proto::command::{self, command::Kind};
use crate::codec::{PacketId, QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe, encode};
use crate::machine::effect::Reply;
use crate::mailbox::{Contents, RequestId};
use crate::telemetry::labels::DisconnectReason;
use crate::topic::Filter;
use request::{SubscribeRequest, UnsubscribeRequest};
use retained::{Reading, RetainedReplays, Subscription};

/// The client's side of subscribing.
#[derive(Default)]
pub(super) struct Subscribing {
    /// SUBSCRIBEs that this node has not applied yet.
    unapplied: u32,
    /// Retained messages that are still to be sent.
    replays: RetainedReplays,
}

impl Subscribing {
    /// Whether this node has yet to apply a SUBSCRIBE: what the client publishes after it must wait to be matched
    /// against it.
    pub(super) fn is_unapplied(&self) -> bool {
        self.unapplied > 0
    }

    /// SUBSCRIBE.
    ///
    /// # Errors
    /// Its SUBACK is larger than the client accepts.
    pub(super) fn handle_subscribe(
        &mut self,
        context: &mut Context,
        subscribe: &Subscribe<'_>,
    ) -> Result<Flow, Ended> {
        if context.is_busy() {
            return Ok(Flow::Retry);
        }
        let identifier = subscribe.subscription_id.map_or(0, |id| id.get());
        let mut reasons = Vec::new();
        let mut subscriptions = Vec::new();
        let mut wanted = Vec::new();
        for request in subscribe.filters.iter() {
            if Filter::parse(request.filter).is_err() || !context.accepts_topic(request.filter) {
                reasons.push(ReasonCode::TopicFilterInvalid);
                continue;
            }
            reasons.push(match request.options.qos {
                QoS::AtMostOnce => ReasonCode::Success,
                QoS::AtLeastOnce => ReasonCode::GrantedQos1,
                QoS::ExactlyOnce => ReasonCode::GrantedQos2,
            });
            wanted.push(Subscription {
                filter: request.filter.into(),
                qos: request.options.qos,
                no_local: request.options.no_local,
                retain_handling: request.options.retain_handling as u8,
                identifier,
            });
            subscriptions.push(command::Subscription {
                filter: request.filter.to_owned(),
                qos: request.options.qos as u32,
                no_local: request.options.no_local,
                retain_as_published: request.options.retain_as_published,
                retain_handling: request.options.retain_handling as u32,
                identifier,
            });
        }
        let packet_id = subscribe.packet_id;
        check_size(context, reasons.len())?;
        if subscriptions.is_empty() {
            send_suback(context, packet_id, &reasons);
            return Ok(Flow::Continue);
        }
        let command = command::Subscribe {
            client_id: context.options.client_id.to_string(),
            connection: context.mailbox.connection.0,
            subscriptions,
        };
        let request = SubscribeRequest {
            packet_id,
            reasons: reasons.into(),
            subscriptions: wanted,
        };
        let flow = context.propose(Kind::Subscribe(command), Request::Subscribe(request));
        self.unapplied += u32::from(flow == Flow::Continue);
        Ok(flow)
    }

    /// UNSUBSCRIBE.
    ///
    /// # Errors
    /// Before MQTT 5, one of its filters is none: there is no other answer `[MQTT-4.7.3-1]`. Or its UNSUBACK is larger
    /// than the client accepts.
    pub(super) fn handle_unsubscribe(
        &mut self,
        context: &mut Context,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<Flow, Ended> {
        if context.is_busy() {
            return Ok(Flow::Retry);
        }
        let is_v5 = context.options.version.is_v5();
        let filters: Vec<Option<Box<str>>> = unsubscribe
            .filters
            .iter()
            .map(|filter| Filter::parse(filter).is_ok().then(|| filter.into()))
            .collect();
        if is_v5 {
            check_size(context, filters.len())?;
        } else if filters.iter().any(Option::is_none) {
            return Err(Ended::protocol("UNSUBSCRIBE names an invalid topic filter"));
        }
        let valid: Vec<String> = filters
            .iter()
            .flatten()
            .map(|filter| filter.to_string())
            .collect();
        let request = UnsubscribeRequest {
            packet_id: unsubscribe.packet_id,
            filters,
        };
        if valid.is_empty() {
            send_unsuback(context, &request, &[]);
            return Ok(Flow::Continue);
        }
        let command = command::Unsubscribe {
            client_id: context.options.client_id.to_string(),
            connection: context.mailbox.connection.0,
            filters: valid,
        };
        let request = Request::Unsubscribe(request);
        Ok(context.propose(Kind::Unsubscribe(command), request))
    }

    /// The machine has applied a SUBSCRIBE or UNSUBSCRIBE.
    pub(super) fn handle_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &Reply,
    ) {
        match reply {
            Reply::Subscribed { index, new } => {
                self.handle_subscribed(context, request_id, *index, new);
            }
            Reply::Unsubscribed(removed) => self.handle_unsubscribed(context, request_id, removed),
            // The session has a new owner; this connection is about to end.
            _ => {
                if let Some(Request::Subscribe(_)) = context.requests.remove(request_id) {
                    self.unapplied -= 1;
                }
            }
        }
    }

    /// The subscription is committed, and effective on this node; the others are asked.
    fn handle_subscribed(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        index: LogIndex,
        new: &[bool],
    ) {
        self.unapplied -= 1;
        if let Some(Request::Subscribe(request)) = context.requests.get_mut(request_id) {
            let subscriptions = std::mem::take(&mut request.subscriptions);
            self.replays
                .subscribed(request_id, subscriptions, index, new);
        }
        let (settings, services) = (&context.broker.settings, &context.broker.services);
        let nodes = services.view.live_nodes().into_iter();
        let others: Vec<NodeId> = nodes
            .map(|(node, _)| node)
            .filter(|node| *node != settings.node)
            .collect();
        if others.is_empty() {
            self.handle_effective(context, request_id);
        } else {
            let applied = services.view.applied();
            let peers = services.router.peers();
            peers.await_applied(&others, applied, &context.mailbox, request_id);
        }
    }

    /// Every live node has applied the subscription.
    pub(super) fn handle_effective(&mut self, context: &mut Context, request_id: RequestId) {
        if let Some(Request::Subscribe(request)) = context.requests.remove(request_id) {
            self.replays.acknowledged(request_id);
            send_suback(context, request.packet_id, &request.reasons);
        }
    }

    /// The subscriptions have ended, and so do their replays.
    fn handle_unsubscribed(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        removed: &[bool],
    ) {
        let Some(Request::Unsubscribe(request)) = context.requests.remove(request_id) else {
            return;
        };
        for filter in request.filters.iter().flatten() {
            self.replays.unsubscribed(filter);
        }
        send_unsuback(context, &request, removed);
    }

    /// Reads the next page of retained messages into empty buffers.
    pub(super) fn read_retained(&mut self, context: &Context, contents: &mut Contents) {
        let reading = Reading {
            broker: &context.broker,
            mailbox: &context.mailbox,
            session: context.session,
            is_durable: context.is_durable,
        };
        self.replays.read_page(reading, contents);
    }

    /// Bytes that are kept for retained messages that are still to be sent, about.
    pub(super) fn memory(&self) -> usize {
        self.replays.bytes()
    }

    /// Whether retained messages are still to be sent, and the client has got the earlier ones. While it
    /// `is_behind`, it has unacknowledged messages in front of them: then it must have got as much since the last ones
    /// as they were, so that a client with a small receive maximum gets them beside other messages.
    pub(super) fn wants_retained(&self, context: &Context, is_behind: bool) -> bool {
        self.replays.is_ready()
            && self
                .replays
                .is_due(is_behind.then(|| context.mailbox.drained()))
    }
}

/// [MQTT-3.1.2-24]: SUBACK and UNSUBACK have a code for each filter, so they may be larger than the client accepts. It
/// would wait for them for ever; so it is told before anything is done.
fn check_size(context: &Context, codes: usize) -> Result<(), Ended> {
    // Fixed header, packet id, and no properties.
    let size = 1 + 4 + 2 + 1 + codes;
    if size <= context.options.limits.max_packet_size as usize {
        return Ok(());
    }
    let reasons = vec![ReasonCode::Success; codes];
    let packet = SubAck::new(PacketId::MIN, &reasons);
    let (version, limits) = (context.options.version, context.options.limits);
    match encode::suback(&mut Vec::new(), version, &packet, limits) {
        Ok(_) => Ok(()),
        Err(_) => Err(Ended::disconnect(
            DisconnectReason::PacketTooLarge,
            ReasonCode::PacketTooLarge,
            "the answer to so many topic filters is larger than the client accepts",
        )),
    }
}

/// `removed` has one entry per valid filter.
fn send_unsuback(context: &mut Context, request: &UnsubscribeRequest, removed: &[bool]) {
    let mut removed = removed.iter();
    let reasons: Vec<_> = request
        .filters
        .iter()
        .map(|filter| match filter.as_ref().map(|_| removed.next()) {
            None => ReasonCode::TopicFilterInvalid,
            Some(Some(true)) => ReasonCode::Success,
            Some(_) => ReasonCode::NoSubscriptionExisted,
        })
        .collect();
    let (version, limits) = (context.options.version, context.options.limits);
    let packet = UnsubAck::new(request.packet_id, &reasons);
    let out = context.output.acknowledgements();
    // It was seen to fit when the request came.
    let _ = encode::unsuback(out, version, &packet, limits);
}

fn send_suback(context: &mut Context, packet_id: PacketId, reasons: &[ReasonCode]) {
    let (version, limits) = (context.options.version, context.options.limits);
    let out = context.output.acknowledgements();
    // It was seen to fit when the request came.
    let _ = encode::suback(out, version, &SubAck::new(packet_id, reasons), limits);
}

#[cfg(test)]
mod tests;
