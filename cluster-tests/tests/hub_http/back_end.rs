//! A back end, and the cluster that it asks. Everything is plain HTTP here, on loopback.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::http;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value as Json, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const HOST: &str = "hub.test";
const VERSION: &str = "api-version=2021-04-12";

/// Bytes of the key of the policy, and the same as base64.
pub const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
pub const KEY_TEXT: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// How long a node may take to answer: it waits 30 s for a commit.
const ANSWER_WITHIN: Duration = Duration::from_secs(50);

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The name of an error.
    pub fn code(&self) -> &str {
        self.header("iothub-errorcode").unwrap_or_default()
    }

    #[track_caller]
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A cluster with a hub.
pub struct Hub {
    pub cluster: Cluster,
    https: Vec<SocketAddr>,
    _directory: TempDir,
}

/// Percent-encodes a text.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn token() -> String {
    token_of("", KEY, Some("all"), 3_600)
}

/// A token for everything below a path, of a policy or of the identity there.
pub fn token_of(path: &str, key: &[u8], policy: Option<&str>, lives_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = now.expect("it is after 1970").as_secs() + lives_s;
    let key = EncodingKey::from_secret(key);
    let resource = encoded(&format!("{HOST}{path}"));
    let message = format!("{resource}\n{end}");
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256);
    let signature = signature.expect("HMAC signs everything");
    let signature = encoded(&format!(
        "{}=",
        signature.replace('-', "+").replace('_', "/")
    ));
    let policy = policy
        .map(|name| format!("&skn={name}"))
        .unwrap_or_default();
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={end}{policy}")
}

/// With the token of the policy that may do everything.
fn authorized(fields: &str) -> String {
    format!("Authorization: {}\r\n{fields}", token())
}

impl Hub {
    pub fn start(plan: Plan) -> Hub {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let policies = directory.path().join("policies");
        let lines = format!(
            "all:RegistryRead,RegistryWrite,ServiceConnect,DeviceConnect:{KEY_TEXT}\n\
             read:RegistryRead:{KEY_TEXT}\nwrite:RegistryWrite:{KEY_TEXT}\n\
             service:ServiceConnect:{KEY_TEXT}\ndevice:DeviceConnect:{KEY_TEXT}\n"
        );
        std::fs::write(&policies, lines).expect("a file can be written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&policies, mode).expect("it is there");
        let taken =
            (0..plan.size).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
        let taken: Vec<TcpListener> = taken.collect();
        let https = taken
            .iter()
            .map(|listener| listener.local_addr().expect("it is bound"));
        let https: Vec<SocketAddr> = https.collect();
        drop(taken);
        let environment = https.iter().enumerate().map(|(index, address)| {
            let name = "QUORUMQ__HUB__HTTPS_LISTEN".to_owned();
            (index, name, address.to_string())
        });
        let cluster = Cluster::start_with(Plan {
            extra: format!(
                "[hub]\nhost_names = [\"{HOST}\"]\npolicies_file = {policies:?}\nallow_plaintext = true\n{}",
                plan.extra
            ),
            environment: environment.collect(),
            ..plan
        });
        let hub = Hub {
            cluster,
            https,
            _directory: directory,
        };
        // A node that is ready judges tokens: nothing is waited for.
        for node in 0..hub.https.len() {
            let answer = hub.ask(node, "GET", "/devices", "", &Json::Null);
            assert_eq!(answer.status, 200, "node {node}: {answer:?}");
        }
        hub
    }

    /// Asks a node; `None` when nobody answers.
    pub fn try_ask(
        &self,
        node: usize,
        method: &str,
        path: &str,
        etag: &str,
        body: &Json,
    ) -> Option<Answer> {
        let if_match = format!("If-Match: {etag}\r\n");
        let if_match = if etag.is_empty() { "" } else { &if_match };
        self.send(node, method, path, &authorized(if_match), body)
    }

    /// Asks a node.
    #[track_caller]
    pub fn ask(&self, node: usize, method: &str, path: &str, etag: &str, body: &Json) -> Answer {
        let answer = self.try_ask(node, method, path, etag, body);
        answer.unwrap_or_else(|| panic!("{method} {path}: no answer"))
    }

    /// The status of an answer to who shows this token, or none.
    #[track_caller]
    pub fn status(&self, node: usize, method: &str, path: &str, token: &str, body: &Json) -> u16 {
        let mut shown = match token {
            "" => String::new(),
            token => format!("Authorization: {token}\r\n"),
        };
        if method == "DELETE" {
            shown += "If-Match: *\r\n";
        }
        let answer = self.send(node, method, path, &shown, body);
        let answer = answer.unwrap_or_else(|| panic!("{method} {path}: no answer"));
        answer.status
    }

    fn send(
        &self,
        node: usize,
        method: &str,
        path: &str,
        fields: &str,
        body: &Json,
    ) -> Option<Answer> {
        let body = match body {
            Json::Null => String::new(),
            body => body.to_string(),
        };
        let length = body.len();
        let request = format!(
            "{method} {path}?{VERSION} HTTP/1.1\r\nHost: {HOST}\r\n{fields}\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(self.https[node]).ok()?;
        stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some(Answer {
            status: head.split(' ').nth(1)?.parse().ok()?,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }

    /// Begins to ask a node: the body is still to come.
    pub fn begin(&self, node: usize, method: &str, path: &str, body: &Json) -> http::Begun {
        let authorization = authorized("");
        let head = format!("{method} {path}?{VERSION} HTTP/1.1\r\nHost: {HOST}\r\n{authorization}");
        http::Begun::new(self.https[node], &head, body.to_string())
    }

    /// Waits until a node that stops takes no back ends any more.
    #[track_caller]
    pub fn wait_closed(&self, node: usize) {
        http::wait_closed(self.https[node]);
    }

    /// All that a query finds, in one page.
    #[track_caller]
    pub fn query(&self, node: usize, query: &str) -> Json {
        let answer = self.ask(
            node,
            "POST",
            "/devices/query",
            "",
            &json!({ "query": query }),
        );
        assert_eq!(
            (answer.status, answer.header("x-ms-continuation")),
            (200, None),
            "{answer:?}"
        );
        answer.json()
    }

    /// All that a query finds, page by page, each from another node.
    #[track_caller]
    pub fn pages(&self, query: &str, items: usize) -> Vec<Json> {
        let mut rows = Vec::new();
        let mut fields = format!("x-ms-max-item-count: {items}\r\n");
        for page in 0.. {
            let body = json!({ "query": query });
            let fields_now = authorized(&fields);
            let answer = self.send(page % 3, "POST", "/devices/query", &fields_now, &body);
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "{answer:?}");
            rows.extend(answer.json().as_array().expect("a list").clone());
            let Some(token) = answer.header("x-ms-continuation") else {
                break;
            };
            fields = format!("x-ms-max-item-count: {items}\r\nx-ms-continuation: {token}\r\n");
        }
        rows
    }
}
