//! One MQTT connection over a blocking socket.

use crate::wire::{
    self, Connack, Connect, Disconnect, Message, Packet, Properties, Publish, Suback,
};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a test waits for a packet that must come.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Why no packet came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Timeout,
    /// The peer closed or reset the connection.
    Closed,
    /// The peer broke the protocol.
    Wrong(String),
}

/// A connection; dropping it closes the socket without a DISCONNECT.
pub struct Connection {
    stream: TcpStream,
    level: u8,
    inbox: Vec<u8>,
    /// PUBLISHes that arrived while something else was waited for.
    set_aside: VecDeque<Publish>,
    next_packet_id: u16,
}

impl Connection {
    /// Opens a socket and sends nothing. Answers are read as packets of protocol `level`.
    pub fn open(address: SocketAddr, level: u8) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self {
            stream,
            level,
            inbox: Vec::new(),
            set_aside: VecDeque::new(),
            next_packet_id: 0,
        })
    }

    /// Connects and returns the CONNACK, whatever its code.
    pub fn try_connect(address: SocketAddr, connect: &Connect) -> Result<(Self, Connack), Fault> {
        Self::try_connect_within(address, connect, TIMEOUT)
    }

    pub fn try_connect_within(
        address: SocketAddr,
        connect: &Connect,
        within: Duration,
    ) -> Result<(Self, Connack), Fault> {
        let mut connection = Self::open(address, connect.level).map_err(|_| Fault::Closed)?;
        connection.try_send(&connect.bytes())?;
        match connection.receive(within)? {
            Packet::Connack(connack) => Ok((connection, connack)),
            other => Err(Fault::Wrong(format!("instead of CONNACK: {other:?}"))),
        }
    }

    /// Connects; panics unless the CONNACK says 0.
    #[track_caller]
    pub fn connect(address: SocketAddr, connect: &Connect) -> (Self, Connack) {
        let (connection, connack) = Self::try_connect(address, connect)
            .unwrap_or_else(|fault| panic!("CONNECT to {address}: {fault:?}"));
        assert_eq!(
            connack.code, 0,
            "CONNECT to {address} was refused: {connack:?}"
        );
        (connection, connack)
    }

    /// Connects with MQTT 5, clean start, no keep-alive.
    #[track_caller]
    pub fn v5(address: SocketAddr, client_id: &str) -> Self {
        Self::connect(address, &Connect::v5(client_id)).0
    }

    pub fn level(&self) -> u8 {
        self.level
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The next packet id: 1, 2, 3, …, 65535, 1, …
    pub fn packet_id(&mut self) -> u16 {
        self.next_packet_id = self.next_packet_id.checked_add(1).unwrap_or(1);
        self.next_packet_id
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.stream
            .write_all(bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Timeout,
                _ => Fault::Closed,
            })
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        if let Err(fault) = self.try_send(bytes) {
            panic!("sending {} bytes: {fault:?}", bytes.len());
        }
    }

    /// Waits until there are unread bytes, and leaves them unread.
    #[track_caller]
    pub fn wait_for_bytes(&self) {
        if !self.inbox.is_empty() {
            return;
        }
        let looked = self.stream.set_read_timeout(Some(TIMEOUT));
        let found = looked.and_then(|()| self.stream.peek(&mut [0]));
        assert!(matches!(found, Ok(1..)), "nothing came: {found:?}");
    }

    /// The next packet from the socket; PUBLISHes that were set aside are not looked at.
    pub fn receive(&mut self, within: Duration) -> Result<Packet, Fault> {
        let deadline = Instant::now() + within;
        loop {
            if let Some((header, body)) = wire::take_frame(&mut self.inbox).map_err(Fault::Wrong)? {
                return wire::decode_packet(self.level, header, &body).map_err(|why| {
                    Fault::Wrong(format!("{why}; packet {header:#04x} {body:02x?}"))
                });
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Instant) -> Result<(), Fault> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Fault::Timeout);
        }
        self.stream
            .set_read_timeout(Some(left))
            .map_err(|_| Fault::Closed)?;
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(Fault::Closed),
            Ok(n) => {
                self.inbox.extend(&chunk[..n]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(Fault::Timeout),
                ErrorKind::Interrupted => Ok(()),
                _ => Err(Fault::Closed),
            },
        }
    }

    /// The next packet as its first byte and its body, after it was checked to be well formed.
    pub fn receive_frame(&mut self, within: Duration) -> Result<(u8, Vec<u8>), Fault> {
        let deadline = Instant::now() + within;
        loop {
            if let Some((header, body)) = wire::take_frame(&mut self.inbox).map_err(Fault::Wrong)? {
                let decoded = wire::decode_packet(self.level, header, &body);
                let frame = |why| format!("{why}; packet {header:#04x} {body:02x?}");
                decoded.map_err(|why| Fault::Wrong(frame(why)))?;
                return Ok((header, body));
            }
            self.fill(deadline)?;
        }
    }

    /// Everything that comes before the broker closes.
    pub fn read_to_end(&mut self, within: Duration) -> Result<Vec<u8>, Fault> {
        let deadline = Instant::now() + within;
        loop {
            match self.fill(deadline) {
                Ok(()) => {}
                Err(Fault::Closed) => return Ok(std::mem::take(&mut self.inbox)),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The next packet; panics when none comes.
    #[track_caller]
    pub fn expect(&mut self) -> Packet {
        self.receive(TIMEOUT)
            .unwrap_or_else(|fault| panic!("no packet: {fault:?}"))
    }

    /// The next packet that is no PUBLISH; PUBLISHes are set aside for [`Self::publish_received`].
    #[track_caller]
    pub fn expect_answer(&mut self) -> Packet {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.receive(deadline.saturating_duration_since(Instant::now())) {
                Ok(Packet::Publish(publish)) => self.set_aside.push_back(publish),
                Ok(other) => return other,
                Err(fault) => panic!("no answer: {fault:?}"),
            }
        }
    }

    /// The next PUBLISH, acknowledged where it is QoS 1.
    pub fn next_publish(&mut self, within: Duration) -> Result<Publish, Fault> {
        if let Some(publish) = self.set_aside.pop_front() {
            return self.acknowledged(publish);
        }
        match self.receive(within)? {
            Packet::Publish(publish) => self.acknowledged(publish),
            other => Err(Fault::Wrong(format!("instead of PUBLISH: {other:?}"))),
        }
    }

    fn acknowledged(&mut self, publish: Publish) -> Result<Publish, Fault> {
        if publish.qos == 1 {
            self.try_send(&wire::acknowledgement(wire::PUBACK, publish.packet_id))?;
        }
        Ok(publish)
    }

    #[track_caller]
    pub fn publish_received(&mut self) -> Publish {
        self.next_publish(TIMEOUT)
            .unwrap_or_else(|fault| panic!("no PUBLISH: {fault:?}"))
    }

    /// Shows that nothing is waiting: a PINGREQ's answer comes back with no PUBLISH before it. The first may overtake
    /// what waits, the second comes behind it.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        assert!(self.set_aside.is_empty(), "set aside: {:?}", self.set_aside);
        for _ in 0..2 {
            self.send(&wire::PINGREQ);
            match self.expect() {
                Packet::Pingresp => {}
                other => panic!("nothing was expected, came {other:?}"),
            }
        }
    }

    /// Subscribes; panics unless every filter is granted what its options ask for.
    #[track_caller]
    pub fn subscribe(&mut self, filters: &[(&str, u8)]) {
        let suback = self.subscribe_for(filters);
        let wanted: Vec<u8> = filters.iter().map(|(_, options)| options & 3).collect();
        assert_eq!(suback.codes, wanted, "SUBSCRIBE {filters:?}");
    }

    /// Subscribes and returns the SUBACK.
    #[track_caller]
    pub fn subscribe_for(&mut self, filters: &[(&str, u8)]) -> Suback {
        let id = self.packet_id();
        self.send(&wire::subscribe(
            self.level,
            id,
            &Properties::new(),
            filters,
        ));
        match self.expect_answer() {
            Packet::Suback(suback) => {
                assert_eq!(suback.packet_id, id, "[MQTT-3.8.4-2]");
                suback
            }
            other => panic!("instead of SUBACK: {other:?}"),
        }
    }

    /// Publishes and, for QoS 1, returns the PUBACK's code.
    #[track_caller]
    pub fn publish(&mut self, mut message: Message) -> u8 {
        if message.qos > 0 && message.packet_id == 0 {
            message.packet_id = self.packet_id();
        }
        self.send(&message.bytes(self.level));
        match message.qos {
            0 => 0,
            1 => match self.expect_answer() {
                Packet::Puback(ack) => {
                    assert_eq!(ack.packet_id, message.packet_id, "[MQTT-2.2.1-5]");
                    ack.code
                }
                other => panic!("instead of PUBACK: {other:?}"),
            },
            _ => panic!("this client publishes at QoS 0 and 1"),
        }
    }

    /// The broker's DISCONNECT, then its close.
    #[track_caller]
    pub fn expect_disconnect(&mut self, code: u8) -> Disconnect {
        match self.expect_answer() {
            Packet::Disconnect(disconnect) => {
                assert_eq!(disconnect.code, code, "{disconnect:?}");
                self.expect_closed();
                disconnect
            }
            other => panic!("instead of DISCONNECT {code:#04x}: {other:?}"),
        }
    }

    /// The broker closes, and sends nothing before that.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        match self.receive(TIMEOUT) {
            Err(Fault::Closed) => {}
            other => panic!("instead of a close: {other:?}"),
        }
    }

    /// Closes without a DISCONNECT, then waits for the broker's close, which shows that it has noticed.
    pub fn hang_up(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.read_to_end(Duration::from_secs(2));
    }

    /// DISCONNECT 0x00, then close.
    pub fn disconnect(mut self) {
        let _ = self.try_send(&wire::disconnect(self.level, 0, &Properties::new()));
        let _ = self.stream.shutdown(Shutdown::Write);
        // Reading until the broker's close makes sure that it has seen the DISCONNECT.
        let _ = self.read_to_end(TIMEOUT);
    }
}
