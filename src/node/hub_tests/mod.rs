//! The HTTPS API of the hub, asked over a socket of a real node: every route, every row of its tables.

mod identities;
mod queries;
mod twins;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::shutdown::Node;
use super::{Runtimes, start};
use crate::base::time::wall_now;
use crate::config::{Config, Flag, Sources, load};
use crate::registry::sign::sign;
use identities::{
    identities_are_made_changed_and_deleted, modules_belong_to_their_devices,
    what_is_no_identity_is_refused, who_asks_is_judged_first,
};
use queries::{pages_follow_one_another, twins_are_found};
use twins::{twins_are_patched_and_replaced, what_is_no_request_is_refused};

const HOST: &str = "hub.example";
const VERSION: &str = "api-version=2021-04-12";
/// Bytes 1, 2, … 32.
const KEY: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

fn key() -> Vec<u8> {
    (1..=32).collect()
}

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it is bound")
}

fn config(directory: &Path, https: SocketAddr) -> Config {
    use std::os::unix::fs::PermissionsExt as _;
    let policies = directory.join("policies");
    let text = format!(
        "owner:RegistryRead,RegistryWrite,ServiceConnect,DeviceConnect:{KEY}\nread:RegistryRead:{KEY}\n\
         write:RegistryWrite:{KEY}\nservice:ServiceConnect:{KEY}\ndevice:DeviceConnect:{KEY}\n"
    );
    std::fs::write(&policies, text).expect("a file");
    std::fs::set_permissions(&policies, std::fs::Permissions::from_mode(0o600)).expect("a file");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let flags = [
        ("node.data_dir", path(&directory.join("data"))),
        ("node.stuck_s", "0".to_owned()),
        ("disk.reserve_percent", "0".to_owned()),
        ("cluster.listen", free_address().to_string()),
        ("mqtt.listen", "127.0.0.1:0".to_owned()),
        ("http.listen", String::new()),
        ("hub.host_names", HOST.to_owned()),
        ("hub.https_listen", https.to_string()),
        ("hub.policies_file", path(&policies)),
        ("hub.allow_plaintext", "true".to_owned()),
        ("hub.max_devices", "12".to_owned()),
    ];
    let flags = flags.map(|(key, value)| Flag {
        flag: "--set".to_owned(),
        key: key.to_owned(),
        value,
    });
    let sources = Sources {
        flags: flags.into(),
        ..Sources::default()
    };
    load(&sources).expect("a good configuration").config
}

/// A node, and the back end that asks it.
struct Hub {
    node: Node,
    https: SocketAddr,
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Status and name of an error; its body is as bodies of errors are.
    #[track_caller]
    fn error(&self) -> (u16, String) {
        let code = self.header("iothub-errorcode").unwrap_or_default();
        let body = self.json();
        let message = body["Message"].as_str().expect("a message");
        assert!(
            message.starts_with(&format!("ErrorCode:{code};")),
            "{self:?}"
        );
        let tracking = body["ExceptionMessage"].as_str().expect("a tracking id");
        let tracking = tracking
            .strip_prefix("Tracking ID:")
            .expect("a tracking id");
        let (id, time) = tracking.split_once("-TimeStamp:").expect("a time");
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
        assert_eq!(body.as_object().expect("an object").len(), 2);
        assert_eq!(
            self.header("content-type"),
            Some("application/json; charset=utf-8")
        );
        (self.status, code.to_owned())
    }
}

/// A token of a policy for a path, which holds for a minute.
fn token(policy: &str, path: &str) -> String {
    let end = wall_now().0 / 1000 + 60;
    sign(&format!("{HOST}{path}"), &key(), end, Some(policy))
}

impl Hub {
    async fn start() -> Hub {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let https = free_address();
        let config = config(directory.path(), https);
        let runtime = tokio::runtime::Handle::current();
        let node = start(config, &Runtimes::one(&runtime)).await;
        let node = node.expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !node.broker.state.is_serving() {
            assert!(Instant::now() < deadline, "the node does not serve");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Hub {
            node,
            https,
            _directory: directory,
        }
    }

    /// Sends bytes as they are, and reads the answer.
    async fn send(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.https).await.expect("it listens");
        stream.write_all(request).await.expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("it answers");
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a header");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Answer {
            status: status.expect("a status"),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    async fn ask_with(
        &self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut request =
            format!("{method} {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n");
        for (name, value) in fields {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        self.send(&[request.as_bytes(), body].concat()).await
    }

    /// Asks as the owner of everything.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        if_match: Option<&str>,
        body: Option<Value>,
    ) -> Answer {
        let token = token("owner", "");
        let mut fields = vec![("Authorization", token.as_str())];
        fields.extend(if_match.map(|etag| ("If-Match", etag)));
        let mark = if path.contains('?') { '&' } else { '?' };
        let target = format!("{path}{mark}{VERSION}");
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.ask_with(method, &target, &fields, body.as_bytes())
            .await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None, None).await
    }

    async fn put(&self, path: &str, if_match: Option<&str>, body: Value) -> Answer {
        self.ask("PUT", path, if_match, Some(body)).await
    }

    async fn query(&self, query: &str, fields: &[(&str, &str)]) -> Answer {
        let token = token("service", "/devices/query");
        let mut all = vec![("Authorization", token.as_str())];
        all.extend(fields);
        let body = json!({ "query": query }).to_string();
        let target = format!("/devices/query?{VERSION}");
        self.ask_with("POST", &target, &all, body.as_bytes()).await
    }
}

fn error(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_with_the_hub() {
    let hub = Hub::start().await;
    who_asks_is_judged_first(&hub).await;
    identities_are_made_changed_and_deleted(&hub).await;
    modules_belong_to_their_devices(&hub).await;
    what_is_no_identity_is_refused(&hub).await;
    twins_are_patched_and_replaced(&hub).await;
    what_is_no_request_is_refused(&hub).await;
    twins_are_found(&hub).await;
    pages_follow_one_another(&hub).await;
    hub.node.shutdown().await;
}
