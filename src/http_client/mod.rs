//! HTTP requests of this node to other machines: for the keys of token issuers, to whoever judges log-ins, and to
//! whoever gets events.
//!
//! Invariant: a request goes to the host of its URL and nowhere else. No proxy is taken from the environment, no
//! redirect is followed, and addresses that only mean something to this machine's surroundings (link-local ones, where
//! clouds keep their machines' credentials) are refused unless they are allowed.
//! Invariant: every request has an end: a time-out over all of it, and a bound of what is read.
//!
//! Invariant: files for TLS are read again when they have changed, as those of listeners are.
//!
//! Invariant: a request is made once, unless nothing of it was written, or its user has said that it may come twice: a
//! connection that was kept may break under a request when the server has read it.

mod connect;
mod error;
#[cfg(test)]
mod tests;
mod tls;
mod url;

pub use error::HttpError;
pub use tls::{TlsError, TlsFiles};
pub use url::{Url, UrlError};

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use connect::Connector;

/// Connections that are kept for later requests.
const MOST_IDLE: usize = 16;

/// How long a connection is kept: shorter than servers do, which close theirs after five seconds to a minute.
const IDLE_FOR: Duration = Duration::from_secs(4);

/// What a client of one service is told once.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who is asked.
    pub url: Url,
    /// How the server proves who it is, and this node, if the URL's scheme is `https`.
    pub tls: TlsFiles,
    /// The longest time for a request and its answer, the connection included.
    pub timeout: Duration,
    /// Largest answer that is read, bytes.
    pub largest_answer: usize,
    /// What becomes of a larger one.
    pub excess: Excess,
    /// Whether link-local and reserved addresses are refused.
    pub refuses_local: bool,
    /// Whether a request is made again at once when a connection that was kept breaks under it, so that the server may
    /// get it twice.
    pub repeats: bool,
}

/// What becomes of an answer that is larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// It is an error: what it says would be lost.
    Refused,
    /// It is cut, and its connection is closed: its status says enough.
    Cut,
}

/// An answer that was read whole, or as far as it may be.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

type Sender = SendRequest<Full<Bytes>>;

/// A client of one service. It keeps some connections open between requests.
pub struct HttpClient {
    connector: Connector,
    timeout: Duration,
    largest_answer: usize,
    excess: Excess,
    repeats: bool,
    host: HeaderValue,
    path: String,
    idle: Mutex<Vec<(Sender, Instant)>>,
}

impl HttpClient {
    /// A client of the service that `options` name.
    ///
    /// # Errors
    /// The files for TLS can't be used.
    pub fn new(options: Options) -> Result<HttpClient, TlsError> {
        let url = options.url;
        let host = HeaderValue::from_str(&url.authority()).map_err(|_| TlsError::Name)?;
        Ok(HttpClient {
            path: url.path().to_owned(),
            connector: Connector::new(url, &options.tls, options.refuses_local)?,
            timeout: options.timeout,
            largest_answer: options.largest_answer,
            excess: options.excess,
            repeats: options.repeats,
            host,
            idle: Mutex::default(),
        })
    }

    /// GETs the URL, with these headers beside the necessary ones.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn get(&self, headers: &[(HeaderName, HeaderValue)]) -> Result<Answer, HttpError> {
        self.send(Method::GET, headers, Bytes::new()).await
    }

    /// POSTs to the URL, with these headers beside the necessary ones.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn post(
        &self,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, HttpError> {
        self.send(Method::POST, headers, body).await
    }

    /// Asks the URL for its OPTIONS, with these headers beside the necessary ones.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn options(
        &self,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, HttpError> {
        self.send(Method::OPTIONS, headers, Bytes::new()).await
    }

    async fn send(
        &self,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, HttpError> {
        let is_sent = AtomicBool::new(false);
        let exchange = self.exchange(method, headers, body, &is_sent);
        let answer = tokio::time::timeout(self.timeout, exchange).await;
        answer.unwrap_or_else(|_| match is_sent.load(Relaxed) {
            true => Err(HttpError::TimedOut(self.timeout)),
            false => Err(HttpError::NotConnected(self.timeout)),
        })
    }

    async fn exchange(
        &self,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
        is_sent: &AtomicBool,
    ) -> Result<Answer, HttpError> {
        let request = || -> Result<Request<Full<Bytes>>, HttpError> {
            let agent = concat!("quorumq/", env!("CARGO_PKG_VERSION"));
            let mut request = Request::builder()
                .method(method.clone())
                .uri(&self.path)
                .header(header::HOST, &self.host)
                .header(header::USER_AGENT, agent);
            if !headers.iter().any(|(name, _)| *name == header::ACCEPT) {
                request = request.header(header::ACCEPT, "application/json");
            }
            for (name, value) in headers {
                request = request.header(name, value);
            }
            Ok(request.body(Full::new(body.clone()))?)
        };
        while let Some(mut sender) = self.idle_sender() {
            if sender.ready().await.is_err() {
                continue;
            }
            // One that was closed meanwhile may break only now; another connection is tried then.
            is_sent.store(true, Relaxed);
            match sender.try_send_request(request()?).await {
                Ok(answer) => return self.read(answer, sender).await,
                Err(error) if self.repeats || error.message().is_some() => {}
                Err(error) => return Err(error.into_error().into()),
            }
            is_sent.store(false, Relaxed);
        }
        let mut sender = self.connector.connect().await?;
        is_sent.store(true, Relaxed);
        match sender.try_send_request(request()?).await {
            Ok(answer) => self.read(answer, sender).await,
            Err(error) if error.message().is_some() => {
                let error = std::io::Error::other(error.into_error());
                Err(HttpError::Connect(error))
            }
            Err(error) => Err(error.into_error().into()),
        }
    }

    async fn read(
        &self,
        answer: hyper::Response<hyper::body::Incoming>,
        sender: Sender,
    ) -> Result<Answer, HttpError> {
        let (head, mut rest) = answer.into_parts();
        let (status, headers) = (head.status, head.headers);
        let is_refused = self.excess == Excess::Refused;
        if is_refused && rest.size_hint().lower() > self.largest_answer as u64 {
            return Err(HttpError::TooLarge(self.largest_answer));
        }
        let mut body = BytesMut::new();
        while let Some(frame) = rest.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            let room = self.largest_answer - body.len();
            body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                return match is_refused {
                    true => Err(HttpError::TooLarge(self.largest_answer)),
                    // The connection goes with its sender: there is more to come on it.
                    false => Ok(Answer {
                        status,
                        headers,
                        body: body.freeze(),
                    }),
                };
            }
        }
        self.keep(sender);
        Ok(Answer {
            status,
            headers,
            body: body.freeze(),
        })
    }

    /// A connection that is still open, as far as this side knows.
    fn idle_sender(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        while let Some((sender, since)) = idle.pop() {
            if !sender.is_closed() && now - since < IDLE_FOR {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        let now = Instant::now();
        let mut idle = self.idle.lock();
        idle.retain(|(sender, since)| !sender.is_closed() && now - *since < IDLE_FOR);
        if idle.len() < MOST_IDLE && !sender.is_closed() {
            idle.push((sender, now));
        }
    }
}
