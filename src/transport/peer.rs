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
    /// The same of a client whose certificate no authority of the listener vouches for, where everybody is asked for
    /// one. The client has its key, and that is all that is known.
    pub(crate) unverified: Vec<CertificateDer<'static>>,
    /// The server that it asked for (SNI).
    pub(crate) server_name: Option<Box<str>>,
}

impl Peer {
    /// Drops certificates that nobody vouches for: anybody may show some, of a size that nobody is charged for, and who
    /// has logged in has no use for them.
    pub(crate) fn forget_unverified(&mut self) {
        if let Some(tls) = &self.tls
            && !tls.unverified.is_empty()
        {
            self.tls = Some(Arc::new(TlsPeer {
                certificates: tls.certificates.clone(),
                unverified: Vec::new(),
                server_name: tls.server_name.clone(),
            }));
        }
    }
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
