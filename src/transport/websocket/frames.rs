//! Frames of RFC 6455 §5, read where they are, and their headers.

/// Longest header: two bytes, a length of eight, a mask of four.
const LONGEST_HEADER: usize = 14;

/// Longest payload of a control frame (RFC 6455 §5.5).
const LONGEST_CONTROL: usize = 125;

/// Bytes of answers to control frames that wait for the socket. Above it pings are not answered: whoever sends them
/// reads nothing, and only the latest one asks for an answer (RFC 6455 §5.5.3).
const MOST_ANSWERS_BYTES: usize = 1024;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Which side this is: a client masks what it sends, a server does not (RFC 6455 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

/// What the other side did wrong, with the close code that says so (RFC 6455 §7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (close code {code})")]
pub(crate) struct FrameError {
    pub(crate) code: u16,
    text: &'static str,
}

const fn protocol(text: &'static str) -> FrameError {
    FrameError { code: 1002, text }
}

/// Where in a frame the input stands.
#[derive(Debug)]
enum State {
    /// In a header, of which so many bytes have come.
    Header(u8),
    /// In the payload of a data frame.
    Data,
    /// In the payload of a control frame with this opcode.
    Control(u8),
    /// The other side has closed.
    Closed,
    /// The other side has broken the protocol.
    Violated,
}

/// The frames of one connection.
#[derive(Debug)]
pub(crate) struct Frames {
    role: Role,
    state: State,
    header: [u8; LONGEST_HEADER],
    /// Bytes of the payload that have not come.
    remaining: u64,
    mask: [u8; 4],
    /// Place in the mask of the next byte.
    mask_at: u8,
    /// A message has begun whose last frame has not come.
    is_fragmented: bool,
    /// The frame is its message's last.
    is_final: bool,
    control: Vec<u8>,
    has_sent_close: bool,
    /// Frames that answer the other side's, to be sent before anything else.
    pub(crate) answers: Vec<u8>,
}

impl Frames {
    /// The frames of a connection that has just been upgraded.
    pub(crate) fn new(role: Role) -> Frames {
        Frames {
            role,
            state: State::Header(0),
            header: [0; LONGEST_HEADER],
            remaining: 0,
            mask: [0; 4],
            mask_at: 0,
            is_fragmented: false,
            is_final: true,
            control: Vec::new(),
            has_sent_close: false,
            answers: Vec::new(),
        }
    }

    /// Whether the other side has closed: nothing more comes.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Violated)
    }

    /// Whether it has broken the protocol.
    pub(crate) fn is_violated(&self) -> bool {
        matches!(self.state, State::Violated)
    }

    /// Reads frames. The bytes of MQTT in them are moved to the front of `bytes`; returns how many they are. What comes
    /// before a frame that breaks the protocol is read all the same.
    ///
    /// # Errors
    /// The other side breaks the protocol. What to send it is among the answers.
    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, FrameError> {
        let mut kept = 0;
        if let Err(error) = self.read(bytes, &mut kept) {
            self.close(error.code);
            self.state = State::Violated;
            if kept == 0 {
                return Err(error);
            }
        }
        Ok(kept)
    }

    fn read(&mut self, bytes: &mut [u8], kept: &mut usize) -> Result<(), FrameError> {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Header(have) => {
                    self.header[usize::from(have)] = bytes[at];
                    at += 1;
                    self.state = State::Header(have + 1);
                    let have = usize::from(have) + 1;
                    if have >= 2 && have == header_length(self.header[1]) {
                        self.begin(have)?;
                    }
                }
                State::Data => {
                    let length = self.payload(bytes.len() - at);
                    unmask(&mut bytes[at..at + length], self.mask, &mut self.mask_at);
                    bytes.copy_within(at..at + length, *kept);
                    at += length;
                    *kept += length;
                    if self.remaining == 0 {
                        self.state = State::Header(0);
                    }
                }
                State::Control(opcode) => {
                    let length = self.payload(bytes.len() - at);
                    let part = &mut bytes[at..at + length];
                    unmask(part, self.mask, &mut self.mask_at);
                    self.control.extend_from_slice(part);
                    at += length;
                    if self.remaining == 0 {
                        self.handle_control(opcode)?;
                    }
                }
                State::Closed | State::Violated => break,
            }
        }
        Ok(())
    }

    /// Takes as many bytes of the payload as there are.
    fn payload(&mut self, available: usize) -> usize {
        let length = usize::try_from(self.remaining).map_or(available, |rest| rest.min(available));
        self.remaining -= length as u64;
        length
    }

    /// A header of this length is whole.
    fn begin(&mut self, length: usize) -> Result<(), FrameError> {
        let [first, second, ..] = self.header;
        let opcode = first & 0x0f;
        if first & 0x70 != 0 {
            return Err(protocol(
                "a frame with reserved bits: no extension was agreed on",
            ));
        }
        let is_masked = second & 0x80 != 0;
        if is_masked != (self.role == Role::Server) {
            return Err(protocol("a client masks its frames, a server does not"));
        }
        self.mask = [0; 4];
        self.mask_at = 0;
        let mut lengths = length;
        if is_masked {
            lengths -= 4;
            self.mask.copy_from_slice(&self.header[lengths..length]);
        }
        self.remaining = match second & 0x7f {
            126 => {
                let length = u16::from_be_bytes([self.header[2], self.header[3]]);
                u64::from(length)
            }
            127 => {
                let mut length = [0; 8];
                length.copy_from_slice(&self.header[2..10]);
                u64::from_be_bytes(length)
            }
            short => short.into(),
        };
        if self.remaining > i64::MAX as u64 {
            return Err(protocol("a length with its highest bit set"));
        }
        self.is_final = first & 0x80 != 0;
        match opcode {
            CONTINUATION if !self.is_fragmented => Err(protocol("nothing to continue")),
            BINARY if self.is_fragmented => Err(protocol("a message within another")),
            CONTINUATION | BINARY => {
                self.is_fragmented = !self.is_final;
                self.state = match self.remaining {
                    0 => State::Header(0),
                    _ => State::Data,
                };
                Ok(())
            }
            // [MQTT-6.0.0-1]
            TEXT => Err(FrameError {
                code: 1003,
                text: "MQTT is sent in binary frames",
            }),
            CLOSE | PING | PONG if !self.is_final => Err(protocol("a control frame in fragments")),
            CLOSE | PING | PONG if self.remaining > LONGEST_CONTROL as u64 => {
                Err(protocol("a control frame that is too long"))
            }
            CLOSE | PING | PONG => {
                self.control.clear();
                self.state = State::Control(opcode);
                match self.remaining {
                    0 => self.handle_control(opcode),
                    _ => Ok(()),
                }
            }
            _ => Err(protocol("an opcode that is not known")),
        }
    }

    fn handle_control(&mut self, opcode: u8) -> Result<(), FrameError> {
        let payload = std::mem::take(&mut self.control);
        self.state = State::Header(0);
        match opcode {
            PING if self.answers.len() < MOST_ANSWERS_BYTES && !self.has_sent_close => {
                self.answer(PONG, &payload);
            }
            CLOSE => {
                let code = close_code(&payload)?;
                self.state = State::Closed;
                self.close(code);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends a close frame, unless one was sent.
    pub(crate) fn close(&mut self, code: u16) {
        if !std::mem::replace(&mut self.has_sent_close, true) {
            self.answer(CLOSE, &code.to_be_bytes());
        }
    }

    /// Whether a close frame was sent: no data may follow (RFC 6455 §5.5.1).
    pub(crate) fn has_sent_close(&self) -> bool {
        self.has_sent_close
    }

    fn answer(&mut self, opcode: u8, payload: &[u8]) {
        write_header(&mut self.answers, self.role, opcode, payload.len());
        // A client's mask is zero, see `write_header`.
        self.answers.extend_from_slice(payload);
    }

    /// Bytes of memory beside the structure.
    pub(crate) fn held_bytes(&self) -> usize {
        self.control.capacity() + self.answers.capacity()
    }

    /// Appends the header of a binary frame.
    pub(crate) fn write_binary_header(&self, out: &mut Vec<u8>, length: usize) {
        write_header(out, self.role, BINARY, length);
    }
}

/// Bytes of a header whose second byte is this one.
fn header_length(second: u8) -> usize {
    let length = match second & 0x7f {
        126 => 4,
        127 => 10,
        _ => 2,
    };
    match second & 0x80 {
        0 => length,
        _ => length + 4,
    }
}

/// The close code to answer a close frame with.
fn close_code(payload: &[u8]) -> Result<u16, FrameError> {
    match payload {
        [] => Ok(1000),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(protocol("a close code that is not sent"));
            }
            match simdutf8::basic::from_utf8(reason) {
                Ok(_) => Ok(code),
                Err(_) => Err(FrameError {
                    code: 1007,
                    text: "the reason of a close is not UTF-8",
                }),
            }
        }
        [_] => Err(protocol("half a close code")),
    }
}

/// Appends the header of a frame that is its whole message. A client's mask is zero: masks protect proxies that do not
/// know WebSocket from clients whose payload somebody else chooses, and ours is no browser.
pub(crate) fn write_header(out: &mut Vec<u8>, role: Role, opcode: u8, length: usize) {
    let mask_bit = match role {
        Role::Server => 0,
        Role::Client => 0x80,
    };
    out.push(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ ..=125), _) => out.push(mask_bit | length),
        (_, Ok(length)) => {
            out.push(mask_bit | 126);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(mask_bit | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    if role == Role::Client {
        out.extend_from_slice(&[0; 4]);
    }
}

/// Takes the mask off, which begins at `at`.
fn unmask(bytes: &mut [u8], mask: [u8; 4], at: &mut u8) {
    if mask == [0; 4] {
        return;
    }
    let mut turned = mask;
    turned.rotate_left(usize::from(*at & 3));
    let wide = u64::from_ne_bytes([
        turned[0], turned[1], turned[2], turned[3], turned[0], turned[1], turned[2], turned[3],
    ]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(turned.iter().cycle()) {
        *byte ^= mask;
    }
    *at = at.wrapping_add((bytes.len() % 4) as u8) & 3;
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
