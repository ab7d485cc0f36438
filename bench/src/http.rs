//! HTTP/1.1 as far as the load generator needs it: without TLS, bodies of a known length, connections that are kept.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quorumq::cli::exit::{Exit, Failure};
use serde_json::Value;

use crate::error::BenchError;

/// Most bytes of a header.
const LARGEST_HEAD_BYTES: usize = 16 << 10;
/// Most bytes of a body: as many as a node sends at once.
const LARGEST_BODY_BYTES: usize = 16 << 20;
/// Longest time to wait for one answer in [`ask`].
const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// A whole request or answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its first line.
    pub start: &'a str,
    /// Its body.
    pub body: &'a [u8],
    /// Bytes of all of it.
    pub length: usize,
}

impl Message<'_> {
    /// The status of an answer; 0 where there is none.
    pub fn status(&self) -> u16 {
        let status = self.start.split(' ').nth(1);
        status.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Whether it is an answer that says that it was done.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status())
    }

    /// An answer for people.
    pub fn text(&self) -> String {
        format!("{}: {}", self.start, self.body.escape_ascii())
    }
}

/// The first message of some bytes; `None` while it is not whole.
///
/// # Errors
/// It can't be read, or is larger than any that is expected.
pub fn next(bytes: &[u8]) -> Result<Option<Message<'_>>, BenchError> {
    let wrong = |why: &str| BenchError::Protocol(format!("HTTP: {why}"));
    let searched = &bytes[..bytes.len().min(LARGEST_HEAD_BYTES)];
    let Some(end) = searched.windows(4).position(|four| four == b"\r\n\r\n") else {
        return match bytes.len() < LARGEST_HEAD_BYTES {
            true => Ok(None),
            false => Err(wrong("a header that does not end")),
        };
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong("a header of no text"))?;
    let mut lines = head.split("\r\n");
    let start = lines.next().unwrap_or_default();
    let mut body_bytes = 0;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.trim().parse().ok();
            body_bytes = length
                .filter(|length| *length <= LARGEST_BODY_BYTES)
                .ok_or_else(|| wrong("a body of no length, or too long"))?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(wrong("a body of unknown length"));
        }
    }
    let length = end + 4 + body_bytes;
    let body = bytes.get(end + 4..length);
    Ok(body.map(|body| Message {
        start,
        body,
        length,
    }))
}

/// Appends a request. `authorization` may be empty.
pub fn request(
    output: &mut Vec<u8>,
    (method, path): (&str, &str),
    host: &str,
    authorization: &str,
    body: &str,
) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    if !authorization.is_empty() {
        // Writing to a string does not fail, here and below.
        let _ = write!(head, "Authorization: {authorization}\r\n");
    }
    let length = body.len();
    let _ = write!(
        head,
        "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    output.extend_from_slice(head.as_bytes());
    output.extend_from_slice(body.as_bytes());
}

/// Sends one request over a connection of its own and returns the JSON of the answer, null where it has none.
///
/// # Errors
/// Exit code 69 when nobody answers, 1 for a refusal.
pub fn ask(
    server: SocketAddr,
    target: (&str, &str),
    authorization: &str,
    body: &str,
) -> Result<Value, Failure> {
    let answer = exchange(server, target, authorization, body)?;
    Ok(serde_json::from_slice(&answer).unwrap_or(Value::Null))
}

/// The text of a page.
///
/// # Errors
/// As [`ask`].
pub fn read(server: SocketAddr, path: &str) -> Result<String, Failure> {
    let answer = exchange(server, ("GET", path), "", "")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn exchange(
    server: SocketAddr,
    target: (&str, &str),
    authorization: &str,
    body: &str,
) -> Result<Vec<u8>, Failure> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Unreachable, format!("http://{server}: {error}"))
    };
    let mut stream = TcpStream::connect(server).map_err(|error| unreachable(&error))?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut bytes = Vec::new();
    let host = server.to_string();
    request(&mut bytes, target, &host, authorization, body);
    stream.write_all(&bytes)?;
    bytes.clear();
    let mut scratch = [0; 16 << 10];
    loop {
        if let Some(answer) = next(&bytes).map_err(|error| unreachable(&error))? {
            return match answer.is_success() {
                true => Ok(answer.body.to_vec()),
                false => Err(Failure::failed(answer.text())),
            };
        }
        match stream
            .read(&mut scratch)
            .map_err(|error| unreachable(&error))?
        {
            0 => return Err(unreachable(&"closed without an answer")),
            count => bytes.extend_from_slice(&scratch[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_when_all_of_it_is_there() {
        let mut bytes = Vec::new();
        request(&mut bytes, ("PUT", "/a?b=c"), "h:1", "token", "{\"x\":1}");
        let whole = bytes.len();
        bytes.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
        for cut in 0..whole {
            assert_eq!(next(&bytes[..cut]).expect("a beginning"), None, "{cut}");
        }
        let first = next(&bytes).expect("a request").expect("all of it");
        assert_eq!(first.start, "PUT /a?b=c HTTP/1.1");
        assert_eq!((first.body, first.length), (&b"{\"x\":1}"[..], whole));
        let second = next(&bytes[whole..])
            .expect("an answer")
            .expect("all of it");
        assert_eq!((second.status(), second.body.len()), (204, 0));
        assert!(second.is_success());
    }

    #[test]
    fn what_has_no_known_end_is_refused() {
        let endless = vec![b'a'; LARGEST_HEAD_BYTES];
        for wrong in [
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            &endless,
        ] {
            assert!(next(wrong).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
