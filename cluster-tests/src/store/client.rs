//! One client: requests, one after the other, over one connection at a time.

use super::notification::Notification;
use super::reply::{CallOutcome, Reply};
use super::request::Request;
use crate::connection::{Connection, Fault};
use crate::wire::{self, Connect, Message, Packet, Properties, Publish, Value, id};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Topic of every request.
pub const INVOKE: &str = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke";

/// A state store client, closed loop.
pub struct StoreClient {
    pub client_id: String,
    pub response_topic: String,
    pub notifications: Vec<Notification>,
    addresses: Vec<SocketAddr>,
    /// Which address is used now.
    at: usize,
    connection: Option<Connection>,
    sequence: u64,
    /// Changed by every connect: how many there were.
    pub connects: usize,
}

impl StoreClient {
    /// A client that goes to the next address when one fails. It does not connect yet.
    pub fn new(client_id: &str, addresses: &[SocketAddr], first: usize) -> Self {
        Self {
            client_id: client_id.to_owned(),
            response_topic: format!(
                "clients/{client_id}/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response"
            ),
            notifications: Vec::new(),
            addresses: addresses.to_vec(),
            at: first,
            connection: None,
            sequence: 0,
            connects: 0,
        }
    }

    /// A client that is connected to one node.
    #[track_caller]
    pub fn connected(client_id: &str, address: SocketAddr) -> Self {
        let mut client = Self::new(client_id, &[address], 0);
        if let Err(fault) = client.ensure_connected(crate::connection::TIMEOUT) {
            panic!("{client_id} to {address}: {fault:?}");
        }
        client
    }

    /// The same, where the node may refuse.
    pub fn connected_or_none(client_id: &str, address: SocketAddr) -> Option<Self> {
        let mut client = Self::new(client_id, &[address], 0);
        client.ensure_connected(Duration::from_secs(2)).ok()?;
        Some(client)
    }

