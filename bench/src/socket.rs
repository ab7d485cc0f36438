//! A non-blocking socket of the load generator, with TLS or without.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// How connections speak TLS; nothing while they don't.
static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();

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
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Socket {
    pub fn new(stream: TcpStream, server: SocketAddr) -> io::Result<Socket> {
        let connection = TLS.get().map(|config| {
            let name = ServerName::from(server.ip());
            ClientConnection::new(config.clone(), name).map(Box::new)
        });
        let tls = connection.transpose().map_err(io::Error::other)?;
        Ok(Socket { stream, tls })
    }

    /// To be registered.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Whether a read that does not fill its buffer has emptied the socket.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Sends what TLS has to send.
    pub fn flush_tls(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => send(tls, &mut self.stream),
            None => Ok(()),
        }
    }

    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.stream.read(buffer);
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

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.stream.write(bytes);
        };
        let taken = tls.writer().write(bytes)?;
        self.flush_tls()?;
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
