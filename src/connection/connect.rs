//! CONNECT: what is agreed on, and the session's opening in the machine.

use std::sync::Arc;

use bytes::Bytes;

use super::authenticate::Login;
use super::end::Ended;
use super::{Connection, Opened, Terms};
use crate::base::proto::command;
use crate::codec::{
    ConnAck, ConnAckProperties, Connect, DecodeError, MAX_PACKET_SIZE, PeerLimits, ReasonCode,
    Version, Will, encode, frame, sniff_version,
};
use crate::config::{MqttConfig, QueuePolicy};
use crate::connection::broker::Broker;
use crate::machine::effect::Reply;
use crate::mailbox::{Item, Mailbox, RequestId};
use crate::replica::proposer::ReplyTo;
use crate::telemetry::labels::DisconnectReason;

/// The receive maximum of a client that names none `[MQTT5 3.1.2.11.3]`; also what MQTT 3 clients get.
const DEFAULT_RECEIVE_MAXIMUM: u16 = u16::MAX;

/// Why a node without a leader turns clients away.
pub(super) const NOT_IN_TOUCH: &str = "this node is not in touch with the cluster's majority";

/// The request id of the opening: a connection has no other request yet.
const OPENING: RequestId = 0;

/// A CONNECT that passed its checks, on its way through the log.
pub(super) struct Opening {
    /// The last data of the authentication, for the CONNACK.
    authentication_data: Vec<u8>,
    /// What the client gets as Response Information, if it asked for it.
    response_information: Option<String>,
    mailbox: Arc<Mailbox>,
    terms: Terms,
    receive_maximum: u16,
    asked_expiry: u32,
    asked_keep_alive: u16,
    assigned_client_id: bool,
}

/// A CONNECT that is refused: what to send, and why.
pub(super) struct Refusal {
    pub(super) packet: Vec<u8>,
    pub(super) ended: Ended,
}

pub(super) fn refuse(version: Option<Version>, reason: ReasonCode, text: &'static str) -> Refusal {
    refuse_within(PeerLimits::NONE, version, reason, text)
}

/// `limits` are the client's, where its CONNECT could be read `[MQTT-3.2.2-19]`.
pub(super) fn refuse_within(
    limits: PeerLimits,
    version: Option<Version>,
    reason: ReasonCode,
    text: &'static str,
) -> Refusal {
    let mut packet = Vec::new();
    // A protocol that is not ours gets the answer of the oldest version that has one `[MQTT-3.1.2-2]`.
    let version = version.unwrap_or(Version::V311);
    let properties = ConnAckProperties {
        reason_string: Some(text),
        ..ConnAckProperties::default()
    };
    let connack = ConnAck {
        properties,
        ..ConnAck::refused(reason)
    };
    // Some reasons have no MQTT 3 return code: the socket is closed without an answer.
    let _ = encode::connack(&mut packet, version, &connack, limits);
    Refusal {
        packet,
        ended: Ended::silent(DisconnectReason::Refused, text),
    }
}

pub(super) fn refuse_malformed(found: frame::Frame<'_>, error: DecodeError) -> Refusal {
    if error == DecodeError::FirstPacketNotConnect {
        // [MQTT-3.1.0-1]: no answer, this may not be MQTT at all.
        return Refusal {
            packet: Vec::new(),
            ended: Ended::silent(DisconnectReason::Protocol, error.text()),
        };
    }
    let refusal = refuse(sniff_version(found), error.reason(), error.text());
    Refusal {
        ended: Ended::from(error),
        ..refusal
    }
}

/// What the client asked for of packets that are sent to it.
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

/// What the session's queue may hold, as this node is configured.
fn bounds(config: &MqttConfig) -> command::QueueBounds {
    command::QueueBounds {
        max_messages: config.queue_max_messages,
        max_bytes: config.queue_max_bytes,
        policy: match config.queue_full {
            QueuePolicy::DropOldest => 0,
            QueuePolicy::DropNewest => 1,
            QueuePolicy::EndSession => 2,
        },
        qos_0: config.queue_qos_0,
    }
}

