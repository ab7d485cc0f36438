//! Azure IoT Operations' own client, unchanged from crates.io, against three nodes of the release binary.
//!
//! The test `azure_iot_operations` of `cluster-tests` runs this with the name of a part:
//! * `state-store`: every command, conditions, expiry, fencing tokens, notifications, and a killed leader in the middle;
//! * `service-account`: the client logs in with the token of its service account, which is replaced in its file.

mod relay;
mod service_account;

use azure_iot_operations_mqtt::aio::connection_settings::{
    MqttConnectionSettings, MqttConnectionSettingsBuilder,
};
use azure_iot_operations_mqtt::session::{Session, SessionOptionsBuilder};
use azure_iot_operations_protocol::application::ApplicationContextBuilder;
use azure_iot_operations_protocol::common::hybrid_logical_clock::HybridLogicalClock;
use azure_iot_operations_services::state_store::{
    Client, ClientOptionsBuilder, Error, ErrorKind, KeyObservation, Operation, ServiceError,
    SetCondition, SetOptions,
};
use cluster_tests::cluster::{Cluster, Plan};
use relay::Relay;
use std::time::{Duration, Instant};

/// The client's limit for one request, and ours for a notification.
const WITHIN: Duration = Duration::from_secs(10);

/// SETs around the killed leader.
const SETS: u64 = 600;

#[tokio::main]
async fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("state-store") => state_store().await,
        Some("service-account") => {
            service_account::logs_in_with_the_token_that_is_in_the_file().await
        }
        part => panic!("there is no part {part:?}"),
    }
}

/// Nodes are started by a thread that may wait.
async fn start(plan: Plan) -> Cluster {
    tokio::task::spawn_blocking(|| Cluster::start_with(plan))
        .await
        .expect("a cluster starts")
}

async fn state_store() {
    let mut cluster = start(Plan::default()).await;
    let leader = cluster.wait_leader();
    let mut nodes = cluster.addresses();
    // The writer is at the leader, and the observer at the node it will not move to.
    nodes.rotate_left(leader);
    let writer = connect("writer", Relay::start(nodes.clone()).await.port());
    let observer = connect("observer", Relay::start(vec![nodes[2]]).await.port());
    conditions_and_deletes(&writer).await;
    keys_expire(&writer).await;
    tokens_fence(&writer).await;
    changes_are_notified(&writer, &observer).await;
    println!("commands, conditions, expiry, fencing, notifications: ok");
    a_killed_leader_loses_nothing(&writer, &observer, &mut cluster, leader).await;
    writer.shutdown().await.expect("the client ends in order");
}

/// A client as an application makes it: clean start false and a session of an hour, which are its defaults.
fn connect(id: &str, port: u16) -> Client {
    let settings = MqttConnectionSettingsBuilder::default()
        .client_id(id)
        .hostname("127.0.0.1")
        .tcp_port(port)
        .use_tls(false)
        .build()
        .expect("settings without a contradiction");
    client_of(settings)
}

fn client_of(settings: MqttConnectionSettings) -> Client {
    let options = SessionOptionsBuilder::default()
        .connection_settings(settings)
        .build()
        .expect("options without a contradiction");
    let session = Session::new(options).expect("a session");
    let client = Client::new(
        ApplicationContextBuilder::default()
            .build()
            .expect("the defaults"),
        session.create_managed_client(),
        session.create_session_monitor(),
        ClientOptionsBuilder::default()
            .build()
            .expect("the defaults"),
    );
    tokio::spawn(session.run());
    client.expect("a client")
}

async fn set(client: &Client, key: &str, value: &str, options: SetOptions) -> bool {
    let set = client.set(key.into(), value.into(), WITHIN, None, options);
    set.await.expect("SET is answered").response
}

async fn get(client: &Client, key: &str) -> Option<Vec<u8>> {
    let got = client.get(key.into(), WITHIN).await;
    got.expect("GET is answered").response
}

fn when(set_condition: SetCondition) -> SetOptions {
    SetOptions {
        set_condition,
        ..SetOptions::default()
    }
}

async fn conditions_and_deletes(client: &Client) {
    let written = client
        .set("a".into(), "1".into(), WITHIN, None, SetOptions::default())
        .await
        .expect("SET is answered");
    assert!(written.response);
    let read = client.get("a".into(), WITHIN).await;
    let read = read.expect("GET is answered");
    assert_eq!(read.response.as_deref(), Some(&b"1"[..]));
    let version = |version: Option<HybridLogicalClock>| version.expect("a version").to_string();
    assert_eq!(version(read.version), version(written.version));
    assert_eq!(get(client, "absent").await, None);
    assert!(!set(client, "a", "2", when(SetCondition::OnlyIfDoesNotExist)).await);
    assert!(
        !set(
            client,
            "a",
            "2",
            when(SetCondition::OnlyIfEqualOrDoesNotExist)
        )
        .await
    );
    assert!(
        set(
            client,
            "a",
            "1",
            when(SetCondition::OnlyIfEqualOrDoesNotExist)
        )
        .await
    );
    for (value, wanted) in [("9", -1), ("1", 1), ("1", 0)] {
        let deleted = client.vdel("a".into(), value.into(), None, WITHIN).await;
        assert_eq!(deleted.expect("VDEL is answered").response, wanted);
    }
    assert!(set(client, "a", "1", SetOptions::default()).await);
    for wanted in [1, 0] {
        let deleted = client.del("a".into(), None, WITHIN).await;
        assert_eq!(deleted.expect("DEL is answered").response, wanted);
    }
}

