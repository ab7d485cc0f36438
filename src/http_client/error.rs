//! What can go wrong with a request to another machine.

use std::time::Duration;

/// Why a request has failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// There was no answer in time, although the request was sent.
    #[error("there was no answer within {0:?}")]
    TimedOut(Duration),
    /// There was no connection in time, so nothing was sent.
    #[error("there was no connection within {0:?}")]
    NotConnected(Duration),
    /// The name has no address.
    #[error("the host's name can't be resolved: {0}")]
    Resolve(std::io::Error),
    /// Every address of the name is refused.
    #[error(
        "the host has a link-local or reserved address only, or plain HTTP would go to another machine: refused"
    )]
    RefusedAddress,
    /// No address takes connections, or the connection was closed before anything was sent on it.
    #[error("can't connect: {0}")]
    Connect(std::io::Error),
    /// The server is not the one of the URL, or does not speak TLS.
    #[error("TLS: {0}")]
    Tls(std::io::Error),
    /// The server does not speak HTTP, or has closed the connection under the request.
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    /// The answer is larger than it may be.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// The request can't be written.
    #[error("the request can't be written: {0}")]
    Request(#[from] hyper::http::Error),
}
