//! What the files of a listener had when they were read last, and how it judges clients.
//!
//! Invariant: no file is read here, and nothing of the configuration is needed: sessions are fuzzed with it and without
//! the rest (`cluster-tests/fuzz`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

/// What clients are judged by.
#[derive(Default, PartialEq)]
pub(super) struct Authorities {
    pub(super) roots: Vec<CertificateDer<'static>>,
    pub(super) lists: Vec<CertificateRevocationListDer<'static>>,
}

/// What was loaded last.
pub(crate) struct Loaded {
    /// What a new connection gets.
    pub(crate) config: Arc<ServerConfig>,
    /// What judges client certificates; `None` when nobody vouches for any.
    pub(super) verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Certificates are judged when the handshake is over.
    pub(super) asks_everybody: bool,
    pub(super) authorities: Authorities,
    /// Files of certificates, and when the first one of each expires.
    pub(crate) expiries: Vec<(PathBuf, SystemTime)>,
}

impl Loaded {
    /// Whether clients are judged by the same as by another one.
    pub(super) fn judges_as(&self, other: &Loaded) -> bool {
        self.authorities == other.authorities
    }

    /// What the certificates of a client are worth when its handshake is over: whether an authority of the listener
    /// vouches for them.
    ///
    /// # Errors
    /// They are not valid, or not any more, and the client is turned away.
    pub(super) fn admit(
        &self,
        certificates: &[CertificateDer<'_>],
        is_resumed: bool,
    ) -> Result<bool, rustls::Error> {
        if self.asks_everybody {
            return Ok(self.verifier.is_some() && self.judge(certificates).is_ok());
        }
        // Those of a full handshake were judged in it.
        if is_resumed {
            self.judge(certificates)?;
        }
        Ok(true)
    }

    /// Judges the certificates of a client whose session was resumed, or whose connection lasts: since it began they
    /// may have expired, or been revoked.
    ///
    /// # Errors
    /// They are not valid now.
    pub(crate) fn judge(&self, certificates: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let (Some(verifier), Some((own, chain))) = (&self.verifier, certificates.split_first())
        else {
            return Ok(());
        };
        verifier
            .verify_client_cert(own, chain, UnixTime::now())
            .map(|_| ())
    }
}
