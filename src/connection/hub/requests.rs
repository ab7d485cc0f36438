//! Requests of a device or a module for its own twin: arrive as PUBLISH, are proposed or read, and are answered.
//!
//! Invariant: requests of one connection are carried out, and answered, in the order in which they came. Those of one
//! kind may be under way together, because the log and the reader keep their order; one of the other kind waits.
//! Invariant: a client hears of no write of its desired properties that is older than what a GET has shown it, nor of
//! that one again: the answer has told it. Notifications that wait go out before the twin is read.
//! Invariant: the answer goes before the acknowledgement of its request, and in the same write.
//! Invariant: at most [`MOST_REQUESTS`] are under way, and patches no more than [`Load::is_full`] says. The next one
//! waits, and with it everything that the client publishes behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::answers::{self, Answer, Failure};
use super::identity::HubIdentity;
use super::load::Load;
use super::reading::read_twin;
use super::request::HubRequest;
use super::topics::{Publication, TwinRequest};
use crate::base::limits;
use crate::base::proto::command::{PatchReported, command::Kind};
use crate::base::time::{Elapsed, elapsed_now};
use crate::codec::{PacketId, Publish, QoS, ReasonCode};
use crate::connection::context::{Context, Flow};
use crate::connection::end::Ended;
use crate::connection::requests::Request;
use crate::events::DisconnectionReason;
use crate::machine::effect::Reply;
use crate::machine::hub::{HubReply, Reported, reported_bytes};
use crate::mailbox::RequestId;
use crate::replica::share::Share;
use crate::store::fingerprint;
use crate::telemetry::labels::{DisconnectReason, HubOperation, Outcome};
use crate::twin::encoding;
use crate::twin::request::{self, Refused};

/// Requests of one connection that are under way. Clients wait for each answer, or send a few at once when they
/// connect.
const MOST_REQUESTS: usize = 16;

/// Largest payload of a PATCH, bytes.
const LARGEST_PATCH_BYTES: usize = 256 << 10;

/// Bytes of twins that are read and rendered for GETs before other connections have their turn, the last one not
/// counted: some milliseconds.
const TURN_BYTES: usize = 256 << 10;

/// What the answer to a request needs.
#[derive(Debug)]
struct Waiting {
    operation: HubOperation,
    /// `$rid`.
    id: Box<str>,
    /// To be acknowledged behind the answer; `None` with QoS 0.
    packet_id: Option<PacketId>,
    since: Elapsed,
    /// What a GET must see is in this node's state: it is to be read.
    is_due: bool,
    /// It waits for the answers to earlier requests.
    answer: Option<Answer>,
    /// Of a patch that is not applied here yet.
    load: Load,
}

/// The requests of a connection. Most connections are of no device or module, and keep no room for it.
pub(in crate::connection) struct HubRequests {
    state: Option<Box<State>>,
}

struct State {
    identity: Arc<HubIdentity>,
    /// In the order in which they came.
    waiting: VecDeque<Waiting>,
    /// The number of the first of them.
    first: u64,
    /// How many of them are due.
    due: usize,
    /// The version of the desired properties that the last answer to a GET has shown.
    shown: u64,
    /// Of all patches that are not applied here yet.
    under_way: Load,
}

impl HubRequests {
    /// Of a connection that is of this identity, or of none.
    pub(in crate::connection) fn new(identity: Option<Arc<HubIdentity>>) -> HubRequests {
        let state = identity.map(|identity| {
            Box::new(State {
                identity,
                waiting: VecDeque::new(),
                first: 0,
                due: 0,
                shown: 0,
                under_way: Load::default(),
            })
        });
        HubRequests { state }
    }

    /// A PUBLISH of the client. `None`: it is a message, which goes the way of any other.
    ///
    /// # Errors
    /// The client may not publish there, and can't be told otherwise.
    #[inline]
    pub(in crate::connection) fn handle_publish(
        &mut self,
        context: &mut Context,
        topic: &str,
        publish: &Publish<'_>,
    ) -> Result<Option<Flow>, Ended> {
        match &mut self.state {
            Some(state) => state.handle_publish(context, topic, publish),
            None => Ok(None),
        }
    }

