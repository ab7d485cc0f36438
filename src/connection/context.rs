//! What every part of a connection is given to do its work.

use std::sync::Arc;

use super::broker::Broker;
use super::options::ConnectionOptions;
use super::output::OutputBuffers;
use super::requests::{Request, Requests};
use crate::base::ids::SessionId;
use crate::base::proto::command::command::Kind;
use crate::codec::{Ack, PacketId, QoS, ReasonCode, encode};
use crate::mailbox::{Mailbox, WakeList};
use crate::replica::proposer::{Overloaded, Proposer};
use crate::replica::reply_to::ReplyTo;
use crate::topic::is_deeper;

/// What a packet leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Go on with the next packet.
    Continue,
    /// The packet can't be taken now: offer it again later.
    Retry,
}

/// Bytes that a connection keeps for its client, the input left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// What waits for the socket, and requests under way. A client that has much of it is not read: reading it would
    /// add to it, and it goes without being read.
    pub(super) answers: usize,
    /// Everything.
    pub(super) all: usize,
    /// Everything but message bodies that other connections may have, too.
    pub(super) owned: usize,
}

/// The surroundings of a connection's parts: its node, its client, its requests, and its output.
pub(super) struct Context {
    pub(super) broker: Arc<Broker>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) options: ConnectionOptions,
    pub(super) session: SessionId,
    /// Messages with QoS 1 and 2 for this session go through the log.
    pub(super) is_durable: bool,
    pub(super) requests: Requests,
    pub(super) output: OutputBuffers,
    /// Connections to wake when the batch of packets is done.
    pub(super) wake: WakeList,
    /// Work done in this turn, in units of [`crate::base::limits::TURN_WORK`].
    pub(super) work: usize,
}

impl Context {
    /// Whether this server takes a topic name or filter as long and as deep as this one.
    pub(super) fn accepts_topic(&self, topic: &str) -> bool {
        let config = &self.broker.settings.mqtt;
        topic.len() <= config.max_topic_bytes && !is_deeper(topic, config.max_topic_levels)
    }

    /// Whether what would be stored is refused now, because disks are nearly full; counts the request that asks.
    pub(super) fn refuses_write(&self) -> bool {
        let refuses = self.broker.state.refuses_writes();
        if refuses {
            self.broker.metrics.writes_refused.increment();
        }
        refuses
    }

