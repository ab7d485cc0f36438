//! The routes, asked over a real socket.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::access::{Access, Declared};
use super::serve::{declared, router};
use super::server::{Bounds, run};
use super::*;
use crate::base::time::wall_now;
use crate::config::{HttpConfig, Scope};
use crate::telemetry::metrics::Metrics;

#[derive(Default)]
pub(super) struct Node {
    leader: bool,
    stuck: Option<&'static str>,
}

impl Readiness for Node {
    fn checks(&self) -> Vec<Check> {
        let leader = if self.leader {
            Ok(())
        } else {
            Err(NotReady::NoLeader)
        };
        vec![("joined", Ok(())), ("leader", leader)]
    }

    fn stuck(&self) -> Vec<String> {
        self.stuck.iter().map(ToString::to_string).collect()
    }
}

impl Admin for Node {
    fn status(&self) -> AdminFuture<'_, ClusterStatus> {
        let status = ClusterStatus {
            node: 7,
            ..ClusterStatus::default()
        };
        async { Ok(status) }.boxed()
    }

    fn join(&self, _: JoinRequest) -> AdminFuture<'_, ()> {
        async { Ok(()) }.boxed()
    }

    fn leave(&self, request: LeaveRequest) -> AdminFuture<'_, ()> {
        async move {
            Err(AdminError::Conflict(format!(
                "{} is the last voter",
                request.id
            )))
        }
        .boxed()
    }

    fn transfer(&self, _: TransferRequest) -> AdminFuture<'_, u64> {
        async { Err(AdminError::NoLeader("an election is under way".into())) }.boxed()
    }

    fn catch_up_log_time(&self) -> AdminFuture<'_, u64> {
        async { Err(AdminError::Conflict("node 2 leads, ask it".into())) }.boxed()
    }

    fn verify(&self) -> AdminFuture<'_, VerifyAnswer> {
        let answer = VerifyAnswer {
            index: 4_711,
            ..VerifyAnswer::default()
        };
        async { Ok(answer) }.boxed()
    }
}

impl Currency for Node {
    fn be_current(&self) -> AdminFuture<'_, ()> {
        async { Ok(()) }.boxed()
    }
}

impl RulesAdmin for Node {
    fn rules(&self) -> AdminFuture<'_, Option<StoredRules>> {
        let rules = StoredRules {
            version: 7,
            text: b"{\"rules\": []}".as_slice().into(),
        };
        async { Ok(Some(rules)) }.boxed()
    }

    fn set_rules(&self, text: bytes::Bytes, expected: Option<u64>) -> AdminFuture<'_, Written> {
        async move {
            match expected {
                _ if text != "{}" => Err(AdminError::Invalid("wrong".into())),
                None | Some(7) => Ok(Written::Version(8)),
                Some(_) => Ok(Written::Conflict(7)),
            }
        }
        .boxed()
    }
}

impl Sessions for Node {
    fn list(&self, page: Page) -> AdminFuture<'_, String> {
        let client_id = match page.after.as_str() {
            "large" => "c".repeat(100_000),
            after => format!("after {after} {}", page.size()),
        };
        let entry = SessionStatus {
            client_id,
            ..SessionStatus::default()
        };
        let listed = Listed {
            entries: vec![entry],
            next: None,
        };
        async move { Ok(json!(listed).to_string()) }.boxed()
    }

    fn show(&self, client_id: String) -> AdminFuture<'_, Option<String>> {
        let mut detail = SessionDetail::default();
        detail.session.client_id = client_id;
        async move { Ok(Some(json!(detail).to_string())) }.boxed()
    }

    fn delete(&self, client_id: String) -> AdminFuture<'_, bool> {
        async move { Ok(client_id == "a b") }.boxed()
    }

    fn kick(&self, client_id: String) -> AdminFuture<'_, bool> {
        async move { Ok(client_id == "a b") }.boxed()
    }

    fn retained(&self, _: Page) -> AdminFuture<'_, String> {
        async { Err(AdminError::Invalid("no filter".into())) }.boxed()
    }

    fn retained_message(&self, _: String) -> AdminFuture<'_, Option<String>> {
        async { Ok(None) }.boxed()
    }
}

