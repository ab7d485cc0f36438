//! Revocations that a node has not heard of: it was paused, or gets them with a snapshot. Once the operator has the
//! answer they hold there, too, as soon as the node does anything.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::http::{self, Answer};
use cluster_tests::store::{Request, StoreClient};
use cluster_tests::wait;
use cluster_tests::wire::{Connect, Packet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a question that was asked of a paused node may take once the node goes on.
const WITHIN: Duration = Duration::from_secs(20);

/// How long a log that has a snapshot may keep what is in it.
const PURGED_WITHIN: Duration = Duration::from_secs(100);

/// Cheap hashes.
const AUTH: &str =
    "[auth]\npassword_memory_kib = 64\npassword_passes = 1\nscram_iterations = 4096\n";

fn ask(address: SocketAddr, method: &str, target: &str, token: &str, body: &str) -> Option<Answer> {
    let bearer = format!("Bearer {token}");
    let fields = [("authorization", bearer.as_str())];
    let fields = if token.is_empty() { &[][..] } else { &fields };
    http::ask(address, method, target, fields, body)
}

/// A new token that administers.
#[track_caller]
fn made(address: SocketAddr, name: &str, by: &str) -> String {
    let body = format!("{{\"name\":\"{name}\",\"scope\":\"admin\"}}");
    let answer = ask(address, "POST", "/v1/tokens", by, &body).expect("the node answers");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let made: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    made["token"].as_str().expect("a token").to_owned()
}

/// Connections to a port of this machine that have bytes which nobody has read.
fn unread(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux tells its connections");
    let of_port = format!(":{port:04X}");
    let lines = table.lines().skip(1).filter(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_local = fields.next().is_some_and(|local| local.ends_with(&of_port));
        // The remote address, the state, and then what waits to be sent and to be read.
        let waiting = fields.nth(2).and_then(|queues| queues.split_once(':'));
        is_local && waiting.is_some_and(|(_, to_read)| to_read.contains(|digit| digit != '0'))
    });
    lines.count()
}

/// A token that was removed while a node was paused is taken there never again, although the node knew it a moment
/// before: not for reading, and not to make another one with.
#[test]
fn a_removed_token_administers_on_no_node_that_was_paused() {
    let mut cluster = Cluster::start();
    let follower = cluster.a_follower();
    let other = cluster.wait_leader();
    let (here, there) = (
        cluster.nodes[other].addresses.http,
        cluster.nodes[follower].addresses.http,
    );
    let admin = made(here, "ops", "");
    for round in 0..5 {
        let name = format!("gone-{round}");
        let gone = made(here, &name, &admin);
        let known = ask(there, "GET", "/v1/sessions", &gone, "");
        assert_eq!(known.map(|answer| answer.status), Some(200));
        cluster.nodes[follower].pause();
        let target = format!("/v1/token?name={name}");
        let removed = ask(here, "DELETE", &target, &admin, "").expect("the node answers");
        assert_eq!(removed.status, 200, "{}", removed.body);
        // The requests wait in the sockets of the paused node, which goes on with what it knew.
        let asked: Vec<_> = [
            ("GET", "/v1/sessions", ""),
            (
                "POST",
                "/v1/tokens",
                "{\"name\":\"evil\",\"scope\":\"admin\"}",
            ),
            ("PUT", "/v1/rules", "{\"rules\": []}"),
        ]
        .into_iter()
        .map(|(method, target, body)| {
            let gone = gone.clone();
            std::thread::spawn(move || ask(there, method, target, &gone, body))
        })
        .collect();
        let all = asked.len();
        wait::until("the requests to be in the sockets", WITHIN, || {
            (unread(there.port()) >= all).then_some(())
        });
        cluster.nodes[follower].resume();
        for answer in asked {
            let answer = answer.join().expect("it does not panic");
            let status = answer.expect("the node answers").status;
            assert_eq!(status, 401, "round {round}");
        }
        let tokens = ask(here, "GET", "/v1/tokens", &admin, "").expect("the node answers");
        assert!(!tokens.body.contains("evil"), "{}", tokens.body);
        let rules = ask(here, "GET", "/v1/rules", &admin, "").expect("the node answers");
        assert_eq!(rules.status, 404, "{}", rules.body);
        cluster.wait_ready();
    }
    a_rule_holds_on_a_node_that_was_paused(&mut cluster, (other, follower), &admin);
}

