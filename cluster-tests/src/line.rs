//! A client's way to a listener of any transport, byte by byte: TLS is openssl's, WebSocket is written here.
//!
//! Invariant: who is refused, at whatever depth, has no packet, and nobody waits for ever.

use crate::script::Guarded;
use crate::wire::{self, Connect, Packet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a peer may say nothing.
const WITHIN: Duration = Duration::from_secs(20);

/// What carries MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
    Unix,
}

impl Transport {
    pub const ALL: [Transport; 5] = [
        Transport::Tcp,
        Transport::Tls,
        Transport::Ws,
        Transport::Wss,
        Transport::Unix,
    ];

    /// In the table of docs/security.md.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
            Transport::Ws => "WebSocket",
            Transport::Wss => "WebSocket over TLS",
            Transport::Unix => "Unix socket",
        }
    }

    pub fn has_tls(self) -> bool {
        matches!(self, Transport::Tls | Transport::Wss)
    }

    fn has_frames(self) -> bool {
        matches!(self, Transport::Ws | Transport::Wss)
    }
}

/// Where a listener is, and what a client shows there.
#[derive(Clone, Debug)]
pub struct Place {
    pub transport: Transport,
    /// Of this machine; 0 for a Unix socket.
    pub port: u16,
    /// Of a Unix socket.
    pub socket: PathBuf,
    /// Certificate and key of the client, files.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// What comes before everything else.
    pub header: Vec<u8>,
}

impl Place {
    pub fn new(transport: Transport, port: u16) -> Place {
        Place {
            transport,
            port,
            socket: PathBuf::new(),
            identity: None,
            header: Vec::new(),
        }
    }

    /// What a client is told that connects: the code of the CONNACK; `None` when it is not even that.
    #[track_caller]
    pub fn code(&self, connect: &Connect) -> Option<u8> {
        let mut line = Line::open(self)?;
        line.send(&connect.bytes());
        match line.packet(connect.level)? {
            Packet::Connack(connack) => Some(connack.code),
            other => panic!("instead of CONNACK: {other:?}"),
        }
    }
}

/// Both ends of a stream of bytes.
type Ends = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// An open connection.
pub struct Line {
    writer: Box<dyn Write + Send>,
    arriving: Receiver<Vec<u8>>,
    /// What has arrived and was not looked at.
    raw: Vec<u8>,
    /// The same without frames of a WebSocket.
    bytes: Vec<u8>,
    has_frames: bool,
    _process: Option<Guarded>,
}

impl Line {
    /// `None`: it is not opened.
    #[track_caller]
    pub fn open(place: &Place) -> Option<Line> {
        let port = match place.header.is_empty() || place.transport == Transport::Unix {
            true => place.port,
            false => behind(place.header.clone(), place.port),
        };
        let mut process = None;
        let (reader, mut writer): Ends = match place.transport {
            Transport::Unix => {
                let stream = UnixStream::connect(&place.socket).expect("it listens");
                let other = stream.try_clone().expect("a socket has another handle");
                (Box::new(stream), Box::new(other))
            }
            transport if transport.has_tls() => {
                let mut started = Guarded(tls(place, port).spawn().expect("openssl can be run"));
                let stdout = started.0.stdout.take().expect("it is piped");
                let stdin = started.0.stdin.take().expect("it is piped");
                process = Some(started);
                (Box::new(stdout), Box::new(stdin))
            }
            _ => {
                let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
                let other = stream.try_clone().expect("a socket has another handle");
                (Box::new(stream), Box::new(other))
            }
        };
        if place.transport == Transport::Unix {
            // Who is refused already can't write; what is read says so.
            let _ = writer.write_all(&place.header);
        }
        let mut line = Line {
            writer,
            arriving: chunks(reader),
            raw: Vec::new(),
            bytes: Vec::new(),
            has_frames: place.transport.has_frames(),
            _process: process,
        };
        let is_open = !line.has_frames || line.upgrade();
        is_open.then_some(line)
    }