    pub fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the client is connected")
    }

    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[self.at % self.addresses.len()]
    }

    /// Drops the connection; the next request goes to the next address.
    pub fn fail_over(&mut self) {
        self.connection = None;
        self.at += 1;
    }

    /// Connects as the SDKs do (clean start 0, an hour of session expiry), and subscribes where no session was present.
    pub fn ensure_connected(&mut self, within: Duration) -> Result<(), Fault> {
        if self.connection.is_some() {
            return Ok(());
        }
        let address = self.address();
        let connect = Connect::v5(&self.client_id)
            .durable(3600)
            .with(id::RECEIVE_MAXIMUM, Value::TwoBytes(65_535));
        let (mut connection, connack) = Connection::try_connect_within(address, &connect, within)?;
        if connack.code != 0 {
            return Err(Fault::Wrong(format!("CONNACK {:#04x}", connack.code)));
        }
        let packet_id = connection.packet_id();
        let filters = [(self.response_topic.as_str(), 1)];
        connection.try_send(&wire::subscribe(
            wire::V5,
            packet_id,
            &Properties::new(),
            &filters,
        ))?;
        let deadline = Instant::now() + within;
        loop {
            match connection.receive(deadline.saturating_duration_since(Instant::now()))? {
                Packet::Suback(suback) if suback.codes == [1] => break,
                // An answer to a request of an earlier connection; the session may hold some.
                Packet::Publish(publish) if publish.qos == 1 => {
                    connection.try_send(&wire::acknowledgement(wire::PUBACK, publish.packet_id))?;
                }
                Packet::Publish(_) => {}
                other => return Err(Fault::Wrong(format!("instead of SUBACK: {other:?}"))),
            }
        }
        self.connection = Some(connection);
        self.connects += 1;
        Ok(())
    }

    /// 16 bytes that this client uses once.
    pub fn correlation(&mut self) -> Vec<u8> {
        self.sequence += 1;
        let mut bytes = self.sequence.to_be_bytes().to_vec();
        let tail = self.client_id.as_bytes();
        bytes.extend((0..8).map(|i| tail.get(i).copied().unwrap_or(b'.')));
        bytes
    }

    /// The PUBLISH of a request, as the SDKs send it.
    pub fn message(&self, request: &Request, correlation: &[u8], packet_id: u16) -> Message {
        let mut message = Message::new(INVOKE, &request.payload)
            .qos(1, packet_id)
            .with(
                id::CONTENT_TYPE,
                Value::Text("application/octet-stream".into()),
            )
            .with(id::RESPONSE_TOPIC, Value::Text(self.response_topic.clone()))
            .with(id::CORRELATION_DATA, Value::Binary(correlation.to_vec()))
            .with(id::MESSAGE_EXPIRY, Value::FourBytes(10))
            .user("__srcId", &self.client_id)
            .user("__protVer", "1.0")
            .user("$partition", &self.client_id);
        if let Some(timestamp) = &request.timestamp {
            message = message.user("__ts", timestamp);
        }
        if let Some(token) = &request.fencing_token {
            message = message.user("__ft", token);
        }
        message
    }

    /// Sends a request and waits for its answer; connects first where it must. On failure the connection is given up.
    pub fn try_call(&mut self, request: &Request, within: Duration) -> CallOutcome {
        let correlation = self.correlation();
        self.try_call_as(request, &correlation, false, within)
    }

    /// The same with given correlation data: a request sent again has that of the first time, and DUP.
    pub fn try_call_as(
        &mut self,
        request: &Request,
        correlation: &[u8],
        duplicate: bool,
        within: Duration,
    ) -> CallOutcome {
        let deadline = Instant::now() + within;
        if self.ensure_connected(within).is_err() {
            self.fail_over();
            return CallOutcome::NotSent;
        }
        match self.exchange(request, correlation, duplicate, deadline) {
            Ok(outcome) => outcome,
            Err(_) => {
                self.fail_over();
                CallOutcome::Unknown
            }
        }
    }

    fn exchange(
        &mut self,
        request: &Request,
        correlation: &[u8],
        duplicate: bool,
        deadline: Instant,
    ) -> Result<CallOutcome, Fault> {
        let packet_id = self.connection().packet_id();
        let mut message = self.message(request, correlation, packet_id);
        message.duplicate = duplicate;
        self.connection().try_send(&message.bytes(wire::V5))?;
        let mut acknowledged = false;
        let mut answer = None;
        while !(acknowledged && answer.is_some()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.connection().receive(left)? {
                Packet::Puback(ack) if ack.packet_id == packet_id => {
                    if ack.code >= 0x80 {
                        return Ok(CallOutcome::Refused(ack.code));
                    }
                    acknowledged = true;
                }
                Packet::Publish(publish) => {
                    if let Some(reply) = self.take_publish(publish, correlation)? {
                        answer = Some(reply);
                    }
                }
                other => return Err(Fault::Wrong(format!("{other:?}"))),
            }
        }
        Ok(answer.map_or(CallOutcome::Unknown, CallOutcome::Answered))
    }

    /// Acknowledges a PUBLISH and sorts it: an answer to `correlation`, a notification, or an old answer.
    fn take_publish(
        &mut self,
        publish: Publish,
        correlation: &[u8],
    ) -> Result<Option<Reply>, Fault> {
        if publish.qos == 1 {
            let ack = wire::acknowledgement(wire::PUBACK, publish.packet_id);
            self.connection().try_send(&ack)?;
        }
        if publish.topic == self.response_topic {
            let ours = publish.properties.binary(id::CORRELATION_DATA) == Some(correlation);
            return Ok(ours.then(|| Reply::read(publish)));
        }
        let notification = Notification::read(&self.client_id, &publish).map_err(Fault::Wrong)?;
        self.notifications.push(notification);
        Ok(None)
    }

    /// Takes in what has arrived without being asked for, for that long or until `enough` says so.
    pub fn listen(
        &mut self,
        within: Duration,
        mut enough: impl FnMut(&[Notification]) -> bool,
    ) -> Result<(), Fault> {
        let deadline = Instant::now() + within;
        while !enough(&self.notifications) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.connection().receive(left)? {
                Packet::Publish(publish) => {
                    self.take_publish(publish, b"")?;
                }
                other => return Err(Fault::Wrong(format!("{other:?}"))),
            }
        }
        Ok(())
    }

    /// An answer that must come.
    #[track_caller]
    pub fn call(&mut self, request: &Request) -> Reply {
        match self.try_call(request, crate::connection::TIMEOUT) {
            CallOutcome::Answered(reply) => reply,
            other => panic!("{:?}: {other:?}", String::from_utf8_lossy(&request.payload)),
        }
    }

    /// Repeats one request, same correlation data, over all nodes until it is answered.
    #[track_caller]
    pub fn call_until_answered(&mut self, request: &Request, within: Duration) -> Reply {
        let correlation = self.correlation();
        let deadline = Instant::now() + within;
        let mut again = false;
        loop {
            let timeout = Duration::from_secs(2);
            match self.try_call_as(request, &correlation, again, timeout) {
                CallOutcome::Answered(reply) => return reply,
                outcome => assert!(
                    Instant::now() < deadline,
                    "{:?} unanswered for {within:?}, last {outcome:?}",
                    String::from_utf8_lossy(&request.payload)
                ),
            }
            again = true;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The answer's exact bytes.
    #[track_caller]
    pub fn expect(&mut self, request: &Request, wanted: impl AsRef<[u8]>) -> Reply {
        let reply = self.call(request);
        assert_eq!(
            String::from_utf8_lossy(&reply.payload),
            String::from_utf8_lossy(wanted.as_ref()),
            "answer to {:?}",
            String::from_utf8_lossy(&request.payload)
        );
        assert_eq!(reply.payload, wanted.as_ref());
        reply
    }

    /// `-ERR text`.
    #[track_caller]
    pub fn expect_error(&mut self, request: &Request, text: &str) -> Reply {
        self.expect(request, format!("-ERR {text}\r\n"))
    }

    pub fn disconnect(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.disconnect();
        }
    }
}
