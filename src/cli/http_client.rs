//! HTTP requests to a node's ports: one request per connection, bounded in time and size.
//!
//! Requests go straight to the address: no proxy is taken from the environment, and no redirect is followed.
//!
//! Invariant: a token goes to the address that was named, and nowhere else.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use zeroize::Zeroizing;

use super::exit::{Exit, Failure};
use super::hint;
use super::http_node::HttpNode;
use crate::config::Address;

/// Largest answer that is read.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;

/// Sends one request and returns the JSON of a 2xx answer.
///
/// # Errors
/// Exit code 69 when the node cannot be reached, 75 when it has no leader or stops, 1 for every other refusal.
pub async fn request(
    node: &HttpNode,
    method: Method,
    path: &str,
    body: Option<&Value>,
    limit: Duration,
) -> Result<Value, Failure> {
    let (status, bytes) = exchange(node, method, path, body, limit).await?;
    json_of(status, &bytes)
}

/// GETs text, whatever the status.
///
/// # Errors
/// Exit code 69 when the node cannot be reached.
pub async fn get_text(
    node: &HttpNode,
    path: &str,
    limit: Duration,
) -> Result<(StatusCode, String), Failure> {
    let (status, bytes) = exchange(node, Method::GET, path, None, limit).await?;
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Percent-encodes a value of a query string (RFC 3986, unreserved characters stay).
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Sends one request to an administration port and reads the whole answer, both within `limit`.
async fn exchange(
    node: &HttpNode,
    method: Method,
    path: &str,
    body: Option<&Value>,
    limit: Duration,
) -> Result<(StatusCode, Bytes), Failure> {
    let token = node.token()?;
    let target = Target {
        address: node.address(),
        tls: node.tls()?,
        authorization: token.map(|token| Zeroizing::new(format!("Bearer {}", *token))),
    };
    let body = body.map(Value::to_string).unwrap_or_default();
    let answer = send(target, method, path, &[], body, limit).await?;
    Ok((answer.status, answer.body))
}

/// Whom a request is sent to, and by whom.
pub struct Target<'a> {
    /// Host and port.
    pub address: &'a Address,
    /// What to speak TLS with; `None`: plain HTTP.
    pub tls: Option<rustls::ClientConfig>,
    /// The field Authorization.
    pub authorization: Option<Zeroizing<String>>,
}

/// What was answered, whatever the status.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The fields of the header.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// Sends one request and reads the whole answer, both within `limit`.
///
/// # Errors
/// Exit code 69 when nobody answers.
pub async fn send(
    target: Target<'_>,
    method: Method,
    path: &str,
    fields: &[(&'static str, &str)],
    body: String,
    limit: Duration,
) -> Result<Answer, Failure> {
    let address = target.address;
    let scheme = match target.tls {
        Some(_) => "https",
        None => "http",
    };
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{scheme}://{address}{path}"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    if let Some(shown) = target.authorization {
        let mut value = HeaderValue::from_str(&shown)
            .map_err(|_| Failure::failed("a token has letters, digits and signs only"))?;
        value.set_sensitive(true);
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(Failure::failed)?;
    let answer = async {
        let is_tls = target.tls.is_some();
        let answer = match target.tls {
            None => {
                Client::builder(TokioExecutor::new())
                    .build_http()
                    .request(request)
                    .await
            }
            Some(config) => {
                let connector = HttpsConnectorBuilder::new()
                    .with_tls_config(config)
                    .https_only()
                    .enable_http1()
                    .build();
                Client::builder(TokioExecutor::new())
                    .build(connector)
                    .request(request)
                    .await
            }
        };
        let answer = answer.map_err(|error| no_answer(address, &error, is_tls))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER_BYTES);
        let body = body.collect().await.map_err(Failure::failed)?.to_bytes();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
        })
    };
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| {
            let message = format!("{address} did not answer within {} s", limit.as_secs());
            Err(Failure::new(Exit::Unreachable, message))
        })
}

/// Nobody answers, or somebody who speaks something else: then with what to try.
fn no_answer(
    address: &Address,
    error: &hyper_util::client::legacy::Error,
    is_tls: bool,
) -> Failure {
    let hint = match is_tls {
        true => hint::speaks_no_tls(error).then_some(hint::NOT_HTTPS),
        // The connection was made, and what came over it was no answer.
        false => (!error.is_connect()).then_some(hint::NOT_HTTP),
    };
    let cause = root_cause(error);
    let message = match hint {
        Some(hint) => format!("{address} does not answer as a node does: {cause}; {hint}"),
        None => format!("{address} cannot be reached: {cause}"),
    };
    Failure::new(Exit::Unreachable, message)
}

/// The innermost cause: the errors around it say only that a request failed.
fn root_cause<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> &'a dyn std::error::Error {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

/// The JSON of a 2xx answer, or the failure that another answer describes.
fn json_of(status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    if status.is_success() {
        return json.ok_or_else(|| Failure::failed("the node answered something that is not JSON"));
    }
    let field = |name: &str| json.as_ref()?.get(name)?.as_str().map(str::to_owned);
    let message = field("message").unwrap_or_else(|| format!("the node answered {status}"));
    match field("error").as_deref() {
        Some("unauthorized") => Err(Failure::failed(format!(
            "{message}: --token-file, or --certificate and --key"
        ))),
        Some("no_leader" | "stopping") => Err(Failure::new(Exit::NoLeader, message)),
        // Somebody else's, or a node's that says in text which routes there are.
        None if status == StatusCode::NOT_FOUND => {
            Err(Failure::failed(format!("{message}: {}", hint::NO_ROUTE)))
        }
        _ => Err(Failure::failed(message)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_query_must_not_hold_is_escaped() {
        assert_eq!(super::escape("a b/ü#+-._~"), "a%20b%2F%C3%BC%23%2B-._~");
    }
}
