//! Who may change something, judged by a node that lags, and changes whose client does not wait for the answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::serve::router;
use super::server::{Bounds, run};
use super::tests::{exchange_at, healthy, open_gate};
use super::*;
use crate::acl::Rules;
use crate::base::time::wall_now;
use crate::config::{AuditConfig, HttpAuthentication, HttpConfig, Scope};
use crate::telemetry::audit;
use crate::telemetry::metrics::Metrics;

const WITHIN: Duration = Duration::from_secs(20);

/// A server with some parts of its own.
async fn server(gate: Arc<Gate>, change: impl FnOnce(&mut Endpoints)) -> SocketAddr {
    let stopping = Arc::new(Notify::new());
    server_until(gate, change, stopping).await.0
}

/// As [`server`]; its end when it is told to stop.
async fn server_until(
    gate: Arc<Gate>,
    change: impl FnOnce(&mut Endpoints),
    stopping: Arc<Notify>,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let node = Arc::new(healthy(true));
    let mut endpoints = Endpoints {
        readiness: node.clone(),
        admin: node.clone(),
        sessions: node.clone(),
        users: node.clone(),
        rules: node.clone(),
        tokens: node.clone(),
        events: node.clone(),
        event_subscriptions: node.clone(),
        currency: node,
        metrics: Arc::new(Metrics::default()),
    };
    change(&mut endpoints);
    let routes = router(endpoints, Hosts::default(), gate, Part::Everything);
    let stop = async move { stopping.notified().await };
    let running = run(
        listener,
        None,
        routes,
        Bounds::default(),
        super::serve::late,
        stop,
    );
    (address, tokio::spawn(running))
}

/// A token of a gate, as a field of a request.
fn token(gate: &Gate, name: &str) -> String {
    let made = TokenRecord::make(name, Scope::Admin, wall_now(), None);
    let (text, record) = made.expect("random numbers");
    gate.tokens().set(name, Some(&record.encode()));
    format!("authorization: Bearer {}\r\n", *text)
}

