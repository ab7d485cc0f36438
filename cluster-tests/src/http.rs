//! A minimal HTTP/1.1 client for a node's administration port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::wait;

/// An answer: its status and its body.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// How long a node may take to connect, and to send each part of an answer.
const PART_WITHIN: Duration = Duration::from_secs(2);

/// How long a whole answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What the harness shows where it asks on its own account.
static TOKEN: Mutex<Option<String>> = Mutex::new(None);

/// The harness shows this token from now on: a cluster that has any asks for one.
pub fn show_token(token: String) {
    *TOKEN.lock().expect("no holder of the lock panics") = Some(token);
}

/// What it shows.
pub fn token() -> Option<String> {
    TOKEN.lock().expect("no holder of the lock panics").clone()
}

/// The header field with the token, with its line's end.
fn authorization() -> String {
    token().map_or_else(String::new, |token| {
        format!("authorization: Bearer {token}\r\n")
    })
}

/// GETs `path`; `None` when there is no whole answer in time.
pub fn get(address: SocketAddr, path: &str) -> Option<Answer> {
    let authorization = authorization();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\n{authorization}connection: close\r\n\r\n"
    );
    exchange(address, &request, PART_WITHIN)
}

/// POSTs an empty JSON object to `path`, which may take this long to begin its answer.
pub fn post(address: SocketAddr, path: &str, within: Duration) -> Option<Answer> {
    let authorization = authorization();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
         {authorization}connection: close\r\n\r\n{{}}"
    );
    exchange(address, &request, within)
}

/// Asks with any method, further header fields and a body of JSON.
pub fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Option<Answer> {
    let has = |name: &str| {
        fields
            .iter()
            .any(|(field, _)| field.eq_ignore_ascii_case(name))
    };
    let mut request = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
    if !has("host") {
        request += &format!("host: {address}\r\n");
    }
    if !has("content-type") {
        request += "content-type: application/json\r\n";
    }
    for (name, value) in fields {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    exchange(address, &request, ANSWER_WITHIN)
}

/// A request of which the node has the header, and waits for the body.
#[derive(Debug)]
pub struct Begun {
    stream: TcpStream,
    body: String,
}

impl Begun {
    /// Sends the header, whose first line and fields these are.
    pub fn new(address: SocketAddr, head: &str, body: String) -> Begun {
        let length = body.len();
        let mut stream = TcpStream::connect(address).expect("the node accepts");
        let bounded = stream.set_read_timeout(Some(ANSWER_WITHIN));
        bounded.expect("a socket takes a timeout");
        let fields = "expect: 100-continue\r\nconnection: close\r\n";
        let head = format!("{head}{fields}content-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the node reads");
        let mut goes_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut goes_on).expect("the node goes on");
        let goes_on = String::from_utf8_lossy(&goes_on);
        assert!(goes_on.starts_with("HTTP/1.1 100 "), "{goes_on}");
        Begun { stream, body }
    }

    /// Sends the body; `None` when nobody answers.
    pub fn finish(mut self) -> Option<Answer> {
        self.stream.write_all(self.body.as_bytes()).ok()?;
        let mut text = String::new();
        self.stream.read_to_string(&mut text).ok()?;
        parse(&text)
    }
}

/// Waits until a node that stops takes no connections any more.
#[track_caller]
pub fn wait_closed(address: SocketAddr) {
    wait::until("the port to be closed", ANSWER_WITHIN, || {
        TcpStream::connect(address).is_err().then_some(())
    });
}

fn exchange(address: SocketAddr, request: &str, within: Duration) -> Option<Answer> {
    let deadline = Instant::now() + within + ANSWER_WITHIN;
    let mut stream = TcpStream::connect_timeout(&address, PART_WITHIN).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    stream.set_write_timeout(Some(PART_WITHIN)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        match stream.read(&mut chunk).ok()? {
            0 => break,
            read => bytes.extend(&chunk[..read]),
        }
        if Instant::now() > deadline {
            return None;
        }
    }
    parse(&String::from_utf8_lossy(&bytes))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let body = if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        unchunk(body)?
    } else {
        body.to_owned()
    };
    Some(Answer { status, body })
}

fn unchunk(mut rest: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        whole.push_str(after.get(..size)?);
        rest = after.get(size..)?.strip_prefix("\r\n")?;
    }
}
