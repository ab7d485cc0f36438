//! What every part of a connection is given to do its work.

use std::sync::Arc;

use super::broker::Broker;
use super::end::Ended;
use super::options::ConnectionOptions;
use super::output::OutputBuffers;
use super::requests::{Request, Requests};
use super::rights::ClientRights;
use crate::base::ids::SessionId;
use crate::base::proto::command::command::Kind;
use crate::codec::{Ack, PacketId, Publish, QoS, ReasonCode, encode};
use crate::mailbox::{End, Mailbox, WakeList};
use crate::replica::proposer::Overloaded;
use crate::replica::reply_to::ReplyTo;
use crate::replica::share::Share;
use crate::replica::weight::own_weight;
use crate::telemetry::labels::{self, DisconnectReason};
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
    /// add to it, and it goes without being read, unless it waits for what the client has to acknowledge.
    pub(super) answers: usize,
    /// Messages that wait for acknowledgements of the client, or for the output.
    pub(super) backlog: usize,
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
    /// What the client may do.
    /// Boxed, because it is looked at once per packet at most.
    pub(super) rights: Box<ClientRights>,
    pub(super) requests: Requests,
    pub(super) output: OutputBuffers,
    /// Connections to wake when the batch of packets is done.
    pub(super) wake: WakeList,
    /// Work done in this turn, in units of [`crate::base::limits::TURN_WORK`].
    pub(super) work: usize,
    /// Whether this node knew of everything that was answered when this turn began: of all subscriptions, so that
    /// messages may go past the log (P6), and of all revocations and rules. Without it nothing is judged: it waits.
    pub(super) has_routing_lease: bool,
    /// The client has sent a DISCONNECT behind packets that wait.
    pub(super) is_leaving: bool,
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

    /// A PUBLISH that is not what the client was told that it may send.
    ///
    /// # Errors
    /// It ends the connection `[MQTT-3.2.2-11]` `[MQTT-3.2.2-14]`.
    #[inline]
    pub(super) fn check_publish(&self, publish: &Publish<'_>) -> Result<(), Ended> {
        let bounds = &self.options.bounds;
        if publish.qos > bounds.max_qos {
            return Err(Ended::disconnect(
                DisconnectReason::NotAuthorized,
                ReasonCode::QosNotSupported,
                "the message's QoS is higher than the client may publish with",
            ));
        }
        if publish.retain && !bounds.retain {
            return Err(Ended::disconnect(
                DisconnectReason::NotAuthorized,
                ReasonCode::RetainNotSupported,
                "the client may not have messages retained",
            ));
        }
        Ok(())
    }

    /// How the connection ends that the node ends for this reason. Who has to prove again who it is has its will as if
    /// the connection had broken, if it may still have it: that is judged by what the directory says of it now.
    pub(super) fn ended(&mut self, end: End) -> Ended {
        let ended = Ended::from(end);
        if end != End::Changed {
            return ended;
        }
        let Some(renewed) = self
            .broker
            .services
            .identity
            .renewed(&self.options.principal)
        else {
            return ended.without_will();
        };
        self.rights.identify(&renewed);
        match self.rights.may_have_will() {
            true => ended,
            false => ended.without_will(),
        }
    }

    /// What the client's will counts in the proposal of the connection's end: the nodes publish it while they apply
    /// that. Its topic is looked up once, and others have their turn afterwards: the end is the last that the
    /// connection's task does.
    pub(super) fn will_weight(&self) -> usize {
        let Some((topic, qos)) = self.rights.will() else {
            return 0;
        };
        let route = self
            .broker
            .services
            .router
            .route(topic, self.mailbox.session());
        route.logged_weight(qos)
    }

    /// Whether another request must wait: a client that sends faster than the cluster commits is read more slowly, and
    /// so is one for which the nodes do much while much waits on this node.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy_with(1)
    }

    /// The same where the nodes may have so many times as much to do for the client.
    pub(super) fn is_busy_with(&self, times: u32) -> bool {
        let proposer = &self.broker.services.proposer;
        self.has_most_requests() || self.requests.is_much(times) && proposer.is_crowded()
    }

    /// Whether the client has as many requests under way as it may.
    pub(super) fn has_most_requests(&self) -> bool {
        self.requests.len() >= usize::from(self.options.bounds.receive_maximum)
    }

    /// Counts messages that were sent, by QoS.
    pub(super) fn count_sent(&mut self, counts: [u32; 3]) {
        self.rights.sent += counts.iter().copied().map(u64::from).sum::<u64>();
        let sent = &self.broker.metrics.messages_sent;
        for (qos, count) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
            .into_iter()
            .zip(counts)
        {
            if count > 0 {
                sent.of(Context::qos_label(qos)).add(count.into());
            }
        }
    }

    /// The label of a QoS in the metrics.
    pub(super) fn qos_label(qos: QoS) -> labels::Qos {
        match qos {
            QoS::AtMostOnce => labels::Qos::AtMostOnce,
            QoS::AtLeastOnce => labels::Qos::AtLeastOnce,
            QoS::ExactlyOnce => labels::Qos::ExactlyOnce,
        }
    }

    /// Proposes a command whose reply answers `request`; [`Flow::Retry`] when the node is overloaded.
    pub(super) fn propose(&mut self, kind: Kind, request: Request) -> Flow {
        self.propose_weighing(Share::Common, kind, request, 0)
    }

    /// Proposes a command of a share, which counts so many bytes more than it has
    /// ([`Proposer::submit_weighing`](crate::replica::proposer::Proposer::submit_weighing)).
    pub(super) fn propose_weighing(
        &mut self,
        share: Share,
        kind: Kind,
        request: Request,
        weight: usize,
    ) -> Flow {
        // Where the others wait they have bounds of their own.
        let counted = match share {
            Share::Common => weight + own_weight(&kind),
            _ => 0,
        };
        let request_id = self.requests.insert_weighing(request, counted);
        let reply_to = ReplyTo::Connection(self.mailbox.clone(), request_id);
        let proposer = &self.broker.services.proposer;
        match proposer.submit_weighing(share, kind, reply_to, weight) {
            Ok(()) => Flow::Continue,
            Err(Overloaded) => {
                proposer.await_room(share, &self.mailbox);
                self.requests.remove(request_id);
                Flow::Retry
            }
        }
    }

    /// The packet waits until this node knows again of everything that was answered.
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
        let reason = match reason {
            // Libraries of devices take anything but success for a failure.
            ReasonCode::NoMatchingSubscribers if self.rights.hub().is_some() => ReasonCode::Success,
            reason => reason,
        };
        let ack = Ack {
            reason_string: text,
            ..Ack::with_reason(packet_id, reason)
        };
        let (version, limits) = (self.options.version, self.options.limits);
        // A reason string that does not fit is left out, and the rest always fits.
        let _ = match qos {
            QoS::ExactlyOnce => encode::pubrec(self.output.unordered(), version, &ack, limits),
            _ => encode::puback(self.output.acknowledgements(), version, &ack, limits),
        };
    }

    /// Acknowledges a PUBLISH with QoS 1 that ends the connection, whether answers to others are sent or not.
    pub(super) fn acknowledge_at_end(
        &mut self,
        packet_id: PacketId,
        reason: ReasonCode,
        text: &str,
    ) {
        let ack = Ack {
            reason_string: Some(text),
            ..Ack::with_reason(packet_id, reason)
        };
        self.output.flush_acknowledgements();
        let out = &mut self.output.packets().bytes;
        // As above.
        let _ = encode::puback(out, self.options.version, &ack, self.options.limits);
    }

    /// Sends PUBREL.
    pub(super) fn send_pubrel(&mut self, packet_id: PacketId, reason: ReasonCode) {
        let ack = Ack::with_reason(packet_id, reason);
        let out = self.output.unordered();
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
        let out = self.output.unordered();
        // An acknowledgement without properties always fits.
        let _ = encode::pubcomp(out, self.options.version, &ack, self.options.limits);
    }
}

