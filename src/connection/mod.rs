//! One client's connection after its CONNECT was accepted: packets in, packets and commands out.
//!
//! [`Connection`] has no socket: [`task`] feeds it what arrives and writes what it leaves in `out`. What must survive
//! the connection is in the replicated machine, reached through the broker's proposer; here is only what ends with it.

mod acknowledge;
mod authenticate;
pub mod broker;
mod connect;
mod end;
mod handshake;
pub mod listener;
mod outbound;
mod publish;
mod requests;
mod retained;
mod store_request;
mod subscribe;
pub mod sys;
pub mod task;

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::base::ids::SessionId;
use crate::base::proto::command;
use crate::codec::{
    self, DecodeError, Disconnect, Packet, PacketId, PeerLimits, ReasonCode, Version, encode, frame,
};
use crate::connection::broker::Broker;
use crate::machine::effect::Reply;
use crate::mailbox::{Contents, Item, Mailbox, RequestId, WakeList};
use crate::replica::proposer::{Overloaded, Proposer, ReplyTo};
use crate::router::Route;
use crate::session::inbound::Inbound;
use crate::store::topics::INVOKE;
use crate::telemetry::labels::{DisconnectReason, Qos};
use authenticate::{Proved, Renewal};
use end::Ended;
use outbound::Outbound;
use requests::{Request, Requests};
use retained::Feed;

/// What a packet leads to.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    /// Go on with the next packet.
    Continue,
    /// The packet can't be taken now: offer it again later.
    Stall,
}

/// What was negotiated when the client connected.
#[derive(Clone, Debug)]
struct Terms {
    version: Version,
    client_id: Arc<str>,
    limits: PeerLimits,
    /// Seconds; 0 turns it off.
    keep_alive: u16,
    session_expiry: u32,
    /// Who the client has proved to be, where extended authentication was agreed on.
    proved: Option<Proved>,
}

/// What the machine says of the session.
struct Opened {
    session: SessionId,
    /// Its messages with QoS 1 and 2 go through the log.
    durable: bool,
    /// The client's receive maximum.
    receive_maximum: u16,
    /// QoS 2 packet ids whose PUBREL has not come yet.
    received: Vec<u16>,
}

/// A connection.
struct Connection {
    broker: Arc<Broker>,
    mailbox: Arc<Mailbox>,
    terms: Terms,
    session: SessionId,
    durable: bool,
    outbound: Outbound,
    inbound: Inbound,
    /// QoS 2 messages that came again before they were answered; each gets an answer of its own `[MQTT-4.3.3-10]`.
    repeated: Vec<PacketId>,
    /// What the client has acknowledged in the present burst and the log must know.
    acknowledged: command::Acknowledge,
    /// A re-authentication under way.
    renewal: Option<Box<Renewal>>,
    requests: Requests,
    /// Messages on their way through the log, by QoS.
    logging: [u32; 3],
    /// Messages with QoS 1 and 2 that other nodes must confirm.
    unconfirmed: u32,
    /// Bytes of messages that went beside the log and are not acknowledged.
    unacknowledged_bytes: usize,
    /// Subscriptions whose retained messages are still to be sent.
    feeds: VecDeque<Feed>,
    /// Whether this node knows of everybody who has subscribed, so that messages may go past the log (P6); looked at once
    /// per burst of packets. Without it they wait.
    has_routing_lease: bool,
    /// SUBSCRIBEs that are not effective here yet: what is published after them must wait to be matched.
    subscribing: u32,
    /// Topics behind the client's aliases `[MQTT-3.3.2-12]`.
    aliases: FxHashMap<u16, Arc<str>>,
    routes: FxHashMap<Box<str>, Route>,
    response_routes: FxHashMap<Box<str>, Route>,
    /// Bytes for the client.
    out: Vec<u8>,
    /// Acknowledgements that must not go before what is in the mailbox.
    acks: Vec<u8>,
    /// Others to wake when the burst of packets is through.
    wake: WakeList,
}

