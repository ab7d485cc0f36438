//! TLS of this node as a client: its files, read again when they change.
//!
//! Invariant: files that can't be used change nothing: what was read before goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_rustls::ConfigBuilderExt as _;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::config::file::{Looking, Stamp, stamp};
use crate::config::pem::{self, PemError};

/// How often the files are looked at, when somebody connects.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may vouch for the server, in PEM; `None`: those of the system.
    pub authorities: Option<PathBuf>,
    /// This node's certificate and key, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Why the files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates or a key.
    #[error(transparent)]
    File(#[from] PemError),
    /// The system has no authorities.
    #[error("this system has no certificate authorities: {0}")]
    System(std::io::Error),
    /// Certificates that rustls does not take.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// A host that is no name.
    #[error("the host is no name that a certificate could have")]
    Name,
}

impl TlsFiles {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let own = self
            .certificate
            .iter()
            .flat_map(|(chain, key)| [chain, key]);
        self.authorities.iter().chain(own).map(PathBuf::as_path)
    }

    fn stamps(&self) -> Vec<Stamp> {
        self.paths().map(stamp).collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// They can't be used.
    pub fn read(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match &self.authorities {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in pem::certificates(path)? {
                    roots.add(certificate)?;
                }
                builder.with_root_certificates(roots)
            }
            None => builder.with_native_roots().map_err(TlsError::System)?,
        };
        Ok(match &self.certificate {
            Some((chain, key)) => {
                builder.with_client_auth_cert(pem::certificates(chain)?, pem::private_key(key)?)?
            }
            None => builder.with_no_client_auth(),
        })
    }
}

/// What was read last.
struct Read {
    connector: TlsConnector,
    /// The files as they were when they were read.
    stamps: Vec<Stamp>,
    /// Why they can't be read again, as the log has it.
    failed: Option<String>,
    looked_at: Instant,
}

impl Read {
    /// The files are read again, or can't be; then they are tried again at the next look. The same failure is told
    /// once.
    fn again(
        &mut self,
        files: &TlsFiles,
        stamps: Vec<Stamp>,
        read: Result<ClientConfig, TlsError>,
    ) {
        match read {
            Ok(config) => {
                self.connector = TlsConnector::from(Arc::new(config));
                (self.stamps, self.failed) = (stamps, None);
                tracing::info!(?files, "the files for TLS to a service were read again");
            }
            Err(error) => {
                let failed = Some(error.to_string());
                if self.failed != failed {
                    tracing::error!(
                        %error,
                        "the files for TLS to a service can't be read again: what was read before stays in use"
                    );
                }
                self.failed = failed;
            }
        }
    }
}

/// What connects by TLS, with what the files had when they were last looked at.
pub(super) struct Reloaded {
    files: TlsFiles,
    read: Arc<Mutex<Read>>,
    /// One thread at most looks at the files: they may be on a file system that makes its readers wait.
    looking: Looking,
}

impl Reloaded {
    /// Reads the files.
    pub(super) fn new(files: TlsFiles) -> Result<Reloaded, TlsError> {
        let read = Read {
            stamps: files.stamps(),
            connector: TlsConnector::from(Arc::new(files.read()?)),
            failed: None,
            looked_at: Instant::now(),
        };
        Ok(Reloaded {
            read: Arc::new(Mutex::new(read)),
            files,
            looking: Looking::default(),
        })
    }

    /// What to connect with; reads the files again if they have changed.
    pub(super) async fn connector(&self) -> TlsConnector {
        let (former, look) = {
            let mut read = self.read.lock();
            if self.files.paths().next().is_none() || read.looked_at.elapsed() < LOOK_INTERVAL {
                return read.connector.clone();
            }
            let Some(look) = self.looking.begin() else {
                return read.connector.clone();
            };
            read.looked_at = Instant::now();
            (read.stamps.clone(), look)
        };
        let (files, read) = (self.files.clone(), self.read.clone());
        // Also if nobody waits for it any more.
        let looked = tokio::task::spawn_blocking(move || {
            let stamps = files.stamps();
            if stamps != former {
                let found = files.read();
                read.lock().again(&files, stamps, found);
            }
            drop(look);
        });
        // It does not panic, and the runtime ends with the node.
        let _ = looked.await;
        self.read.lock().connector.clone()
    }

    /// As if the files were not looked at for long.
    #[cfg(test)]
    pub(super) fn look_again(&self) {
        let mut read = self.read.lock();
        let before = read.looked_at.checked_sub(LOOK_INTERVAL);
        read.looked_at = before.unwrap_or(read.looked_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> String {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.self_signed(&key).expect("it can be signed").pem()
    }

    /// For example because there were no descriptors, or the disk did not answer.
    #[tokio::test]
    async fn a_file_that_could_not_be_read_once_is_read_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.pem");
        std::fs::write(&path, authority()).expect("a file");
        let files = TlsFiles {
            authorities: Some(path.clone()),
            certificate: None,
        };
        let reloaded = Reloaded::new(files.clone()).expect("the file is good");
        let former = reloaded.read.lock().stamps.clone();
        let new = directory.path().join("new.pem");
        std::fs::write(&new, authority()).expect("a file");
        std::fs::rename(&new, &path).expect("it is moved");
        let stamps = files.stamps();
        let failed = || {
            Err(TlsError::System(std::io::Error::other(
                "too many open files",
            )))
        };
        for _ in 0..2 {
            let mut read = reloaded.read.lock();
            read.again(&files, stamps.clone(), failed());
            assert!(read.failed.is_some());
            assert_eq!(read.stamps, former, "what was not read is not known");
        }
        // The file is as it was when it could not be read.
        reloaded.look_again();
        reloaded.connector().await;
        let read = reloaded.read.lock();
        assert_eq!((&read.stamps, &read.failed), (&stamps, &None));
    }
}