    /// Whether another request must wait: a client that sends faster than the cluster commits is read more slowly.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.len() >= usize::from(self.broker.settings.mqtt.receive_maximum)
    }

    /// Proposes a command whose reply answers `request`; [`Flow::Retry`] when the node is overloaded.
    pub(super) fn propose(&mut self, kind: Kind, request: Request) -> Flow {
        self.propose_by(kind, request, Proposer::submit)
    }

    /// Proposes a command in one of the proposer's ways.
    pub(super) fn propose_by(
        &mut self,
        kind: Kind,
        request: Request,
        submit: impl FnOnce(&Proposer, Kind, ReplyTo) -> Result<(), Overloaded>,
    ) -> Flow {
        let request_id = self.requests.insert(request);
        let reply_to = ReplyTo::Connection(self.mailbox.clone(), request_id);
        match submit(&self.broker.services.proposer, kind, reply_to) {
            Ok(()) => Flow::Continue,
            Err(Overloaded) => {
                self.broker.services.proposer.await_room(&self.mailbox);
                self.requests.remove(request_id);
                Flow::Retry
            }
        }
    }

    /// The packet waits until this node may deliver messages past the log.
    pub(super) fn await_routing_lease(&self) -> Flow {
        self.broker.state.routing_lease().wait(&self.mailbox);
        Flow::Retry
    }

    /// Acknowledges a PUBLISH of the client: PUBREC with QoS 2, else PUBACK.
    pub(super) fn acknowledge(
        &mut self,
        packet_id: PacketId,
        qos: QoS,
        reason: ReasonCode,
        text: Option<&str>,
    ) {
        let ack = Ack {
            reason_string: text,
            ..Ack::with_reason(packet_id, reason)
        };
        let out = self.output.acknowledgements();
        let (version, limits) = (self.options.version, self.options.limits);
        // A reason string that does not fit is left out, and the rest always fits.
        let _ = match qos {
            QoS::ExactlyOnce => encode::pubrec(out, version, &ack, limits),
            _ => encode::puback(out, version, &ack, limits),
        };
    }

    /// Sends PUBREL.
    pub(super) fn send_pubrel(&mut self, packet_id: PacketId, reason: ReasonCode) {
        let ack = Ack::with_reason(packet_id, reason);
        let out = self.output.acknowledgements();
        // An acknowledgement without properties always fits.
        let _ = encode::pubrel(out, self.options.version, &ack, self.options.limits);
    }

    /// Sends PUBREL again, before the messages that are sent again: it finishes what is furthest on, and frees room.
    /// The standard orders each kind by itself only `[MQTT-4.6.0-1]` `[MQTT-4.6.0-4]`.
    pub(super) fn resend_pubrel(&mut self, packet_id: PacketId) {
        let ack = Ack::with_reason(packet_id, ReasonCode::Success);
        let out = &mut self.output.packets().bytes;
        // An acknowledgement without properties always fits.
        let _ = encode::pubrel(out, self.options.version, &ack, self.options.limits);
    }

    /// Sends PUBCOMP.
    pub(super) fn send_pubcomp(&mut self, packet_id: PacketId, reason: ReasonCode) {
        let ack = Ack::with_reason(packet_id, reason);
        let out = self.output.acknowledgements();
        // An acknowledgement without properties always fits.
        let _ = encode::pubcomp(out, self.options.version, &ack, self.options.limits);
    }
}

#[cfg(test)]
impl Context {
    /// A connection of an MQTT 5 client to a node that has nothing but itself.
    pub(super) fn for_tests(is_durable: bool) -> Context {
        use std::collections::BTreeMap;

        use super::broker::{Services, Settings};
        use crate::base::ids::{ConnectionId, NodeId};
        use crate::codec::{PeerLimits, Version};
        use crate::forward::hand_over::HandOvers;

        let metrics = Arc::default();
        let outboxes = Arc::new(crate::forward::outbox::Outboxes::default());
        let settings = Settings::new(&crate::config::Config::default(), &metrics);
        let router = crate::router::Router::new(NodeId(0), Arc::default(), outboxes);
        let proposer: Arc<Proposer> = Arc::default();
        let services = Services {
            hand_overs: Arc::new(HandOvers::new(
                NodeId(0),
                router.clone(),
                proposer.clone(),
                None,
            )),
            proposer,
            reader: Arc::default(),
            router,
            backing: Arc::new(BTreeMap::<Vec<u8>, Vec<u8>>::new()),
            clock: Arc::new(crate::replica::clock::Clock::new(NodeId(1))),
            view: Arc::default(),
        };
        let version = Version::V5;
        let limits = PeerLimits::NONE;
        let outbox = settings.outbox.clone();
        let (connection, size) = (ConnectionId(1), limits.max_packet_size);
        Context {
            broker: Broker::new(settings, services, Default::default(), metrics),
            mailbox: Mailbox::new(connection, version, size, 0, outbox),
            options: ConnectionOptions {
                version,
                client_id: "client".into(),
                limits,
                keep_alive: 0,
                session_expiry: 0,
                identity: None,
            },
            session: SessionId(1),
            is_durable,
            requests: Requests::default(),
            output: OutputBuffers::default(),
            wake: WakeList::default(),
            work: 0,
        }
    }

    /// Takes the acknowledgements that are to be sent.
    pub(super) fn take_acknowledgements(&mut self) -> Vec<u8> {
        std::mem::take(self.output.acknowledgements())
    }
}