impl Connection {
    fn new(broker: Arc<Broker>, mailbox: Arc<Mailbox>, terms: Terms, opened: Opened) -> Self {
        let outbound = Outbound::new(opened.receive_maximum);
        mailbox.opened(opened.session);
        let receive_maximum =
            NonZeroU16::new(broker.config.receive_maximum).unwrap_or(NonZeroU16::MAX);
        let received = opened.received.into_iter().filter_map(NonZeroU16::new);
        Connection {
            broker,
            mailbox,
            terms,
            session: opened.session,
            durable: opened.durable,
            outbound,
            inbound: Inbound::new(receive_maximum, received),
            repeated: Vec::new(),
            acknowledged: command::Acknowledge::default(),
            renewal: None,
            requests: Requests::default(),
            logging: [0; 3],
            unconfirmed: 0,
            unacknowledged_bytes: 0,
            feeds: VecDeque::new(),
            has_routing_lease: false,
            subscribing: 0,
            aliases: FxHashMap::default(),
            routes: FxHashMap::default(),
            response_routes: FxHashMap::default(),
            out: Vec::new(),
            acks: Vec::new(),
            wake: WakeList::default(),
        }
    }

    /// Handles the packets at the start of `bytes` and returns how many bytes they took, and whether the next one must
    /// wait.
    fn handle_bytes(&mut self, bytes: &[u8]) -> (usize, Result<Flow, Ended>) {
        self.has_routing_lease = self.broker.routing_lease.is_valid();
        let handled = self.handle_packets(bytes);
        self.propose_acknowledged();
        handled
    }

    fn handle_packets(&mut self, bytes: &[u8]) -> (usize, Result<Flow, Ended>) {
        let mut taken = 0;
        loop {
            let found = match frame::next(&bytes[taken..], self.broker.config.max_packet_size_bytes)
            {
                Ok(Some(found)) => found,
                Ok(None) => return (taken, Ok(Flow::Continue)),
                Err(error) => return (taken, Err(error.into())),
            };
            match self.handle_frame(found) {
                Ok(Flow::Continue) => taken += found.length,
                other => return (taken, other),
            }
        }
    }

    fn handle_frame(&mut self, found: frame::Frame<'_>) -> Result<Flow, Ended> {
        let packet =
            codec::decode(self.terms.version, found).map_err(|error| self.refuse(found, error))?;
        match packet {
            Packet::Publish(publish) => return self.handle_publish(&publish),
            Packet::PubAck(ack) => self.handle_puback(&ack)?,
            Packet::PubRec(ack) => self.handle_pubrec(&ack)?,
            Packet::PubRel(ack) => self.handle_pubrel(&ack),
            Packet::PubComp(ack) => self.handle_pubcomp(&ack)?,
            Packet::Subscribe(subscribe) => return self.handle_subscribe(&subscribe),
            Packet::Unsubscribe(unsubscribe) => return self.handle_unsubscribe(&unsubscribe),
            // [MQTT-3.12.4-1]
            Packet::PingReq => {
                encode::pingresp(&mut self.acks);
            }
            Packet::Disconnect(disconnect) => return Err(self.handle_disconnect(&disconnect)),
            Packet::Auth(auth) => self.handle_auth(&auth)?,
        }
        Ok(Flow::Continue)
    }

    /// A packet that can't be decoded ends the connection `[MQTT-4.13.1-1]`.
    fn refuse(&mut self, found: frame::Frame<'_>, error: DecodeError) -> Ended {
        if error == DecodeError::ResponseTopicInvalid
            && let Some((INVOKE, packet_id)) = codec::refused_publish(found)
        {
            return self.refuse_response_topic(packet_id);
        }
        error.into()
    }

    fn handle_disconnect(&mut self, disconnect: &Disconnect<'_>) -> Ended {
        if let Some(expiry) = disconnect.session_expiry {
            // MQTT 5.0 §3.14.2.2.2: an interval of 0 can't be changed.
            if self.terms.session_expiry == 0 && expiry != 0 {
                return Ended::protocol("DISCONNECT raised a session expiry interval of 0");
            }
            self.terms.session_expiry = expiry.min(self.broker.config.session_expiry_max_s);
        }
        let discard_will = disconnect.reason == ReasonCode::Success;
        Ended {
            discard_will,
            ..Ended::silent(DisconnectReason::Client, "the client disconnected")
        }
    }

