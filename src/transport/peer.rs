//! Who is at the other end, as far as the transport knows.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

/// The other end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Its address: the one that a PROXY header tells, where the listener asks for one. `None` for a Unix socket, and
    /// for a load balancer's own connections.
    pub(crate) address: Option<SocketAddr>,
    /// What TLS knows of it; `None` without TLS.
    pub(crate) tls: Option<Arc<TlsPeer>>,
}

/// What TLS knows of a client.
#[derive(Debug, Default)]
pub(crate) struct TlsPeer {
    /// Its certificate, and those that lead to the CA, verified; empty when it showed none.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// The server that it asked for (SNI).
    pub(crate) server_name: Option<Box<str>>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => address.fmt(f)?,
            None => f.write_str("local")?,
        }
        match self.tls.as_ref().and_then(|tls| tls.server_name.as_ref()) {
            Some(name) => write!(f, " for {name:?}"),
            None => Ok(()),
        }
    }
}
