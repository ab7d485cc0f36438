//! A connection from its acceptance until MQTT can begin.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::layered::Layered;
use super::listener::Listener;
use super::peer::{Peer, TlsPeer};
use super::proxy::{self, Progress, ProxyError};
use super::socket::Socket;
use super::stream::Stream;
use super::tls::{ServerTls, Session};
use super::websocket::{self, Frames, HUB_PATH, Policy, Role, UpgradeError};
use crate::telemetry::labels::TlsHandshake;

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) socket: Socket,
    pub(crate) peer: Peer,
    pub(crate) listener: Arc<Listener>,
}

/// A connection that is ready for MQTT.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) peer: Peer,
    /// Where it connected.
    pub(crate) listener: Arc<Listener>,
}

/// Why a connection never came to MQTT.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EstablishError {
    /// The client or the network closed it.
    #[error("the client or the network closed the connection")]
    Network,
    /// There is no memory for its handshake.
    #[error("the server is short of memory")]
    NoRoom,
    /// What came first is no PROXY header.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// TLS has failed.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// No WebSocket was agreed on.
    #[error("WebSocket: {0}")]
    Upgrade(#[from] UpgradeError),
}

impl From<io::Error> for EstablishError {
    fn from(error: io::Error) -> EstablishError {
        if error.kind() == io::ErrorKind::OutOfMemory {
            return EstablishError::NoRoom;
        }
        let inner = error.into_inner().map(|inner| inner.downcast());
        match inner {
            Some(Ok(error)) => EstablishError::Tls(*error),
            _ => EstablishError::Network,
        }
    }
}

/// A connection of which it is known where it comes from: a proxy has told it, where the listener asks for that.
#[derive(Debug)]
pub(crate) struct Located(Incoming);

impl Incoming {
    /// Reads where the connection comes from, if a proxy is to tell it.
    ///
    /// # Errors
    /// The proxy does not do its part.
    pub(crate) async fn locate(mut self) -> Result<Located, EstablishError> {
        if self.listener.config.proxy_protocol
            && let Some(source) = proxy_header(&mut self.socket).await?
        {
            self.peer.address = Some(source);
        }
        Ok(Located(self))
    }

    /// Shakes hands as the listener asks for. `has_room` is told how many bytes the handshake holds, and says whether
    /// it may.
    ///
    /// # Errors
    /// The client does not do its part.
    pub(crate) async fn establish(
        self,
        has_room: impl FnMut(usize) -> bool,
    ) -> Result<Accepted, EstablishError> {
        self.locate().await?.establish(has_room).await
    }
}

impl Located {
    /// Who is at the other end.
    pub(crate) fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Whether there is a handshake before MQTT: its answer to a client that is refused can't be read without it.
    pub(crate) fn shakes_hands(&self) -> bool {
        let listener = &self.0.listener;
        listener.tls.is_some() || listener.config.transport.is_websocket()
    }

    /// As [`Incoming::establish`].
    ///
    /// # Errors
    /// The client does not do its part.
    pub(crate) async fn establish(
        self,
        has_room: impl FnMut(usize) -> bool,
    ) -> Result<Accepted, EstablishError> {
        let is_plain = !self.shakes_hands();
        let Incoming {
            socket,
            mut peer,
            listener,
        } = self.0;
        let stream = match is_plain {
            true => Stream::Plain(socket),
            // What a handshake needs is given back when it is over.
            false => Box::pin(layers(socket, &mut peer, &listener, has_room)).await?,
        };
        Ok(Accepted {
            stream,
            peer,
            listener,
        })
    }
}

/// Reads the PROXY header, and no byte behind it.
async fn proxy_header(socket: &mut Socket) -> Result<Option<SocketAddr>, EstablishError> {
    let mut header = Vec::new();
    loop {
        let needs = match proxy::progress(&header)? {
            Progress::Whole(source) => return Ok(source),
            Progress::Needs(needs) => needs,
        };
        let at = header.len();
        header.resize(at + needs, 0);
        socket.readable().await?;
        let read = match socket.try_read(&mut header[at..]) {
            Ok(0) => return Err(EstablishError::Network),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        header.truncate(at + read);
    }
}

/// TLS, then WebSocket.
async fn layers(
    socket: Socket,
    peer: &mut Peer,
    listener: &Listener,
    mut has_room: impl FnMut(usize) -> bool,
) -> Result<Stream, EstablishError> {
    let mut stream = match &listener.tls {
        Some(tls) => {
            let handshakes = &listener.metrics.tls_handshakes;
            let shaken = shake_hands(socket, tls, &mut has_room).await;
            let (stream, tls, is_resumed) = shaken.inspect_err(|_| {
                handshakes.of(TlsHandshake::Failed).increment();
            })?;
            handshakes
                .of(match is_resumed {
                    true => TlsHandshake::Resumed,
                    false => TlsHandshake::Full,
                })
                .increment();
            peer.tls = Some(Arc::new(tls));
            stream
        }
        None => Layered::new(socket, None),
    };
    if listener.config.transport.is_websocket() {
        upgrade(&mut stream, listener, has_room).await?;
    }
    Ok(Stream::Layered(Box::new(stream)))
}

async fn shake_hands(
    socket: Socket,
    tls: &ServerTls,
    has_room: impl FnMut(usize) -> bool,
) -> Result<(Layered, TlsPeer, bool), EstablishError> {
    let session = Session::new(tls.loaded()).map_err(EstablishError::Tls)?;
    let mut stream = Layered::new(socket, Some(session));
    stream.shake_hands(has_room).await?;
    match stream.session().map(Session::finish) {
        Some(Ok((peer, is_resumed))) => Ok((stream, peer, is_resumed)),
        Some(Err(error)) => {
            stream.close();
            Err(EstablishError::Tls(error))
        }
        // Not reached: it was made above.
        None => Err(EstablishError::Network),
    }
}

async fn upgrade(
    stream: &mut Layered,
    listener: &Listener,
    has_room: impl FnMut(usize) -> bool,
) -> Result<(), EstablishError> {
    let own = listener.config.url_path();
    let policy = Policy {
        paths: match listener.serves_hub {
            true => &[own, HUB_PATH],
            false => &[own],
        },
        origins: &listener.config.websocket_origins,
        is_tls: listener.tls.is_some(),
    };
    let judge = |bytes: &[u8]| websocket::answer(bytes, policy);
    match stream.head(has_room, judge).await? {
        Ok(answer) => {
            stream.send_all(&answer).await?;
            stream.begin_frames(Frames::new(Role::Server));
            Ok(())
        }
        Err(error) => {
            stream.send_all(&error.response()).await?;
            stream.close();
            Err(error.into())
        }
    }
}

#[cfg(test)]
impl Incoming {
    /// A connection of TCP to a listener with default settings.
    pub(crate) fn of_tcp(stream: tokio::net::TcpStream) -> Incoming {
        let peer = Peer {
            address: stream.peer_addr().ok(),
            tls: None,
        };
        Incoming {
            socket: Socket::Tcp(stream),
            peer,
            listener: Arc::default(),
        }
    }
}
