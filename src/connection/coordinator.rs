//! One client's connection after its CONNECT was accepted. It hands each packet, each reply and each item of the
//! mailbox to the part that handles it, and does nothing else.
//!
//! [`Connection`] has no socket: [`super::task`] gives it what arrives and sends what it leaves in its output. What
//! must outlive the connection is in the replicated machine; here is only what ends with it.

mod ending;
mod sending;

use std::num::NonZeroU16;
use std::sync::Arc;

use tokio::time::Instant;

use super::acknowledgements::{Acknowledgements, AcknowledgementsInLog, Gathered};
use super::authentication::Authentication;
use super::broker::Broker;
use super::context::{Context, Flow, Memory};
use super::end::Ended;
use super::hub::notifying;
use super::hub::requests::HubRequests;
use super::options::{ConnectionOptions, Opened};
use super::outbound::{After, Outbound};
use super::output::OutputBuffers;
use super::publishing::Publishing;
use super::requests::{Request, Requests};
use super::store_requests::StoreRequests;
use super::subscribing::Subscribing;
use super::withheld;
use crate::base::limits;
use crate::base::proto::command::command::Kind;
use crate::base::time::elapsed_now;
use crate::codec::{
    self, Ack, DecodeError, Disconnect, Packet, PacketId, Publish, ReasonCode, encode, frame,
};
use crate::machine::effect::Reply;
use crate::mailbox::{Contents, End, Item, Mailbox, RequestId, WakeList};
use crate::replica::reply_to::ReplyTo;
use crate::session::Sequence;
use crate::store::topics::INVOKE;
use crate::telemetry::labels::{DisconnectReason, DropReason};

/// A connection.
pub(super) struct Connection {
    context: Context,
    publishing: Publishing,
    subscribing: Subscribing,
    outbound: Outbound,
    acknowledgements: Acknowledgements,
    store_requests: StoreRequests,
    authentication: Authentication,
    hub: HubRequests,
    /// Messages of the session's queue wait there until there is room.
    has_withheld: bool,
    /// The log was told that the connection has ended.
    is_closed: bool,
}

impl Connection {
    /// A connection whose session is open; `connack` is the first packet that its client gets.
    pub(super) fn new(
        broker: Arc<Broker>,
        mailbox: Arc<Mailbox>,
        options: ConnectionOptions,
        opened: Opened,
        connack: Vec<u8>,
    ) -> Connection {
        mailbox.opened(opened.session);
        let receive_maximum =
            NonZeroU16::new(options.bounds.receive_maximum).unwrap_or(NonZeroU16::MAX);
        let authentication = Authentication::new(&broker, &options, &mailbox);
        let hub = HubRequests::new(opened.rights.hub().cloned());
        // Its opening is applied here, and everything before it.
        let logged_through = broker.services.view.applied();
        Connection {
            context: Context {
                broker,
                mailbox,
                options,
                rights: opened.rights,
                session: opened.session,
                is_durable: opened.is_durable,
                requests: Requests::default(),
                output: OutputBuffers::new(connack),
                wake: WakeList::default(),
                work: 0,
                has_routing_lease: false,
                is_leaving: false,
            },
            publishing: Publishing::new(receive_maximum, opened.received, logged_through),
            subscribing: Subscribing::default(),
            outbound: Outbound::new(opened.receive_maximum),
            acknowledgements: Acknowledgements::default(),
            store_requests: StoreRequests::default(),
            authentication,
            hub,
            has_withheld: false,
            is_closed: false,
        }
    }

    /// Judges the connection again, if the rules, or what its client has proved, have changed.
    ///
    /// # Errors
    /// The client may not stay.
    #[inline]
    pub(super) fn check_rights(&mut self) -> Result<(), Ended> {
        match self.context.rights.take_change() {
            true => self.subscribing.handle_rules_changed(&mut self.context),
            false => Ok(()),
        }
    }

    /// The node, the client and the output.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The node, the client and the output.
    pub(super) fn context_mut(&mut self) -> &mut Context {
        &mut self.context
    }

    /// A batch of packets begins, unless the node does not serve any more.
    pub(super) fn begin_turn(&mut self) -> Result<(), Ended> {
        self.context.work = 0;
        let state = &self.context.broker.state;
        let now = elapsed_now();
        if !state.is_serving_at(now) {
            return Err(End::Unavailable.into());
        }
        self.context.has_routing_lease = state.routing_lease().is_valid_at(now);
        Ok(())
    }

    /// The batch of packets is over.
    pub(super) fn end_turn(&mut self) {
        self.propose_acknowledgements();
        self.context.wake.wake();
    }

    /// Whether other connections should have their turn.
    pub(super) fn is_turn_over(&self) -> bool {
        self.context.work >= limits::TURN_WORK
    }

