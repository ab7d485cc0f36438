//! The state store over MQTT: requests arrive as PUBLISH on [`INVOKE`], answers and notifications leave as PUBLISH.
//!
//! Invariant: the answer goes before the acknowledgement of its request, so a client that has the PUBACK has the
//! answer.
//!
//! [`INVOKE`]: crate::store::topics::INVOKE

mod due;
mod gets;
mod judgement;
pub(super) mod request;
mod scan;
mod sent;
mod write;

use std::sync::Arc;

use bytes::Bytes;

use super::context::{Context, Flow};
use super::end::Ended;
use super::hub::confinement::reserved;
use super::requests::Request;
use super::route_cache::RouteCache;
use crate::base::limits;
use crate::base::proto::command::{KeyNotify, command::Kind};
use crate::codec::{PacketId, Publish, QoS, ReasonCode};
use crate::machine::effect::{Change, Reply as MachineReply};
use crate::machine::subscriptions::Subscriber;
use crate::mailbox::{End, Item, Refused, RequestId};
use crate::router::Origin;
use crate::store::request::Write;
use crate::store::{self, Properties, Reply, StoreError, WriteAction, notify, reply, topics};
use crate::telemetry::labels::{Action, DisconnectReason, DropReason, Outcome, Verb};
use due::{Due, DueReplies};
use gets::Gets;
use judgement::{may_still_be_answered, may_still_read, not_authorized, refuses_answer, verb_of};
use request::{Scan, StoreRequest};
use scan::Scans;
use sent::{message, notify, properties};
use write::{REMEMBERED_AT_LOW_DISK, propose_write};

/// The client's side of the state store.
#[derive(Default)]
pub(super) struct StoreRequests {
    /// Boxed, because most clients do not use the store.
    answers: Option<Box<Answers>>,
    scans: Scans,
}

/// What answers need.
#[derive(Default)]
struct Answers {
    /// Of response topics.
    routes: RouteCache,
    due: DueReplies,
    gets: Gets,
    /// Bytes of answers since everything had left for the client the last time: some may still be in the mailbox.
    answered: usize,
    /// Bytes of those before.
    leaving: usize,
    /// The client's session, as routing knows it.
    subscriber: Option<Arc<Subscriber>>,
}

impl StoreRequests {
    /// A PUBLISH to the store's topic. `is_full`: the client has as many messages unacknowledged as it may.
    ///
    /// # Errors
    /// The response topic is not allowed, or the client exceeds the receive maximum.
    pub(super) fn handle_publish(
        &mut self,
        context: &mut Context,
        publish: &Publish<'_>,
        is_full: bool,
    ) -> Result<Flow, Ended> {
        if !context.has_routing_lease {
            return Ok(context.await_routing_lease());
        }
        let Some(packet_id) = publish.packet_id else {
            count_unanswerable(context);
            return Ok(Flow::Continue);
        };
        if !context.options.version.is_v5() {
            // There are no properties before MQTT 5, so there is nowhere to answer to.
            count_unanswerable(context);
            context.acknowledge(packet_id, publish.qos, ReasonCode::Success, None);
            return Ok(Flow::Continue);
        }
        let (Some(response_topic), Some(correlation_data), QoS::AtLeastOnce) = (
            publish.properties.response_topic(),
            publish.properties.correlation_data(),
            publish.qos,
        ) else {
            let text =
                Some("a state store request needs QoS 1, a response topic and correlation data");
            let reason = ReasonCode::ImplementationSpecificError;
            context.acknowledge(packet_id, publish.qos, reason, text);
            return Ok(Flow::Continue);
        };
        let is_accepted = context.accepts_topic(response_topic);
        if topics::check_response_topic(response_topic).is_err() || !is_accepted {
            return Err(self.refuse_response_topic(context, packet_id));
        }
        if is_full {
            return Err(Ended::receive_maximum());
        }
        if let Some(text) = reserved(context, response_topic) {
            // An answer there would be taken for a message of a device.
            let reason = ReasonCode::NotAuthorized;
            context.acknowledge(packet_id, publish.qos, reason, Some(text));
            return Ok(Flow::Continue);
        }
        if let Some(action) = refuses_answer(context, response_topic) {
            deny_answer(context, action, response_topic, packet_id);
            return Ok(Flow::Continue);
        }
        if context.is_busy() || self.owes_answers(context) {
            return Ok(Flow::Retry);
        }
        let request = StoreRequest {
            packet_id,
            response_topic: response_topic.into(),
            correlation_data: Bytes::copy_from_slice(correlation_data),
            verb: Verb::Unknown,
            key: Bytes::new(),
            judged: Some(context.rights.now().clone()),
            scan: None,
        };
        Ok(self.start(context, publish, request))
    }

