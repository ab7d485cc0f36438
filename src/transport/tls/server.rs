//! What a listener offers over TLS, from its files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerSessionMemoryCache, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};

use super::any_certificate::AnyCertificate;
use super::expiry::earliest_expiry;
use super::loaded::{Authorities, Loaded};
use super::names::Certificates;
use crate::config::file::{Stamp, stamp};
use crate::config::pem::{self, PemError};
use crate::config::{self, CertificatePair, ClientCertificates};

/// Sessions that can be resumed by their id. Most clients have tickets instead, which cost the server nothing.
const CACHED_SESSIONS: usize = 1_024;

/// The files of a listener, and what it asks of clients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Files {
    pub(crate) certificates: Vec<CertificatePair>,
    pub(crate) client_certificates: ClientCertificates,
    pub(crate) client_ca_file: Option<PathBuf>,
    pub(crate) crl_files: Vec<PathBuf>,
    /// Every client is asked for a certificate, and none is turned away for one that nobody vouches for: who reads
    /// what it has to show judges it.
    pub(crate) asks_everybody: bool,
}

impl From<&config::Listener> for Files {
    fn from(listener: &config::Listener) -> Files {
        Files {
            certificates: listener.certificates.clone(),
            client_certificates: listener.client_certificates,
            client_ca_file: listener.client_ca_file.clone(),
            crl_files: listener.crl_files.clone(),
            asks_everybody: false,
        }
    }
}

impl Files {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let pairs = self.certificates.iter();
        let pairs = pairs.flat_map(|pair| [&pair.certificate, &pair.key]);
        let others = self.client_ca_file.iter().chain(&self.crl_files);
        pairs.chain(others).map(PathBuf::as_path)
    }

    /// What tells that a file was replaced or written.
    fn stamps(&self) -> Vec<Stamp> {
        self.paths().map(stamp).collect()
    }
}