    /// What a GET must see is in this node's state: it is read when notifications that came before have gone out.
    pub(in crate::connection) fn handle_barrier(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
    ) {
        if let Some(state) = &mut self.state
            && let Some(waiting) = state.answered(context, request_id)
            && !waiting.is_due
        {
            waiting.is_due = true;
            state.due += 1;
        }
    }

    /// Whether GETs are to be read that were left for later.
    #[inline]
    pub(in crate::connection) fn has_due(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.due > 0)
    }

    /// Reads and answers the GETs that are due, as many as one turn may; at least one.
    ///
    /// # Errors
    /// An answer is larger than the client accepts.
    #[inline]
    pub(in crate::connection) fn answer_due(&mut self, context: &mut Context) -> Result<(), Ended> {
        match &mut self.state {
            Some(state) if state.due > 0 => state.answer_due(context),
            _ => Ok(()),
        }
    }

    /// The version of the desired properties that the client has been shown: it hears of no older write, and of this
    /// one not again.
    pub(in crate::connection) fn shown(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.shown)
    }

    /// The machine has applied a PATCH.
    ///
    /// # Errors
    /// The answer is larger than the client accepts.
    pub(in crate::connection) fn handle_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &Reply,
    ) -> Result<(), Ended> {
        let (Some(state), Some(answer)) = (&mut self.state, answer_of(reply)) else {
            // The session has a new owner; this connection is about to end.
            context.requests.remove(request_id);
            return Ok(());
        };
        state.answer(context, request_id, answer)
    }

    /// Bytes that are kept for requests, and for answers that wait for earlier ones.
    pub(in crate::connection) fn memory(&self) -> usize {
        let bytes = |waiting: &Waiting| {
            let answer = match &waiting.answer {
                Some(Answer::Twin(text) | Answer::Failed(_, text)) => text.len(),
                _ => 0,
            };
            size_of::<Waiting>() + waiting.id.len() + answer
        };
        let state = self.state.iter();
        state.flat_map(|state| &state.waiting).map(bytes).sum()
    }
}

/// The answer to a PATCH; `None` when nobody waits for it any more.
fn answer_of(reply: &Reply) -> Option<Answer> {
    let Reply::Hub(reply) = reply else {
        return None;
    };
    let HubReply::Reported(reported) = reply else {
        return None;
    };
    Some(match reported {
        Reported::Patched(version) => Answer::Patched(*version),
        Reported::Precondition => {
            let text = "the reported properties have another $version";
            Answer::Failed(Failure::Version, text.to_owned())
        }
        Reported::TooLarge(error) => Answer::Failed(Failure::Invalid, error.to_string()),
        Reported::Invalid => {
            let text = "the cluster's nodes do not agree on what a patch is";
            Answer::Failed(Failure::Internal, text.to_owned())
        }
    })
}

impl State {
    fn handle_publish(
        &mut self,
        context: &mut Context,
        topic: &str,
        publish: &Publish<'_>,
    ) -> Result<Option<Flow>, Ended> {
        let identity = self.identity.clone();
        let (operation, request) = match identity.topics.publication(topic) {
            Publication::Telemetry => return Ok(None),
            Publication::Foreign => return refuse_foreign(context, topic, publish).map(Some),
            Publication::Unknown => {
                let ended = Ended::not_authorized("the hub has no such topic");
                return Err(ended.because(DisconnectionReason::ClientError));
            }
            _ if publish.qos == QoS::ExactlyOnce => {
                let ended = Ended::disconnect(
                    DisconnectReason::NotAuthorized,
                    ReasonCode::QosNotSupported,
                    "requests to the hub have QoS 0 or 1",
                );
                return Err(ended.because(DisconnectionReason::ClientError));
            }
            Publication::Nothing => {
                if let Some(packet_id) = publish.packet_id {
                    context.acknowledge(packet_id, publish.qos, ReasonCode::Success, None);
                }
                return Ok(Some(Flow::Continue));
            }
            Publication::Get(request) => (HubOperation::Get, request),
            Publication::Patch(request) => (HubOperation::PatchReported, request),
        };
        let is_full = self.waiting.len() >= MOST_REQUESTS || context.is_busy();
        let mut others = self.waiting.iter();
        if is_full || others.any(|waiting| waiting.operation != operation) {
            return Ok(Some(Flow::Retry));
        }
        let flow = match operation {
            HubOperation::Get => self.get(context, publish, request),
            _ => self.patch(context, publish, request),
        };
        if flow == Flow::Continue {
            self.send_answers(context)?;
        }
        Ok(Some(flow))
    }

