//! HTTP requests of this node to other machines: for the keys of token issuers, and to whoever judges log-ins.
//!
//! Invariant: a request goes to the host of its URL and nowhere else. No proxy is taken from the environment, no
//! redirect is followed, and addresses that only mean something to this machine's surroundings (link-local ones, where
//! clouds keep their machines' credentials) are refused unless they are allowed.
//! Invariant: every request has an end: a time-out over all of it, and a bound of what is read.
//!
//! A server may get a request twice, when a connection that was kept breaks under it.

mod connect;
mod error;
mod guard;
#[cfg(test)]
mod tests;
mod url;

pub use connect::{TlsError, TlsFiles};
pub use error::HttpError;
pub use url::{Url, UrlError};

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Bytes};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use connect::Connector;

/// Connections that are kept for later requests.
const MOST_IDLE: usize = 16;

/// How long a connection is kept: shorter than servers do, which close theirs after some ten seconds to a minute.
const IDLE_FOR: Duration = Duration::from_secs(5);

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
    /// Whether link-local and reserved addresses are refused.
    pub refuses_local: bool,
}

/// An answer that was read whole.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

type Sender = SendRequest<Full<Bytes>>;

/// A client of one service. It keeps some connections open between requests.
pub struct HttpClient {
    connector: Connector,
    timeout: Duration,
    largest_answer: usize,
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

    async fn send(
        &self,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, HttpError> {
        let exchange = self.exchange(method, headers, body);
        let answer = tokio::time::timeout(self.timeout, exchange).await;
        answer.unwrap_or(Err(HttpError::TimedOut(self.timeout)))
    }

    async fn exchange(
        &self,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, HttpError> {
        let request = || -> Result<Request<Full<Bytes>>, HttpError> {
            let agent = concat!("quorumq/", env!("CARGO_PKG_VERSION"));
            let mut request = Request::builder()
                .method(method.clone())
                .uri(&self.path)
                .header(header::HOST, &self.host)
                .header(header::USER_AGENT, agent)
                .header(header::ACCEPT, "application/json");
            for (name, value) in headers {
                request = request.header(name, value);
            }
            Ok(request.body(Full::new(body.clone()))?)
        };
        while let Some(mut sender) = self.idle_sender() {
            // One that was closed meanwhile may break only now; another connection is tried then, and the server may
            // be asked twice.
            if sender.ready().await.is_ok()
                && let Ok(answer) = sender.send_request(request()?).await
            {
                return self.read(answer, sender).await;
            }
        }
        let mut sender = self.connector.connect().await?;
        let answer = sender.send_request(request()?).await?;
        self.read(answer, sender).await
    }

    async fn read(
        &self,
        answer: hyper::Response<hyper::body::Incoming>,
        sender: Sender,
    ) -> Result<Answer, HttpError> {
        let status = answer.status();
        if answer.body().size_hint().lower() > self.largest_answer as u64 {
            return Err(HttpError::TooLarge(self.largest_answer));
        }
        let body = Limited::new(answer.into_body(), self.largest_answer);
        let body =
            body.collect()
                .await
                .map_err(|error| match error.downcast::<hyper::Error>() {
                    Ok(error) => HttpError::Http(*error),
                    Err(_) => HttpError::TooLarge(self.largest_answer),
                })?;
        self.keep(sender);
        let body = body.to_bytes();
        Ok(Answer { status, body })
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
