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
pub struct Caller {
    /// Its address.
    pub address: Option<SocketAddr>,
    /// What its certificate says, which TLS has verified.
    pub certificate: Option<Certificate>,
}

/// A verified client certificate.
#[derive(Clone)]
pub struct Certificate {
    /// The subject's only common name.
    pub name: Arc<str>,
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

    /// Whether it still counts: it has not expired, and what certificates are judged by is what it was judged by. A
    /// list of revoked certificates that was read since may name it; the next connection finds out.
    pub(super) fn counts_at(&self, now: Millis) -> bool {
        now < self.expires_at && Arc::ptr_eq(&self.judged_by, &(self.tls)())
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::crypto::aws_lc_rs;
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;
    use crate::base::time::wall_now;

    fn config() -> Arc<ServerConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions that the library has");
        let nobody = Arc::new(ResolvesServerCertUsingSni::new());
        let builder = builder.with_no_client_auth();
        Arc::new(builder.with_cert_resolver(nobody))
    }

    fn certificate(names: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.not_after = rcgen::date_time_ymd(2_099, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        made.der().to_vec()
    }

    #[test]
    fn a_certificate_counts_until_it_expires_or_is_judged_anew() {
        let now = Arc::new(Mutex::new(config()));
        let tls: TlsSource = {
            let now = now.clone();
            Arc::new(move || now.lock().clone())
        };
        let judged_by = tls();
        let found = Certificate::new(&certificate(&["ops"]), judged_by, tls);
        let found = found.expect("it has a name");
        assert_eq!(&*found.name, "ops");
        assert!(found.counts_at(wall_now()));
        assert!(
            !found.counts_at(Millis(4_100_000_000_000)),
            "it has expired"
        );
        *now.lock() = config();
        assert!(!found.counts_at(wall_now()), "other files judge now");
    }

    #[test]
    fn who_has_no_name_is_nobody() {
        let tls: TlsSource = Arc::new(config);
        for der in [certificate(&[]), b"junk".to_vec()] {
            assert!(Certificate::new(&der, config(), tls.clone()).is_none());
        }
    }
}