    fn get(
        &mut self,
        context: &mut Context,
        publish: &Publish<'_>,
        request: TwinRequest<'_>,
    ) -> Flow {
        let waiting = self.next_request(publish);
        self.wait(HubOperation::Get, publish, request, None, Load::default());
        let request_id = context.requests.insert(Request::Hub(waiting));
        let reader = &context.broker.services.reader;
        reader.submit_barrier(&context.mailbox, request_id);
        Flow::Continue
    }

    fn patch(
        &mut self,
        context: &mut Context,
        publish: &Publish<'_>,
        request: TwinRequest<'_>,
    ) -> Flow {
        // A request that has to wait is offered again and again: it is not parsed each time.
        let proposer = &context.broker.services.proposer;
        if self.under_way.is_full() || !proposer.has_room_for(Share::Devices, &context.mailbox) {
            return Flow::Retry;
        }
        // Clients take a failure for the last word. So there is none while disks are nearly full, as without a
        // majority: the request waits, and so does the client.
        if context.broker.state.refuses_writes() {
            return Flow::Retry;
        }
        // The largest one is a turn by itself.
        context.work += publish.payload.len() * limits::TURN_WORK / LARGEST_PATCH_BYTES;
        let command = match self.command(context, publish, request) {
            Ok(command) => command,
            Err(answer) => {
                let operation = HubOperation::PatchReported;
                self.wait(operation, publish, request, Some(answer), Load::default());
                return Flow::Continue;
            }
        };
        let waiting = self.next_request(publish);
        // Every node decodes the section, and writes it anew.
        let stored = reported_bytes(&*context.broker.services.backing, &self.identity.id);
        let load = Load::of_patch(self.under_way, stored, command.patch.len());
        let (command, waiting) = (Kind::PatchReported(command), Request::Hub(waiting));
        let flow = context.propose_weighing(Share::Devices, command, waiting, load.weight());
        if flow == Flow::Continue {
            self.under_way += load;
            self.wait(HubOperation::PatchReported, publish, request, None, load);
        }
        flow
    }

    /// The command of a PATCH, or the answer to one that breaks a rule.
    fn command(
        &self,
        context: &Context,
        publish: &Publish<'_>,
        request: TwinRequest<'_>,
    ) -> Result<PatchReported, Answer> {
        let invalid = |text: &str| Answer::Failed(Failure::Invalid, text.to_owned());
        if publish.payload.len() > LARGEST_PATCH_BYTES {
            return Err(invalid("the payload is larger than 256 KiB"));
        }
        let expected_version = match request.version {
            None => None,
            Some(text) => {
                let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
                let version = text.parse().ok().filter(|_| is_plain);
                Some(version.ok_or_else(|| invalid("$version is no number"))?)
            }
        };
        let patch = request::reported_patch(publish.payload).map_err(|refused| {
            let failure = match refused {
                Refused::NotJson(_) => Failure::Malformed,
                Refused::Invalid(_) => Failure::Invalid,
            };
            Answer::Failed(failure, refused.to_string())
        })?;
        Ok(PatchReported {
            client_id: context.options.client_id.to_string(),
            connection: context.mailbox.connection.0,
            dup: publish.dup,
            fingerprint: fingerprint(publish, request),
            // With QoS 0 nothing is sent again.
            remember: publish.packet_id.is_some(),
            expected_version,
            patch: encoding::encode_patch(&patch),
        })
    }

    fn next_request(&self, publish: &Publish<'_>) -> HubRequest {
        HubRequest {
            number: self.first + self.waiting.len() as u64,
            counts: publish.packet_id.is_some(),
        }
    }

