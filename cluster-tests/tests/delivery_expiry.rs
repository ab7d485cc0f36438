//! Sessions and messages that expire while the leader, which proposes expiries, is killed: never early, and at last.
//! Wills are in `delivery_wills`. P8 for sessions; [MQTT-3.1.2-23] [MQTT-3.3.2-5] [MQTT-3.3.2-6]

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::delivery::failover_client::FailoverClient;
use cluster_tests::wire::{self, Connack, Connect, Message, Properties, V5, Value, id};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Kill, election and reconnect take less, on a slow machine, too.
const EXPIRY_S: u32 = 8;

/// By then everything that is over is gone.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// The connection to whichever of these nodes serves, the first one first.
fn connect(nodes: &[SocketAddr], connect: &Connect) -> (Connection, Connack) {
    let never = AtomicBool::new(false);
    let found = FailoverClient::new(nodes, 0).connect(connect, &never);
    found.expect("it is not told to stop")
}

fn durable(client_id: &str, expiry_s: u32) -> Connect {
    Connect::v5(client_id).durable(expiry_s)
}

/// The nodes' addresses without the leader's, and the leader.
fn without_leader(cluster: &Cluster) -> (Vec<SocketAddr>, usize) {
    let leader = cluster.wait_leader();
    let mut nodes = cluster.addresses();
    nodes.remove(leader);
    (nodes, leader)
}

#[test]
fn sessions_expire_neither_early_nor_never_when_the_leader_dies() {
    let mut cluster = Cluster::start();
    for round in 0..2 {
        let (nodes, leader) = without_leader(&cluster);
        let elsewhere = (leader + 1) % 3;
        let name = |what: &str| format!("expiry-{round}-{what}");
        let ends = ["cut", "disconnected"];
        let mut since = Vec::new();
        for what in ends.into_iter().chain(["returns"]) {
            let (connection, _) = connect(&nodes, &durable(&name(what), EXPIRY_S));
            // Its interval begins with the end of its connection: not before this.
            since.push(Instant::now());
            match what {
                "disconnected" => connection.disconnect(),
                _ => connection.hang_up(),
            }
        }
        cluster.nodes[leader].kill();
        let new = cluster.wait_leader_other_than(leader);
        assert_ne!(new, leader);
        let (_kept, connack) = connect(&nodes, &durable(&name("returns"), EXPIRY_S));
        let away = since[2].elapsed();
        assert!(
            away < Duration::from_secs(EXPIRY_S.into()),
            "too slow: {away:?}"
        );
        assert!(
            connack.session_present,
            "S1: after {away:?} of {EXPIRY_S} s"
        );
        cluster.start_node(leader);
        for (what, since) in ends.into_iter().zip(since) {
            let deadline = Instant::now() + GONE_WITHIN;
            while cluster.nodes[elsewhere].has_session(&name(what)) {
                assert!(Instant::now() < deadline, "{what}: the session never ends");
                std::thread::sleep(Duration::from_millis(50));
            }
            let lived = since.elapsed();
            let least = Duration::from_secs(EXPIRY_S.into());
            assert!(lived >= least, "{what}: it ended after {lived:?}");
            let (connection, connack) = connect(&nodes, &durable(&name(what), 0));
            assert!(!connack.session_present, "{what}: it is told to be there");
            connection.disconnect();
        }
        cluster.wait_ready();
        assert!(
            cluster.nodes[elsewhere].has_session(&name("returns")),
            "it has a connection"
        );
    }
}

#[test]
fn messages_expire_neither_early_nor_never_when_the_leader_dies() {
    let mut cluster = Cluster::start();
    for round in 0..2 {
        let (nodes, leader) = without_leader(&cluster);
        let topic = format!("expiry-{round}/t");
        let clients = ["in-time", "late"].map(|what| format!("message-{round}-{what}"));
        for client_id in &clients {
            let (mut connection, _) = connect(&nodes, &durable(client_id, 600));
            connection.subscribe(&[(&topic, 2)]);
            connection.disconnect();
        }
        let (mut publisher, _) = connect(&nodes, &Connect::v5(&format!("message-{round}")));
        let began = Instant::now();
        for (payload, expiry_s) in [("short", EXPIRY_S), ("long", 600)] {
            let expiry = Value::FourBytes(expiry_s);
            let message = Message::new(&topic, payload).with(id::MESSAGE_EXPIRY, expiry);
            let code = publisher.publish(message.qos(1, 0));
            assert_eq!(code, 0);
        }
        let published = Instant::now();
        cluster.nodes[leader].kill();
        cluster.wait_leader_other_than(leader);
        let (mut in_time, connack) = connect(&nodes, &durable(&clients[0], 600));
        assert!(connack.session_present, "S1");
        let short = in_time.publish_received();
        let waited = began.elapsed();
        assert!(
            waited < Duration::from_secs(EXPIRY_S.into()),
            "too slow: {waited:?}"
        );
        assert_eq!(short.payload, b"short", "it is not over after {waited:?}");
        left(&short.properties, EXPIRY_S, Duration::ZERO, waited);
        let long = in_time.publish_received();
        left(&long.properties, 600, Duration::ZERO, began.elapsed());
        cluster.start_node(leader);
        // Sleeping is what this is about: the message is over by every clock.
        let over = Duration::from_secs(EXPIRY_S.into()) + Duration::from_millis(1500);
        std::thread::sleep(over.saturating_sub(published.elapsed()));
        let waited = published.elapsed();
        let (mut late, connack) = connect(&nodes, &durable(&clients[1], 600));
        assert!(connack.session_present, "S1");
        let long = late.publish_received();
        assert_eq!(long.payload, b"long", "[MQTT-3.3.2-5]");
        left(&long.properties, 600, waited, began.elapsed());
        late.expect_nothing();
        in_time.expect_nothing();
        cluster.wait_ready();
        let farewell = wire::disconnect(V5, 0, &Properties::new());
        late.send(&farewell);
    }
}

/// [MQTT-3.3.2-6]: what is left of an expiry that has run for at least and at most so long.
#[track_caller]
fn left(properties: &Properties, expiry_s: u32, least: Duration, most: Duration) {
    let left = properties
        .number(id::MESSAGE_EXPIRY)
        .expect("it is passed on");
    let seconds = |time: Duration| u32::try_from(time.as_secs()).expect("a test is short");
    assert!(
        left <= expiry_s - seconds(least),
        "{left} of {expiry_s} after {least:?}"
    );
    assert!(
        left + seconds(most) + 1 >= expiry_s,
        "{left} of {expiry_s} after {most:?}"
    );
}
