//! A connected client: publish, subscribe, receive. Connecting tries one server after another.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;
use super::error::ClientError;
use super::handshake::{self, Accepted};
use super::message::{Message, Outgoing};
use super::options::Options;
use crate::codec::client::{self, Packet};
use crate::codec::{
    Ack, Disconnect, FilterRequest, Filters, PacketId, PeerLimits, Property, Publish,
    PublishPropertiesBuf, QoS, ReasonCode, Subscribe, SubscriptionOptions, UserProperties, Version,
    encode,
};

const VERSION: Version = Version::V5;

/// How the server answered one of our packets.
#[derive(Clone, Debug)]
struct Answered {
    reason: ReasonCode,
    detail: Option<String>,
}

impl Answered {
    fn new(reason: ReasonCode, detail: Option<&str>) -> Answered {
        Answered {
            reason,
            detail: detail.map(str::to_owned),
        }
    }
}

/// A connected client. Dropping it closes the connection without DISCONNECT.
pub struct Client {
    connection: Connection,
    keep_alive: Option<Duration>,
    last_sent: Instant,
    next_id: PacketId,
    arrived: VecDeque<Message>,
    answered: HashMap<PacketId, Answered>,
    /// Packet ids of QoS 2 messages that were handed out and whose PUBREL has not arrived: a repetition is dropped.
    unreleased: HashSet<PacketId>,
}

impl Client {
    /// Tries the servers in turn, starting with number `first`, until one accepts.
    ///
    /// # Errors
    /// The last error when no server accepts; at once, a refusal that every other server would repeat.
    pub async fn connect(options: &Options, first: usize) -> Result<Client, ClientError> {
        let mut last = ClientError::Unreachable("no server is given".into());
        for offset in 0..options.servers.len() {
            let server = &options.servers[(first + offset) % options.servers.len()];
            match handshake::connect(options, server).await {
                Ok(accepted) => return Ok(Client::new(accepted)),
                Err(error) if error.is_transient() => {
                    // "There is no leader" tells the user more than "nobody listens".
                    if !matches!(last, ClientError::NoLeader(_)) {
                        last = error;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn new(accepted: Accepted) -> Client {
        Client {
            connection: accepted.connection,
            keep_alive: accepted.keep_alive,
            last_sent: Instant::now(),
            next_id: NonZeroU16::MIN,
            arrived: VecDeque::new(),
            answered: HashMap::new(),
            unreleased: HashSet::new(),
        }
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

    async fn send(&mut self, message: &Outgoing<'_>) -> Result<Option<PacketId>, ClientError> {
        let packet_id = (message.qos != QoS::AtMostOnce).then(|| self.packet_id());
        let properties = properties(message)?;
        let packet = Publish {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            topic: message.topic,
            packet_id,
            properties: properties.as_properties()?,
            payload: message.payload,
        };
        client::publish(&mut self.connection.output, VERSION, &packet)?;
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
        client::subscribe(&mut self.connection.output, VERSION, &packet)?;
        self.flush().await?;
        self.acknowledged(packet_id).await.map(|_| ())
    }

    /// The next message. Cancel safe.
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

    /// Says DISCONNECT and closes.
    ///
    /// # Errors
    /// A connection that is lost already.
    pub async fn disconnect(mut self) -> Result<(), ClientError> {
        let packet = Disconnect::new(ReasonCode::Success);
        client::disconnect(
            &mut self.connection.output,
            VERSION,
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
    async fn step(&mut self) -> Result<(), ClientError> {
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

    /// Handles the packet that has arrived, and sends what it asks for.
    async fn handle(&mut self) -> Result<(), ClientError> {
        let mut reply = Vec::new();
        match self.connection.packet()? {
            Packet::Publish(packet) => {
                let message = Message::from_packet(&packet);
                acknowledge(&message, &mut reply)?;
                let first_time = match (message.qos, message.packet_id) {
                    (QoS::ExactlyOnce, Some(id)) => self.unreleased.insert(id),
                    _ => true,
                };
                if first_time {
                    self.arrived.push_back(message);
                }
            }
            Packet::PubRec(ack) if (ack.reason as u8) < 0x80 => {
                let release = Ack::success(ack.packet_id);
                encode::pubrel(&mut reply, VERSION, &release, PeerLimits::NONE)?;
            }
            Packet::PubAck(ack) | Packet::PubComp(ack) | Packet::PubRec(ack) => {
                let answer = Answered::new(ack.reason, ack.reason_string);
                self.answered.insert(ack.packet_id, answer);
            }
            Packet::PubRel(ack) => {
                let complete = Ack::success(ack.packet_id);
                encode::pubcomp(&mut reply, VERSION, &complete, PeerLimits::NONE)?;
                self.unreleased.remove(&ack.packet_id);
            }
            Packet::SubAck(ack) => {
                let mut reasons = ack.reasons.iter().copied();
                let refused = reasons.find(|reason| *reason as u8 >= 0x80);
                let reason = refused.unwrap_or(ReasonCode::Success);
                let answer = Answered::new(reason, ack.reason_string);
                self.answered.insert(ack.packet_id, answer);
            }
            Packet::Disconnect(packet) => {
                let error = ClientError::from_reason(packet.reason, packet.reason_string);
                return Err(match error {
                    ClientError::NoLeader(_) => error,
                    other => ClientError::Closed(other.to_string()),
                });
            }
            Packet::PingResp => {}
            Packet::ConnAck(_) | Packet::Auth(_) | Packet::UnsubAck(_) => {
                return Err(ClientError::Protocol("a packet out of its place".into()));
            }
        }
        if !reply.is_empty() {
            self.connection.output.append(&mut reply);
            self.flush().await?;
        }
        Ok(())
    }
}

/// Encodes the acknowledgement that a message's QoS asks for.
fn acknowledge(message: &Message, out: &mut Vec<u8>) -> Result<(), ClientError> {
    let Some(id) = message.packet_id else {
        return Ok(());
    };
    let ack = Ack::success(id);
    match message.qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce => encode::puback(out, VERSION, &ack, PeerLimits::NONE)?,
        QoS::ExactlyOnce => encode::pubrec(out, VERSION, &ack, PeerLimits::NONE)?,
    };
    Ok(())
}

fn properties(message: &Outgoing<'_>) -> Result<PublishPropertiesBuf, ClientError> {
    let mut list = PublishPropertiesBuf::new();
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
    Ok(list)
}