    /// A response topic that is not allowed ends the connection. The PUBACK goes first, or the client would send the
    /// request again for ever.
    pub(super) fn refuse_response_topic(
        &self,
        context: &mut Context,
        packet_id: PacketId,
    ) -> Ended {
        let text = "the response topic of a state store request is not allowed";
        let reason = ReasonCode::TopicNameInvalid;
        context.acknowledge_at_end(packet_id, reason, text);
        Ended::disconnect(DisconnectReason::Protocol, reason, text)
    }

    /// Whether a write is refused because disks are nearly full: a SET, and one whose reply takes much room to
    /// remember. A SET that comes again goes on: it may have been carried out the first time, and is then answered as
    /// it was; if not, [`propose_write`] leaves it no room.
    fn is_refused(
        &self,
        context: &Context,
        publish: &Publish<'_>,
        write: &Write<'_>,
        request: &StoreRequest,
    ) -> bool {
        let is_set = matches!(write.action, WriteAction::Set { .. }) && !publish.dup;
        let remembered = request.correlation_data.len() + context.options.client_id.len();
        (is_set || remembered > REMEMBERED_AT_LOW_DISK) && context.refuses_write()
    }

    /// Proposes or reads what the request asks for, or answers at once when it is wrong.
    fn start(
        &mut self,
        context: &mut Context,
        publish: &Publish<'_>,
        mut request: StoreRequest,
    ) -> Flow {
        let properties = Properties::collect(publish.properties.user_properties().iter());
        let parsed = match store::request::parse(publish.payload, &properties) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.answer(context, &request, &Reply::Error(error));
                return Flow::Continue;
            }
        };
        if let Some(verb) = not_authorized(context, &parsed) {
            request.verb = verb;
            self.answer(context, &request, &Reply::Error(StoreError::NotAuthorized));
            return Flow::Continue;
        }
        match parsed {
            store::Request::Write(write) => {
                request.verb = verb_of(&write.action);
                if self.is_refused(context, publish, &write, &request) {
                    self.answer(context, &request, &Reply::Error(StoreError::QuotaExceeded));
                    return Flow::Continue;
                }
                propose_write(context, publish, &properties, &write, request)
            }
            store::Request::KeyNotify { key, stop } => {
                request.verb = Verb::Keynotify;
                if notify::topic(&context.options.client_id, key).is_none() {
                    // The notification's topic would not fit into an MQTT string.
                    self.answer(context, &request, &Reply::Error(StoreError::Syntax));
                    return Flow::Continue;
                }
                if !stop && context.refuses_write() {
                    self.answer(context, &request, &Reply::Error(StoreError::QuotaExceeded));
                    return Flow::Continue;
                }
                let command = KeyNotify {
                    client_id: context.options.client_id.to_string(),
                    connection: context.mailbox.connection.0,
                    key: Bytes::copy_from_slice(key),
                    stop,
                    max_watches: context.broker.settings.max_watches,
                    max_total_bytes: context.broker.settings.watched_max_bytes,
                };
                context.propose(Kind::KeyNotify(command), Request::Store(Box::new(request)))
            }
            store::Request::Get { key } => {
                request.verb = Verb::Get;
                request.key = Bytes::copy_from_slice(key);
                let gets = &mut self.answers.get_or_insert_default().gets;
                gets.begin(context, request);
                Flow::Continue
            }
            store::Request::Scan { pattern, token } => {
                request.verb = Verb::Scan;
                let pattern = Bytes::copy_from_slice(pattern);
                let token = token.map(Bytes::copy_from_slice);
                request.scan = Some(Box::new(Scan::new(pattern, token)));
                self.scans.begin(context, request);
                Flow::Continue
            }
        }
    }

    /// The machine has applied a request.
    pub(super) fn handle_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &MachineReply,
    ) {
        match reply {
            MachineReply::Store(reply) => self.handle_store_reply(context, request_id, reply),
            // The session has a new owner; this connection is about to end.
            _ => {
                context.requests.remove(request_id);
            }
        }
    }

    /// Bytes that are kept for routes of response topics, pages and replies.
    pub(super) fn memory(&self) -> usize {
        let of_answers = |answers: &Answers| {
            answers.routes.memory() + answers.due.memory() + answers.gets.memory()
        };
        self.answers.as_deref().map_or(0, of_answers) + self.scans.memory()
    }

    /// Whether so many answers wait for the client, or will when its requests are answered, that another request has
    /// to: half of what the mailbox takes. A client that leaves gets none of them.
    fn owes_answers(&self, context: &Context) -> bool {
        let unsent = |answers: &Answers| answers.answered + answers.leaving;
        let unsent = self.answers.as_deref().map_or(0, unsent);
        // Without any nothing would be waited for.
        let has_some = unsent > 0 || context.requests.stores() > 0;
        let most = context.mailbox.takes() / 2;
        has_some && unsent + context.requests.bytes() >= most && !context.is_leaving
    }

    /// Whether answers to the client's response topics go to this connection. Routing knows that another one, or none,
    /// owns the session before this one ends.
    fn owns_session(&mut self, context: &Context) -> bool {
        let answers = self.answers.get_or_insert_default();
        if answers.subscriber.is_none() {
            let subscriptions = context.broker.services.router.subscriptions();
            answers.subscriber = subscriptions.subscriber(context.session);
        }
        let subscriber = answers.subscriber.as_deref();
        let owner = subscriber.and_then(Subscriber::owner);
        owner.is_some_and(|owner| {
            owner.node == context.broker.settings.node
                && owner.connection == context.mailbox.connection
        })
    }

    /// The machine or the reader has the reply.
    pub(super) fn handle_store_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &Reply,
    ) {
        match context.work < limits::TURN_WORK && !self.has_due() {
            true => self.answer_reply(context, request_id, reply),
            false => {
                let answers = self.answers.get_or_insert_default();
                answers.due.push(Due::Reply(request_id, reply.clone()));
            }
        }
    }

    /// Whether replies are left for the next turn.
    pub(super) fn has_due(&self) -> bool {
        let answers = self.answers.as_deref();
        answers.is_some_and(|answers| !answers.due.is_empty())
    }

    /// A GET was not carried out.
    pub(super) fn handle_refused(&mut self, context: &Context) {
        let gets = &mut self.answers.get_or_insert_default().gets;
        gets.handle_refused(context);
    }

    /// Everything that the client was to be sent has left: what waits for that goes on.
    pub(super) fn handle_sent(&mut self, context: &mut Context) {
        if self.has_due() {
            return;
        }
        if let Some(answers) = &mut self.answers {
            answers.leaving = std::mem::take(&mut answers.answered);
            context.mailbox.answers.publish(answers.leaving);
            answers.gets.handle_sent(context);
        }
        self.scans.handle_sent(context);
    }

    /// Answers those that are left of former turns, as many as one turn may; at least one.
    ///
    /// # Errors
    /// As [`StoreRequests::notify`].
    pub(super) fn answer_due(&mut self, context: &mut Context) -> Result<(), Ended> {
        while let Some(due) = self.answers.as_mut().and_then(|it| it.due.pop()) {
            match due {
                Due::Reply(request_id, reply) => self.answer_reply(context, request_id, &reply),
                Due::Notify { key, change } => notify(context, &key, &change)?,
            }
            if context.work >= limits::TURN_WORK {
                break;
            }
        }
        Ok(())
    }

    /// A key that this connection watches has changed: the client hears of it behind the answers that came before.
    ///
    /// # Errors
    /// The client reads too slowly, or does not accept a packet as large: it is disconnected, so that it knows that it
    /// has missed something (P7).
    pub(super) fn notify(
        &mut self,
        context: &mut Context,
        key: Bytes,
        change: Change,
    ) -> Result<(), Ended> {
        match self.answers.as_deref_mut() {
            Some(answers) if !answers.due.is_empty() => {
                answers.due.push(Due::Notify { key, change });
                Ok(())
            }
            _ => notify(context, &key, &change),
        }
    }

    fn answer_reply(&mut self, context: &mut Context, request_id: RequestId, reply: &Reply) {
        let Some(Request::Store(request)) = context.requests.remove(request_id) else {
            return;
        };
        let is_scan = request.scan.is_some();
        if request.verb == Verb::Get {
            let gets = &mut self.answers.get_or_insert_default().gets;
            gets.answered(context, request_id, &request, reply);
        }
        match reply {
            Reply::Page { keys, token } => {
                let page = scan::page(context, *request, keys, token.as_ref());
                let Some((request, page)) = page else {
                    return;
                };
                self.answer(context, &request, &page);
            }
            reply if may_still_read(context, &request) => self.answer(context, &request, reply),
            _ => self.answer(context, &request, &Reply::Error(StoreError::NotAuthorized)),
        }
        if is_scan {
            self.scans.end();
        }
    }

    /// Publishes the answer, then acknowledges the request. Without the answer there is no acknowledgement.
    fn answer(&mut self, context: &mut Context, request: &StoreRequest, reply: &Reply) {
        // Nothing is put in behind what ends the connection.
        if context.mailbox.is_ending() {
            return;
        }
        let outcome = match reply {
            Reply::Error(_) => Outcome::Error,
            Reply::NoValue | Reply::NothingToDelete | Reply::NotWatched => Outcome::Absent,
            Reply::NotSet { .. } | Reply::ValueDiffers => Outcome::Refused,
            _ => Outcome::Ok,
        };
        let commands = &context.broker.metrics.store_commands;
        commands.of(request.verb).of(outcome).increment();
        let mut refused = self.publish_answer(context, request, reply);
        let has_read = matches!(reply, Reply::Value { .. } | Reply::Page { .. });
        if refused == Some(Refused::TooLarge) && has_read {
            let error = Reply::Error(StoreError::AnswerTooLarge);
            refused = self.publish_answer(context, request, &error);
        }
        // Another connection, or none, may have the session by now and get the answer.
        if context.mailbox.is_ending() || !self.owns_session(context) {
            return;
        }
        // What does not fit is dropped, so that nobody's connection ends by the answers to others. The requester's
        // does: it must not take the acknowledgement for an answer that it has.
        let end = match refused {
            None => {
                let packet_id = request.packet_id;
                if !may_still_be_answered(context, request) {
                    deny_answer(
                        context,
                        Action::Subscribe,
                        &request.response_topic,
                        packet_id,
                    );
                    return;
                }
                context.acknowledge(packet_id, QoS::AtLeastOnce, ReasonCode::Success, None);
                return;
            }
            Some(Refused::Ended) => return,
            Some(Refused::Full) => End::OutboxFull,
            Some(Refused::TooLarge) => End::AnswerTooLarge,
        };
        context.mailbox.push_item(Item::End(end));
    }

    /// Publishes an answer; why the client does not get it, if it has subscribed to the response topic.
    fn publish_answer(
        &mut self,
        context: &mut Context,
        request: &StoreRequest,
        reply: &Reply,
    ) -> Option<Refused> {
        let mut payload = Vec::with_capacity(64);
        reply.write_payload(&mut payload);
        let (data, status) = (Some(&*request.correlation_data), Some(reply::STATUS));
        let properties = properties(data, status, reply.timestamp())?;
        let topic = &request.response_topic;
        let message = message(context.session, topic, properties.raw(), &payload);
        let router = &context.broker.services.router;
        let answers = self.answers.get_or_insert_default();
        answers.answered += message.topic.len() + message.properties.len() + payload.len();
        let published = answers.answered + answers.leaving;
        context.mailbox.answers.publish(published);
        // The store is the publisher, so a No Local subscription of the requester gets the answer, too.
        let work = &mut context.work;
        let route = answers.routes.current(router, message.topic, None, work);
        context.work += 1 + route.work(&message);
        context.output.note_answer();
        let wake = &mut context.wake;
        let delivered = router.deliver(&route, &message, Origin::default(), wake);
        if delivered.dropped > 0 {
            let dropped = &context.broker.metrics.messages_dropped;
            let reason = DropReason::PeerQueueFull;
            dropped.of(reason).add(delivered.dropped.into());
        }
        delivered.to_publisher
    }
}

/// The client may not have the answer to a request.
fn deny_answer(context: &mut Context, action: Action, response_topic: &str, packet_id: PacketId) {
    let metrics = &context.broker.metrics;
    context.rights.deny(action, Some(response_topic), metrics);
    let text = Some("the rules do not let the client have the answer there");
    let reason = ReasonCode::NotAuthorized;
    context.acknowledge(packet_id, QoS::AtLeastOnce, reason, text);
}

/// A request that nobody could get an answer to is dropped.
fn count_unanswerable(context: &Context) {
    let dropped = &context.broker.metrics.messages_dropped;
    dropped.of(DropReason::Unanswerable).increment();
}

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod scan_tests;
#[cfg(test)]
mod tests;