    /// The largest packet that the client may send.
    pub(super) fn max_packet_size(&self) -> u32 {
        self.context.options.bounds.packet_bytes
    }

    /// Handles one packet.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn handle_frame(&mut self, found: frame::Frame<'_>) -> Result<Flow, Ended> {
        self.context.work += 1;
        // Read where it was decoded to: moving a packet costs more than most of what is done with it.
        let decoded = codec::decode(self.context.options.version, found);
        let packet = decoded.as_ref();
        let packet = packet.map_err(|error| self.refuse_malformed(found, *error))?;
        let context = &mut self.context;
        match packet {
            Packet::Publish(publish) => return self.handle_publish(publish),
            Packet::PubAck(ack) => {
                let out = context.output.packets();
                let after = self.outbound.handle_puback(ack.packet_id, out);
                self.follow_up(ack.packet_id, after)?;
            }
            Packet::PubRec(ack) => {
                let out = context.output.packets();
                let refused = ack.reason as u8 >= 0x80;
                let after = self.outbound.handle_pubrec(ack.packet_id, refused, out);
                self.follow_up(ack.packet_id, after)?;
            }
            Packet::PubRel(ack) => self.handle_pubrel(ack),
            Packet::PubComp(ack) => {
                let out = context.output.packets();
                let after = self.outbound.handle_pubcomp(ack.packet_id, out);
                self.follow_up(ack.packet_id, after)?;
            }
            Packet::Subscribe(subscribe) => {
                return self.subscribing.handle_subscribe(context, subscribe);
            }
            Packet::Unsubscribe(unsubscribe) => {
                return self.subscribing.handle_unsubscribe(context, unsubscribe);
            }
            // [MQTT-3.12.4-1]
            Packet::PingReq => {
                encode::pingresp(context.output.unordered());
            }
            Packet::Disconnect(disconnect) => return Err(self.handle_disconnect(disconnect)),
            Packet::Auth(auth) => self.authentication.handle_auth(context, auth)?,
        }
        Ok(Flow::Continue)
    }

    /// A packet that can't be decoded ends the connection `[MQTT-4.13.1-1]`.
    fn refuse_malformed(&mut self, found: frame::Frame<'_>, error: DecodeError) -> Ended {
        if error == DecodeError::ResponseTopicInvalid
            && let Some((INVOKE, packet_id)) = codec::refused_publish(found)
        {
            let context = &mut self.context;
            return self
                .store_requests
                .refuse_response_topic(context, packet_id);
        }
        error.into()
    }

    fn handle_publish(&mut self, publish: &Publish<'_>) -> Result<Flow, Ended> {
        if self.subscribing.is_unapplied() {
            return Ok(Flow::Retry);
        }
        let context = &mut self.context;
        context.check_publish(publish)?;
        let aliased;
        let topic = match publish.properties.topic_alias() {
            None => publish.topic,
            Some(alias) => {
                aliased = self
                    .publishing
                    .resolve_alias(context, alias, publish.topic)?;
                &*aliased
            }
        };
        let flow = if let Some(flow) = self.hub.handle_publish(context, topic, publish)? {
            flow
        } else if topic == INVOKE {
            let is_full = self.publishing.is_full(context);
            self.store_requests
                .handle_publish(context, publish, is_full)?
        } else {
            self.publishing.handle_publish(context, topic, publish)?
        };
        if flow == Flow::Continue {
            let received = &self.context.broker.metrics.messages_received;
            received.of(Context::qos_label(publish.qos)).increment();
        }
        Ok(flow)
    }

    fn handle_pubrel(&mut self, ack: &Ack<'_>) {
        if self
            .publishing
            .handle_pubrel(&mut self.context, ack.packet_id)
        {
            self.acknowledgements.release(ack.packet_id);
        }
    }

    fn handle_disconnect(&mut self, disconnect: &Disconnect<'_>) -> Ended {
        let options = &mut self.context.options;
        if let Some(expiry) = disconnect.session_expiry {
            // MQTT 5.0 §3.14.2.2.2: an interval of 0 can't be changed.
            if options.session_expiry == 0 && expiry != 0 {
                return Ended::protocol("DISCONNECT raised a session expiry interval of 0");
            }
            let is_of_hub = self.context.rights.hub().is_some();
            options.session_expiry = options.bounds.session_expiry(expiry, is_of_hub);
        }
        Ended {
            discard_will: disconnect.reason == ReasonCode::Success,
            ..Ended::close(DisconnectReason::Client, "the client disconnected")
        }
    }

    /// What follows from the client's PUBACK, PUBREC or PUBCOMP.
    fn follow_up(&mut self, packet_id: PacketId, after: After) -> Result<(), Ended> {
        self.count_sent();
        match after {
            After::Nothing => {}
            After::SendPubRel => self.context.send_pubrel(packet_id, ReasonCode::Success),
            After::NotFound => {
                let reason = ReasonCode::PacketIdentifierNotFound;
                self.context.send_pubrel(packet_id, reason);
            }
            After::Completed(sequence) => self.acknowledgements.complete(sequence),
            After::Received(sequence) => self.acknowledgements.receive(sequence),
            After::WrongQos => {
                return Err(Ended::protocol(
                    "an acknowledgement does not belong to the QoS of its message",
                ));
            }
        }
        Ok(())
    }

    /// Proposes what the client has acknowledged.
    fn propose_acknowledgements(&mut self) {
        if let Some(expired) = self.outbound.take_expired() {
            let dropped = &self.context.broker.metrics.messages_dropped;
            dropped.of(DropReason::Expired).add(expired.count);
            for sequence in expired.sequences {
                self.acknowledgements.complete(sequence);
            }
        }
        let context = &mut self.context;
        let connection = context.mailbox.connection;
        let Some(Gathered { command, in_log }) = self.acknowledgements.take(connection) else {
            return;
        };
        let proposer = &context.broker.services.proposer;
        let completed = command.completed.len();
        let kind = Kind::Acknowledge(command);
        // There are at most as many as messages under way, so they are never refused.
        if let Some(in_log) = in_log {
            let request_id = context.requests.insert(Request::Acknowledge(in_log));
            let reply_to = ReplyTo::Connection(context.mailbox.clone(), request_id);
            proposer.submit_always(kind, reply_to, 0);
        } else if self
            .outbound
            .is_short_of_room(completed, context.options.bounds.in_flight)
        {
            proposer.submit_always(kind, ReplyTo::Nobody, 0);
        } else {
            // PUBACK and PUBCOMP wait up to `limits::DEFERRED_COMMANDS` to share a proposal.
            proposer.submit_deferred(kind);
        }
    }

    /// The log knows what the client has acknowledged.
    fn handle_acknowledged_in_log(&mut self, in_log: &AcknowledgementsInLog) {
        for sequence in in_log.received() {
            self.send_pubrel(sequence);
        }
        for packet_id in in_log.released() {
            self.publishing
                .handle_pubrel_logged(&mut self.context, packet_id);
        }
    }

    /// PUBREL is due for a message of the session's queue.
    fn send_pubrel(&mut self, sequence: Sequence) {
        let packet_id = self.outbound.handle_pubrel_due(sequence);
        self.context.send_pubrel(packet_id, ReasonCode::Success);
    }

    /// Takes what is in the mailbox, until it is empty.
    pub(super) fn drain_mailbox(&mut self, contents: &mut Contents) -> Result<(), Ended> {
        let is_filled = self.context.mailbox.is_filled();
        if is_filled && !self.context.broker.state.is_serving() && !self.context.mailbox.is_ending()
        {
            return Err(End::Unavailable.into());
        }
        if self.send_rest() && !self.context.mailbox.is_ending() {
            self.propose_acknowledgements();
            self.send_acknowledgements();
            return Ok(());
        }
        // Once for all that was taken: the mailbox may never be empty.
        self.note_sent();
        self.send_acknowledgements();
        // Into the mailbox. Nobody takes them out any more when the connection ends.
        if !self.context.mailbox.is_ending() {
            self.store_requests.answer_due(&mut self.context)?;
        }
        while self.takes_more() && (self.context.mailbox.is_filled() || self.read_withheld()) {
            self.has_withheld = self.context.mailbox.take(contents);
            self.context.output.note_taken();
            let handled = self.handle_taken(contents);
            // It counts as sent, also where the connection ends: acknowledgements follow the answers among it.
            if !handled.as_ref().is_err_and(Ended::is_for_memory) {
                self.send(contents);
            }
            handled?;
        }
        // Behind the changes that were in the mailbox.
        self.hub.answer_due(&mut self.context)?;
        self.propose_acknowledgements();
        self.send_acknowledgements();
        if !self.context.mailbox.is_filled() {
            self.note_sent();
        }
        Ok(())
    }

    /// Handles what was taken from the mailbox beside packets.
    fn handle_taken(&mut self, contents: &mut Contents) -> Result<(), Ended> {
        for item in contents.take_items() {
            self.handle_item(item)?;
        }
        notifying::notify(&mut self.context, &mut contents.desired, self.hub.shown())
    }

    /// Whether answers are left for the next turn.
    pub(super) fn has_due(&self) -> bool {
        self.hub.has_due() || self.store_requests.has_due()
    }

    /// Whether retained messages are to be sent now: everything else that was taken out of the mailbox is.
    pub(super) fn wants_replay(&self) -> bool {
        let is_behind = self.outbound.has_backlog();
        self.context.output.is_empty() && self.subscribing.wants_retained(&self.context, is_behind)
    }

    /// Sends the next page of retained messages, if they are to be sent. Called once per turn of the connection, before
    /// the mailbox is drained.
    pub(super) fn replay(&mut self, contents: &mut Contents) {
        if !self.wants_replay() {
            return;
        }
        self.subscribing.read_retained(&mut self.context, contents);
        self.send(contents);
    }

    /// Reads messages of the session's queue that were granted while the client was behind.
    fn read_withheld(&mut self) -> bool {
        self.has_withheld && withheld::read(&self.context, self.unsent_bytes())
    }

    fn handle_item(&mut self, item: Item) -> Result<(), Ended> {
        let context = &mut self.context;
        match item {
            Item::Reply(_, Reply::Undecodable) => return Err(Ended::undecodable()),
            Item::Reply(id, reply) => self.handle_reply(id, &reply)?,
            Item::ReadRefused => self.store_requests.handle_refused(context),
            Item::Read(id, reply) => self.store_requests.handle_store_reply(context, id, &reply),
            Item::BarrierPassed(id) => self.hub.handle_barrier(context, id),
            Item::ForwardConfirmed(id) => self.publishing.handle_forward_confirmed(context, id),
            Item::AckDeferred(id) => self.publishing.handle_deferred(context, id),
            Item::AckReleased(id) => self.publishing.handle_released(context, id),
            Item::SubscriptionEffective(id) => self.subscribing.handle_effective(context, id),
            Item::Notify { key, change } => self.store_requests.notify(context, key, change)?,
            // It counts as delivered `[MQTT-3.1.2-25]`.
            Item::Undeliverable(sequence) => self.acknowledgements.complete(sequence),
            Item::SendPubRel(sequence) => {
                let packet_id = self.outbound.handle_pubrel_due(sequence);
                context.resend_pubrel(packet_id);
            }
            Item::End(end) => return Err(context.ended(end)),
        }
        Ok(())
    }

    /// Routes the machine's reply by the type of the request.
    fn handle_reply(&mut self, request_id: RequestId, reply: &Reply) -> Result<(), Ended> {
        let context = &mut self.context;
        context.requests.applied(request_id);
        match context.requests.get(request_id) {
            Some(Request::LoggedPublish(_) | Request::DirectPublish(_)) => {
                self.publishing.handle_reply(context, request_id, reply)?;
            }
            Some(Request::Subscribe(_) | Request::Unsubscribe(_)) => {
                self.subscribing.handle_reply(context, request_id, reply);
            }
            Some(Request::Store(_)) => {
                self.store_requests.handle_reply(context, request_id, reply);
            }
            Some(Request::Hub(_)) => self.hub.handle_reply(context, request_id, reply)?,
            Some(Request::Acknowledge(_)) => {
                if let Some(Request::Acknowledge(in_log)) = context.requests.remove(request_id)
                    && matches!(reply, Reply::Done)
                {
                    self.handle_acknowledged_in_log(&in_log);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Bytes that the client has not got: they wait for the socket, or for room in its receive maximum. What is
    /// remembered of small packets may be more than they are, and counts.
    pub(super) fn unsent_bytes(&self) -> usize {
        let backlog = self.outbound.backlog_bytes() + self.outbound.tracked_bytes();
        self.context.output.unsent() + backlog
    }

    /// How much of the messages that were sent the client has read, as its acknowledgements tell.
    pub(super) fn read_bytes(&self) -> u64 {
        self.outbound.read_bytes()
    }

    /// What the connection keeps for its client.
    pub(super) fn memory(&self) -> Memory {
        let (output, requests) = (&self.context.output, &self.context.requests);
        let (backlog, owned_backlog) = (self.outbound.backlog_bytes(), self.outbound.owned_bytes());
        let requested = self.store_requests.memory() + self.hub.memory();
        let parts = self.publishing.memory() + self.subscribing.memory() + requested;
        let state = parts + self.context.rights.memory();
        let answers = output.waiting() + requests.bytes();
        Memory {
            answers,
            backlog,
            all: answers + backlog + state,
            owned: output.owned() + requests.bytes() + owned_backlog + state,
        }
    }

    /// When the authentication is to be checked.
    pub(super) fn authentication_deadline(&self) -> Option<Instant> {
        self.authentication.deadline()
    }

    /// See [`Authentication::check`].
    pub(super) fn check_authentication(&mut self, now: Instant) -> Result<(), Ended> {
        self.authentication.check(&mut self.context, now)
    }
}
