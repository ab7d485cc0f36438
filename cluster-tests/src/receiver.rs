//! An endpoint for events that keeps what it gets and answers as a test tells it: a small HTTP/1.1 server of its own,
//! so that a mistake in the broker's client cannot hide itself.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a request may take to arrive.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    pub at: Instant,
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
    /// The status that it was answered with; 0: none.
    pub status: u16,
}

impl Received {
    /// Its events. Each must be what CloudEvents 1.0 or the Event Grid schema asks for.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).expect("a body is JSON");
        match body {
            Value::Array(events) => events,
            event => vec![event],
        }
    }
}

/// What a request is answered with.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A status, header lines and a body.
    Status(u16, Vec<String>, String),
    /// The same after a while.
    Slow(Duration, u16),
    /// The connection is closed without an answer.
    Close,
    /// The connection is closed in the middle of an answer with this status.
    Cut(u16),
}

impl Reply {
    /// A status alone.
    pub fn status(status: u16) -> Reply {
        Reply::Status(status, Vec::new(), String::new())
    }

    /// Consent to the handshake of CloudEvents.
    pub fn consent() -> Reply {
        let origin = "WebHook-Allowed-Origin: *".to_owned();
        Reply::Status(200, vec![origin], String::new())
    }
}

type Script = Box<dyn FnMut(&Received) -> Reply + Send>;

#[derive(Clone)]
pub struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    script: Arc<Mutex<Script>>,
}

impl Receiver {
    /// It consents, and takes everything.
    pub fn start() -> Receiver {
        Receiver::with(|_| Reply::status(200))
    }

    /// It consents, and answers requests with events as `script` says.
    pub fn with(script: impl FnMut(&Received) -> Reply + Send + 'static) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let receiver = Receiver {
            address: listener.local_addr().expect("it is bound"),
            received: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(script))),
        };
        let serving = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.converse(stream));
            }
        });
        receiver
    }

    /// Answers otherwise from now on, requests without events included if `script` says something to them.
    pub fn answer(&self, script: impl FnMut(&Received) -> Reply + Send + 'static) {
        *self.script.lock().expect("no holder of the lock panics") = Box::new(script);
    }

    pub fn url(&self) -> String {
        format!("http://{}/events", self.address)
    }

    /// Everything it has got.
    pub fn received(&self) -> Vec<Received> {
        let received = self.received.lock();
        received.expect("no holder of the lock panics").clone()
    }

    /// Requests with events that were answered with 2xx.
    pub fn taken(&self) -> Vec<Received> {
        let mut received = self.received();
        received.retain(|one| one.method == "POST" && (200..300).contains(&one.status));
        received
    }

    /// Events that were taken, in the order in which they came, repetitions included.
    pub fn events(&self) -> Vec<Value> {
        let taken = self.taken();
        taken.iter().flat_map(Received::events).collect()
    }

    fn converse(&self, stream: TcpStream) {
        let _ = stream.set_read_timeout(Some(REQUEST_WITHIN));
        let mut stream = BufReader::new(stream);
        while let Some(mut received) = read(&mut stream) {
            let reply = self.reply(&received);
            if let Reply::Slow(wait, _) = &reply {
                std::thread::sleep(*wait);
            }
            let (status, text) = bytes(&reply);
            received.status = status;
            // It counts before its answer is there: whoever has the answer finds it.
            let kept = self.received.lock();
            kept.expect("no holder of the lock panics").push(received);
            let is_whole = !matches!(reply, Reply::Close | Reply::Cut(_));
            if stream.get_mut().write_all(text.as_bytes()).is_err() || !is_whole {
                return;
            }
        }
    }

    fn reply(&self, received: &Received) -> Reply {
        let mut script = self.script.lock().expect("no holder of the lock panics");
        match received.method.as_str() {
            "POST" => script(received),
            _ => match script(received) {
                // What is said of events only is consent to get them.
                Reply::Status(200..300, headers, _) if headers.is_empty() => Reply::consent(),
                reply => reply,
            },
        }
    }
}

/// The status of an answer, 0 if it does not come to that, and its bytes.
fn bytes(reply: &Reply) -> (u16, String) {
    match reply {
        Reply::Status(status, headers, body) => {
            let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
            let length = body.len();
            let head = format!("HTTP/1.1 {status} Scripted\r\n{headers}Content-Length: {length}");
            (*status, format!("{head}\r\n\r\n{body}"))
        }
        Reply::Slow(_, status) => bytes(&Reply::status(*status)),
        Reply::Close => (0, String::new()),
        Reply::Cut(status) => {
            let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Length: 100\r\n\r\n");
            (0, head + "{")
        }
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut words = lines.first()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length");
    let length: usize = length.map_or(Some(0), |length| length.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Received {
        at: Instant::now(),
        method,
        path,
        headers,
        body: String::from_utf8(body).ok()?,
        status: 0,
    })
}