async fn keys_expire(client: &Client) {
    let options = SetOptions {
        expires: Some(Duration::from_secs(1)),
        persist: true,
        ..SetOptions::default()
    };
    let began = Instant::now();
    assert!(set(client, "short", "1", options).await);
    let read = get(client, "short").await;
    assert!(read.is_some() || began.elapsed() >= Duration::from_secs(1));
    while get(client, "short").await.is_some() {
        assert!(began.elapsed() < WITHIN, "it does not expire");
    }
    assert!(began.elapsed() >= Duration::from_secs(1), "not early");
}

async fn tokens_fence(client: &Client) {
    let low = HybridLogicalClock::new();
    // Tokens are in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let high = HybridLogicalClock::new();
    let set = |token| {
        let options = SetOptions::default();
        client.set("fenced".into(), "1".into(), WITHIN, token, options)
    };
    assert!(set(Some(high.clone())).await.expect("answered").response);
    let service = |error: Error| match error.kind() {
        ErrorKind::ServiceError(error) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let lower = set(Some(low)).await.map(|_| ()).map_err(service);
    let wanted = ServiceError::FencingTokenLowerVersion.to_string();
    assert_eq!(lower, Err(wanted));
    let without = set(None).await.map(|_| ()).map_err(service);
    let wanted = ServiceError::MissingFencingToken.to_string();
    assert_eq!(without, Err(wanted));
    let deleted = client.del("fenced".into(), Some(high), WITHIN).await;
    assert_eq!(deleted.expect("DEL is answered").response, 1);
}

async fn observe(client: &Client, key: &str) -> KeyObservation {
    let observed = client.observe(key.into(), WITHIN).await;
    observed.expect("KEYNOTIFY is answered").response
}

async fn next(observation: &mut KeyObservation) -> Operation {
    let notification = tokio::time::timeout(WITHIN, observation.recv_notification());
    let notification = notification.await.expect("a notification in time");
    notification.expect("the observation goes on").0.operation
}

async fn changes_are_notified(writer: &Client, observer: &Client) {
    let mut observation = observe(observer, "watched").await;
    assert!(set(writer, "watched", "1", SetOptions::default()).await);
    assert!(
        !set(
            writer,
            "watched",
            "2",
            when(SetCondition::OnlyIfDoesNotExist)
        )
        .await
    );
    assert!(set(writer, "watched", "3", SetOptions::default()).await);
    writer
        .del("watched".into(), None, WITHIN)
        .await
        .expect("DEL is answered");
    for wanted in ["1", "3"] {
        let operation = next(&mut observation).await;
        assert!(
            matches!(&operation, Operation::Set(value) if value == wanted.as_bytes()),
            "{wanted}: {operation:?}"
        );
    }
    assert!(matches!(next(&mut observation).await, Operation::Del));
    let stopped = observer.unobserve("watched".into(), WITHIN).await;
    assert!(stopped.expect("STOP is answered").response);
}

/// The writer's connection breaks with the leader, its session goes on elsewhere; the observer's connection holds.
async fn a_killed_leader_loses_nothing(
    writer: &Client,
    observer: &Client,
    cluster: &mut Cluster,
    leader: usize,
) {
    let mut observation = observe(observer, "counter").await;
    let mut longest = Duration::ZERO;
    for number in 1..=SETS {
        if number == SETS / 2 {
            cluster.nodes[leader].kill();
        }
        let asked = Instant::now();
        assert!(
            set(
                writer,
                "counter",
                &number.to_string(),
                SetOptions::default()
            )
            .await
        );
        longest = longest.max(asked.elapsed());
    }
    println!("{SETS} SETs over a killed leader: all acknowledged, the longest after {longest:?}");
    assert_eq!(
        get(writer, "counter").await,
        Some(SETS.to_string().into_bytes())
    );
    for number in 1..=SETS {
        let operation = next(&mut observation).await;
        assert!(
            matches!(&operation, Operation::Set(value) if *value == number.to_string().into_bytes()),
            "{number}: {operation:?}"
        );
    }
    println!("{SETS} notifications, each once and in order");
}