fn request(line: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{line} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{fields}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

async fn status(address: SocketAddr, line: &str, fields: &str) -> String {
    let answer = exchange_at(address, &request(line, fields, "")).await;
    answer[9..12].to_owned()
}

/// A node that lags: when it has caught up, a token is there or is not.
struct Lagging {
    gate: Arc<Gate>,
    /// The token that was removed; `None`: it can't catch up.
    removed: Option<&'static str>,
}

impl Currency for Lagging {
    fn be_current(&self) -> AdminFuture<'_, ()> {
        async {
            let lost = || AdminError::NoLeader("no majority".to_owned());
            let removed = self.removed.ok_or_else(lost)?;
            self.gate.tokens().set(removed, None);
            Ok(())
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_node_that_lags_finds_out_first_who_may_ask() {
    let gate = open_gate();
    let (gone, kept) = (token(&gate, "gone"), token(&gate, "kept"));
    let (removed, known) = (Some("gone"), gate.clone());
    let address = server(gate.clone(), |endpoints| {
        endpoints.currency = Arc::new(Lagging {
            gate: known,
            removed,
        });
    });
    let address = address.await;
    for line in ["GET /v1/sessions", "DELETE /v1/token?name=ops"] {
        gate.tokens().set("gone", None);
        let again = token(&gate, "gone");
        assert_ne!(again, gone);
        assert_eq!(status(address, line, &again).await, "401", "{line}");
        assert_eq!(status(address, line, &kept).await, "200", "{line}");
    }
}

/// A node that lags: when it has caught up, there are these rules.
struct LaggingInRules(Arc<Gate>);

impl Currency for LaggingInRules {
    fn be_current(&self) -> AdminFuture<'_, ()> {
        let text = r#"{"rules": [{"effect": "deny", "principals": {"names": ["held", "anonymous"]},
            "http_resources": [{"paths": ["/v1/sessions", "/v1/token", "/v1/cluster/*"]}]}]}"#;
        let rules = Rules::parse(text.as_bytes(), 1).expect("rules");
        self.0.rules().set(rules);
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn a_node_that_lags_finds_out_first_what_rules_there_are() {
    let config = HttpConfig {
        authentication: HttpAuthentication::Off,
        ..HttpConfig::default()
    };
    let gate = Gate::new(&config, Arc::default(), Arc::default());
    let gate = Arc::new(gate.expect("no file is read"));
    let (held, free) = (token(&gate, "held"), token(&gate, "free"));
    let metrics = Arc::new(Metrics::default());
    let (known, counted) = (gate.clone(), metrics.clone());
    let address = server(gate.clone(), |endpoints| {
        endpoints.currency = Arc::new(LaggingInRules(known));
        endpoints.metrics = counted;
    });
    let address = address.await;
    let always = "GET /v1/cluster/status";
    for fields in ["", &held] {
        gate.rules().set(Rules::open());
        assert_eq!(status(address, always, fields).await, "200", "{fields}");
        for line in [
            "GET /v1/sessions",
            "HEAD /v1/sessions",
            "DELETE /v1/token?name=ops",
        ] {
            gate.rules().set(Rules::open());
            assert_eq!(
                status(address, line, fields).await,
                "403",
                "{line} {fields}"
            );
            assert_eq!(status(address, line, &free).await, "200", "{line}");
        }
        assert_eq!(status(address, always, fields).await, "403", "{fields}");
    }
    let text = metrics.render();
    let count = "quorumq_not_authorized_total{action=\"http\"} 8";
    assert!(text.contains(count), "{text}");
}

#[tokio::test]
async fn a_node_without_a_quorum_does_not_know_who_may_ask() {
    let gate = open_gate();
    let known = gate.clone();
    let address = server(gate.clone(), |endpoints| {
        endpoints.currency = Arc::new(Lagging {
            gate: known,
            removed: None,
        });
    });
    let address = address.await;
    // Nobody knows whether the cluster has a token, and then whether this one is still there.
    for has_token in [false, true] {
        let fields = match has_token {
            false => String::new(),
            true => token(&gate, "ops"),
        };
        for line in ["GET /v1/sessions", "DELETE /v1/token?name=ops"] {
            assert_eq!(status(address, line, &fields).await, "503", "{line}");
        }
        let line = "GET /v1/cluster/status";
        assert_eq!(status(address, line, &fields).await, "200", "{fields}");
    }
    assert_eq!(status(address, "GET /v1/cluster/status", "").await, "401");
}

/// Tells when somebody is judged, which is done before whoever waits for this goes on.
#[derive(Default)]
struct Told {
    judged: Notify,
}

impl Currency for Told {
    fn be_current(&self) -> AdminFuture<'_, ()> {
        async {
            self.judged.notify_one();
            Ok(())
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_change_is_judged_when_all_of_it_is_there() {
    let gate = open_gate();
    token(&gate, "other");
    let fields = token(&gate, "ops");
    let told = Arc::new(Told::default());
    let currency = told.clone();
    let address = server(gate.clone(), |endpoints| endpoints.currency = currency).await;
    let whole = request("PUT /v1/rules", &fields, "{}");
    let (first, rest) = whole.split_at(whole.len() - 1);
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let sent = stream.write_all(first.as_bytes()).await;
    sent.expect("it reads");
    let judged = tokio::time::timeout(WITHIN, told.judged.notified());
    judged.await.expect("the header is judged");
    gate.tokens().set("ops", None);
    let sent = stream.write_all(rest.as_bytes()).await;
    sent.expect("it reads");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer).await;
    read.expect("it answers");
    assert_eq!(&answer[9..12], "401", "{answer}");
}

/// Rules that are written slowly.
#[derive(Default)]
struct Slow {
    begun: Notify,
    go: Notify,
    is_written: AtomicBool,
    panics: AtomicBool,
}

impl RulesAdmin for Slow {
    fn rules(&self) -> AdminFuture<'_, Option<StoredRules>> {
        async { Ok(None) }.boxed()
    }

    fn set_rules(&self, _: Bytes, _: Option<u64>) -> AdminFuture<'_, Written> {
        async {
            self.begun.notify_one();
            self.go.notified().await;
            self.is_written.store(true, Ordering::Release);
            assert!(!self.panics.load(Ordering::Acquire), "meant to panic");
            Ok(Written::Version(4_711))
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_change_is_carried_out_and_recorded_though_its_client_hangs_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("audit");
    let config = AuditConfig {
        file: Some(file.clone()),
    };
    audit::start(1, &config, Arc::default()).expect("the file is made");
    let slow = Arc::new(Slow::default());
    let gate = open_gate();
    let fields = token(&gate, "hasty");
    let (rules, stopping) = (slow.clone(), Arc::new(Notify::new()));
    let change = |endpoints: &mut Endpoints| endpoints.rules = rules;
    let (address, running) = server_until(gate.clone(), change, stopping.clone()).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let sent = request("PUT /v1/rules", &fields, "{}");
    stream.write_all(sent.as_bytes()).await.expect("it reads");
    let begun = tokio::time::timeout(WITHIN, slow.begun.notified());
    begun.await.expect("it has begun");
    drop(stream);
    // It stops when no connection is left: then it has seen that the client is gone.
    stopping.notify_one();
    let stopped = tokio::time::timeout(WITHIN, running).await;
    stopped.expect("it stops").expect("it does not panic");
    slow.go.notify_one();
    let recorded = recorded(&file, "hasty").await;
    assert!(slow.is_written.load(Ordering::Acquire));
    let rules = recorded.iter().find(|line| line.contains("\"rules\""));
    let rules = rules.expect("what was changed is there, too");
    assert!(
        rules.contains("4711") && rules.contains("127.0.0.1"),
        "{rules}"
    );
    // A handler that panics may have changed something before.
    slow.panics.store(true, Ordering::Release);
    slow.go.notify_one();
    let fields = token(&gate, "unlucky");
    let rules = slow.clone();
    let address = server(gate, |endpoints| endpoints.rules = rules).await;
    let answer = exchange_at(address, &request("PUT /v1/rules", &fields, "{}")).await;
    assert_eq!(&answer[9..12], "500", "{answer}");
    let recorded = self::recorded(&file, "unlucky").await;
    let line = recorded.iter().find(|line| line.contains("http_request"));
    assert!(
        line.is_some_and(|line| line.contains("\"failed\"")),
        "{line:?}"
    );
}

/// The lines of the audit log about somebody, when one of them is about a request.
async fn recorded(file: &std::path::Path, name: &str) -> Vec<String> {
    let recorded = async {
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let lines = text.lines().filter(|line| line.contains(name));
            if lines.clone().any(|line| line.contains("http_request")) {
                return lines.map(str::to_owned).collect::<Vec<_>>();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let recorded = tokio::time::timeout(WITHIN, recorded).await;
    recorded.expect("it is in the audit log")
}

#[tokio::test]
async fn a_node_that_stops_waits_for_changes_that_nobody_waits_for() {
    for scope in [Scope::Operate, Scope::Admin] {
        let changes = super::post::Changes::default();
        let change = changes.turn(scope).await;
        let mut waiting = std::pin::pin!(changes.carried_out());
        assert!(futures::poll!(&mut waiting).is_pending());
        let mut late = std::pin::pin!(changes.turn(scope));
        assert!(futures::poll!(&mut late).is_pending());
        drop(change);
        tokio::time::timeout(WITHIN, waiting)
            .await
            .expect("none is left");
        assert!(late.await.is_none(), "none begins");
    }
}

/// Those that come while the others are waited for begin no more.
#[tokio::test]
async fn a_node_that_stops_refuses_changes_that_come() {
    for scope in [Scope::Operate, Scope::Admin] {
        let changes = super::post::Changes::default();
        let begun = changes.turn(scope).await;
        changes.refuse(tokio::time::Instant::now());
        assert!(changes.turn(scope).await.is_none());
        assert!(begun.is_some());
    }
}

#[tokio::test]
async fn what_takes_long_and_is_for_operators_keeps_no_administrator_waiting() {
    let changes = super::post::Changes::default();
    let mut held = Vec::new();
    loop {
        let turn = std::pin::pin!(changes.turn(Scope::Operate));
        match futures::poll!(turn) {
            std::task::Poll::Ready(turn) => held.push(turn.expect("it is open")),
            std::task::Poll::Pending => break,
        }
    }
    assert!(!held.is_empty());
    let turn = tokio::time::timeout(WITHIN, changes.turn(Scope::Admin));
    assert!(turn.await.is_ok_and(|turn| turn.is_some()));
}