impl Tokens for Node {
    fn list(&self) -> AdminFuture<'_, Vec<TokenStatus>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn add(&self, name: String, scope: Scope, _: Option<u64>) -> AdminFuture<'_, MadeToken> {
        let token = format!("{name} {scope}");
        async { Ok(MadeToken { name, token }) }.boxed()
    }

    fn remove(&self, name: String) -> AdminFuture<'_, bool> {
        async move { Ok(name == "ops") }.boxed()
    }
}

/// A gate as it is without a configuration.
pub(super) fn open_gate() -> Arc<Gate> {
    let gate = Gate::new(&HttpConfig::default(), Arc::default(), Arc::default());
    Arc::new(gate.expect("no file is read"))
}

/// The address of a fresh server.
async fn server(bounds: Bounds, node: Node) -> std::net::SocketAddr {
    server_with(bounds, node, open_gate(), Part::Everything).await
}

async fn server_with(
    bounds: Bounds,
    node: Node,
    gate: Arc<Gate>,
    part: Part,
) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener
        .local_addr()
        .expect("a bound socket has an address");
    let node = Arc::new(node);
    let endpoints = Endpoints {
        readiness: node.clone(),
        admin: node.clone(),
        sessions: node.clone(),
        users: node.clone(),
        rules: node.clone(),
        events: node.clone(),
        event_subscriptions: node.clone(),
        tokens: node.clone(),
        currency: node,
        metrics: Arc::new(Metrics::default()),
    };
    let routes = router(endpoints, Hosts::default(), gate, part);
    tokio::spawn(run(
        listener,
        None,
        routes,
        bounds,
        super::serve::late,
        std::future::pending(),
    ));
    address
}

/// Everything that a fresh server answers to these bytes until it closes the connection.
async fn exchange_within(bounds: Bounds, node: Node, request: &str) -> String {
    exchange_at(server(bounds, node).await, request).await
}

pub(super) async fn exchange_at(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address)
        .await
        .expect("the server listens");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the server reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("the server answers in text");
    answer
}

pub(super) async fn exchange(node: Node, request: &str) -> String {
    exchange_within(Bounds::default(), node, request).await
}

/// A node at which nothing is stuck.
pub(super) fn healthy(leader: bool) -> Node {
    Node {
        leader,
        stuck: None,
    }
}

/// Status code and body of one request to a fresh server.
pub(super) async fn ask(leader: bool, method: &str, path: &str, body: &str) -> (u16, String) {
    ask_node(healthy(leader), method, path, body).await
}

async fn ask_node(node: Node, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(node, &request).await;
    let code = answer[9..12].parse().expect("a status code");
    let body = answer
        .split_once("\r\n\r\n")
        .expect("a header")
        .1
        .to_owned();
    (code, body)
}

#[tokio::test]
async fn a_node_without_a_leader_lives_but_is_not_ready() {
    assert_eq!(ask(false, "GET", "/livez", "").await, (200, "ok\n".into()));
    let (code, body) = ask(false, "GET", "/readyz", "").await;
    assert_eq!(
        (code, body.as_str()),
        (503, "[-] leader: no leader is known\nnot ready\n")
    );
}

#[tokio::test]
async fn a_verbose_answer_lists_every_check() {
    let (code, body) = ask(true, "GET", "/readyz?verbose", "").await;
    assert_eq!(
        (code, body.as_str()),
        (200, "[+] joined ok\n[+] leader ok\nok\n")
    );
}

#[tokio::test]
async fn a_thread_that_does_not_come_round_fails_the_probe_of_life() {
    let node = Node {
        leader: true,
        stuck: Some("apply has been applying entries for 7 s"),
    };
    assert_eq!(
        ask_node(node, "GET", "/livez", "").await,
        (503, "[-] apply has been applying entries for 7 s\n".into())
    );
}

#[tokio::test]
async fn metrics_are_open_metrics() {
    let (code, body) = ask(true, "GET", "/metrics", "").await;
    assert_eq!(code, 200);
    assert!(body.trim_end().ends_with("# EOF"), "{body}");
}

