//! One non-blocking connection of the load generator: socket, buffers and handshake.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Instant;

use mio::net::TcpStream;
use quorumq::codec::client::{self, Packet};
use quorumq::codec::{
    Connect, FilterRequest, Filters, MAX_PACKET_SIZE, QoS, ReasonCode, Subscribe,
    SubscriptionOptions, UserProperties, Version, frame,
};
use socket2::{Domain, Protocol, Type};

use crate::error::BenchError;
use crate::socket::Socket;

/// What a connection speaks, and how its client logs in.
#[derive(Clone)]
pub enum Speech {
    /// MQTT, without a login.
    Mqtt,
    /// MQTT, with a user name and a password.
    Login(String, String),
    /// No MQTT: it is ready when TCP is, and its bytes go to the workload.
    Http,
    /// Nothing: it is ready when TLS is, and the server has sent what resumes it.
    Handshake,
}

/// The client that a connection is, and what it subscribes to before it is ready.
#[derive(Clone)]
pub struct Identity {
    /// What it speaks.
    pub speech: Speech,
    /// Client identifier.
    pub client_id: String,
    /// Protocol version.
    pub version: Version,
    /// Whether to keep the session, for an hour.
    pub durable: bool,
    /// Filters with the QoS to ask for.
    pub filters: Vec<(String, QoS)>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No socket.
    Closed,
    /// TCP is being established.
    Connecting,
    /// CONNECT sent.
    ConnectSent,
    /// SUBSCRIBE sent.
    SubscribeSent,
    /// CONNECT and SUBSCRIBE are acknowledged: packets go to the workload.
    Ready,
}

