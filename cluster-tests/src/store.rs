//! A state store client: requests as PUBLISHes to the invoke topic, answers on a response topic, notifications.
//!
//! What it does not know it says: a request whose answer did not come is [`Outcome::Unknown`], never failed.

use crate::connection::{Connection, Fault};
use crate::wire::{self, Connect, Message, Packet, Properties, Publish, Value, id};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Topic of every request.
pub const INVOKE: &str = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke";

/// A version or token: `wall:counter:node`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hlc {
    pub wall_ms: u64,
    pub counter: u64,
    pub node: String,
}

impl Hlc {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let wall_ms = parts.next()?.parse().ok()?;
        let counter = parts.next()?.parse().ok()?;
        let node = parts.next()?;
        (!node.is_empty() && !node.contains(':')).then(|| Self {
            wall_ms,
            counter,
            node: node.to_owned(),
        })
    }

    /// The client's clock, counter 0.
    pub fn now(node: &str) -> Self {
        Self::ahead(node, 0)
    }

    /// The client's clock moved by that many milliseconds.
    pub fn ahead(node: &str, by_ms: i64) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("the clock is past 1970");
        let now_ms = i64::try_from(now.as_millis()).expect("milliseconds since 1970 fit 63 bits");
        Self {
            wall_ms: u64::try_from(now_ms + by_ms).expect("the clock stays past 1970"),
            counter: 0,
            node: node.to_owned(),
        }
    }
}

impl std::fmt::Display for Hlc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:015}:{:05}:{}", self.wall_ms, self.counter, self.node)
    }
}

/// A RESP3 array of blob strings.
pub fn resp<A: AsRef<[u8]>>(items: impl IntoIterator<Item = A>) -> Vec<u8> {
    let items: Vec<A> = items.into_iter().collect();
    let mut bytes = format!("*{}\r\n", items.len()).into_bytes();
    for item in items {
        let item = item.as_ref();
        bytes.extend(format!("${}\r\n", item.len()).into_bytes());
        bytes.extend(item);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A blob string.
pub fn blob(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Upper-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// A request; the client adds response topic, correlation data and what else is missing.
#[derive(Debug, Clone)]
pub struct Request {
    pub payload: Vec<u8>,
    /// `__ts`; `None` sends none.
    pub timestamp: Option<String>,
    /// `__ft`.
    pub fencing_token: Option<String>,
}

impl Request {
    /// The items as a RESP3 array, with the client's clock as `__ts`.
    pub fn of<A: AsRef<[u8]>>(items: impl IntoIterator<Item = A>) -> Self {
        Self::raw(resp(items))
    }

    /// Any payload.
    pub fn raw(payload: impl AsRef<[u8]>) -> Self {
        Self {
            payload: payload.as_ref().to_vec(),
            timestamp: Some(Hlc::now("client").to_string()),
            fencing_token: None,
        }
    }

    pub fn at(mut self, timestamp: &str) -> Self {
        self.timestamp = Some(timestamp.to_owned());
        self
    }

    pub fn without_timestamp(mut self) -> Self {
        self.timestamp = None;
        self
    }

    pub fn fenced(mut self, token: &str) -> Self {
        self.fencing_token = Some(token.to_owned());
        self
    }

    pub fn set(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self::of([b"SET", key.as_ref(), value.as_ref()])
    }

    pub fn get(key: impl AsRef<[u8]>) -> Self {
        Self::of([b"GET", key.as_ref()])
    }

    pub fn del(key: impl AsRef<[u8]>) -> Self {
        Self::of([b"DEL", key.as_ref()])
    }

    pub fn vdel(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self::of([b"VDEL", key.as_ref(), value.as_ref()])
    }

    pub fn keynotify(key: impl AsRef<[u8]>) -> Self {
        Self::of([b"KEYNOTIFY", key.as_ref()])
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub payload: Vec<u8>,
    /// `__ts`.
    pub version: Option<Hlc>,
    pub publish: Publish,
}

/// A change of a watched key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    pub key: Vec<u8>,
    /// `None`: deleted or expired.
    pub value: Option<Vec<u8>>,
    pub version: Hlc,
    pub received: Instant,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Answered(Reply),
    /// A PUBACK with a failing code: not executed.
    Refused(u8),
    /// No connection: not executed.
    NotSent,
    /// No answer: executed or not.
    Unknown,
}

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
        if let Err(fault) = client.ensure_connected(crate::connection::PATIENCE) {
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
    pub fn hop(&mut self) {
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
    pub fn try_call(&mut self, request: &Request, within: Duration) -> Outcome {
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
    ) -> Outcome {
        let deadline = Instant::now() + within;
        if self.ensure_connected(within).is_err() {
            self.hop();
            return Outcome::NotSent;
        }
        match self.exchange(request, correlation, duplicate, deadline) {
            Ok(outcome) => outcome,
            Err(_) => {
                self.hop();
                Outcome::Unknown
            }
        }
    }

    fn exchange(
        &mut self,
        request: &Request,
        correlation: &[u8],
        duplicate: bool,
        deadline: Instant,
    ) -> Result<Outcome, Fault> {
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
                        return Ok(Outcome::Refused(ack.code));
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
        Ok(answer.map_or(Outcome::Unknown, Outcome::Answered))
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
            return Ok(ours.then(|| reply(publish)));
        }
        let notification = notification(&self.client_id, &publish).map_err(Fault::Wrong)?;
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
        match self.try_call(request, crate::connection::PATIENCE) {
            Outcome::Answered(reply) => reply,
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
            let patience = Duration::from_secs(2);
            match self.try_call_as(request, &correlation, again, patience) {
                Outcome::Answered(reply) => return reply,
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

fn reply(publish: Publish) -> Reply {
    let version = publish
        .properties
        .user_values("__ts")
        .first()
        .and_then(|text| Hlc::parse(text));
    Reply {
        payload: publish.payload.clone(),
        version,
        publish,
    }
}

fn notification(client_id: &str, publish: &Publish) -> Result<Notification, String> {
    let prefix = format!(
        "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/{}/command/notify/",
        hex(client_id.as_bytes())
    );
    let key = publish
        .topic
        .strip_prefix(&prefix)
        .and_then(unhex)
        .ok_or_else(|| format!("a PUBLISH to {:?} was not asked for", publish.topic))?;
    let value = parse_notification(&publish.payload).ok_or_else(|| {
        format!(
            "notification {:?}",
            String::from_utf8_lossy(&publish.payload)
        )
    })?;
    let versions = publish.properties.user_values("__ts");
    let version = match versions.as_slice() {
        [text] => Hlc::parse(text).ok_or_else(|| format!("__ts {text:?}"))?,
        other => return Err(format!("a notification has one __ts, this one {other:?}")),
    };
    Ok(Notification {
        key,
        value,
        version,
        received: Instant::now(),
    })
}

fn parse_notification(payload: &[u8]) -> Option<Option<Vec<u8>>> {
    if payload == b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n" {
        return Some(None);
    }
    let rest = payload.strip_prefix(b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$")?;
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let length: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    let value = rest.get(end + 2..end + 2 + length)?;
    (rest.get(end..end + 2)? == b"\r\n" && rest.get(end + 2 + length..)? == b"\r\n")
        .then(|| Some(value.to_vec()))
}

/// Upper-case hexadecimal only.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}
