//! From a URL to a connection: name, address, TCP, TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::ConfigBuilderExt as _;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Url;
use super::error::HttpError;
use super::guard::is_local_only;

/// The longest time for one address of several: the next one may answer.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

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
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why it can't be used.
        error: rustls::pki_types::pem::Error,
    },
    /// A file without a certificate.
    #[error("{}: there is no certificate in PEM in it", .0.display())]
    Empty(PathBuf),
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

/// What connects to the host of a URL.
pub(super) struct Connector {
    url: Url,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    refuses_local: bool,
}

impl Connector {
    pub(super) fn new(
        url: Url,
        files: &TlsFiles,
        refuses_local: bool,
    ) -> Result<Connector, TlsError> {
        let tls = match url.is_tls() {
            true => {
                let name = ServerName::try_from(url.host().to_owned());
                let name = name.map_err(|_| TlsError::Name)?;
                Some((TlsConnector::from(Arc::new(client_config(files)?)), name))
            }
            false => None,
        };
        Ok(Connector {
            url,
            tls,
            refuses_local,
        })
    }

    /// Connects, and drives the connection beside its user until it is dropped.
    pub(super) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let stream = self.tcp().await?;
        match &self.tls {
            None => shake_hands(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                shake_hands(stream.map_err(HttpError::Tls)?).await
            }
        }
    }

    async fn tcp(&self) -> Result<TcpStream, HttpError> {
        let host = (self.url.host(), self.url.port());
        let addresses = tokio::net::lookup_host(host).await;
        let mut failed = HttpError::RefusedAddress;
        for address in addresses.map_err(HttpError::Resolve)? {
            // Judged here, on what is connected to: a name may have another address the next time.
            if self.refuses_local && is_local_only(address.ip()) {
                continue;
            }
            match tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // A request is one small write; without this it may wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => failed = HttpError::Connect(error),
                Err(_) => failed = HttpError::Connect(std::io::ErrorKind::TimedOut.into()),
            }
        }
        Err(failed)
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, HttpError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a service ended");
        }
    });
    Ok(sender)
}

fn client_config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match &files.authorities {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
            builder.with_root_certificates(roots)
        }
        None => builder.with_native_roots().map_err(TlsError::System)?,
    };
    Ok(match &files.certificate {
        Some((chain, key)) => {
            let file = |error| TlsError::File {
                path: key.clone(),
                error,
            };
            let der = PrivateKeyDer::from_pem_file(key).map_err(file)?;
            builder.with_client_auth_cert(certificates(chain)?, der)?
        }
        None => builder.with_no_client_auth(),
    })
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |error| TlsError::File {
        path: path.clone(),
        error,
    };
    let found = CertificateDer::pem_file_iter(path).map_err(file)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(file)?;
    match found.is_empty() {
        true => Err(TlsError::Empty(path.clone())),
        false => Ok(found),
    }
}
