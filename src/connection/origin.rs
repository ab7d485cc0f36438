//! Where a connection comes from, and what is asked of it there.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::auth::{Chain, Client};
use crate::base::time::wall_now;

/// The listener and the far end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The far end's address.
    pub(crate) address: Option<SocketAddr>,
    /// The name of the listener.
    pub(crate) listener: Arc<str>,
    /// What the listener asks of its clients.
    pub(crate) chain: Arc<Chain>,
}

impl Origin {
    /// A client from here, of which only its client identifier is known, now.
    pub(super) fn client<'a>(&'a self, client_id: &'a str) -> Client<'a> {
        Client {
            client_id,
            address: self.address,
            listener: &self.listener,
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
            address: None,
            listener: "mqtt".into(),
            chain: Arc::default(),
        })
    }
}