/// One connection.
pub struct Link {
    pub identity: Identity,
    pub phase: Phase,
    /// Whether it is already on the list of links to flush.
    pub dirty: bool,
    socket: Option<Socket>,
    /// The beginning of a packet whose rest has not arrived.
    partial: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

/// How reading ended.
pub enum ReadOutcome {
    /// The socket is empty.
    Drained,
    /// The other side closed.
    Closed(String),
}

impl Link {
    pub fn new(identity: Identity) -> Link {
        Link {
            identity,
            phase: Phase::Closed,
            dirty: false,
            socket: None,
            partial: Vec::new(),
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Starts to connect. `source` spreads many connections to loopback over source addresses, because each has only
    /// some 28,000 ports.
    pub fn open(&mut self, server: SocketAddr, source: usize) -> io::Result<&mut TcpStream> {
        let socket = socket2::Socket::new(
            Domain::for_address(server),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if server.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) {
            let last = u8::try_from(1 + source % 250).unwrap_or(1);
            let from = SocketAddr::from(([127, 0, 0, last], 0));
            socket.bind(&from.into())?;
        }
        match socket.connect(&server.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        self.partial.clear();
        self.output.clear();
        self.sent = 0;
        self.phase = Phase::Connecting;
        let stream = TcpStream::from_std(socket.into());
        let is_mqtt = !self.is_http();
        let socket = self.socket.insert(Socket::new(stream, server, is_mqtt)?);
        Ok(socket.stream())
    }

    pub fn close(&mut self) {
        self.socket = None;
        self.phase = Phase::Closed;
    }

    /// Bytes that are not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Where to encode packets; flush afterwards.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether it speaks HTTP.
    pub fn is_http(&self) -> bool {
        matches!(self.identity.speech, Speech::Http)
    }

    /// Sends CONNECT when TCP is established; called when the connecting socket is writable.
    pub fn connected(&mut self) -> Result<(), BenchError> {
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        let stream = socket.stream();
        if let Some(error) = stream.take_error()? {
            return Err(error.into());
        }
        match stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let login = match &self.identity.speech {
            Speech::Http => {
                self.phase = Phase::Ready;
                return Ok(());
            }
            Speech::Login(name, password) => Some((name, password)),
            Speech::Handshake => {
                // TLS begins when its connection is flushed.
                self.phase = Phase::ConnectSent;
                return Ok(());
            }
            Speech::Mqtt => None,
        };
        let durable = self.identity.durable;
        let v5 = self.identity.version.is_v5();
        let connect = Connect {
            clean_start: !durable,
            // Longer than any run, so no PINGREQ is needed; some brokers refuse 0.
            keep_alive: 3600,
            session_expiry: (durable && v5).then_some(3600),
            receive_maximum: v5.then_some(NonZeroU16::MAX),
            username: login.map(|(name, _)| name.as_str()),
            password: login.map(|(_, password)| password.as_bytes()),
            ..Connect::new(self.identity.version, &self.identity.client_id)
        };
        client::connect(&mut self.output, &connect)?;
        self.phase = Phase::ConnectSent;
        Ok(())
    }

    /// Whether nothing was to be done but TLS's handshake, and that is done.
    pub fn has_shaken_hands(&self) -> bool {
        matches!(self.identity.speech, Speech::Handshake)
            && self.phase == Phase::ConnectSent
            && self.socket.as_ref().is_some_and(Socket::has_ticket)
    }

    /// Handles a packet of the handshake.
    pub fn handshake(
        identity: &Identity,
        phase: &mut Phase,
        output: &mut Vec<u8>,
        packet: &Packet<'_>,
    ) -> Result<(), BenchError> {
        match (*phase, packet) {
            (Phase::ConnectSent, Packet::ConnAck(ack)) if ack.reason == ReasonCode::Success => {
                if identity.filters.is_empty() {
                    *phase = Phase::Ready;
                    return Ok(());
                }
                subscribe(identity, output)?;
                *phase = Phase::SubscribeSent;
                Ok(())
            }
            (Phase::ConnectSent, Packet::ConnAck(ack)) => Err(BenchError::Refused(ack.reason)),
            (Phase::SubscribeSent, Packet::SubAck(ack)) => {
                match ack.reasons.iter().find(|reason| **reason as u8 >= 0x80) {
                    Some(reason) => Err(BenchError::Refused(*reason)),
                    None => {
                        *phase = Phase::Ready;
                        Ok(())
                    }
                }
            }
            // Messages of a resumed session may come before SUBACK.
            (Phase::SubscribeSent, Packet::Publish(_)) => Ok(()),
            (_, Packet::Disconnect(packet)) => Err(BenchError::Refused(packet.reason)),
            _ => Err(BenchError::Protocol(
                "an unexpected packet in the handshake".into(),
            )),
        }
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        self.dirty = false;
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        while self.sent < self.output.len() {
            match socket.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        socket.flush()
    }

    /// Reads all that is there and hands every packet to `each`.
    pub fn read(
        &mut self,
        scratch: &mut [u8],
        mut each: impl FnMut(
            &Identity,
            &mut Phase,
            &mut Vec<u8>,
            Packet<'_>,
            Instant,
        ) -> Result<(), BenchError>,
    ) -> Result<ReadOutcome, BenchError> {
        self.read_bytes(scratch, |identity, phase, output, bytes, now| {
            let mut at = 0;
            while let Some(frame) = frame::next(&bytes[at..], MAX_PACKET_SIZE)? {
                at += frame.length;
                let packet = client::decode(identity.version, frame)?;
                each(identity, phase, output, packet, now)?;
            }
            Ok(at)
        })
    }

    /// Reads all that is there and hands it to `each`, which says how many of the bytes it is done with; the others
    /// come again with the next ones.
    pub fn read_bytes(
        &mut self,
        scratch: &mut [u8],
        mut each: impl FnMut(
            &Identity,
            &mut Phase,
            &mut Vec<u8>,
            &[u8],
            Instant,
        ) -> Result<usize, BenchError>,
    ) -> Result<ReadOutcome, BenchError> {
        loop {
            let Some(socket) = &mut self.socket else {
                return Ok(ReadOutcome::Drained);
            };
            let count = match socket.read(scratch) {
                Ok(0) => return Ok(ReadOutcome::Closed("closed by the server".into())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(ReadOutcome::Drained);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(ReadOutcome::Closed(error.to_string())),
            };
            let (now, is_drained) = (Instant::now(), socket.is_drained());
            let mut partial = std::mem::take(&mut self.partial);
            let joined = !partial.is_empty();
            if joined {
                partial.extend_from_slice(&scratch[..count]);
            }
            let bytes = if joined {
                partial.as_slice()
            } else {
                &scratch[..count]
            };
            let (identity, phase, output) = (&self.identity, &mut self.phase, &mut self.output);
            let at = each(identity, phase, output, bytes, now)?;
            if joined {
                partial.drain(..at);
            } else {
                partial.extend_from_slice(&scratch[at..count]);
            }
            self.partial = partial;
            if is_drained {
                return Ok(ReadOutcome::Drained);
            }
        }
    }
}

fn subscribe(identity: &Identity, output: &mut Vec<u8>) -> Result<(), BenchError> {
    let requests: Vec<_> = identity
        .filters
        .iter()
        .map(|(filter, qos)| FilterRequest {
            filter,
            options: SubscriptionOptions {
                qos: *qos,
                ..SubscriptionOptions::default()
            },
        })
        .collect();
    let packet = Subscribe {
        packet_id: NonZeroU16::MAX,
        subscription_id: None,
        user_properties: UserProperties::NONE,
        filters: Filters::from_slice(&requests),
    };
    client::subscribe(output, identity.version, &packet)?;
    Ok(())
}
