//! What endpoints get, whatever they answer.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tokio::task::JoinHandle;

use super::super::deliverer::Deliverer;
use super::super::files::Files;
use super::super::secrets::Secrets;
use super::endpoint::{CONSENT, Got, TestEndpoint, status};
use super::replica::{Replica, WALL_BEHIND_MS};
use crate::base::proto::state::{EventHeader, EventSubscriptionOptions};
use crate::base::time::wall_now;
use crate::events::answer::{DeathReason, Outcome};
use crate::events::options::{Handshake, Mode, Schema, State, defaults};
use crate::events::signature::{SigningKey, signatures};
use crate::events::standing::Standing;
use crate::machine::read_events;
use crate::telemetry::labels::Delivery;
use crate::telemetry::metrics::Metrics;

const KEY: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

pub(super) fn options(endpoint: &TestEndpoint) -> EventSubscriptionOptions {
    EventSubscriptionOptions {
        url: endpoint.url(),
        origin: "quorumq".to_owned(),
        rate_per_min: 60_000,
        timeout_s: 1,
        ..defaults()
    }
}

pub(super) struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn deliver_with(replica: &Arc<Replica>, files: Files) -> (Running, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::default());
    let deliverer = Deliverer {
        name: "ops".to_owned(),
        leader: replica.clone(),
        files,
        metrics: metrics.clone(),
    };
    (Running(tokio::spawn(deliverer.run())), metrics)
}

pub(super) fn deliver(replica: &Arc<Replica>) -> (Running, Arc<Metrics>) {
    deliver_with(replica, Files::default())
}

/// Consents, and answers requests with events as it is told.
pub(super) fn consenting(
    mut post: impl FnMut(&Got) -> String + Send + 'static,
) -> impl FnMut(&Got) -> String {
    move |got| match got.method.as_str() {
        "OPTIONS" => CONSENT.to_owned(),
        _ => post(got),
    }
}

#[tokio::test]
async fn events_are_delivered_once_the_endpoint_has_said_that_it_wants_them() {
    let mut asked = 0;
    let endpoint = TestEndpoint::new(move |got| {
        asked += u32::from(got.method == "OPTIONS");
        match (got.method.as_str(), asked) {
            ("OPTIONS", 1) => status("200 OK"),
            ("OPTIONS", _) => CONSENT.to_owned(),
            _ => status("204 No Content"),
        }
    })
    .await;
    let replica = Replica::new();
    replica.subscribe(&options(&endpoint));
    let (_running, metrics) = deliver(&replica);
    replica.until_looked_at().await;
    assert!(endpoint.got().is_empty(), "there is nothing to deliver");
    for client in ["a", "b", "c"] {
        replica.connect(client);
    }
    replica
        .until("the refusal is told", |row| !row.last_error.is_empty())
        .await;
    assert!(endpoint.posts().is_empty(), "there is no consent");
    replica
        .until("they are delivered", |row| row.through == 3)
        .await;
    let got = endpoint.got();
    let methods: Vec<&str> = got.iter().map(|got| got.method.as_str()).collect();
    assert_eq!(methods[..2], ["OPTIONS", "OPTIONS"]);
    assert_eq!(got[0].path, "/events?code=secret");
    assert_eq!(got[0].headers["webhook-request-origin"], "quorumq");
    assert_eq!(got[0].headers["webhook-request-rate"], "60000");
    let sessions: Vec<String> = endpoint.posts().iter().flat_map(Got::sessions).collect();
    assert_eq!(sessions, ["a", "b", "c"]);
    let row = replica.row();
    assert_eq!((row.delivered, row.last_error.as_str()), (3, ""));
    let standing = Standing::of(&row, &options(&endpoint), wall_now());
    assert_eq!(standing, Standing::Active);
    assert!(metrics.event_deliveries.of(Delivery::Delivered).get() >= 1);
    assert!(metrics.event_delivery_seconds.count() >= 1);
    replica.connect("d");
    replica
        .until("the next one, too", |row| row.through == 4)
        .await;
    assert_eq!(
        endpoint
            .got()
            .iter()
            .filter(|got| got.method == "OPTIONS")
            .count(),
        2
    );
}

