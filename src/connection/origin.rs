//! Where a connection comes from, what is asked of it there, and how it answers.

use std::sync::Arc;

use crate::auth::{Chain, Client};
use crate::base::time::wall_now;
use crate::config::ClientCertificates;
use crate::transport::{Listener, Peer};

/// The listener and the far end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The far end.
    pub(crate) peer: Peer,
    /// Where it connected.
    pub(crate) listener: Arc<Listener>,
    /// What the listener asks of its clients.
    pub(crate) chain: Arc<Chain>,
    /// The Authentication Method that its CONNECT names, and that every AUTH must name `[MQTT-4.12.0-5]`
    /// `[MQTT-4.12.1-1]`.
    pub(crate) method: Option<Box<str>>,
}

impl Origin {
    /// Whether the client has shown a certificate that the listener's authorities do not vouch for. Without a hub it
    /// would not have come as far.
    pub(super) fn shows_unverified_certificate(&self) -> bool {
        let asks = self.listener.config.client_certificates != ClientCertificates::Off;
        let tls = self.peer.tls.as_ref();
        asks && tls.is_some_and(|tls| !tls.unverified.is_empty())
    }

    /// A client from here, of which only its client identifier is known, now.
    pub(super) fn client<'a>(&'a self, client_id: &'a str) -> Client<'a> {
        let tls = self.peer.tls.as_ref();
        Client {
            client_id,
            address: self.peer.address,
            certificates: tls.map_or(&[], |tls| &tls.certificates),
            listener: &self.listener.config.name,
            now: wall_now(),
            ..Client::default()
        }
    }
}

#[cfg(test)]
impl Origin {
    /// A listener that lets everybody in.
    pub(super) fn for_tests() -> Arc<Origin> {
        Arc::new(Origin {
            peer: Peer::default(),
            listener: Arc::default(),
            chain: Arc::default(),
            method: None,
        })
    }
}