fn will(will: &Will<'_>) -> command::Will {
    command::Will {
        message: Some(command::PublishedMessage {
            topic: will.topic.to_owned(),
            qos: will.qos as u32,
            retain: will.retain,
            payload: Bytes::copy_from_slice(will.payload),
            properties: Bytes::copy_from_slice(&will.properties.forwardable()),
            expiry_interval_s: will.properties.message_expiry(),
        }),
        delay_s: will.delay,
    }
}

impl Opening {
    /// Checks a CONNECT and proposes the opening of its session. `login` is what its client has proved, if it was asked
    /// to.
    pub(super) fn begin(
        broker: &Arc<Broker>,
        connect: &Connect<'_>,
        login: Option<Login>,
    ) -> Result<Opening, Refusal> {
        let version = connect.version;
        let opening = Opening::of(broker, connect, login);
        let limits = opening.terms.limits;
        let refuse = |reason, text| Err(refuse_within(limits, Some(version), reason, text));
        if !broker.is_serving() {
            return refuse(ReasonCode::ServerUnavailable, NOT_IN_TOUCH);
        }
        if connect
            .will
            .as_ref()
            .is_some_and(|will| will.topic.starts_with('$'))
        {
            let text = "topics that begin with $ are the broker's own";
            return refuse(ReasonCode::NotAuthorized, text);
        }
        let command = command::OpenSession {
            client_id: opening.terms.client_id.to_string(),
            connection: opening.mailbox.connection.0,
            clean_start: connect.clean_start,
            expiry_interval_s: opening.terms.session_expiry,
            protocol_level: version.level().into(),
            will: connect.will.as_ref().map(will),
            receive_maximum: opening
                .receive_maximum
                .min(broker.config.max_inflight)
                .into(),
            bounds: Some(bounds(&broker.config)),
        };
        // Registered first, so that a take-over that follows at once finds the connection.
        broker.router.register(opening.mailbox.clone());
        let waiter = ReplyTo::Connection(opening.mailbox.clone(), OPENING);
        if broker
            .proposer
            .submit(command::command::Kind::OpenSession(command), waiter)
            .is_err()
        {
            broker.router.unregister(opening.mailbox.connection);
            return refuse(
                ReasonCode::ServerBusy,
                "too much is waiting to be committed",
            );
        }
        Ok(opening)
    }

