//! An endpoint that keeps what it gets and answers as it is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Got {
    pub(super) method: String,
    pub(super) path: String,
    /// Names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

impl Got {
    /// The sessions that its events are about.
    pub(super) fn sessions(&self) -> Vec<String> {
        let value: serde_json::Value = serde_json::from_str(&self.body).expect("it is JSON");
        let events = value.as_array().cloned().unwrap_or_else(|| vec![value]);
        let session = |event: &serde_json::Value| {
            let session = event["data"]["clientSessionName"].as_str();
            session.unwrap_or_default().to_owned()
        };
        events.iter().map(session).collect()
    }
}

type Answer = Box<dyn FnMut(&Got) -> String + Send>;

pub(super) struct TestEndpoint {
    pub(super) address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

/// An answer with a status and no body.
pub(super) fn status(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
}

pub(super) const CONSENT: &str =
    "HTTP/1.1 200 OK\r\nWebHook-Allowed-Origin: *\r\nContent-Length: 0\r\n\r\n";

impl TestEndpoint {
    /// It answers what `answer` gives; an empty answer closes the connection.
    pub(super) async fn new(answer: impl FnMut(&Got) -> String + Send + 'static) -> TestEndpoint {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let got = Arc::new(Mutex::new(Vec::new()));
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(answer)));
        let kept = got.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, kept.clone(), answer.clone()));
            }
        });
        TestEndpoint { address, got }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/events?code=secret", self.address)
    }

    /// What it has got so far.
    pub(super) fn got(&self) -> Vec<Got> {
        self.got.lock().clone()
    }

    /// The requests with events.
    pub(super) fn posts(&self) -> Vec<Got> {
        let mut got = self.got();
        got.retain(|got| got.method == "POST");
        got
    }
}

async fn converse(stream: TcpStream, got: Arc<Mutex<Vec<Got>>>, answer: Arc<Mutex<Answer>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let text = (answer.lock())(&request);
        got.lock().push(request);
        if text.is_empty() || stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Got> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
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
    let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Got {
        method,
        path,
        headers,
        body: String::from_utf8(body).expect("it is text"),
    })
}
