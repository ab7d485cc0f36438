//! CONNECT: what is agreed on with the client, and the opening of its session in the machine.

mod judging;
mod wills;

use std::net::IpAddr;

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use bytes::Bytes;

use super::bounds::ClientBounds;
use super::broker::Broker;
use super::coordinator::Connection;
use super::end::Ended;
use super::event_weight::event_weight;
use super::hub::identity::HubIdentity;
use super::options::{ConnectionOptions, Opened};
use super::origin::Origin;
use super::refusal::{DISK_LOW, NO_QUORUM, Refusal, STOPPING, unavailable};
use super::rights::ClientRights;
use crate::acl::Client;
use crate::auth::Principal;
use crate::base::ids::{ASSIGNED_PREFIX, ConnectionId};
use crate::base::proto::command::{self, command::Kind};
use crate::codec::{
    ConnAck, ConnAckProperties, Connect, MAX_PACKET_SIZE, PeerLimits, QoS, ReasonCode, encode,
};
use crate::config::{Listener, MqttConfig, QueuePolicy};
use crate::events::{DisconnectionReason, Kind as EventKind};
use crate::machine::effect::Reply;
use crate::machine::read;
use crate::mailbox::{End, Item, Mailbox, RequestId};
use crate::replica::reply_to::ReplyTo;
use crate::replica::share::Share;
use crate::topic::is_deeper;

/// The receive maximum of a client that names none (MQTT 5.0 §3.1.2.11.3); also what MQTT 3 clients get.
const DEFAULT_RECEIVE_MAXIMUM: u16 = u16::MAX;

/// The request id of the opening: a connection has no other request yet.
const OPENING: RequestId = 0;

/// An authentication that has succeeded before the CONNACK.
pub(super) struct Login {
    pub(super) principal: Arc<Principal>,
    /// Where the client comes from.
    pub(super) origin: Arc<Origin>,
    /// The mechanism's last data, for the CONNACK.
    pub(super) data: Vec<u8>,
    /// The device or the module that the client is, if it is one.
    pub(super) hub: Option<Arc<HubIdentity>>,
}

/// Where a client has come from.
pub(super) struct Place<'a> {
    pub(super) address: Option<IpAddr>,
    pub(super) listener: &'a Listener,
}

/// A CONNECT that passed its checks, on its way through the log.
pub(super) struct Opening {
    /// The last data of the authentication, for the CONNACK.
    authentication_data: Vec<u8>,
    /// What the client gets as Response Information, if it asked for it.
    response_information: Option<String>,
    mailbox: Arc<Mailbox>,
    options: ConnectionOptions,
    receive_maximum: u16,
    requested_expiry: u32,
    requested_keep_alive: u16,
    has_assigned_client_id: bool,
    rights: Box<ClientRights>,
}

/// Bounds of the packets that the client takes.
pub(super) fn limits(connect: &Connect<'_>) -> PeerLimits {
    PeerLimits {
        max_packet_size: connect
            .maximum_packet_size
            .map_or(MAX_PACKET_SIZE, |size| size.get()),
        problem_information: connect.request_problem_information,
    }
}

/// The text of `mqtt.response_information` for this client: what its response topics begin with. `None` when there is
/// none, and for client ids with wildcards, which no topic name may have.
fn response_information(template: &str, client_id: &str) -> Option<String> {
    let text = template.replace("{client_id}", client_id);
    let is_usable = !text.is_empty() && !text.contains(['+', '#']);
    is_usable.then_some(text)
}

/// What the session's queue may hold.
fn bounds(config: &MqttConfig, max_bytes: u64) -> command::QueueBounds {
    command::QueueBounds {
        max_messages: config.queue_max_messages,
        max_bytes,
        policy: match config.queue_full {
            QueuePolicy::DropOldest => 0,
            QueuePolicy::DropNewest => 1,
            QueuePolicy::EndSession => 2,
        },
        qos_0: config.queue_qos_0,
    }
}

/// Has a session closed that was opened, or is about to be, for a client that never got its CONNACK.
fn close(broker: &Broker, client_id: &str, connection: ConnectionId, event: DisconnectionReason) {
    broker.unregister(connection);
    let close = command::CloseSession {
        client_id: client_id.to_owned(),
        connection: connection.0,
        expiry_interval_s: None,
        discard_will: true,
        sent_through: 0,
        reason: event as u32,
    };
    let proposer = &broker.services.proposer;
    proposer.submit_always(Kind::CloseSession(close), ReplyTo::Nobody, 0);
}

