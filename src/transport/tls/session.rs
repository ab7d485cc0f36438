//! One TLS connection, driven with buffers that belong to the thread.
//!
//! The library's own buffers would hold some kilobytes for each connection, idle or not, and would take a socket's
//! bytes four kilobytes at a time. So it is driven without: [`Session::receive`] decrypts what was read where it was
//! read, [`Session::encrypt`] writes records into a buffer of the thread.
//!
//! Invariant: between two calls a session holds the beginning of a record, at most [`LARGEST_INPUT_BYTES`].

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, HandshakeKind};

use super::loaded::Loaded;
use super::names::take_name;
use crate::transport::peer::TlsPeer;

/// Most input that is kept: a handshake message in several records, which the library bounds to 64 KiB, and a record.
const LARGEST_INPUT_BYTES: usize = 96 << 10;

/// What a session holds beside its input, about: keys, hashes, the client's certificates.
const SESSION_BYTES: usize = 6 << 10;

/// What a record adds to its content: header, type, nonce and tag, of either version.
const RECORD_BYTES: usize = 5 + 1 + 8 + 16;

/// Content of a full record.
const RECORD_CONTENT_BYTES: usize = 16 << 10;

/// A connection, from its first byte.
pub(crate) struct Session {
    connection: Box<UnbufferedServerConnection>,
    loaded: Option<Arc<Loaded>>,
    /// The beginning of a record that has not come whole.
    input: Vec<u8>,
    server_name: Option<Box<str>>,
    /// The client has said that nothing more comes.
    is_closed: bool,
    /// It has ended with an alert: the library is asked for nothing more.
    is_failed: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session that begins with the client's hello.
    ///
    /// # Errors
    /// The library refuses its own configuration.
    pub(crate) fn new(loaded: Arc<Loaded>) -> Result<Session, Error> {
        let connection = UnbufferedServerConnection::new(loaded.config.clone())?;
        Ok(Session {
            connection: Box::new(connection),
            loaded: Some(loaded),
            input: Vec::new(),
            server_name: None,
            is_closed: false,
            is_failed: false,
        })
    }