/// Why TLS can't be offered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file can't be used.
    #[error(transparent)]
    File(#[from] PemError),
    /// A key can't be used.
    #[error("{path}: {1}", path = .0.display())]
    Key(PathBuf, rustls::Error),
    /// It is the key of another certificate.
    #[error("{}: it is not the key of {}", .key.display(), .certificate.display())]
    OtherKey {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate that stands beside it.
        certificate: PathBuf,
    },
    /// A CA's certificate can't be used.
    #[error("{path}: {1}", path = .0.display())]
    Authority(PathBuf, rustls::Error),
    /// The CAs or revocation lists can't be used.
    #[error("client certificates can't be judged: {0}")]
    Verifier(#[from] VerifierBuilderError),
    /// The library does not offer it.
    #[error(transparent)]
    Library(#[from] rustls::Error),
}

impl TlsError {
    fn of_key(pair: &CertificatePair, error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::OtherKey {
                key: pair.key.clone(),
                certificate: pair.certificate.clone(),
            },
            error => TlsError::Key(pair.key.clone(), error),
        }
    }
}

/// What came of reading files again.
#[derive(Debug)]
pub(crate) enum Reload {
    /// No file has changed.
    Unchanged,
    /// New connections get what is in them now.
    Loaded,
    /// They can't be used, and what was loaded before goes on.
    Failed(TlsError),
}

/// The TLS of a listener. New connections get what its files had when they were last read; open ones keep what they
/// have.
pub(crate) struct ServerTls {
    files: Files,
    protocols: Vec<Vec<u8>>,
    loaded: ArcSwap<Loaded>,
    seen: Mutex<Seen>,
}

/// What is known of the files.
struct Seen {
    /// As they were when they were loaded.
    loaded: Vec<Stamp>,
    /// As they were when they could not be loaded, and why, as the log has it.
    failed: Option<(Vec<Stamp>, String)>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("files", &self.files)
            .finish()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

impl ServerTls {
    /// Reads the files. A client that names protocols (ALPN) must name one of `protocols`.
    ///
    /// # Errors
    /// They can't be used.
    pub(crate) fn load(files: Files, protocols: &[&str]) -> Result<Arc<ServerTls>, TlsError> {
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
        let protocols: Vec<Vec<u8>> = protocols.collect();
        let stamps = files.stamps();
        let loaded = load(&files, &protocols, None)?;
        Ok(Arc::new(ServerTls {
            files,
            protocols,
            loaded: ArcSwap::from_pointee(loaded),
            seen: Mutex::new(Seen {
                loaded: stamps,
                failed: None,
            }),
        }))
    }

    /// What was loaded last.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// Reads the files again if one has changed, or if it `must`.
    pub(crate) fn reload(&self, must: bool) -> Reload {
        self.reload_by(must, |before| {
            load(&self.files, &self.protocols, Some(before))
        })
    }

    /// Files that can't be loaded are tried again each time, whether they change or not: what failed may have been the
    /// machine. The same failure is told once.
    pub(in crate::transport) fn reload_by(
        &self,
        must: bool,
        load: impl FnOnce(&Loaded) -> Result<Loaded, TlsError>,
    ) -> Reload {
        let stamps = self.files.stamps();
        let mut seen = self.seen.lock();
        if seen.loaded == stamps && !must {
            return Reload::Unchanged;
        }
        match load(&self.loaded()) {
            Ok(loaded) => {
                self.loaded.store(Arc::new(loaded));
                *seen = Seen {
                    loaded: stamps,
                    failed: None,
                };
                Reload::Loaded
            }
            Err(error) => {
                let failed = Some((stamps, error.to_string()));
                let is_told = !must && seen.failed == failed;
                seen.failed = failed;
                match is_told {
                    true => Reload::Unchanged,
                    false => Reload::Failed(error),
                }
            }
        }
    }

    /// Names of the files, for the log.
    pub(crate) fn describe(&self) -> String {
        let pairs = self.files.certificates.iter();
        let names: Vec<_> = pairs
            .map(|pair| pair.certificate.display().to_string())
            .collect();
        names.join(", ")
    }
}

/// Reads everything. Sessions of before can be resumed if clients are judged by the same as `before`.
fn load(files: &Files, protocols: &[Vec<u8>], before: Option<&Loaded>) -> Result<Loaded, TlsError> {
    let provider = provider();
    let mut expiries = Vec::new();
    let mut keys = Vec::new();
    for pair in &files.certificates {
        let chain = pem::certificates(&pair.certificate)?;
        expiries.extend(earliest_expiry(&chain).map(|at| (pair.certificate.clone(), at)));
        let key = pem::private_key(&pair.key)?;
        let key = CertifiedKey::from_der(chain, key, &provider);
        let key = key.map_err(|error| TlsError::of_key(pair, error))?;
        keys.push(Arc::new(key));
    }
    let authorities = authorities(files)?;
    if let Some(path) = &files.client_ca_file {
        expiries.extend(earliest_expiry(&authorities.roots).map(|at| (path.clone(), at)));
    }
    let verifier = verifier(files, &authorities, &provider)?;
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    // Where a certificate is required, it must be one that the authorities vouch for.
    let asks_everybody =
        files.asks_everybody && files.client_certificates != ClientCertificates::Required;
    let builder = match &verifier {
        _ if asks_everybody => builder.with_client_cert_verifier(Arc::new(AnyCertificate)),
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Certificates(keys)));
    config.alpn_protocols = protocols.to_vec();
    match before {
        // A ticket carries the client's certificate as it was judged.
        Some(before) if before.authorities == authorities => {
            config.ticketer = before.config.ticketer.clone();
            config.session_storage = before.config.session_storage.clone();
        }
        _ => {
            config.ticketer = aws_lc_rs::Ticketer::new()?;
            config.session_storage = ServerSessionMemoryCache::new(CACHED_SESSIONS);
        }
    }
    Ok(Loaded {
        config: Arc::new(config),
        verifier,
        asks_everybody,
        authorities,
        expiries,
    })
}

fn authorities(files: &Files) -> Result<Authorities, TlsError> {
    let mut authorities = Authorities::default();
    if files.client_certificates == ClientCertificates::Off {
        return Ok(authorities);
    }
    if let Some(path) = &files.client_ca_file {
        authorities.roots = pem::certificates(path)?;
    }
    for path in &files.crl_files {
        authorities.lists.extend(pem::revocation_lists(path)?);
    }
    Ok(authorities)
}

fn verifier(
    files: &Files,
    authorities: &Authorities,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    if files.client_certificates == ClientCertificates::Off {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for certificate in &authorities.roots {
        roots.add(certificate.clone()).map_err(|error| {
            TlsError::Authority(files.client_ca_file.clone().unwrap_or_default(), error)
        })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .with_crls(authorities.lists.iter().cloned());
    let verifier = match files.client_certificates {
        ClientCertificates::Optional => builder.allow_unauthenticated().build()?,
        _ => builder.build()?,
    };
    Ok(Some(verifier))
}
