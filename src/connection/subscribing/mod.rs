//! SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a new subscription gets.
//!
//! Invariant: SUBACK follows when every live node has applied the subscription, so no message that is accepted after it
//! misses the subscriber (P6).

pub(super) mod request;
mod retained;

use std::collections::VecDeque;

use super::context::{Context, Flow};
use super::end::Ended;
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
        if context.is_busy() || self.in_parts {
            return Ok(Flow::Retry);
        }
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
            let Some(most) = context.rights.subscribe(&filter, &context.broker.metrics) else {
                reasons.push(ReasonCode::NotAuthorized);
                continue;
            };
            let qos = request.options.qos.min(most);
            reasons.push(match qos {
                QoS::AtMostOnce => ReasonCode::Success,
                QoS::AtLeastOnce => ReasonCode::GrantedQos1,
                QoS::ExactlyOnce => ReasonCode::GrantedQos2,
            });
            wanted.push(Subscription {
                filter: request.filter.into(),
                qos,
                no_local: request.options.no_local,
                retain_handling: request.options.retain_handling as u8,
                identifier,
            });
            subscriptions.push(command::Subscription {
                filter: request.filter.to_owned(),
                qos: qos as u32,
                no_local: request.options.no_local,
                retain_as_published: request.options.retain_as_published,
                retain_handling: request.options.retain_handling as u32,
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
        let request = SubscribeRequest::new(packet_id, reasons, wanted, unapplied);
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
        if context.is_busy() || self.in_parts {
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

    /// The rules have changed.
    ///
    /// # Errors
    /// They do not let the client connect any more.
    pub(super) fn handle_rules_changed(&mut self, context: &mut Context) -> Result<(), Ended> {
        if !context.rights.now().may_connect() {
            let refused = &context.broker.metrics.not_authorized;
            refused.of(Action::Connect).increment();
            let text = "the rules do not let the client connect any more";
            return Err(Ended::not_authorized(text));
        }
        self.leave_groups(context);
        Ok(())
    }

    /// Ends the shared subscriptions whose messages the client may not all get: what its group gave to it would be
    /// lost. The others stay as they are, and what it may not get is not delivered.
    pub(super) fn leave_groups(&self, context: &mut Context) {
        let rights = context.rights.now().clone();
        if rights.are_open() {
            return;
        }
        let mut left: Vec<Box<str>> = Vec::new();
        let backing = &*context.broker.services.backing;
        read::subscriptions(backing, context.session.0, |filter, _| {
            let is_lost = Filter::parse(filter)
                .is_ok_and(|parsed| parsed.share.is_some() && rights.subscribe(&parsed).is_none());
            if is_lost {
                left.push(filter.into());
            }
        });
        for filters in left.chunks(limits::ITEMS_AT_LEAST) {
            let command = unsubscribe_command(context, filters);
            let proposer = &context.broker.services.proposer;
            proposer.submit_always(command, ReplyTo::Nobody);
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
    proposer.submit_always(command, reply_to);
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