    fn wait(
        &mut self,
        operation: HubOperation,
        publish: &Publish<'_>,
        request: TwinRequest<'_>,
        answer: Option<Answer>,
        load: Load,
    ) {
        self.waiting.push_back(Waiting {
            operation,
            id: request.id.into(),
            packet_id: publish.packet_id,
            since: elapsed_now(),
            is_due: false,
            answer,
            load,
        });
    }

    /// The node has done what a request has asked it for.
    fn answered(&mut self, context: &mut Context, request_id: RequestId) -> Option<&mut Waiting> {
        let request = context.requests.remove(request_id);
        let Some(Request::Hub(HubRequest { number, .. })) = request else {
            return None;
        };
        let at = usize::try_from(number.saturating_sub(self.first)).ok()?;
        let waiting = self.waiting.get_mut(at)?;
        self.under_way -= std::mem::take(&mut waiting.load);
        Some(waiting)
    }

    fn answer(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        answer: Answer,
    ) -> Result<(), Ended> {
        if let Some(waiting) = self.answered(context, request_id) {
            waiting.answer = Some(answer);
        }
        self.send_answers(context)
    }

    fn answer_due(&mut self, context: &mut Context) -> Result<(), Ended> {
        let mut bytes = 0;
        while bytes < TURN_BYTES
            && let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.is_due)
        {
            waiting.is_due = false;
            self.due -= 1;
            let read = read_twin(context, &self.identity);
            bytes += read.bytes;
            self.shown = self.shown.max(read.desired);
            waiting.answer = Some(read.answer);
            self.send_answers(context)?;
        }
        Ok(())
    }

    /// Sends the answers that no earlier one is missing before.
    fn send_answers(&mut self, context: &mut Context) -> Result<(), Ended> {
        let is_answered = |waiting: &mut Waiting| waiting.answer.is_some();
        while let Some(Waiting {
            operation,
            id,
            packet_id,
            since,
            answer: Some(answer),
            ..
        }) = self.waiting.pop_front_if(is_answered)
        {
            self.first += 1;
            let metrics = &context.broker.metrics;
            let outcome = match &answer {
                Answer::Twin(_) | Answer::Patched(_) => Outcome::Ok,
                Answer::Failed(Failure::Version, _) => Outcome::Refused,
                Answer::Failed(..) => Outcome::Error,
            };
            let requests = &metrics.hub_requests;
            requests.of(operation).of(outcome).increment();
            let taken = elapsed_now().since(since);
            metrics.hub_request_seconds.observe(taken);
            let now = context.broker.services.clock.now();
            let (topic, payload) = answer.message(&id, now);
            answers::send(context, &topic, payload.as_bytes())?;
            if let Some(packet_id) = packet_id {
                context.acknowledge(packet_id, QoS::AtLeastOnce, ReasonCode::Success, None);
            }
        }
        Ok(())
    }
}

/// 128 bits that tell requests of one client apart. A request that is sent again has its packet id `[MQTT-4.4.0-1]`;
/// another one that looks like it, from a client that numbers its requests anew, has seldom the same one.
fn fingerprint(publish: &Publish<'_>, request: TwinRequest<'_>) -> Bytes {
    let version = request.version.unwrap_or_default().as_bytes();
    let packet_id = publish.packet_id.map_or(0, PacketId::get).to_be_bytes();
    let fields = [
        &b"reported"[..],
        request.id.as_bytes(),
        publish.payload,
        version,
        &packet_id,
    ];
    Bytes::copy_from_slice(&fingerprint::digest(fields))
}

/// A PUBLISH to somebody else's topic: an MQTT 5 client is told, and any other can't be.
fn refuse_foreign(
    context: &mut Context,
    topic: &str,
    publish: &Publish<'_>,
) -> Result<Flow, Ended> {
    context
        .rights
        .refuse_publish(topic, &context.broker.metrics);
    let text = "devices and modules publish to their own topics";
    match publish.packet_id {
        Some(packet_id) if context.options.version.is_v5() => {
            let reason = ReasonCode::NotAuthorized;
            context.acknowledge(packet_id, publish.qos, reason, Some(text));
            Ok(Flow::Continue)
        }
        _ => Err(Ended::not_authorized(text)),
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
