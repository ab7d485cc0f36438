//! MQTT over WebSocket, a client's side (RFC 6455): the request, frames that are masked, and the server's frames.
//!
//! Masks are drawn for each frame, as clients must: a mask of zeros would spare the server work that other clients make.

use std::io;

use tungstenite::handshake::client::generate_key;
use tungstenite::handshake::derive_accept_key;
use uuid::Uuid;

/// The path of the request; Mosquitto takes any.
const PATH: &str = "/mqtt";
/// Most bytes of the answer's head.
const LARGEST_HEAD_BYTES: usize = 16 << 10;
/// Longest payload of a control frame.
const LONGEST_CONTROL: usize = 125;

const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// What is between the socket, or TLS, and MQTT.
pub struct WebSocket {
    /// What the server must answer the key with; nothing once it has.
    accept: Option<String>,
    /// The beginning of that answer, or of a frame's header.
    head: Vec<u8>,
    /// The frame that is being read, and how much of it has not come.
    opcode: u8,
    remaining: u64,
    control: Vec<u8>,
    is_closed: bool,
    random: u64,
    /// Bytes for the server.
    out: Vec<u8>,
    sent: usize,
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("WebSocket: {why}"))
}

impl WebSocket {
    /// One whose request waits to be sent.
    pub fn new(host: &str) -> WebSocket {
        let key = generate_key();
        let request = format!(
            "GET {PATH} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        WebSocket {
            accept: Some(derive_accept_key(key.as_bytes())),
            head: Vec::new(),
            opcode: BINARY,
            remaining: 0,
            control: Vec::new(),
            is_closed: false,
            // Any number but 0.
            random: Uuid::new_v4().as_u64_pair().0 | 1,
            out: request.into_bytes(),
            sent: 0,
        }
    }

    /// Bytes that wait for the socket.
    pub fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// So many of them were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Whether frames may be sent, and all before was.
    pub fn is_writable(&self) -> bool {
        self.accept.is_none() && self.out.is_empty()
    }

    /// Whether the server has closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Puts bytes into a frame.
    pub fn frame(&mut self, bytes: &[u8]) {
        let mask = self.mask();
        write_frame(&mut self.out, BINARY, bytes, mask);
    }

    /// xorshift: no secret, only not the same each time.
    fn mask(&mut self) -> [u8; 4] {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let [_, _, _, _, mask @ ..] = self.random.to_be_bytes();
        mask
    }

    /// Takes what has come. The bytes of MQTT in it are moved to its front; returns how many they are.
    pub fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let begin = match self.accept.is_some() {
            true => self.answered(bytes)?,
            false => 0,
        };
        let (mut at, mut kept) = (begin, 0);
        while at < bytes.len() && !self.is_closed {
            if self.remaining == 0 {
                self.head.push(bytes[at]);
                at += 1;
                self.begin_frame()?;
                continue;
            }
            let rest = usize::try_from(self.remaining).unwrap_or(usize::MAX);
            let length = rest.min(bytes.len() - at);
            self.remaining -= length as u64;
            if self.opcode & 8 == 0 {
                bytes.copy_within(at..at + length, kept);
                kept += length;
            } else {
                self.control.extend_from_slice(&bytes[at..at + length]);
                self.end_control();
            }
            at += length;
        }
        Ok(kept)
    }

    /// Judges the answer to the request as far as it has come. Returns how many of the bytes belong to it.
    fn answered(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let Some(end) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
            return match self.head.len() < LARGEST_HEAD_BYTES {
                true => Ok(bytes.len()),
                false => Err(broken("an answer that does not end")),
            };
        };
        let head = String::from_utf8_lossy(&self.head[..end]).into_owned();
        let value = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim().to_owned())
        };
        let is_accepted = head.starts_with("HTTP/1.1 101")
            && value("sec-websocket-accept") == self.accept
            && value("sec-websocket-protocol").as_deref() == Some("mqtt");
        if !is_accepted {
            let first = head.lines().next().unwrap_or_default();
            return Err(broken(&format!("refused: {first}")));
        }
        self.accept = None;
        self.head.clear();
        Ok(end + 4 - before)
    }

    /// Reads the header of a frame, if it is whole.
    fn begin_frame(&mut self) -> io::Result<()> {
        let [first, second, length @ ..] = self.head.as_slice() else {
            return Ok(());
        };
        self.remaining = match (second, length) {
            (0..=125, _) => u64::from(*second),
            (126, &[a, b]) => u64::from(u16::from_be_bytes([a, b])),
            (127, &[a, b, c, d, e, f, g, h]) => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            (126 | 127, _) => return Ok(()),
            _ => return Err(broken("a server that masks")),
        };
        self.opcode = first & 0x0f;
        self.head.clear();
        match self.opcode {
            0 | BINARY => Ok(()),
            CLOSE | PING | PONG if self.remaining <= LONGEST_CONTROL as u64 => {
                self.control.clear();
                self.end_control();
                Ok(())
            }
            _ => Err(broken("a frame that is not binary")),
        }
    }

    /// Answers a control frame that is whole.
    fn end_control(&mut self) {
        if self.remaining > 0 {
            return;
        }
        match self.opcode {
            PING => {
                let (mask, payload) = (self.mask(), std::mem::take(&mut self.control));
                write_frame(&mut self.out, PONG, &payload, mask);
            }
            CLOSE => self.is_closed = true,
            _ => {}
        }
    }
}