    /// Takes what is in the mailbox, until it is empty.
    fn drain_mailbox(&mut self, contents: &mut Contents) -> Result<(), Ended> {
        while self.mailbox.is_filled() || self.is_fed() {
            self.mailbox.take(contents);
            for item in std::mem::take(&mut contents.items) {
                self.handle_item(item)?;
            }
            self.count_sent(std::mem::take(&mut contents.counts));
            if !contents.packets.is_empty() {
                self.outbound.send(contents, &mut self.out);
            }
        }
        self.propose_acknowledged();
        // Answers go before the acknowledgements of their requests.
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, &mut self.acks);
        } else {
            self.out.append(&mut self.acks);
        }
        Ok(())
    }

    /// Whether retained messages were put into the mailbox: only when there is nothing else to send.
    fn is_fed(&mut self) -> bool {
        !self.feeds.is_empty()
            && self.out.is_empty()
            && self.acks.is_empty()
            && self.outbound.is_free()
            && self.feed_retained()
    }

    fn count_sent(&self, counts: [u32; 3]) {
        for (qos, count) in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]
            .into_iter()
            .zip(counts)
        {
            if count > 0 {
                self.broker.metrics.messages_sent.of(qos).add(count.into());
            }
        }
    }

    fn handle_item(&mut self, item: Item) -> Result<(), Ended> {
        match item {
            Item::Reply(request_id, reply) => self.handle_reply(request_id, reply),
            Item::Read(request_id, reply) => self.answer_store_request(request_id, &reply),
            Item::ForwardConfirmed(request_id) => self.handle_forwarded(request_id),
            Item::AckDeferred(request_id) => self.handle_held(request_id),
            Item::AckReleased(request_id) => self.handle_released(request_id),
            Item::SubscriptionEffective(request_id) => self.acknowledge_subscribe(request_id),
            Item::Notify { key, change } => self.notify(&key, &change)?,
            Item::Undeliverable(sequence) => self.give_up(sequence),
            Item::SendPubRel(sequence) => self.release(sequence),
            Item::End(end) => return Err(end.into()),
        }
        Ok(())
    }

    fn handle_reply(&mut self, request_id: RequestId, reply: Reply) {
        match reply {
            Reply::Store(reply) => self.answer_store_request(request_id, &reply),
            Reply::Subscribed { index, new } => self.subscribed(request_id, index, &new),
            Reply::Published { matched: true } => self.logged(request_id, ReasonCode::Success),
            Reply::Published { matched: false } => {
                self.logged(request_id, ReasonCode::NoMatchingSubscribers);
            }
            Reply::QuotaExceeded => self.logged(request_id, ReasonCode::QuotaExceeded),
            Reply::Done => {
                if let Some(Request::Acknowledge { received, released }) =
                    self.requests.remove(request_id)
                {
                    self.acknowledged_in_log(&received, &released);
                }
            }
            Reply::Unsubscribed(removed) => self.acknowledge_unsubscribe(request_id, &removed),
            // The session has a new owner; this connection is about to be told.
            Reply::NotOwner | Reply::Opened { .. } => {
                if let Some(Request::Subscribe { .. }) = self.requests.remove(request_id) {
                    self.subscribing -= 1;
                }
            }
        }
    }

    /// Proposes a command whose reply answers `request`; gives the request back when the node is overloaded.
    fn propose(&mut self, kind: command::command::Kind, request: Request) -> Flow {
        self.propose_by(kind, request, Proposer::submit)
    }

    fn propose_by(
        &mut self,
        kind: command::command::Kind,
        request: Request,
        submit: fn(&Proposer, command::command::Kind, ReplyTo) -> Result<(), Overloaded>,
    ) -> Flow {
        let request_id = self.requests.insert(request);
        let waiter = ReplyTo::Connection(self.mailbox.clone(), request_id);
        match submit(&self.broker.proposer, kind, waiter) {
            Ok(()) => Flow::Continue,
            Err(Overloaded) => {
                self.requests.remove(request_id);
                Flow::Stall
            }
        }
    }

    /// Whether another request may be started: a client that sends faster than the cluster commits is read more slowly.
    fn is_busy(&self) -> bool {
        self.requests.len() >= usize::from(self.broker.config.receive_maximum)
    }

    /// DISCONNECT, where the version has one.
    fn say_goodbye(&mut self, ended: &Ended) {
        let Some(reason) = ended.tell else { return };
        let mut packet = Disconnect::new(reason);
        packet.reason_string = Some(ended.text);
        // Before 5.0 there is no such packet: the socket is closed.
        let _ = encode::disconnect(
            &mut self.out,
            self.terms.version,
            &packet,
            self.terms.limits,
        );
    }

    /// Tells the machine that the connection has ended.
    fn close(&mut self, ended: &Ended) {
        self.broker.router.unregister(self.mailbox.connection);
        let close = command::CloseSession {
            client_id: self.terms.client_id.to_string(),
            connection: self.mailbox.connection.0,
            expiry_interval_s: Some(self.terms.session_expiry),
            discard_will: ended.discard_will,
            sent_through: self.outbound.sent_through().0,
        };
        self.broker
            .proposer
            .submit_always(command::command::Kind::CloseSession(close), ReplyTo::Nobody);
    }
}