/// Keeps a session whose opening was proposed from belonging to nobody for as long as the node lives, if a fault ends
/// its task before there is a [`Connection`].
struct Guard {
    broker: Arc<Broker>,
    connection: ConnectionId,
    client_id: Arc<str>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let event = DisconnectionReason::ServerError;
            close(&self.broker, &self.client_id, self.connection, event);
        }
    }
}

impl Opening {
    /// Checks a CONNECT and proposes the opening of its session. `login` is what its client has proved.
    pub(super) fn begin(
        broker: &Broker,
        connect: &Connect<'_>,
        login: Login,
        place: &Place<'_>,
    ) -> Result<Opening, Refusal> {
        let mut opening = Opening::new(broker, connect, login, place);
        opening.check(broker, connect)?;
        let config = &broker.settings.mqtt;
        let hub = opening.rights.hub().map(|hub| &**hub);
        let command = command::OpenSession {
            client_id: opening.options.client_id.to_string(),
            connection: opening.mailbox.connection.0,
            clean_start: connect.clean_start,
            expiry_interval_s: opening.options.session_expiry,
            protocol_level: connect.version.level().into(),
            will: connect
                .will
                .as_ref()
                .map(|it| wills::will(it, hub, config.retained_max)),
            receive_maximum: opening
                .receive_maximum
                .min(opening.options.bounds.in_flight)
                .into(),
            bounds: Some(bounds(config, opening.options.bounds.queue_bytes)),
            max_sessions_of_principal: opening.options.bounds.sessions,
            max_sessions: config.max_sessions,
            principal: opening.principal(),
            assigned_client_id: opening.has_assigned_client_id,
            generation: hub.map_or(0, |hub| hub.generation),
            fingerprint: hub
                .map_or_else(Bytes::new, |hub| Bytes::copy_from_slice(&hub.fingerprint)),
            model_id: hub.and_then(|hub| hub.model_id.clone()),
        };
        let services = &broker.services;
        // Registered first, so that a take-over, a revocation or a ban that follows at once finds the connection.
        services.router.register(opening.mailbox.clone());
        if broker.state.is_draining() {
            // All that are registered may have been told before this one was.
            broker.unregister(opening.mailbox.connection);
            return Err(opening.refuse(ReasonCode::ServerUnavailable, STOPPING));
        }
        opening.register(broker, place)?;
        let reply_to = ReplyTo::Connection(opening.mailbox.clone(), OPENING);
        let command = Kind::OpenSession(command);
        let weight = event_weight(broker, &opening.options, EventKind::Connected);
        let proposer = &services.proposer;
        let proposed = proposer.submit_weighing(Share::Sessions, command, reply_to, weight);
        if proposed.is_err() {
            broker.unregister(opening.mailbox.connection);
            let text = "too much is waiting to be committed";
            return Err(opening.refuse(ReasonCode::ServerBusy, text));
        }
        Ok(opening)
    }

    /// Has the connection ended when what its principal rests on changes.
    fn register(&self, broker: &Broker, place: &Place<'_>) -> Result<(), Refusal> {
        let (connection, options) = (self.mailbox.connection, &self.options);
        let identity = &broker.services.identity;
        let client_id = options.client_id.clone();
        let registered =
            identity.register(connection, client_id, place.address, &options.principal);
        registered.map_err(|denial| {
            broker.unregister(connection);
            Refusal::not_authenticated(options.limits, options.version, &denial)
        })
    }

    /// Refuses a CONNECT that this node does not take.
    fn check(&mut self, broker: &Broker, connect: &Connect<'_>) -> Result<(), Refusal> {
        if !broker.state.accepts_clients() {
            return Err(self.refuse(ReasonCode::ServerUnavailable, unavailable(&broker.state)));
        }
        self.judge(broker, connect)?;
        self.take_place(broker)?;
        let refuse = |reason, text| Err(self.refuse(reason, text));
        if connect
            .will
            .as_ref()
            .is_some_and(|will| will.topic.starts_with('$'))
        {
            let text = "topics that begin with $ are the broker's own";
            return refuse(ReasonCode::NotAuthorized, text);
        }
        let will = connect.will.as_ref();
        if will.is_some_and(|will| self.is_reserved(broker, will.topic)) {
            let text = "the will's topic is for devices and modules of the hub alone";
            return refuse(ReasonCode::NotAuthorized, text);
        }
        let config = &broker.settings.mqtt;
        if connect.will.as_ref().is_some_and(|will| {
            will.topic.len() > config.max_topic_bytes
                || is_deeper(will.topic, config.max_topic_levels)
        }) {
            let text = "the will's topic name is longer or deeper than this server takes";
            return refuse(ReasonCode::TopicNameInvalid, text);
        }
        let will_is_stored = || {
            let will = connect.will.as_ref();
            will.is_some_and(|will| wills::is_stored(broker, will))
        };
        if broker.state.refuses_writes() && (self.adds_session(broker) || will_is_stored()) {
            broker.metrics.writes_refused.increment();
            // MQTT 3 has no return code for a quota.
            let reason = match connect.version.is_v5() {
                true => ReasonCode::QuotaExceeded,
                false => ReasonCode::ServerUnavailable,
            };
            return refuse(reason, DISK_LOW);
        }
        Ok(())
    }