    fn of(broker: &Arc<Broker>, connect: &Connect<'_>, login: Option<Login>) -> Opening {
        let config = &broker.config;
        let version = connect.version;
        // Clean session 0 of MQTT 3 is a session without end; clean session 1 ends with the connection.
        let asked_expiry = match (version.is_v5(), connect.clean_start) {
            (true, _) => connect.session_expiry.unwrap_or(0),
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        let assigned_client_id = connect.client_id.is_empty();
        let client_id: Arc<str> = if assigned_client_id {
            format!("auto-{}", uuid::Uuid::new_v4().simple()).into()
        } else {
            connect.client_id.into()
        };
        let limits = limits(connect);
        let response_information = connect
            .request_response_information
            .then(|| response_information(&config.response_information, &client_id))
            .flatten();
        let (proved, authentication_data) = match login {
            Some(login) => (Some(login.proved), login.data),
            None => (None, Vec::new()),
        };
        let terms = Terms {
            version,
            client_id,
            limits,
            proved,
            keep_alive: match config.max_keep_alive_s {
                0 => connect.keep_alive,
                max if connect.keep_alive == 0 || connect.keep_alive > max => max,
                _ => connect.keep_alive,
            },
            session_expiry: asked_expiry.min(config.session_expiry_max_s),
        };
        Opening {
            authentication_data,
            response_information,
            mailbox: Mailbox::new(
                broker.next_connection(),
                version,
                limits.max_packet_size,
                connect.topic_alias_maximum,
                broker.outbox.clone(),
            ),
            receive_maximum: connect
                .receive_maximum
                .map_or(DEFAULT_RECEIVE_MAXIMUM, |maximum| maximum.get()),
            asked_expiry,
            asked_keep_alive: connect.keep_alive,
            assigned_client_id,
            terms,
        }
    }

    /// Waits until the session is open and makes the connection, with its CONNACK in `out`.
    pub(super) async fn finish(self, broker: &Arc<Broker>) -> Result<Connection, Refusal> {
        std::future::poll_fn(|context| {
            self.mailbox.register(context.waker());
            if self.mailbox.is_filled() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        // Whatever else arrived meanwhile is for the connection.
        match self.mailbox.take_first_item() {
            Some(Item::Reply(
                OPENING,
                Reply::Opened {
                    session,
                    present,
                    durable,
                    received,
                    ..
                },
            )) => {
                let opened = Opened {
                    session,
                    durable,
                    receive_maximum: self.receive_maximum,
                    received,
                };
                let mut connection = Connection::new(
                    broker.clone(),
                    self.mailbox.clone(),
                    self.terms.clone(),
                    opened,
                );
                self.accept(broker, present, &mut connection)?;
                Ok(connection)
            }
            _ => Err(self.abandon(broker, ReasonCode::ServerUnavailable, NOT_IN_TOUCH)),
        }
    }

    /// The session may be open, or be opened yet, for a connection that is no more.
    fn abandon(&self, broker: &Broker, reason: ReasonCode, text: &'static str) -> Refusal {
        broker.router.unregister(self.mailbox.connection);
        let close = command::CloseSession {
            client_id: self.terms.client_id.to_string(),
            connection: self.mailbox.connection.0,
            expiry_interval_s: None,
            discard_will: true,
            sent_through: 0,
        };
        broker
            .proposer
            .submit_always(command::command::Kind::CloseSession(close), ReplyTo::Nobody);
        refuse_within(self.terms.limits, Some(self.terms.version), reason, text)
    }

    fn accept(
        &self,
        broker: &Broker,
        session_present: bool,
        connection: &mut Connection,
    ) -> Result<(), Refusal> {
        let config = &broker.config;
        let terms = &self.terms;
        let properties = ConnAckProperties {
            session_expiry: (terms.session_expiry != self.asked_expiry)
                .then_some(terms.session_expiry),
            receive_maximum: std::num::NonZeroU16::new(config.receive_maximum),
            maximum_packet_size: std::num::NonZeroU32::new(config.max_packet_size_bytes),
            assigned_client_id: self.assigned_client_id.then_some(&*terms.client_id),
            topic_alias_maximum: Some(config.topic_alias_maximum),
            server_keep_alive: (terms.keep_alive != self.asked_keep_alive)
                .then_some(terms.keep_alive),
            response_information: self.response_information.as_deref(),
            authentication_method: terms.proved.as_ref().map(|proved| &*proved.method),
            authentication_data: Some(&*self.authentication_data).filter(|data| !data.is_empty()),
            ..ConnAckProperties::default()
        };
        let mut connack = ConnAck {
            properties,
            ..ConnAck::accepted(session_present)
        };
        let out = &mut connection.out;
        let written = encode::connack(out, terms.version, &connack, terms.limits).or_else(|_| {
            // A hint gives way where there is no room for it.
            connack.properties.response_information = None;
            encode::connack(out, terms.version, &connack, terms.limits)
        });
        match written {
            Ok(_) => Ok(()),
            // The client's maximum packet size is too small for what it must be told.
            Err(_) => {
                let text = "the CONNACK is larger than the client accepts";
                Err(self.abandon(broker, ReasonCode::PacketTooLarge, text))
            }
        }
    }
}
