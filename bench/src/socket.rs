//! A non-blocking socket of the load generator, with TLS, WebSocket, both or neither.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::websocket::WebSocket;

/// How connections speak TLS; nothing while they don't.
static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();

/// Whether MQTT is spoken over WebSocket.
static WEBSOCKET: AtomicBool = AtomicBool::new(false);

/// Most bytes of a frame.
const LARGEST_FRAME_BYTES: usize = 64 << 10;

/// Has all connections that speak MQTT do so over WebSocket from now on.
pub fn use_websocket() {
    WEBSOCKET.store(true, Relaxed);
}

/// Has all connections speak TLS from now on, with servers whose certificates name their IP address.
///
/// # Errors
/// When the file has no certificates.
pub fn use_tls(ca_file: &Path, resume: bool) -> Result<(), String> {
    let failed = |why: String| format!("{}: {why}", ca_file.display());
    let bytes = fs::read(ca_file).map_err(|error| failed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        let added = roots.add(certificate);
        added.map_err(|error| failed(error.to_string()))?;
    }
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    if !resume {
        config.resumption = Resumption::disabled();
    }
    TLS.get_or_init(|| Arc::new(config));
    Ok(())
}

/// A socket that is being connected, or is.
pub struct Socket {
    carrier: Carrier,
    web: Option<Box<WebSocket>>,
}

/// What carries MQTT, or frames of WebSocket.
struct Carrier {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// The last read has emptied it: more comes with another event.
    is_drained: bool,
}

impl Socket {
    pub fn new(stream: TcpStream, server: SocketAddr, is_mqtt: bool) -> io::Result<Socket> {
        let connection = TLS.get().map(|config| {
            let name = ServerName::from(server.ip());
            ClientConnection::new(config.clone(), name).map(Box::new)
        });
        let tls = connection.transpose().map_err(io::Error::other)?;
        let is_web = is_mqtt && WEBSOCKET.load(Relaxed);
        Ok(Socket {
            carrier: Carrier {
                stream,
                tls,
                is_drained: false,
            },
            web: is_web.then(|| Box::new(WebSocket::new(&server.to_string()))),
        })
    }

    /// To be registered.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.carrier.stream
    }

    /// Whether the last read has emptied the socket.
    pub fn is_drained(&self) -> bool {
        self.carrier.is_drained
    }

    /// Whether the server has sent what resumes the session, which it does when it has seen the end of the handshake.
    pub fn has_ticket(&self) -> bool {
        let tls = self.carrier.tls.as_ref();
        tls.is_some_and(|tls| tls.tls13_tickets_received() > 0)
    }

    /// Sends what waits below MQTT.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(web) = &mut self.web {
            while !web.unsent().is_empty() {
                match self.carrier.write(web.unsent()) {
                    Ok(count) => web.sent(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.carrier.flush()
    }

    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(web) = &mut self.web else {
            return self.carrier.read(buffer);
        };
        loop {
            let count = self.carrier.read(buffer)?;
            let content = web.receive(&mut buffer[..count])?;
            if content > 0 || count == 0 || web.is_closed() {
                return Ok(content);
            }
            if self.carrier.is_drained {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.web.is_none() {
            return self.carrier.write(bytes);
        }
        self.flush()?;
        let web = self.web.as_mut().filter(|web| web.is_writable());
        let web = web.ok_or(io::ErrorKind::WouldBlock)?;
        let taken = bytes.len().min(LARGEST_FRAME_BYTES);
        web.frame(&bytes[..taken]);
        self.flush()?;
        Ok(taken)
    }
}

impl Carrier {
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => send(tls, &mut self.stream),
            None => Ok(()),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let read = self.stream.read(buffer);
            // A short read has.
            self.is_drained = read.as_ref().is_ok_and(|count| *count < buffer.len());
            return read;
        };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            let processed = tls.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            send(tls, &mut self.stream)?;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.stream.write(bytes);
        };
        let taken = tls.writer().write(bytes)?;
        self.flush()?;
        match taken {
            // Its buffer is full, because the socket's is.
            0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }
}

/// Sends what the socket takes.
fn send(tls: &mut ClientConnection, stream: &mut TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
