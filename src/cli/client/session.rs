//! A connected client: publish, subscribe, receive. Connecting tries one server after another.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;
use super::error::ClientError;
use super::login::Login;
use super::message::{Message, Outgoing};
use crate::auth::scram;
use crate::codec::client::{self, Packet};
use crate::codec::{
    Ack, Connect, Disconnect, FilterRequest, Filters, PacketId, PeerLimits, Property, Publish,
    PublishProperties, PublishPropertiesBuf, QoS, ReasonCode, Subscribe, SubscriptionOptions,
    UserProperties, Version, encode,
};
use crate::config::Address;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers to try, in this order; a reconnect starts with the one after the last.
    pub servers: Vec<Address>,
    /// Client identifier.
    pub client_id: String,
    /// Protocol version.
    pub version: Version,
    /// Seconds; 0 turns the keep-alive off.
    pub keep_alive_s: u16,
    /// Whether to forget an earlier session.
    pub clean_start: bool,
    /// Seconds a session outlives its connection.
    pub session_expiry_s: u32,
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Log in with SCRAM-SHA-256: the password is proved, not sent. MQTT 5 only.
    pub scram: bool,
    /// Longest time for one server to accept TCP and CONNECT.
    pub connect_timeout: Duration,
}

impl Options {
    /// MQTT 5 with a fresh session that ends with its connection.
    pub fn new(servers: Vec<Address>, client_id: String) -> Options {
        Options {
            servers,
            client_id,
            version: Version::V5,
            keep_alive_s: 30,
            clean_start: true,
            session_expiry_s: 0,
            username: None,
            password: None,
            scram: false,
            connect_timeout: Duration::from_secs(3),
        }
    }
}

/// What an answer to CONNECT means that is not an accepting CONNACK.
pub(super) fn refusal(packet: &Packet<'_>) -> ClientError {
    match packet {
        Packet::ConnAck(ack) => ClientError::from_reason(ack.reason, ack.properties.reason_string),
        _ => ClientError::Protocol("the first packet is not CONNACK".into()),
    }
}

/// What the server said about a packet of ours.
#[derive(Clone, Debug)]
struct Answered {
    reason: ReasonCode,
    detail: Option<String>,
}

/// A connected client. Dropping it closes the connection without DISCONNECT.
pub struct Client {
    connection: Connection,
    version: Version,
    keep_alive: Option<Duration>,
    last_sent: Instant,
    next_id: PacketId,
    session_present: bool,
    arrived: VecDeque<Message>,
    answered: HashMap<PacketId, Answered>,
    /// QoS 2 messages whose PUBREL is still to come: delivered once.
    unreleased: HashSet<PacketId>,
    /// Acknowledgements nobody waits for, so that they are not kept.
    unattended: HashSet<PacketId>,
}

