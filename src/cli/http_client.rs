//! A minimal HTTP/1.1 client for the administration port: one request per connection, bounded in time and size.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::exit::{Exit, Failure};
use crate::config::Address;

/// Largest answer that is read.
const LARGEST_ANSWER_BYTES: usize = 8 << 20;

/// Sends one request and returns the JSON of a 2xx answer.
///
/// # Errors
/// Exit code 69 when the node cannot be reached, 75 when it has no leader, 1 for every other refusal.
pub async fn request(
    address: &Address,
    method: Method,
    path: &str,
    body: Option<&Value>,
    limit: Duration,
) -> Result<Value, Failure> {
    let (status, bytes) = within(limit, address, exchange(address, method, path, body)).await?;
    judge(status, &bytes)
}

/// GETs text, whatever the status.
///
/// # Errors
/// Exit code 69 when the node cannot be reached.
pub async fn get_text(
    address: &Address,
    path: &str,
    limit: Duration,
) -> Result<(StatusCode, String), Failure> {
    let answer = exchange(address, Method::GET, path, None);
    let (status, bytes) = within(limit, address, answer).await?;
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}

async fn within<T>(
    limit: Duration,
    address: &Address,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("{address} did not answer within {} s", limit.as_secs());
        Err(Failure::new(Exit::Unreachable, message))
    })
}

async fn exchange(
    address: &Address,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(StatusCode, Bytes), Failure> {
    let unreachable = |why: &dyn std::fmt::Display| {
        Failure::new(
            Exit::Unreachable,
            format!("{address} cannot be reached: {why}"),
        )
    };
    let stream = TcpStream::connect((address.host(), address.port()))
        .await
        .map_err(|error| unreachable(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, address.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(
            body.map(Value::to_string).unwrap_or_default(),
        )))
        .map_err(Failure::failed)?;
    let answer = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| unreachable(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST_ANSWER_BYTES);
        let bytes = body.collect().await.map_err(Failure::failed)?.to_bytes();
        Ok((status, bytes))
    };
    // The connection only moves bytes; when it ends first, the answer tells why.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

fn judge(status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    if status.is_success() {
        return json.ok_or_else(|| Failure::failed("the node answered something that is not JSON"));
    }
    let field = |name: &str| json.as_ref()?.get(name)?.as_str().map(str::to_owned);
    let message = field("message").unwrap_or_else(|| format!("the node answered {status}"));
    match field("error").as_deref() {
        Some("no_leader") => Err(Failure::new(Exit::NoLeader, message)),
        _ => Err(Failure::failed(message)),
    }
}
