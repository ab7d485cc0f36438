//! What a listener offers over TLS, from its files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerSessionMemoryCache, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use super::expiry::earliest_expiry;
use super::files::{self, FileError};
use super::names::Certificates;
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
}

impl From<&config::Listener> for Files {
    fn from(listener: &config::Listener) -> Files {
        Files {
            certificates: listener.certificates.clone(),
            client_certificates: listener.client_certificates,
            client_ca_file: listener.client_ca_file.clone(),
            crl_files: listener.crl_files.clone(),
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

    /// What tells that a file was replaced or written: a link is followed, so that the switch of a directory that
    /// holds a secret is one, too.
    fn stamps(&self) -> Vec<Option<[i64; 4]>> {
        let stamp = |path: &Path| {
            let data = fs::metadata(path).ok()?;
            let inode = data.ino().cast_signed();
            let size = data.size().cast_signed();
            Some([data.mtime(), data.mtime_nsec(), inode, size])
        };
        self.paths().map(stamp).collect()
    }
}

/// Why TLS can't be offered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key can't be used, or does not belong to the certificate.
    #[error("{path}: {1}", path = .0.display())]
    Key(PathBuf, rustls::Error),
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

/// What clients are judged by.
#[derive(Default, PartialEq)]
struct Authorities {
    roots: Vec<CertificateDer<'static>>,
    lists: Vec<CertificateRevocationListDer<'static>>,
}

/// What was loaded last.
pub(crate) struct Loaded {
    /// What a new connection gets.
    pub(crate) config: Arc<ServerConfig>,
    /// What judges client certificates; `None` when none are asked for.
    pub(super) verifier: Option<Arc<dyn ClientCertVerifier>>,
    authorities: Authorities,
    /// Files of certificates, and when the first one of each expires.
    pub(crate) expiries: Vec<(PathBuf, SystemTime)>,
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
    /// The files as they were when they were last looked at.
    stamps: Mutex<Vec<Option<[i64; 4]>>>,
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
            stamps: Mutex::new(stamps),
        }))
    }

    /// What was loaded last.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// Reads the files again if one has changed, or if it `must`.
    pub(crate) fn reload(&self, must: bool) -> Reload {
        let stamps = self.files.stamps();
        let mut seen = self.stamps.lock();
        if *seen == stamps && !must {
            return Reload::Unchanged;
        }
        // Files that can't be used are tried again when they change again: somebody is at work on them.
        *seen = stamps;
        let before = self.loaded();
        match load(&self.files, &self.protocols, Some(&before)) {
            Ok(loaded) => {
                self.loaded.store(Arc::new(loaded));
                Reload::Loaded
            }
            Err(error) => Reload::Failed(error),
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
        let chain = files::certificates(&pair.certificate)?;
        expiries.extend(earliest_expiry(&chain).map(|at| (pair.certificate.clone(), at)));
        let key = files::private_key(&pair.key)?;
        let key = CertifiedKey::from_der(chain, key, &provider);
        let key = key.map_err(|error| TlsError::Key(pair.key.clone(), error))?;
        keys.push(Arc::new(key));
    }
    let authorities = authorities(files)?;
    if let Some(path) = &files.client_ca_file {
        expiries.extend(earliest_expiry(&authorities.roots).map(|at| (path.clone(), at)));
    }
    let verifier = verifier(files, &authorities, &provider)?;
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match &verifier {
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
        authorities.roots = files::certificates(path)?;
    }
    for path in &files.crl_files {
        authorities.lists.extend(files::revocation_lists(path)?);
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

impl Loaded {
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
