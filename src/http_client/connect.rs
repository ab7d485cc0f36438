//! From a URL to a connection: name, address, TCP, TLS.

use std::net::IpAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Url;
use super::error::HttpError;
use super::tls::{Reloaded, TlsError, TlsFiles};
use crate::base::local_only::is_local_only;

/// The longest time for one address of several: the next one may answer.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// What connects to the host of a URL.
pub(super) struct Connector {
    url: Url,
    tls: Option<(Reloaded, ServerName<'static>)>,
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
                Some((Reloaded::new(files.clone())?, name))
            }
            false => None,
        };
        Ok(Connector {
            url,
            tls,
            refuses_local,
        })
    }

    /// As if the files were not looked at for long.
    #[cfg(test)]
    pub(super) fn look_again(&self) {
        if let Some((files, _)) = &self.tls {
            files.look_again();
        }
    }

    /// Connects, and drives the connection beside its user until it is dropped.
    pub(super) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let stream = self.tcp().await?;
        match &self.tls {
            None => shake_hands(stream).await,
            Some((files, name)) => {
                let connector = files.connector().await;
                let stream = connector.connect(name.clone(), stream).await;
                shake_hands(stream.map_err(not_trusted)?).await
            }
        }
    }

    pub(super) fn may_connect(&self, address: IpAddr) -> bool {
        let is_refused = self.refuses_local && is_local_only(address)
            || self.url.is_loopback_only() && !address.to_canonical().is_loopback();
        !is_refused
    }

    async fn tcp(&self) -> Result<TcpStream, HttpError> {
        let host = (self.url.host(), self.url.port());
        let addresses = tokio::net::lookup_host(host).await;
        let mut failed = HttpError::RefusedAddress;
        for address in addresses.map_err(HttpError::Resolve)? {
            // Judged here, on what is connected to: a name may have another address the next time.
            if !self.may_connect(address.ip()) {
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

/// TLS has failed: what is told of it is the same each time. Of a certificate that is not valid now, rustls tells for
/// how many seconds.
fn not_trusted(error: std::io::Error) -> HttpError {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let found = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>());
    let plain = match found {
        Some(rustls::Error::InvalidCertificate(ExpiredContext { .. })) => Expired,
        Some(rustls::Error::InvalidCertificate(NotValidYetContext { .. })) => NotValidYet,
        _ => return HttpError::Tls(error),
    };
    let plain = rustls::Error::InvalidCertificate(plain);
    HttpError::Tls(std::io::Error::new(error.kind(), plain))
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

#[cfg(test)]
mod tests {
    use rustls::pki_types::UnixTime;

    use super::*;

    /// Whoever writes it into a row writes it once.
    #[test]
    fn what_is_told_of_a_certificate_does_not_change_from_second_to_second() {
        let told = |seconds: u64| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let not_after = UnixTime::since_unix_epoch(Duration::from_secs(5));
            let not_before = UnixTime::since_unix_epoch(Duration::from_secs(500_000));
            [
                CertificateError::ExpiredContext { time, not_after },
                CertificateError::NotValidYetContext { time, not_before },
                CertificateError::UnknownIssuer,
            ]
            .map(|error| {
                let error = rustls::Error::InvalidCertificate(error);
                let kind = std::io::ErrorKind::InvalidData;
                not_trusted(std::io::Error::new(kind, error)).to_string()
            })
        };
        assert_eq!(told(100), told(7_300));
        for (text, word) in told(100)
            .iter()
            .zip(["xpired", "NotValidYet", "UnknownIssuer"])
        {
            assert!(text.contains(word), "{text}");
        }
    }
}