/// A rule that was set while a node was paused takes a route from a token there, too, although the node has let it
/// through a moment before.
fn a_rule_holds_on_a_node_that_was_paused(
    cluster: &mut Cluster,
    (other, follower): (usize, usize),
    admin: &str,
) {
    let here = cluster.nodes[other].addresses.http;
    let there = cluster.nodes[follower].addresses.http;
    let held = made(here, "held", admin);
    let known = ask(there, "GET", "/v1/users", &held, "");
    assert_eq!(known.map(|answer| answer.status), Some(200));
    cluster.nodes[follower].pause();
    let rules = r#"{"default": "allow", "rules": [{"effect": "deny", "principals": {"names": ["held"]},
        "http_resources": [{"paths": ["/v1/users"]}]}]}"#;
    let set = ask(here, "PUT", "/v1/rules", admin, rules).expect("the node answers");
    assert_eq!(set.status, 200, "{}", set.body);
    let asked = std::thread::spawn(move || ask(there, "GET", "/v1/users", &held, ""));
    wait::until("the request to be in the socket", WITHIN, || {
        (unread(there.port()) >= 1).then_some(())
    });
    cluster.nodes[follower].resume();
    let answer = asked.join().expect("it does not panic");
    let answer = answer.expect("the node answers");
    assert_eq!(answer.status, 403, "{}", answer.body);
}

/// A node that was away for longer than the log reaches back gets the revocation with a snapshot, and its clients'
/// connections, which it has kept, end.
#[test]
fn a_revocation_in_a_snapshot_ends_connections() {
    let mut plan = Plan {
        extra: format!("{AUTH}[raft]\nsnapshot_log_bytes = 1048576\nkeep_log_s = 0\n"),
        ..Plan::default()
    };
    // The paused node stays a member of the living when it goes on.
    for node in 0..3 {
        for (name, ms) in [("GIVE_UP_MS", 60_000), ("NODE_LEASE_MS", 90_000)] {
            let name = format!("QUORUMQ__CLUSTER__{name}");
            plan.environment.push((node, name, ms.to_string()));
        }
    }
    let mut cluster = Cluster::start_with(plan);
    let follower = cluster.a_follower();
    let leader = cluster.wait_leader();
    let http = cluster.nodes[leader].addresses.http;
    // It comes before there is a user, and stays.
    let mut writer = StoreClient::connected("writer", cluster.mqtt(leader));
    for name in ["anna", "berta"] {
        let body = format!("{{\"name\":\"{name}\",\"password\":\"p\"}}");
        let added = ask(http, "POST", "/v1/users", "", &body).expect("the node answers");
        assert_eq!(added.status, 200, "{}", added.body);
    }
    let logged_in = |name: &str, client_id: &str, node: usize| {
        let connect = Connect {
            user_name: Some(name.to_owned()),
            password: Some(b"p".to_vec()),
            ..Connect::v5(client_id)
        };
        let (connection, connack) = Connection::connect(cluster.mqtt(node), &connect);
        assert_eq!(connack.code, 0);
        connection
    };
    let mut revoked = logged_in("anna", "revoked", follower);
    let mut banned = logged_in("berta", "banned", follower);
    let mut stays = logged_in("berta", "stays", follower);
    let behind = cluster.nodes[follower]
        .metric("quorumq_raft_last_log_index")
        .expect("it is measured");
    cluster.nodes[follower].pause();
    for (method, target, body) in [
        ("POST", "/v1/user?name=anna", "{\"disabled\":true}"),
        ("POST", "/v1/bans", "{\"target\":\"client:banned\"}"),
    ] {
        let done = ask(http, method, target, "", body).expect("the node answers");
        assert_eq!(done.status, 200, "{}", done.body);
    }
    let value = vec![b'x'; 20_000];
    let (mut written, began) = (0, Instant::now());
    let purged = || {
        let purged = cluster.nodes[leader].metric("quorumq_raft_purged_index");
        purged.unwrap_or(0.0)
    };
    while purged() <= behind + 10.0 {
        for _ in 0..50 {
            let key = format!("lag/{}", written % 97);
            writer.expect(&Request::set(key, &value), "+OK\r\n");
            written += 1;
        }
        assert!(
            began.elapsed() < PURGED_WITHIN,
            "the log is not purged after {written} writes: {}",
            purged()
        );
    }
    cluster.nodes[follower].resume();
    for (connection, code) in [(&mut revoked, 0x87), (&mut banned, 0x98)] {
        match connection.receive(WITHIN) {
            // The node may begin a new incarnation before it looks at its clients: then they are told 0x9C.
            Ok(Packet::Disconnect(disconnect)) => {
                assert!([code, 0x9C].contains(&disconnect.code), "{disconnect:?}");
            }
            other => panic!("instead of DISCONNECT {code:#04x}: {other:?}"),
        }
    }
    wait::until("the snapshot to be counted", TIMEOUT, || {
        let installed = cluster.nodes[follower].metric("quorumq_raft_snapshots_installed_total")?;
        (installed >= 1.0).then_some(())
    });
    // Nobody has anything against the third one. It may be told that the node begins a new incarnation (0x9C): replies
    // to what the node had proposed can be lost in a snapshot.
    match stays.receive(Duration::from_millis(200)) {
        Err(Fault::Timeout) => {}
        Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x9C),
        other => panic!("{other:?}"),
    }
}
