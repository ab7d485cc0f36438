//! A connection from its acceptance until MQTT can begin.

use std::sync::Arc;

use super::listening::Listener;
use super::peer::Peer;
use super::socket::Socket;
use super::stream::Stream;

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
}

impl Incoming {
    /// Shakes hands as the listener asks for.
    ///
    /// # Errors
    /// The client does not do its part.
    pub(crate) async fn establish(self) -> Result<Accepted, EstablishError> {
        Ok(Accepted {
            stream: Stream::Plain(self.socket),
            peer: self.peer,
            listener: self.listener,
        })
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