#[tokio::test]
async fn administration_answers_with_a_code_and_a_reason() {
    let (code, body) = ask(true, "GET", "/v1/cluster/status", "").await;
    let status: ClusterStatus = serde_json::from_str(&body).expect("a status");
    assert_eq!((code, status.node), (200, 7));
    let cases = [
        (
            "/v1/cluster/join",
            "{\"id\":4,\"address\":\"a:1\"}",
            200,
            "joined",
        ),
        (
            "/v1/cluster/leave",
            "{\"id\":1}",
            409,
            "1 is the last voter",
        ),
        ("/v1/cluster/transfer", "{}", 503, "no_leader"),
        ("/v1/cluster/log-time", "{}", 409, "node 2 leads"),
        ("/v1/cluster/verify", "{}", 200, "4711"),
        ("/v1/cluster/leave", "{\"idd\":1}", 400, "unknown field"),
        ("/v1/cluster/leave", "not json", 400, "invalid"),
        ("/v1/other", "{}", 404, "/v1/cluster/status"),
    ];
    for (path, request, expected, part) in cases {
        let (code, body) = ask(true, "POST", path, request).await;
        assert_eq!(code, expected, "{path} {request} {body}");
        assert!(body.contains(part), "{body}");
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused_as_that() {
    let body = format!("{{\"id\":1,\"pad\":\"{}\"}}", "x".repeat(70_000));
    let (code, answer) = ask(true, "POST", "/v1/cluster/leave", &body).await;
    assert_eq!(code, 413, "{answer}");
    assert!(answer.contains("at most 65536 bytes"), "{answer}");
    for (bytes, expected) in [(60_000, "200"), (66_000, "431"), (120_000, "431")] {
        let pad = "x".repeat(bytes);
        let request =
            format!("GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\npad: {pad}\r\n\r\n");
        let answer = exchange(healthy(true), &request).await;
        assert_eq!(&answer[9..12], expected, "{bytes} bytes");
    }
}

#[tokio::test]
async fn sessions_are_listed_by_page_and_named_by_query() {
    let (code, body) = ask(true, "GET", "/v1/sessions?after=a%20b&limit=5000", "").await;
    let listed: Listed<SessionStatus> = serde_json::from_str(&body).expect("a page");
    assert_eq!(code, 200);
    assert_eq!(listed.entries[0].client_id, "after a b 1000");
    let (code, body) = ask(true, "GET", "/v1/session?client_id=%C3%BC%2F%23", "").await;
    let detail: SessionDetail = serde_json::from_str(&body).expect("a session");
    assert_eq!((code, detail.session.client_id.as_str()), (200, "ü/#"));
    for (method, path, expected) in [
        ("DELETE", "/v1/session?client_id=a+b", 200),
        ("DELETE", "/v1/session?client_id=c", 404),
        ("POST", "/v1/session/kick?client_id=a%20b", 200),
        ("POST", "/v1/session/kick?client_id=c", 404),
        ("GET", "/v1/session", 400),
        ("GET", "/v1/sessions?afterr=a", 400),
        ("GET", "/v1/retained", 400),
        ("GET", "/v1/retained/message?topic=t", 404),
    ] {
        let (code, body) = ask(true, method, path, "").await;
        assert_eq!(code, expected, "{method} {path} {body}");
    }
}

#[tokio::test]
async fn a_web_page_cannot_administer() {
    for (fields, expected) in [
        ("host: rebound.example\r\n", "421"),
        ("host: 127.0.0.1\r\norigin: http://evil.example\r\n", "403"),
        ("host: 127.0.0.1\r\ncontent-type: text/plain\r\n", "415"),
    ] {
        let request = format!(
            "POST /v1/session/kick?client_id=a%20b HTTP/1.1\r\n{fields}content-length: 0\r\nconnection: close\r\n\r\n"
        );
        let answer = exchange(healthy(true), &request).await;
        assert_eq!(answer.get(9..12), Some(expected), "{answer}");
    }
    let scrape = "GET /metrics HTTP/1.1\r\nhost: node.service\r\nconnection: close\r\n\r\n";
    assert_eq!(
        exchange(healthy(true), scrape).await.get(9..12),
        Some("200")
    );
}

#[tokio::test]
async fn a_silent_client_is_disconnected() {
    let bounds = Bounds {
        header: Duration::from_millis(20),
        request: Duration::from_millis(20),
        ..Bounds::default()
    };
    for request in ["", "GET /livez HTTP/1.1\r\nhost: x\r\n"] {
        let answer = exchange_within(bounds, healthy(true), request).await;
        assert_eq!(answer, "");
    }
    let answered = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let answer = exchange_within(bounds, healthy(true), answered).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let half = "POST /v1/cluster/leave HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    let answer = exchange_within(bounds, healthy(true), half).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
}

#[tokio::test]
async fn silent_clients_do_not_keep_a_probe_waiting() {
    let bounds = Bounds {
        connections: 4,
        header: Duration::from_secs(3_600),
        ..Bounds::default()
    };
    let address = server(bounds, healthy(true)).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
    }
    let request = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let probe = tokio::time::timeout(Duration::from_secs(5), exchange_at(address, request));
    let answer = probe.await.expect("it need not wait for anybody");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let left = silent[0].read(&mut [0]).await;
    assert_eq!(left.ok(), Some(0), "the first gave its place up");
}

/// The status of one request with these further fields.
async fn status_of(address: std::net::SocketAddr, route: &Declared, fields: &str) -> u16 {
    let request = format!(
        "{} {}?client_id=c&topic=t&name=n HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{fields}\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
        route.method, route.path
    );
    let answer = exchange_at(address, &request).await;
    answer[9..12].parse().expect("a status code")
}

#[tokio::test]
async fn every_route_asks_for_its_scope_and_for_no_more() {
    let gate = open_gate();
    let mut tokens = Vec::new();
    for scope in [Scope::Read, Scope::Operate, Scope::Admin] {
        let made = TokenRecord::make(scope.as_str(), scope, wall_now(), None);
        let (text, record) = made.expect("random numbers");
        gate.tokens().set(scope.as_str(), Some(&record.encode()));
        tokens.push((scope, format!("authorization: Bearer {}\r\n", *text)));
    }
    let routes = declared(Part::Everything, gate.clone(), Arc::new(healthy(true)));
    let address = server_with(Bounds::default(), healthy(true), gate, Part::Everything).await;
    let mut scopes = std::collections::BTreeSet::new();
    for route in &routes {
        let without = status_of(address, route, "").await;
        let Access::Scope(needed) = route.access else {
            assert!(!route.path.starts_with("/v1/"), "{route:?} is free");
            assert_eq!(without, 200, "{route:?}");
            continue;
        };
        scopes.insert(needed);
        assert_eq!(without, 401, "{route:?}");
        let forged = "authorization: Bearer quorumq.admin.x\r\n";
        assert_eq!(status_of(address, route, forged).await, 401, "{route:?}");
        for (has, token) in &tokens {
            let status = status_of(address, route, token).await;
            assert_eq!(status == 403, *has < needed, "{route:?} {has} {status}");
            assert!(status != 401, "{route:?} {has}");
        }
    }
    assert_eq!(scopes.len(), 3, "each scope is for something");
}

#[tokio::test]
async fn administration_can_have_a_port_of_its_own() {
    let asked = |part, path: &'static str| async move {
        let address = server_with(Bounds::default(), healthy(true), open_gate(), part).await;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
        let answer = exchange_at(address, &request).await;
        answer[9..12].parse::<u16>().expect("a status code")
    };
    for (part, path, expected) in [
        (Part::Probes, "/livez", 200),
        (Part::Probes, "/v1/sessions", 404),
        (Part::State, "/readyz", 200),
        (Part::State, "/metrics", 404),
        (Part::State, "/v1/sessions", 200),
    ] {
        assert_eq!(asked(part, path).await, expected, "{part:?} {path}");
    }
}
