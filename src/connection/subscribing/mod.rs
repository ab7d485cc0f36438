//! SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a new subscription gets.
//!
//! Invariant: SUBACK follows when every live node has applied the subscription, so no message that is accepted after it
//! misses the subscriber (P6).

pub(super) mod request;
mod retained;

use std::collections::VecDeque;

use super::context::{Context, Flow};
use super::end::Ended;
use super::hub::confinement;
use super::requests::Request;
use crate::base::ids::{LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::codec::{PacketId, QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe, encode};
use crate::machine::effect::Reply;
use crate::machine::read;
use crate::mailbox::{Contents, RequestId};
use crate::replica::reply_to::ReplyTo;
use crate::telemetry::labels::{Action, DisconnectReason};
use crate::topic::Filter;
use request::{SubscribeRequest, UnsubscribeRequest};
use retained::{Reading, RetainedReplays, Subscription};

/// The client's side of subscribing.
#[derive(Default)]
pub(super) struct Subscribing {
    /// SUBSCRIBEs that this node has not applied yet.
    unapplied: u32,
    /// A request that takes several commands is not applied. The next ones wait, or they would come between.
    in_parts: bool,
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
        if !context.has_routing_lease {
            return Ok(context.await_routing_lease());
        }
        if context.is_busy() || self.in_parts {
            return Ok(Flow::Retry);
        }
        let judged_at = context.rights.changes();
        let identifier = subscribe.subscription_id.map_or(0, |id| id.get());
        let mut reasons = Vec::new();
        let mut subscriptions = Vec::new();
        let mut wanted = Vec::new();
        for request in subscribe.filters.iter() {
            let parsed = Filter::parse(request.filter).ok();
            let Some(filter) = parsed.filter(|_| context.accepts_topic(request.filter)) else {
                reasons.push(ReasonCode::TopicFilterInvalid);
                continue;
            };
            let Some(granted) = confinement::subscribe(context, request.filter, &filter) else {
                reasons.push(ReasonCode::NotAuthorized);
                continue;
            };
            let options = granted.limit(request.options);
            reasons.push(code_of(options.qos));
            wanted.push(Subscription {
                filter: request.filter.into(),
                qos: options.qos,
                no_local: options.no_local,
                retain_handling: options.retain_handling as u8,
                identifier,
            });
            subscriptions.push(command::Subscription {
                filter: request.filter.to_owned(),
                qos: options.qos as u32,
                no_local: options.no_local,
                retain_as_published: options.retain_as_published,
                retain_handling: options.retain_handling as u32,
                identifier,
            });
        }
        let packet_id = subscribe.packet_id;
        check_size(context, reasons.len())?;
        if context.is_durable && !subscriptions.is_empty() && context.refuses_write() {
            reasons.fill(ReasonCode::QuotaExceeded);
            send_suback(context, packet_id, &reasons);
            return Ok(Flow::Continue);
        }
        if subscriptions.is_empty() {
            send_suback(context, packet_id, &reasons);
            return Ok(Flow::Continue);
        }
        let unapplied = match subscriptions.len() {
            // They are applied together.
            ..=limits::ITEMS_AT_LEAST => VecDeque::new(),
            _ => subscriptions.iter().cloned().collect(),
        };
        subscriptions.truncate(limits::FILTERS_AT_ONCE);
        let in_parts = !unapplied.is_empty();
        let command = subscribe_command(context, subscriptions);
        let request = SubscribeRequest::new(packet_id, reasons, wanted, unapplied, judged_at);
        let flow = context.propose(command, Request::Subscribe(request));
        self.unapplied += u32::from(flow == Flow::Continue);
        self.in_parts = in_parts && flow == Flow::Continue;
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
        // It has as much weight again: its client may make less of what holds the others up.
        if context.is_busy_with(2) || self.in_parts {
            return Ok(Flow::Retry);
        }
        let is_v5 = context.options.version.is_v5();
        let valid: Box<[bool]> = unsubscribe
            .filters
            .iter()
            .map(|filter| Filter::parse(filter).is_ok())
            .collect();
        if is_v5 {
            check_size(context, valid.len())?;
        } else if valid.contains(&false) {
            return Err(Ended::protocol("UNSUBSCRIBE names an invalid topic filter"));
        }
        let filters = unsubscribe.filters.iter().zip(&valid);
        let request = UnsubscribeRequest {
            packet_id: unsubscribe.packet_id,
            filters: filters
                .filter(|(_, valid)| **valid)
                .map(|(filter, _)| filter.into())
                .collect(),
            valid,
            removed: Vec::new(),
        };
        if request.filters.is_empty() {
            send_unsuback(context, &request);
            return Ok(Flow::Continue);
        }
        let in_parts = request.filters.len() > limits::ITEMS_AT_LEAST;
        let command = unsubscribe_command(context, &request.filters);
        let flow = context.propose(command, Request::Unsubscribe(request));
        self.in_parts = in_parts && flow == Flow::Continue;
        Ok(flow)
    }

    /// The machine has applied a SUBSCRIBE or UNSUBSCRIBE.
    pub(super) fn handle_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &Reply,
    ) {
        match reply {
            Reply::Subscribed {
                index,
                new,
                refused,
            } => {
                self.handle_subscribed(context, request_id, *index, new, refused);
            }
            Reply::Unsubscribed(removed) => self.handle_unsubscribed(context, request_id, removed),
            // The session has a new owner; this connection is about to end.
            _ => {
                self.in_parts = false;
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
        refused: &[usize],
    ) {
        if let Some(Request::Subscribe(request)) = context.requests.get_mut(request_id) {
            let was_in_parts = !request.unapplied.is_empty();
            let applied = new.len().min(request.subscriptions.len());
            let made = request.apply(applied, refused).zip(new.iter().copied());
            let made = made
                .enumerate()
                .filter(|(at, _)| refused.binary_search(at).is_err());
            self.replays
                .subscribed(request_id, made.map(|(_, made)| made), index);
            let next = request.unapplied.iter().take(limits::FILTERS_AT_ONCE);
            let next: Vec<_> = next.cloned().collect();
            if !next.is_empty() {
                let command = subscribe_command(context, next);
                propose_rest(context, request_id, command);
                return;
            }
            self.in_parts &= !was_in_parts;
            if request.judged_at != context.rights.changes() {
                // What it has made was not there when the rules changed.
                self.keep_to_rules(context);
            }
        }
        self.unapplied -= 1;
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
        if let Some(Request::Unsubscribe(request)) = context.requests.get_mut(request_id) {
            request.removed.extend_from_slice(removed);
            if let Some(rest) = request.filters.get(request.removed.len()..)
                && !rest.is_empty()
            {
                let rest: Vec<_> = rest.iter().take(limits::FILTERS_AT_ONCE).cloned().collect();
                let command = unsubscribe_command(context, &rest);
                propose_rest(context, request_id, command);
                return;
            }
        }
        let Some(Request::Unsubscribe(request)) = context.requests.remove(request_id) else {
            return;
        };
        self.in_parts &= request.filters.len() <= limits::ITEMS_AT_LEAST;
        for filter in &request.filters {
            self.replays.unsubscribed(filter);
        }
        send_unsuback(context, &request);
    }

    /// Reads the next page of retained messages into empty buffers.
    pub(super) fn read_retained(&mut self, context: &mut Context, contents: &mut Contents) {
        let reading = Reading {
            rights: &context.rights.now().clone(),
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

    /// The rules have changed, or what the client has proved.
    ///
    /// # Errors
    /// The client may not connect any more, or not with its will. Then that is dropped.
    pub(super) fn handle_rules_changed(&mut self, context: &mut Context) -> Result<(), Ended> {
        let refused = match (
            context.rights.now().may_connect(),
            context.rights.may_have_will(),
        ) {
            (true, true) => {
                self.keep_to_rules(context);
                return Ok(());
            }
            (false, _) => (
                Action::Connect,
                "the rules do not let the client connect any more",
            ),
            (true, false) => (
                Action::Will,
                "the rules do not let the client have its will any more",
            ),
        };
        let (action, text) = refused;
        let metrics = &context.broker.metrics;
        context.rights.deny(action, None, metrics);
        Err(Ended::not_authorized(text).without_will())
    }

    /// Ends the shared subscriptions whose messages the client may not all get: what its group gave to it would be
    /// lost. Those whose QoS is higher than it may be are made anew with the lower one. The others stay as they are,
    /// and what the client may not get is not delivered.
    fn keep_to_rules(&mut self, context: &mut Context) {
        let rights = context.rights.now().clone();
        if rights.are_open() {
            return;
        }
        let bounds_qos = rights.bounds_subscriptions();
        let mut left: Vec<Box<str>> = Vec::new();
        let mut lowered: Vec<command::Subscription> = Vec::new();
        let backing = &*context.broker.services.backing;
        read::subscriptions(backing, context.session.0, |filter, row| {
            let Ok(parsed) = Filter::parse(filter) else {
                return;
            };
            if parsed.share.is_none() && !(bounds_qos && row.qos > 0) {
                return;
            }
            match rights.subscribe(&parsed) {
                None if parsed.share.is_some() => left.push(filter.into()),
                Some(most) if (most as u32) < row.qos => {
                    self.replays.lower(filter, most);
                    lowered.push(command::Subscription {
                        filter: filter.to_owned(),
                        qos: most as u32,
                        no_local: row.no_local,
                        retain_as_published: row.retain_as_published,
                        // No retained messages: the subscription is not the client's doing.
                        retain_handling: 2,
                        identifier: row.identifier,
                    });
                }
                _ => {}
            }
        });
        let left = left.chunks(limits::ITEMS_AT_LEAST);
        let left = left.map(|filters| unsubscribe_command(context, filters));
        let lowered = lowered.chunks(limits::ITEMS_AT_LEAST);
        let lowered = lowered.map(|some| subscribe_command(context, some.to_vec()));
        for command in left.chain(lowered) {
            let proposer = &context.broker.services.proposer;
            proposer.submit_always(command, ReplyTo::Nobody, 0);
        }
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

/// What says in a SUBACK that a filter is granted with this QoS.
fn code_of(granted: QoS) -> ReasonCode {
    match granted {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQos1,
        QoS::ExactlyOnce => ReasonCode::GrantedQos2,
    }
}

/// A command with the first subscriptions of a SUBSCRIBE. The machine makes as many of them as one log entry allows,
/// and the rest comes with further commands.
fn subscribe_command(context: &Context, subscriptions: Vec<command::Subscription>) -> Kind {
    let mqtt = &context.broker.settings.mqtt;
    Kind::Subscribe(command::Subscribe {
        client_id: context.options.client_id.to_string(),
        connection: context.mailbox.connection.0,
        subscriptions,
        max_subscriptions: context.options.bounds.subscriptions,
        max_groups: mqtt.max_shared_subscriptions,
        max_session_bytes: mqtt.max_subscription_bytes,
        max_total_bytes: mqtt.subscribed_max_bytes,
        max_session_patterns: mqtt.max_wildcard_patterns,
        max_deep_patterns: mqtt.deep_wildcard_patterns_max,
    })
}

/// The same for UNSUBSCRIBE.
fn unsubscribe_command(context: &Context, filters: &[Box<str>]) -> Kind {
    let filters = filters.iter().take(limits::FILTERS_AT_ONCE);
    Kind::Unsubscribe(command::Unsubscribe {
        client_id: context.options.client_id.to_string(),
        connection: context.mailbox.connection.0,
        filters: filters.map(|filter| filter.to_string()).collect(),
    })
}

/// Goes on with a request. There is room for it: at most one command of each request is under way.
fn propose_rest(context: &Context, request_id: RequestId, command: Kind) {
    let reply_to = ReplyTo::Connection(context.mailbox.clone(), request_id);
    let proposer = &context.broker.services.proposer;
    proposer.submit_always(command, reply_to, 0);
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

/// The answer to an UNSUBSCRIBE that is applied.
fn send_unsuback(context: &mut Context, request: &UnsubscribeRequest) {
    let mut removed = request.removed.iter();
    let reasons: Vec<_> = request
        .valid
        .iter()
        .map(|valid| match valid.then(|| removed.next()) {
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