    /// Sends bytes, in one frame. Who is refused already can't write; what is read says so.
    pub fn send(&mut self, bytes: &[u8]) {
        let frame = match self.has_frames {
            true => frame(bytes),
            false => bytes.to_vec(),
        };
        let _ = self.writer.write_all(&frame);
        let _ = self.writer.flush();
    }

    /// The next packet; `None` when the connection ends before.
    #[track_caller]
    pub fn packet(&mut self, level: u8) -> Option<Packet> {
        loop {
            if self.has_frames {
                self.take_frames();
            } else {
                self.bytes.append(&mut self.raw);
            }
            if let Some((header, body)) = wire::take_frame(&mut self.bytes).expect("a frame") {
                return Some(wire::decode_packet(level, header, &body).expect("a packet"));
            }
            self.hear()?;
        }
    }

    /// So many bytes that are no packet; `None` when the connection ends before.
    #[track_caller]
    pub fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.raw.len() < count {
            self.hear()?;
        }
        Some(self.raw.drain(..count).collect())
    }

    /// Waits for more; `None` when no more comes.
    #[track_caller]
    fn hear(&mut self) -> Option<()> {
        let asked = Instant::now();
        match self.arriving.recv_timeout(WITHIN) {
            Ok(chunk) => self.raw.extend(chunk),
            Err(_) if asked.elapsed() >= WITHIN => panic!("neither an answer nor an end"),
            Err(_) => return None,
        }
        Some(())
    }

    /// Whether the other side takes it for a WebSocket.
    #[track_caller]
    fn upgrade(&mut self) -> bool {
        let request = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Protocol: mqtt\r\n\r\n";
        let _ = self.writer.write_all(request.as_bytes());
        let _ = self.writer.flush();
        let end = b"\r\n\r\n";
        loop {
            let found = self.raw.windows(end.len()).position(|bytes| bytes == end);
            if let Some(at) = found {
                let head: Vec<u8> = self.raw.drain(..at + end.len()).collect();
                return head.starts_with(b"HTTP/1.1 101 ");
            }
            if self.hear().is_none() {
                return false;
            }
        }
    }

    /// Takes what whole binary frames hold; others say nothing of MQTT.
    fn take_frames(&mut self) {
        while let [kind, length, ..] = self.raw[..] {
            let (start, length) = match (length, self.raw.get(2..4)) {
                (0..126, _) => (2, usize::from(length)),
                (126, Some(bytes)) => (4, usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))),
                (126, None) => return,
                _ => panic!("no packet of these tests is so large"),
            };
            if self.raw.len() < start + length {
                return;
            }
            let frame: Vec<u8> = self.raw.drain(..start + length).collect();
            if kind & 0xF == 2 {
                self.bytes.extend(&frame[start..]);
            }
        }
    }
}

/// A binary frame of a client, masked by zeros.
fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("no packet of these tests is so large");
    let head = [&[0x82, 0x80 | 126][..], &length.to_be_bytes(), &[0; 4]].concat();
    [&head, bytes].concat()
}

/// Reads in a thread of its own, until the end.
fn chunks(mut reader: Box<dyn Read + Send>) -> Receiver<Vec<u8>> {
    let (sender, chunks) = channel();
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = reader.read(&mut chunk) {
            if sender.send(chunk[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    chunks
}

/// openssl, which carries what it gets. The server is believed: it is the clients that are judged here.
fn tls(place: &Place, port: u16) -> Command {
    let mut command = Command::new("openssl");
    let address = format!("127.0.0.1:{port}");
    command.args(["s_client", "-quiet", "-connect", &address]);
    if let Some((certificate, key)) = &place.identity {
        command.arg("-cert").arg(certificate).arg("-key").arg(key);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// A proxy in front of a port of this machine, which sends a header first on each connection. Its own port.
pub fn behind(header: Vec<u8>, to: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener
        .local_addr()
        .map(|address: SocketAddr| address.port());
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(mut far) = TcpStream::connect(("127.0.0.1", to)) else {
                return;
            };
            let _ = far.write_all(&header);
            let copies = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
            for (from, to) in copies {
                let (Ok(mut from), Ok(mut to)) = (from, to) else {
                    return;
                };
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    port.expect("it is bound")
}
