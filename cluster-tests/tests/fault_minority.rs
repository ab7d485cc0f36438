//! P11 and C5: a minority refuses and says why; nothing is healed by hand; an empty disk does not rejoin by itself.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::store::{CallOutcome, Request, StoreClient, blob};
use cluster_tests::trial::RECOVERY;
use cluster_tests::wait;
use cluster_tests::wire::{Connect, Packet, V5, V311};
use std::time::{Duration, Instant};

#[test]
fn a_minority_refuses_and_a_majority_heals() {
    let mut cluster = Cluster::start();
    let alone = cluster.a_follower();
    let mut client = StoreClient::connected("client", cluster.mqtt(alone));
    client.expect(&Request::set("minority", "before"), "+OK\r\n");
    let mut idle = Connection::v5(cluster.mqtt(alone), "idle");
    for index in 0..3 {
        if index != alone {
            cluster.nodes[index].kill();
        }
    }
    // Neither a write nor a read is answered: both would need the majority.
    let lost = Instant::now();
    let mut other = StoreClient::connected_or_none("other", cluster.mqtt(alone));
    for request in [Request::set("minority", "after"), Request::get("minority")] {
        let outcome = client.try_call(&request, Duration::from_secs(6));
        assert!(!matches!(outcome, CallOutcome::Answered(_)), "{outcome:?}");
        if let Some(other) = &mut other {
            let outcome = other.try_call(&request, Duration::from_secs(1));
            assert!(!matches!(outcome, CallOutcome::Answered(_)), "{outcome:?}");
        }
    }
    cluster.nodes[alone].wait_not_ready(Duration::from_secs(10));
    let said = cluster.nodes[alone]
        .get("/readyz?verbose")
        .expect("it answers");
    assert!(said.body.contains("leader"), "it says why: {}", said.body);
    assert_eq!(
        cluster.nodes[alone]
            .get("/livez")
            .map(|answer| answer.status),
        Some(200)
    );
    // Clients are told: those that were connected, and those that come.
    match idle.receive(Duration::from_secs(10)) {
        Ok(Packet::Disconnect(disconnect)) => {
            assert_eq!(disconnect.code, 0x9C, "use another server")
        }
        other => panic!(
            "still connected {:?} after the majority was lost: {other:?}",
            lost.elapsed()
        ),
    }
    for (level, code) in [(V5, 0x88), (V311, 3)] {
        match Connection::try_connect(cluster.mqtt(alone), &Connect::at("comes", level)) {
            Ok((_, connack)) => assert_eq!(connack.code, code),
            other => panic!(
                "CONNECT to a minority: {:?}",
                other.map(|(_, connack)| connack)
            ),
        }
    }
    // Nobody heals anything by hand.
    for index in 0..3 {
        if index != alone {
            cluster.start_node(index);
        }
    }
    cluster.wait_ready();
    let mut client = StoreClient::connected("client", cluster.mqtt(alone));
    let reply = client.call_until_answered(&Request::get("minority"), RECOVERY);
    let unknown = [blob(b"before"), blob(b"after")];
    assert!(
        unknown.contains(&reply.payload),
        "{:?}",
        String::from_utf8_lossy(&reply.payload)
    );
    client.expect(&Request::set("minority", "healed"), "+OK\r\n");
}

/// C5: a node whose disk was emptied has forgotten its votes and what it acknowledged; it must not take part.
#[test]
fn a_wiped_node_is_refused() {
    wiped(2);
}

/// The same for the node that would bootstrap a new cluster.
#[test]
fn a_wiped_first_node_is_refused_and_makes_no_new_cluster() {
    wiped(0);
}

fn wiped(index: usize) {
    let mut cluster = Cluster::start();
    let mut writer = StoreClient::new("writer", &cluster.addresses(), 0);
    writer.call_until_answered(&Request::set("wiped", "kept"), RECOVERY);
    cluster.nodes[index].kill();
    cluster.nodes[index].wipe();
    cluster.start_node(index);
    let began = Instant::now();
    while cluster.nodes[index].is_running() && began.elapsed() < Duration::from_secs(6) {
        assert!(
            !cluster.nodes[index].is_ready(),
            "a wiped node says that it is ready"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = cluster.nodes[index].log_text();
    let said = log
        .lines()
        .rev()
        .take(30)
        .any(|line| line.contains("ERROR") || line.contains("WARN"));
    assert!(said, "it says why");
    // The others go on, and have lost nothing.
    let others: Vec<usize> = (0..3).filter(|other| *other != index).collect();
    for other in &others {
        let mut client = StoreClient::new("reader", &[cluster.mqtt(*other)], 0);
        let reply = client.call_until_answered(&Request::get("wiped"), RECOVERY);
        assert_eq!(reply.payload, blob(b"kept"));
    }
    // Together with one other node it would be a majority, but of nodes that have forgotten what they acknowledged.
    let (survivor, other) = (others[0], others[1]);
    cluster.nodes[other].kill();
    cluster.nodes[index].kill();
    cluster.start_node(index);
    let mut client = StoreClient::new("forger", &[cluster.mqtt(survivor)], 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let outcome = client.try_call(&Request::set("wiped", "forged"), Duration::from_secs(1));
        let answered = matches!(outcome, CallOutcome::Answered(_));
        assert!(!answered, "a wiped node made a majority: {outcome:?}");
    }
    cluster.start_node(other);
    wait::until("the two others to serve", RECOVERY, || {
        let serve = cluster.nodes[survivor].is_ready() && cluster.nodes[other].is_ready();
        serve.then_some(())
    });
}