#[tokio::test]
async fn a_request_proves_who_sends_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("secrets");
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let to = format!("http://{}/events", endpoint.address);
    std::fs::write(&path, format!("bearer {to}=abc\nkey {to}={KEY}\n")).expect("it is written");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("its mode is set");
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        token: "bearer".to_owned(),
        signing_keys: vec!["key".to_owned()],
        headers: vec![EventHeader {
            name: "X-Site".to_owned(),
            value: "one".to_owned(),
        }],
        mode: Mode::Binary.number(),
        ..options(&endpoint)
    });
    let (_running, _) = deliver_with(&replica, Files::of_secrets(Secrets::new(Some(path), "")));
    replica.connect("a");
    replica
        .until("it is delivered", |row| row.through == 1)
        .await;
    for got in endpoint.got() {
        assert_eq!(got.headers["authorization"], "Bearer abc");
        assert_eq!(got.headers["x-site"], "one");
    }
    let post = &endpoint.posts()[0];
    let id = &post.headers["webhook-id"];
    assert_eq!(id, "ae7211cc-0421-55c3-9cb9-e1952000c788-1");
    assert_eq!(
        post.headers["ce-id"],
        "ae7211cc-0421-55c3-9cb9-e1952000c788"
    );
    let at: u64 = post.headers["webhook-timestamp"].parse().expect("seconds");
    // Verifiers judge it by their clocks, not by that of the leader.
    let behind_s = (wall_now().0 - WALL_BEHIND_MS) / 1_000 - at;
    assert!(behind_s < 30, "{behind_s} s");
    let key = [SigningKey::parse(KEY).expect("a key")];
    let expected = signatures(&key, id, at, post.body.as_bytes());
    assert_eq!(post.headers["webhook-signature"], expected);
}

#[tokio::test]
async fn without_its_secrets_nothing_is_sent() {
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        token: "bearer".to_owned(),
        ..options(&endpoint)
    });
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica
        .until("it says why", |row| row.last_error.contains("bearer"))
        .await;
    assert!(endpoint.got().is_empty());
}

#[tokio::test]
async fn who_is_not_confirmed_sends_nothing() {
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let replica = Replica::new();
    replica.subscribe(&options(&endpoint));
    replica.is_confirmed.store(false, SeqCst);
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica.until_asked(3).await;
    assert!(endpoint.got().is_empty());
    replica.is_confirmed.store(true, SeqCst);
    replica.until("it leads", |row| row.through == 1).await;
}

#[tokio::test]
async fn what_the_log_was_not_told_is_sent_again_with_the_same_id() {
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        handshake: Handshake::Off.number(),
        ..options(&endpoint)
    });
    replica.accounts_lost.store(2, SeqCst);
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica.until("it is told", |row| row.through == 1).await;
    let posts = endpoint.posts();
    assert_eq!(posts.len(), 3);
    assert!(posts.iter().all(|post| post.body == posts[0].body));
    assert_eq!(replica.row().delivered, 1);
}

#[tokio::test]
async fn one_poisonous_event_is_parked_and_the_others_pass_it() {
    let endpoint = TestEndpoint::new(consenting(|got| {
        match got.sessions().contains(&"poison".to_owned()) {
            true => status("500 No"),
            false => status("202 Accepted"),
        }
    }))
    .await;
    let replica = Replica::new();
    replica.subscribe(&options(&endpoint));
    for client in ["a", "poison", "b", "c"] {
        replica.connect(client);
    }
    // It begins after the events that it is to get.
    let put = replica.row();
    assert_eq!(put.through, 0);
    let (_running, metrics) = deliver(&replica);
    replica
        .until("the others are delivered", |row| row.through == 4)
        .await;
    let row = replica.row();
    assert_eq!((row.parked, row.delivered), (1, 3));
    let parked = read_events::parked(
        &*crate::webhook::leader::Leader::backing(&*replica),
        "ops",
        9,
    );
    let (_, number, parked) = &parked[0];
    let outcome = Outcome::Aborted.number();
    assert_eq!((*number, parked.attempts, parked.outcome), (2, 1, outcome));
    assert_eq!(metrics.event_deliveries.of(Delivery::Parked).get(), 1);
}

#[tokio::test]
async fn what_an_endpoint_will_never_take_is_a_dead_letter() {
    let endpoint = TestEndpoint::new(consenting(|got| {
        match got.sessions().contains(&"poison".to_owned()) {
            true => status("413 Large"),
            false => status("201 Created"),
        }
    }))
    .await;
    let replica = Replica::new();
    replica.subscribe(&options(&endpoint));
    for client in ["a", "poison", "b"] {
        replica.connect(client);
    }
    let (_running, metrics) = deliver(&replica);
    replica
        .until("they are settled", |row| row.through == 3)
        .await;
    assert_eq!(replica.row().dead, 1);
    let reason = DeathReason::NotRetried;
    assert_eq!(metrics.events_dead_lettered.of(reason).get(), 1);
}