    /// The beginning of a record, which goes before what is read next.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input
    }

    /// Reads records: the last input, and what came behind it. Their content goes to `content`, what is to be sent to
    /// `out`.
    ///
    /// # Errors
    /// The client breaks the protocol, or is not let in. The alert that says so is in `out`.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        mut content: impl FnMut(&[u8]),
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if self.is_failed {
            return Err(Error::General("the session is over".into()));
        }
        let mut at = 0;
        let failed = loop {
            match step(&mut self.connection, &mut bytes[at..], &mut content, out) {
                Ok(Step::Read(read)) => at += read,
                Ok(Step::Closed(read)) => {
                    at += read;
                    self.is_closed = true;
                }
                Ok(Step::Waits(read)) => {
                    at += read;
                    break None;
                }
                Err((read, error)) => {
                    at += read;
                    break Some(error);
                }
            }
        };
        if let Some(name) = take_name() {
            self.server_name = Some(name);
        }
        match self.is_closed {
            true => self.input = Vec::new(),
            false => self.keep(&bytes[at..])?,
        }
        let Some(error) = failed else {
            return Ok(());
        };
        // The alert is made already. The input is not looked at again: it would be refused a second time.
        while self.connection.wants_write()
            && step(&mut self.connection, &mut self.input, &mut content, out).is_ok()
        {}
        self.is_failed = true;
        Err(error)
    }

    fn keep(&mut self, rest: &[u8]) -> Result<(), Error> {
        if rest.len() > LARGEST_INPUT_BYTES {
            return Err(Error::General("a record without end".into()));
        }
        if rest.is_empty() {
            self.input = Vec::new();
        } else {
            self.input.clear();
            self.input.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Whether the handshake goes on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether the client has said that nothing more comes.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The end of the handshake: who the client is, and whether a session was resumed.
    ///
    /// # Errors
    /// The session was resumed, and the client's certificate is not valid any more.
    pub(crate) fn finish(&mut self) -> Result<(TlsPeer, bool), Error> {
        let is_resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let certificates = self.connection.peer_certificates().unwrap_or_default();
        let is_vouched_for = match self.loaded.take() {
            Some(loaded) => loaded.admit(certificates, is_resumed)?,
            None => true,
        };
        let certificates = certificates.iter().map(CertificateDer::as_ref);
        let shown = certificates.map(|der| der.to_vec().into()).collect();
        let (certificates, unverified) = match is_vouched_for {
            true => (shown, Vec::new()),
            false => (Vec::new(), shown),
        };
        let peer = TlsPeer {
            certificates,
            unverified,
            server_name: self.server_name.take(),
        };
        Ok((peer, is_resumed))
    }

    /// Appends records with this content to `out`.
    ///
    /// # Errors
    /// The session is over.
    pub(crate) fn encrypt(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.send(
            out,
            |traffic, room| traffic.encrypt(content, room),
            content.len(),
        )
    }

    /// Appends the alert that says that nothing more comes.
    ///
    /// # Errors
    /// The session is over.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.send(out, |traffic, room| traffic.queue_close_notify(room), 0)
    }

    fn send(
        &mut self,
        out: &mut Vec<u8>,
        mut send: impl FnMut(&mut Traffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
        content: usize,
    ) -> Result<(), Error> {
        let over = || Error::General("the session is over".into());
        if self.is_failed {
            return Err(over());
        }
        loop {
            // The input goes along: the library remembers places in it.
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process_tls_records(&mut self.input);
            match state? {
                ConnectionState::EncodeTlsData(mut data) => encode(&mut data, out)?,
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::WriteTraffic(mut traffic) => {
                    let records = content / RECORD_CONTENT_BYTES + 1;
                    // Room for a key update, too.
                    let room = content + (records + 1) * RECORD_BYTES + 64;
                    return append(out, room, |room| send(&mut traffic, room)).map_err(|_| over());
                }
                ConnectionState::PeerClosed => self.is_closed = true,
                _ => return Err(over()),
            }
            if discard > 0 {
                self.input.drain(..discard.min(self.input.len()));
            }
        }
    }

    /// Bytes of memory that the session holds.
    pub(crate) fn held_bytes(&self) -> usize {
        SESSION_BYTES + self.input.capacity()
    }
}

type Traffic<'c> = rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>;

/// What one step of the library came to; the input that it has read.
enum Step {
    Read(usize),
    Closed(usize),
    /// More input is needed.
    Waits(usize),
}

fn step(
    connection: &mut UnbufferedServerConnection,
    bytes: &mut [u8],
    content: &mut impl FnMut(&[u8]),
    out: &mut Vec<u8>,
) -> Result<Step, (usize, Error)> {
    let UnbufferedStatus {
        mut discard, state, ..
    } = connection.process_tls_records(bytes);
    match state.map_err(|error| (discard, error))? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record.map_err(|error| (discard, error))?;
                content(record.payload);
                discard += record.discard;
            }
            Ok(Step::Read(discard))
        }
        ConnectionState::EncodeTlsData(mut data) => {
            encode(&mut data, out).map_err(|error| (discard, error))?;
            Ok(Step::Read(discard))
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Read(discard))
        }
        ConnectionState::PeerClosed => Ok(Step::Closed(discard)),
        _ => Ok(Step::Waits(discard)),
    }
}

fn encode(
    data: &mut rustls::unbuffered::EncodeTlsData<'_, rustls::server::ServerConnectionData>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut room = 512;
    loop {
        match append(out, room, |room| data.encode(room)) {
            Ok(()) => return Ok(()),
            Err(EncodeError::InsufficientSize(needs)) => room = needs.required_size,
            Err(EncodeError::AlreadyEncoded) => {
                return Err(Error::General("a record was encoded twice".into()));
            }
        }
    }
}

/// Appends what is written into so much room.
fn append<E>(
    out: &mut Vec<u8>,
    room: usize,
    write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Result<(), E> {
    let at = out.len();
    out.resize(at + room, 0);
    let written = write(&mut out[at..]);
    out.truncate(at + written.as_ref().map_or(0, |written| *written));
    written.map(|_| ())
}