impl Client {
    /// Connects to the first of the servers that accepts, starting with number `first`.
    ///
    /// # Errors
    /// What the last server answered when none accepts; a refusal that another server would repeat, at once.
    pub async fn connect(options: &Options, first: usize) -> Result<Client, ClientError> {
        let mut last = ClientError::Unreachable("no server is given".into());
        for offset in 0..options.servers.len() {
            let address = &options.servers[(first + offset) % options.servers.len()];
            match Client::connect_to(options, address).await {
                Ok(client) => return Ok(client),
                Err(error) if error.is_transient() => {
                    // "There is no leader" says more than "nobody listens".
                    if !matches!(last, ClientError::NoLeader(_)) {
                        last = error;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    async fn connect_to(options: &Options, address: &Address) -> Result<Client, ClientError> {
        let limit = options.connect_timeout;
        let mut connection = Connection::open(address, options.version, limit).await?;
        let mut login = Login::begin(options)?;
        let first = login.as_ref().map(|login| login.first());
        let mut connect = Connect {
            clean_start: options.clean_start,
            keep_alive: options.keep_alive_s,
            session_expiry: (options.version.is_v5() && options.session_expiry_s > 0)
                .then_some(options.session_expiry_s),
            ..Connect::new(options.version, &options.client_id)
        };
        match &first {
            Some(first) => {
                connect.authentication_method = Some(scram::NAME);
                connect.authentication_data = Some(first.as_bytes());
            }
            None => {
                connect.username = options.username.as_deref();
                connect.password = options.password.as_deref().map(str::as_bytes);
            }
        }
        client::connect(&mut connection.output, &connect)?;
        let handshake = async {
            connection.flush().await?;
            if let Some(login) = &mut login {
                login.answer(&mut connection).await?;
            }
            connection.fill().await?;
            match connection.packet()? {
                Packet::ConnAck(ack) if ack.reason == ReasonCode::Success => {
                    if let Some(login) = &login {
                        login.verify(ack.properties.authentication_data)?;
                    }
                    let keep_alive = ack.properties.server_keep_alive;
                    Ok((
                        ack.session_present,
                        keep_alive.unwrap_or(options.keep_alive_s),
                    ))
                }
                packet => Err(refusal(&packet)),
            }
        };
        let (session_present, keep_alive_s) = tokio::time::timeout(limit, handshake)
            .await
            .unwrap_or_else(|_| {
                Err(ClientError::Closed(format!(
                    "{address} did not answer CONNECT"
                )))
            })?;
        Ok(Client {
            connection,
            version: options.version,
            keep_alive: (keep_alive_s > 0).then(|| Duration::from_secs(keep_alive_s.into())),
            last_sent: Instant::now(),
            next_id: NonZeroU16::MIN,
            session_present,
            arrived: VecDeque::new(),
            answered: HashMap::new(),
            unreleased: HashSet::new(),
            unattended: HashSet::new(),
        })
    }

    /// Whether the server had a session of this client.
    pub fn session_present(&self) -> bool {
        self.session_present
    }

    fn packet_id(&mut self) -> PacketId {
        let id = self.next_id;
        self.next_id = id.checked_add(1).unwrap_or(NonZeroU16::MIN);
        id
    }

    /// Sends a message and waits for what its QoS promises. Returns the reason code of the acknowledgement.
    ///
    /// # Errors
    /// A refusal, a lost connection, or a message that fits no packet.
    pub async fn publish(&mut self, message: &Outgoing<'_>) -> Result<ReasonCode, ClientError> {
        let Some(id) = self.send(message).await? else {
            return Ok(ReasonCode::Success);
        };
        self.acknowledged(id).await
    }

    /// Sends a message without waiting. Its acknowledgement is not kept.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub async fn publish_unattended(&mut self, message: &Outgoing<'_>) -> Result<(), ClientError> {
        if let Some(id) = self.send(message).await? {
            self.unattended.insert(id);
        }
        Ok(())
    }

    async fn send(&mut self, message: &Outgoing<'_>) -> Result<Option<PacketId>, ClientError> {
        let packet_id = (message.qos != QoS::AtMostOnce).then(|| self.packet_id());
        let mut list = PublishPropertiesBuf::new();
        if self.version.is_v5() {
            properties(message, &mut list)?;
        }
        let properties = match self.version.is_v5() {
            true => list.as_properties()?,
            false => PublishProperties::EMPTY,
        };
        let packet = Publish {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            topic: message.topic,
            packet_id,
            properties,
            payload: message.payload,
        };
        client::publish(&mut self.connection.output, self.version, &packet)?;
        self.flush().await?;
        Ok(packet_id)
    }

    async fn acknowledged(&mut self, id: PacketId) -> Result<ReasonCode, ClientError> {
        loop {
            if let Some(Answered { reason, detail }) = self.answered.remove(&id) {
                if reason as u8 >= 0x80 {
                    return Err(ClientError::from_reason(reason, detail.as_deref()));
                }
                return Ok(reason);
            }
            self.step().await?;
        }
    }

    /// Subscribes to filters and waits for SUBACK.
    ///
    /// # Errors
    /// The first filter that was refused, or a lost connection.
    pub async fn subscribe(
        &mut self,
        filters: &[&str],
        options: SubscriptionOptions,
    ) -> Result<(), ClientError> {
        let packet_id = self.packet_id();
        let requests: Vec<_> = filters
            .iter()
            .map(|filter| FilterRequest { filter, options })
            .collect();
        let packet = Subscribe {
            packet_id,
            subscription_id: None,
            user_properties: UserProperties::NONE,
            filters: Filters::from_slice(&requests),
        };
        client::subscribe(&mut self.connection.output, self.version, &packet)?;
        self.flush().await?;
        self.acknowledged(packet_id).await.map(|_| ())
    }

    /// The next message. Cancelling loses nothing.
    ///
    /// # Errors
    /// A lost connection.
    pub async fn next(&mut self) -> Result<Message, ClientError> {
        loop {
            if let Some(message) = self.arrived.pop_front() {
                return Ok(message);
            }
            self.step().await?;
        }
    }

    /// A message that has already arrived.
    pub fn take_arrived(&mut self) -> Option<Message> {
        self.arrived.pop_front()
    }

    /// Says DISCONNECT and closes.
    ///
    /// # Errors
    /// A connection that is lost already.
    pub async fn disconnect(mut self) -> Result<(), ClientError> {
        let packet = Disconnect::new(ReasonCode::Success);
        client::disconnect(
            &mut self.connection.output,
            self.version,
            &packet,
            PeerLimits::NONE,
        )?;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), ClientError> {
        self.last_sent = Instant::now();
        self.connection.flush().await
    }

    /// Receives one packet, or sends a PINGREQ when nothing was sent for the keep-alive.
    pub(super) async fn step(&mut self) -> Result<(), ClientError> {
        let silence = self
            .keep_alive
            .map(|keep_alive| self.last_sent + keep_alive);
        let filled = match silence {
            Some(deadline) => tokio::time::timeout_at(deadline, self.connection.fill()).await,
            None => Ok(self.connection.fill().await),
        };
        match filled {
            Ok(filled) => filled?,
            Err(_) => {
                client::pingreq(&mut self.connection.output);
                return self.flush().await;
            }
        }
        self.handle().await
    }

    async fn handle(&mut self) -> Result<(), ClientError> {
        let mut reply = Vec::new();
        match self.connection.packet()? {
            Packet::Publish(packet) => {
                let message = Message::from_packet(&packet);
                acknowledge(self.version, &message, &mut reply)?;
                let fresh = match (message.qos, message.packet_id) {
                    (QoS::ExactlyOnce, Some(id)) => self.unreleased.insert(id),
                    _ => true,
                };
                if fresh {
                    self.arrived.push_back(message);
                }
            }
            Packet::PubAck(ack) | Packet::PubComp(ack) => {
                let (id, answer) = answered(&ack);
                self.settle(id, answer);
            }
            Packet::PubRec(ack) if ack.reason as u8 >= 0x80 => {
                let (id, answer) = answered(&ack);
                self.settle(id, answer);
            }
            Packet::PubRec(ack) => {
                let release = Ack::success(ack.packet_id);
                encode::pubrel(&mut reply, self.version, &release, PeerLimits::NONE)?;
            }
            Packet::PubRel(ack) => {
                let id = ack.packet_id;
                encode::pubcomp(
                    &mut reply,
                    self.version,
                    &Ack::success(id),
                    PeerLimits::NONE,
                )?;
                self.unreleased.remove(&id);
            }
            Packet::SubAck(ack) => {
                let refused = ack
                    .reasons
                    .iter()
                    .copied()
                    .find(|reason| *reason as u8 >= 0x80);
                let reason = refused.unwrap_or(ReasonCode::Success);
                let detail = ack.reason_string.map(str::to_owned);
                self.answered
                    .insert(ack.packet_id, Answered { reason, detail });
            }
            Packet::UnsubAck(ack) => {
                let id = ack.packet_id;
                let answer = Answered {
                    reason: ReasonCode::Success,
                    detail: None,
                };
                self.settle(id, answer);
            }
            Packet::Disconnect(packet) => {
                let error = ClientError::from_reason(packet.reason, packet.reason_string);
                return Err(match error {
                    ClientError::NoLeader(_) => error,
                    other => ClientError::Closed(other.to_string()),
                });
            }
            Packet::PingResp => {}
            Packet::ConnAck(_) | Packet::Auth(_) => {
                return Err(ClientError::Protocol("a packet out of its place".into()));
            }
        }
        if !reply.is_empty() {
            self.connection.output.append(&mut reply);
            self.flush().await?;
        }
        Ok(())
    }

    fn settle(&mut self, id: PacketId, answer: Answered) {
        if !self.unattended.remove(&id) {
            self.answered.insert(id, answer);
        }
    }
}

fn answered(ack: &Ack<'_>) -> (PacketId, Answered) {
    let detail = ack.reason_string.map(str::to_owned);
    (
        ack.packet_id,
        Answered {
            reason: ack.reason,
            detail,
        },
    )
}

fn acknowledge(version: Version, message: &Message, out: &mut Vec<u8>) -> Result<(), ClientError> {
    let Some(id) = message.packet_id else {
        return Ok(());
    };
    let ack = Ack::success(id);
    match message.qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce => encode::puback(out, version, &ack, PeerLimits::NONE)?,
        QoS::ExactlyOnce => encode::pubrec(out, version, &ack, PeerLimits::NONE)?,
    };
    Ok(())
}

fn properties(message: &Outgoing<'_>, list: &mut PublishPropertiesBuf) -> Result<(), ClientError> {
    if let Some(seconds) = message.message_expiry_s {
        list.push(Property::MessageExpiryInterval(seconds))?;
    }
    if let Some(text) = message.content_type {
        list.push(Property::ContentType(text))?;
    }
    if let Some(topic) = message.response_topic {
        list.push(Property::ResponseTopic(topic))?;
    }
    if let Some(data) = message.correlation_data {
        list.push(Property::CorrelationData(data))?;
    }
    for (name, value) in &message.user_properties {
        list.push_user(name, value)?;
    }
    Ok(())
}