#[cfg(test)]
impl Context {
    /// A connection of an MQTT 5 client to a node that has nothing but itself.
    pub(super) fn for_tests(is_durable: bool) -> Context {
        let nothing = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
        Context::with_state(is_durable, Arc::new(nothing))
    }

    /// As [`Context::for_tests`], of a node that has this state.
    pub(super) fn with_state(
        is_durable: bool,
        backing: Arc<dyn crate::machine::tables::Backing>,
    ) -> Context {
        use super::broker::{Services, Settings};
        use crate::acl::{Client, Facts};
        use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner};
        use crate::codec::{PeerLimits, Version};
        use crate::forward::hand_over::HandOvers;
        use crate::machine::subscriptions::Queueing;
        use crate::replica::proposer::Proposer;

        let metrics = Arc::default();
        let outboxes = Arc::new(crate::forward::outbox::Outboxes::default());
        let mut config = crate::config::Config::default();
        config.node.id = 0;
        let settings = Settings::new(&config, &metrics);
        let router = crate::router::Router::new(NodeId(0), Arc::default(), outboxes.clone());
        let proposer: Arc<Proposer> = Arc::default();
        let view: Arc<crate::replica::view::View> = Arc::default();
        let directory = Arc::new(crate::forward::directory::Directory::new(
            NodeId(0),
            proposer.clone(),
            view.clone(),
            outboxes,
        ));
        let services = Services {
            directory,
            identity: crate::identity::Identity::for_tests(&view, router.clone(), &backing),
            hand_overs: Arc::new(HandOvers::new(
                NodeId(0),
                router.clone(),
                proposer.clone(),
                None,
            )),
            proposer,
            reader: Arc::default(),
            router,
            backing,
            clock: Arc::new(crate::replica::clock::Clock::new(NodeId(1))),
            view,
            rules: Arc::default(),
            hub: None,
        };
        let rights = Box::new(ClientRights::new(Arc::new(Client::new(
            Facts {
                client_id: "client".into(),
                ..Facts::default()
            },
            &services.rules,
        ))));
        let version = Version::V5;
        let limits = PeerLimits::NONE;
        let outbox = settings.outbox.clone();
        let broker = Broker::new(settings, services, Default::default(), metrics);
        let bounds = broker.bounds.clone();
        let (connection, size) = (ConnectionId(1), limits.max_packet_size);
        let owner = Owner {
            node: broker.settings.node,
            incarnation: Incarnation::default(),
            connection,
        };
        let subscriptions = broker.services.router.subscriptions();
        subscriptions.put(SessionId(1), Some(owner), Queueing::default(), &[]);
        Context {
            broker,
            mailbox: Mailbox::new(connection, version, size, 0, outbox),
            options: ConnectionOptions {
                version,
                client_id: "client".into(),
                limits,
                bounds,
                keep_alive: 0,
                session_expiry: 0,
                principal: crate::auth::Principal::anonymous(),
                origin: super::origin::Origin::for_tests(),
            },
            session: SessionId(1),
            is_durable,
            rights,
            requests: Requests::default(),
            output: OutputBuffers::default(),
            wake: WakeList::default(),
            work: 0,
            has_routing_lease: true,
            is_leaving: false,
        }
    }

    /// Durable sessions subscribe to the topic `t` with QoS 1, so many that a message to it has weight.
    pub(super) fn subscribe_durably(&self) {
        use crate::base::ids::LogIndex;
        use crate::base::limits;
        use crate::base::proto::state;
        use crate::machine::subscriptions::Queueing;

        let durable = Queueing {
            durable: true,
            ..Queueing::default()
        };
        let row = state::Subscription {
            qos: 1,
            ..state::Subscription::default()
        };
        let index = self.broker.services.router.subscriptions();
        for session in 2..2 + limits::QUEUES_AT_LEAST as u64 {
            index.put(SessionId(session), None, durable, &[]);
            index.put_row(SessionId(session), "t", &row, LogIndex::default());
        }
    }

    /// Takes the acknowledgements that are to be sent.
    pub(super) fn take_acknowledgements(&mut self) -> Vec<u8> {
        self.output.note_taken();
        self.output.note_sent();
        std::mem::take(self.output.acknowledgements())
    }
}
