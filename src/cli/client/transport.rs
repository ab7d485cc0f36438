//! The bytes between this client and a server: TCP, TLS, WebSocket.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::ClientError;
use super::server::Server;
use crate::cli::hint;
use crate::http_client::TlsFiles;
use crate::transport::websocket::{self, Frames, Role};

/// Most bytes that one read takes.
const READ_BYTES: usize = 64 << 10;

/// What a client proves to servers, and what it asks of them.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// PEM file of the CAs that servers are judged by; those of the system when absent.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the client's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    /// The library's settings of it.
    ///
    /// # Errors
    /// A file can't be used, or the machine has no CAs.
    pub fn config(&self) -> Result<ClientConfig, ClientError> {
        let files = TlsFiles {
            authorities: self.ca_file.clone(),
            certificate: self.certificate.clone(),
        };
        files
            .read()
            .map_err(|error| ClientError::Tls(error.to_string()))
    }
}

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// An open stream to a server.
pub(super) struct Stream {
    bytes: Box<dyn Bytes>,
    frames: Option<Frames>,
}

impl Stream {
    /// Connects to a server and shakes hands.
    pub(super) async fn open(server: &Server, options: &TlsOptions) -> Result<Stream, ClientError> {
        let unreachable =
            |error: std::io::Error| ClientError::Unreachable(format!("{server}: {error}"));
        let address = &server.address;
        let socket = TcpStream::connect((address.host(), address.port())).await;
        let socket = socket.map_err(unreachable)?;
        socket.set_nodelay(true).map_err(unreachable)?;
        let bytes: Box<dyn Bytes> = match server.transport.is_tls() {
            false => Box::new(socket),
            true => {
                let mut config = options.config()?;
                if !server.transport.is_websocket() {
                    config.alpn_protocols = vec![b"mqtt".to_vec()];
                }
                let name = ServerName::try_from(address.host().to_owned())
                    .map_err(|error| ClientError::Tls(error.to_string()))?;
                let connector = TlsConnector::from(Arc::new(config));
                let stream = connector.connect(name, socket).await;
                Box::new(stream.map_err(|error| {
                    ClientError::Tls(match hint::speaks_no_tls(&error) {
                        true => format!("{server}: {error}; {}", hint::NOT_MQTTS),
                        false => format!("{server}: {error}"),
                    })
                })?)
            }
        };
        let mut stream = Stream {
            bytes,
            frames: None,
        };
        if server.transport.is_websocket() {
            stream.upgrade(server).await?;
        }
        Ok(stream)
    }

    async fn upgrade(&mut self, server: &Server) -> Result<(), ClientError> {
        let closed = |error: std::io::Error| ClientError::Closed(error.to_string());
        let host = server.address.to_string();
        let (request, expected) = websocket::request(&host, &server.path);
        self.bytes.write_all(&request).await.map_err(closed)?;
        self.bytes.flush().await.map_err(closed)?;
        let mut head = Vec::new();
        // A server speaks when it is spoken to: nothing of MQTT is behind the head.
        while expected
            .judge(&head)
            .map_err(|error| ClientError::Protocol(format!("{server}: {error}")))?
            .is_none()
        {
            if self.bytes.read_buf(&mut head).await.map_err(closed)? == 0 {
                return Err(ClientError::Closed("by the server".into()));
            }
        }
        self.frames = Some(Frames::new(Role::Client));
        Ok(())
    }

    /// Sends bytes of MQTT.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if let Some(frames) = &mut self.frames {
            let mut header = std::mem::take(&mut frames.answers);
            frames.write_binary_header(&mut header, bytes.len());
            self.bytes.write_all(&header).await?;
        }
        self.bytes.write_all(bytes).await?;
        self.bytes.flush().await
    }

    /// Reads bytes of MQTT. Returns how many; 0 is the end. Cancel safe.
    pub(super) async fn read_buf(&mut self, into: &mut BytesMut) -> std::io::Result<usize> {
        loop {
            let at = into.len();
            into.reserve(READ_BYTES);
            let read = self.bytes.read_buf(into).await?;
            let Some(frames) = &mut self.frames else {
                return Ok(read);
            };
            let broken = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
            let length = frames.receive(&mut into[at..]).map_err(broken)?;
            into.truncate(at + length);
            if length > 0 || read == 0 || frames.is_closed() {
                return Ok(length);
            }
        }
    }
}
