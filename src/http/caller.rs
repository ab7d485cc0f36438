//! Who is at the other end of a connection, as far as the connection itself says.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use x509_parser::parse_x509_certificate;

use crate::base::time::Millis;

/// The TLS that a port speaks now; another one after its files were read again.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// The other end of a connection.
#[derive(Clone, Default)]
pub(super) struct Caller {
    /// Its address.
    pub(super) address: Option<SocketAddr>,
    /// What its certificate says, which TLS has verified.
    pub(super) certificate: Option<Certificate>,
}

/// A verified client certificate.
#[derive(Clone)]
pub(super) struct Certificate {
    /// The subject's only common name.
    pub(super) name: Arc<str>,
    expires_at: Millis,
    /// By what it was judged.
    judged_by: Arc<ServerConfig>,
    tls: TlsSource,
}

impl Certificate {
    /// Reads the names of a certificate; `None` when it has not exactly one common name.
    pub(super) fn new(
        der: &[u8],
        judged_by: Arc<ServerConfig>,
        tls: TlsSource,
    ) -> Option<Certificate> {
        let (_, certificate) = parse_x509_certificate(der).ok()?;
        let mut names = certificate.subject().iter_common_name();
        let (name, more) = (names.next()?.as_str().ok()?, names.next());
        let end_s = certificate.validity().not_after.timestamp();
        more.is_none().then(|| Certificate {
            name: name.into(),
            expires_at: Millis(u64::try_from(end_s).unwrap_or(0).saturating_mul(1_000)),
            judged_by,
            tls,
        })
    }

    /// Whether it still counts: it has not expired, and what certificates are judged by is what it was judged by. A list
    /// of revoked certificates that was read since may name it; the next connection finds out.
    pub(super) fn counts_at(&self, now: Millis) -> bool {
        now < self.expires_at && Arc::ptr_eq(&self.judged_by, &(self.tls)())
    }
}