#[tokio::test]
async fn an_endpoint_that_fails_gets_the_same_again() {
    for answer in [
        status("503 Busy"),
        status("302 Found\r\nLocation: /other"),
        status("401 No"),
        String::new(),
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
    ] {
        let mut failures = vec![answer.clone()];
        let endpoint = TestEndpoint::new(consenting(move |_| {
            let answer = failures.pop();
            answer.unwrap_or_else(|| status("200 OK"))
        }))
        .await;
        let replica = Replica::new();
        replica.subscribe(&options(&endpoint));
        let (_running, metrics) = deliver(&replica);
        replica.connect("a");
        replica
            .until(&answer, |row| !row.last_error.is_empty())
            .await;
        replica.until(&answer, |row| row.through == 1).await;
        replica
            .until(&answer, |row| row.last_error.is_empty())
            .await;
        let posts = endpoint.posts();
        assert_eq!(posts.len(), 2, "{answer:?}");
        assert!(
            posts
                .iter()
                .all(|post| post.body == posts[0].body && post.path != "/other")
        );
        // Half an answer is waited for.
        let failed = [Delivery::EndpointDown, Delivery::TimedOut];
        let failed = failed.map(|outcome| metrics.event_deliveries.of(outcome).get());
        assert!(failed.into_iter().sum::<u64>() >= 1, "{answer:?}");
    }
}

#[tokio::test]
async fn who_says_that_it_is_gone_gets_nothing_until_an_operator_resumes_it() {
    let mut is_first = true;
    let endpoint = TestEndpoint::new(consenting(move |_| match std::mem::take(&mut is_first) {
        true => status("410 Gone"),
        false => status("200 OK"),
    }))
    .await;
    let replica = Replica::new();
    replica.subscribe(&options(&endpoint));
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    let gone = State::Gone.number();
    replica.until("it is gone", |row| row.state == gone).await;
    replica.connect("b");
    replica.until_looked_at().await;
    assert_eq!(endpoint.posts().len(), 1);
    replica.set_state(State::Active);
    replica.until("it goes on", |row| row.through == 2).await;
    assert_eq!(
        endpoint
            .got()
            .iter()
            .filter(|got| got.method == "OPTIONS")
            .count(),
        2
    );
}

#[tokio::test]
async fn the_schema_of_event_grid_has_a_handshake_of_its_own() {
    let endpoint = TestEndpoint::new(|got| {
        if got.headers["aeg-event-type"] == "Notification" {
            return status("200 OK");
        }
        let asked: serde_json::Value = serde_json::from_str(&got.body).expect("it is JSON");
        let code = asked[0]["data"]["validationCode"].as_str().expect("a code");
        let body = format!("{{\"validationResponse\":\"{code}\"}}");
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    })
    .await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        schema: Schema::EventGrid.number(),
        ..options(&endpoint)
    });
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica
        .until("it is delivered", |row| row.through == 1)
        .await;
    let posts = endpoint.posts();
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[1].headers["aeg-delivery-count"], "0");
    assert_eq!(posts[1].sessions(), ["a"]);
}

#[tokio::test]
async fn addresses_that_are_no_endpoints_are_not_sent_to() {
    for (url, expected) in [
        ("http://169.254.169.254/latest", "plain HTTP"),
        ("http://events.example/", "plain HTTP"),
        ("ftp://events.example/", "URL"),
    ] {
        let replica = Replica::new();
        replica.subscribe(&EventSubscriptionOptions {
            url: url.to_owned(),
            handshake: Handshake::Off.number(),
            ..defaults()
        });
        let (_running, _) = deliver(&replica);
        replica.connect("a");
        replica
            .until(url, |row| row.last_error.contains(expected))
            .await;
    }
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        url: "http://169.254.169.254/latest".to_owned(),
        handshake: Handshake::Off.number(),
        plain_http: true,
        ..defaults()
    });
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica
        .until("metadata", |row| row.last_error.contains("link-local"))
        .await;
}

#[tokio::test]
async fn only_what_is_wanted_is_sent_and_the_rest_is_passed_over() {
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        subject_begins_with: "clients/b".to_owned(),
        ..options(&endpoint)
    });
    for number in 0..3_000 {
        replica.connect(&format!("a{number}"));
    }
    replica.connect("b");
    replica.connect("c");
    let (_running, _) = deliver(&replica);
    replica
        .until("all are passed", |row| row.through == 3_002)
        .await;
    let sessions: Vec<String> = endpoint.posts().iter().flat_map(Got::sessions).collect();
    assert_eq!(sessions, ["b"]);
}