/// Appends a frame that is its whole message.
fn write_frame(out: &mut Vec<u8>, opcode: u8, payload: &[u8], mask: [u8; 4]) {
    out.push(0x80 | opcode);
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length @ ..=125), _) => out.push(0x80 | length),
        (_, Ok(length)) => {
            out.push(0x80 | 126);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    let begin = out.len();
    out.extend_from_slice(payload);
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = out[begin..].as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> WebSocket {
        let mut socket = WebSocket::new("127.0.0.1");
        let accept = socket.accept.clone().expect("it waits");
        let count = socket.unsent().len();
        socket.sent(count);
        assert!(!socket.is_writable());
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
             sec-websocket-accept: {accept}\r\nsec-websocket-protocol: mqtt\r\n\r\n"
        )
        .into_bytes();
        let (first, rest) = answer.split_at_mut(40);
        assert_eq!(socket.receive(first).expect("it is right"), 0);
        assert!(!socket.is_writable());
        assert_eq!(socket.receive(rest).expect("it is right"), 0);
        assert!(socket.is_writable());
        socket
    }

    #[test]
    fn frames_are_masked_as_the_standard_shows() {
        let mut out = Vec::new();
        write_frame(&mut out, 1, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        let shown = [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        assert_eq!(out, shown);
        for length in [125, 126, 0xffff, 0x1_0000] {
            out.clear();
            write_frame(&mut out, BINARY, &vec![0; length], [1, 2, 3, 4]);
            let payload = &out[out.len() - length..];
            let mut mask = [1, 2, 3, 4].iter().cycle();
            assert!(payload.iter().all(|byte| Some(byte) == mask.next()));
        }
    }

    #[test]
    fn no_two_masks_are_alike() {
        let mut socket = opened();
        let masks = [socket.mask(), socket.mask(), socket.mask()];
        assert!(masks[0] != masks[1] && masks[1] != masks[2]);
        assert!(masks.iter().all(|mask| *mask != [0; 4]));
    }

    #[test]
    fn what_the_server_sends_is_read_however_it_is_cut() {
        let long = [b'x'; 300];
        let stream = [
            &[0x02, 3][..],
            b"abc",
            &[0x89, 2],
            b"hi",
            &[0x80, 126, 1, 44],
            &long,
            &[0x82, 0],
            &[0x82, 1],
            b"z",
            &[0x88, 0],
        ]
        .concat();
        for piece in [1, 2, 3, 7, stream.len()] {
            let mut socket = opened();
            let mut content = Vec::new();
            for part in stream.chunks(piece) {
                let mut part = part.to_vec();
                let length = socket.receive(&mut part).expect("it is right");
                content.extend_from_slice(&part[..length]);
            }
            assert_eq!(content, [&b"abc"[..], &long, b"z"].concat());
            assert!(socket.is_closed());
            assert_eq!(socket.unsent()[..2], [0x8A, 0x82], "the ping is answered");
        }
    }

    #[test]
    fn what_is_no_websocket_is_refused() {
        let mut socket = WebSocket::new("127.0.0.1");
        let mut answer = b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec();
        assert!(socket.receive(&mut answer).is_err());
        for wrong in [&[0x81, 1][..], &[0x82, 0x81], &[0x89, 126, 1, 0]] {
            let received = opened().receive(&mut wrong.to_vec());
            assert!(received.is_err(), "{wrong:x?}");
        }
    }
}