    /// Whether this CONNECT would create a durable session, as far as this node knows.
    fn adds_session(&self, broker: &Broker) -> bool {
        let is_durable = self.options.session_expiry > 0;
        let known = || read::session(&*broker.services.backing, &self.options.client_id);
        is_durable && !known().is_some_and(|session| session.durable)
    }

    fn new(broker: &Broker, connect: &Connect<'_>, login: Login, place: &Place<'_>) -> Opening {
        let config = &broker.settings.mqtt;
        let version = connect.version;
        // Clean session 0 of MQTT 3 is a session without end; clean session 1 ends with the connection.
        let requested_expiry = match (version.is_v5(), connect.clean_start) {
            (true, _) => connect.session_expiry.unwrap_or(0),
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        let has_assigned_client_id = connect.client_id.is_empty();
        let client_id: Arc<str> = if has_assigned_client_id {
            format!("{ASSIGNED_PREFIX}{}", uuid::Uuid::new_v4().simple()).into()
        } else {
            connect.client_id.into()
        };
        let limits = limits(connect);
        let response_information = connect
            .request_response_information
            .then(|| response_information(&config.response_information, &client_id))
            .flatten();
        let mailbox = Mailbox::new(
            broker.state.next_connection(),
            version,
            limits.max_packet_size,
            connect.topic_alias_maximum,
            broker.settings.outbox.clone(),
        );
        let facts = Opening::facts(&login.principal, &client_id, place);
        // Devices and modules have no rules: they are confined to their own topics.
        let rules = match &broker.services.hub {
            Some(hub) if login.hub.is_some() => &hub.rules,
            _ => &broker.services.rules,
        };
        let client = Arc::new(Client::new(facts, rules));
        let bounds = ClientBounds::new(config, &client.limits()).at(place.listener);
        // Most clients have the same, and share them.
        let bounds = match bounds == *broker.bounds {
            true => broker.bounds.clone(),
            false => Arc::new(bounds),
        };
        let is_of_hub = login.hub.is_some();
        mailbox.belongs_to(client.clone());
        Opening {
            rights: Box::new(ClientRights::of(client, login.hub)),
            authentication_data: login.data,
            response_information,
            mailbox,
            receive_maximum: connect
                .receive_maximum
                .map_or(DEFAULT_RECEIVE_MAXIMUM, |maximum| maximum.get()),
            requested_expiry,
            requested_keep_alive: connect.keep_alive,
            has_assigned_client_id,
            options: ConnectionOptions {
                version,
                client_id,
                limits,
                session_expiry: bounds.session_expiry(requested_expiry, is_of_hub),
                keep_alive: bounds.keep_alive(connect.keep_alive),
                bounds,
                principal: login.principal,
                origin: login.origin,
            },
        }
    }

    /// Waits until the session is open and makes the connection, whose first packet is the CONNACK.
    pub(super) async fn finish(mut self, broker: &Arc<Broker>) -> Result<Connection, Refusal> {
        let _guard = self.guard(broker);
        // Packets may come before the reply, and whatever else came is for the connection.
        let first = std::future::poll_fn(|context| self.mailbox.poll_first_reply(context)).await;
        if let Item::End(end) = first {
            let (reason, text) = match end {
                End::Revoked | End::Changed => {
                    let text = "what the client has proved who it is with has changed or is gone";
                    (ReasonCode::NotAuthorized, text)
                }
                End::Banned | End::AddressBanned => (ReasonCode::Banned, "this client is banned"),
                _ => (ReasonCode::ServerUnavailable, unavailable(&broker.state)),
            };
            return Err(self.abandon(broker, reason, text, Ended::from(end).event));
        }
        let Item::Reply(OPENING, reply) = first else {
            return Err(self.give_up(broker));
        };
        if let Reply::NotNow = reply {
            // It is not proposed again: this CONNECT would come behind newer ones of the same client.
            broker.unregister(self.mailbox.connection);
            let text = "too many sessions are being resumed or taken over";
            return Err(self.refuse(ReasonCode::ServerBusy, text));
        }
        if let Reply::QuotaExceeded = reply {
            broker.unregister(self.mailbox.connection);
            let text =
                "there are as many sessions as the cluster, or this client's principal, may have";
            return Err(self.refuse(ReasonCode::QuotaExceeded, text));
        }
        if let Reply::NotAuthorized = reply {
            broker.unregister(self.mailbox.connection);
            return Err(self.refuse_owner(broker).await);
        }
        let Reply::Opened {
            session,
            present,
            durable,
            received,
        } = reply
        else {
            return Err(self.give_up(broker));
        };
        if let Err(text) = self.judge_again() {
            let event = DisconnectionReason::ClientAuthorizationError;
            return Err(self.abandon(broker, ReasonCode::NotAuthorized, text, event));
        }
        let connack = self.connack(broker, present)?;
        let opened = Opened {
            session,
            is_durable: durable,
            receive_maximum: self.receive_maximum,
            received,
            rights: self.rights,
        };
        let broker = broker.clone();
        // Its first turn judges the session, which may have been made under other rules.
        Ok(Connection::new(
            broker,
            self.mailbox,
            self.options,
            opened,
            connack,
        ))
    }

    fn refuse(&self, reason: ReasonCode, text: &'static str) -> Refusal {
        Refusal::connack(
            self.options.limits,
            Some(self.options.version),
            reason,
            text,
        )
    }

    /// What tells the log if a fault ends this before there is a connection, which does so itself.
    fn guard(&self, broker: &Arc<Broker>) -> Guard {
        Guard {
            broker: broker.clone(),
            connection: self.mailbox.connection,
            client_id: self.options.client_id.clone(),
        }
    }

    /// Refuses the client because nobody knows what has become of its CONNECT.
    fn give_up(&self, broker: &Broker) -> Refusal {
        let event = DisconnectionReason::ServerError;
        self.abandon(broker, ReasonCode::ServerUnavailable, NO_QUORUM, event)
    }

    /// Refuses the client although its session is open, or is about to be opened: closes it. `event` is what others
    /// hear if it was opened.
    fn abandon(
        &self,
        broker: &Broker,
        reason: ReasonCode,
        text: &'static str,
        event: DisconnectionReason,
    ) -> Refusal {
        close(
            broker,
            &self.options.client_id,
            self.mailbox.connection,
            event,
        );
        self.refuse(reason, text)
    }

    fn connack(&self, broker: &Broker, session_present: bool) -> Result<Vec<u8>, Refusal> {
        let config = &broker.settings.mqtt;
        let options = &self.options;
        let properties = ConnAckProperties {
            session_expiry: (options.session_expiry != self.requested_expiry)
                .then_some(options.session_expiry),
            receive_maximum: NonZeroU16::new(options.bounds.receive_maximum),
            maximum_packet_size: NonZeroU32::new(options.bounds.packet_bytes),
            maximum_qos: Some(options.bounds.max_qos).filter(|qos| *qos != QoS::ExactlyOnce),
            retain_available: (!options.bounds.retain).then_some(false),
            assigned_client_id: self.has_assigned_client_id.then_some(&*options.client_id),
            topic_alias_maximum: Some(config.topic_alias_maximum),
            server_keep_alive: (options.keep_alive != self.requested_keep_alive)
                .then_some(options.keep_alive),
            response_information: self.response_information.as_deref(),
            authentication_method: options.origin.method.as_deref(),
            authentication_data: Some(&*self.authentication_data).filter(|data| !data.is_empty()),
            ..ConnAckProperties::default()
        };
        let mut connack = ConnAck {
            properties,
            ..ConnAck::accepted(session_present)
        };
        let mut packet = Vec::new();
        let written = encode::connack(&mut packet, options.version, &connack, options.limits)
            .or_else(|_| {
                // A hint gives way where there is no room for it.
                connack.properties.response_information = None;
                encode::connack(&mut packet, options.version, &connack, options.limits)
            });
        match written {
            Ok(_) => Ok(packet),
            // The client's maximum packet size is too small for what it must be told.
            Err(_) => {
                let text = "the CONNACK is larger than the client accepts";
                let event = DisconnectionReason::ServerError;
                Err(self.abandon(broker, ReasonCode::PacketTooLarge, text, event))
            }
        }
    }
}
