//! Wall clocks that disagree: P8, K3, K4, K6. Needs libfaketime; without it the tests are skipped, which fails them.

use cluster_tests::clocks::{skewed, start_with_offset};
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::http;
use cluster_tests::store::{Hlc, Request, StoreClient, blob};
use cluster_tests::trial::{self, RECOVERY};
use cluster_tests::wait;
use cluster_tests::wire::{Connect, Packet};
use std::time::{Duration, Instant};

/// Makes every node leader once, by killing whoever leads; calls `at_each` with the leader.
fn through_all_leaders(cluster: &mut Cluster, mut at_each: impl FnMut(&mut Cluster, usize)) {
    let mut led = [false; 3];
    let began = Instant::now();
    while led.contains(&false) && began.elapsed() < Duration::from_secs(40) {
        let leader = cluster.wait_leader();
        if !led[leader] {
            led[leader] = true;
            at_each(cluster, leader);
        }
        cluster.nodes[leader].kill();
        cluster.wait_leader_other_than(leader);
        cluster.start_node(leader);
        cluster.wait_ready();
    }
    let seen = led.iter().filter(|led| **led).count();
    assert!(seen >= 2, "leadership moved: {led:?}");
}

/// P8: versions rise although each leader has another idea of the time.
#[test]
fn versions_rise_over_leaders_with_skewed_clocks() {
    let Some(plan) = skewed([0, 25, -25]) else {
        return;
    };
    trial::with("skew", plan, |cluster, load| {
        through_all_leaders(cluster, |_, _| load.wait_progress(100, RECOVERY));
    });
}

/// P8: the token of a lock never goes back, whoever leads; K5: fencing survives the failover.
#[test]
fn tokens_never_go_back_over_leaders_with_skewed_clocks() {
    let Some(plan) = skewed([0, 25, -25]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    let mut client = StoreClient::new("holder", &cluster.addresses(), 0);
    let within = RECOVERY;
    let mut previous = None;
    through_all_leaders(&mut cluster, |_, leader| {
        let lock = Request::of(["SET", "lock", "me", "NX", "PX", "60000"]);
        let reply = client.call_until_answered(&lock, within);
        assert_eq!(reply.payload, b"+OK\r\n");
        let token = reply.version.clone().expect("it has one");
        assert!(
            Some(&token) > previous.as_ref(),
            "leader {leader}: {token} after {previous:?}"
        );
        let write = Request::set("protected", leader.to_string()).fenced(&token.to_string());
        let reply = client.call_until_answered(&write, within);
        assert_eq!(
            reply.payload,
            b"+OK\r\n",
            "{:?}",
            String::from_utf8_lossy(&reply.payload)
        );
        if let Some(previous) = &previous {
            let late = Request::set("protected", "late").fenced(&format!("{previous}"));
            let reply = client.call_until_answered(&late, within);
            let why = "the request fencing token is a lower version than the fencing token protecting the resource";
            assert_eq!(
                String::from_utf8_lossy(&reply.payload),
                format!("-ERR {why}\r\n")
            );
        }
        let reply = client.call_until_answered(&Request::vdel("lock", "me"), within);
        assert_eq!(reply.payload, b":1\r\n");
        previous = Some(token);
    });
}

/// K6: a key lives for its time on a clock that does not jump, although a new leader's clock is ahead or behind.
#[test]
fn expiry_is_never_early_over_leaders_with_skewed_clocks() {
    let Some(plan) = skewed([0, 25, -25]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    let addresses = cluster.addresses();
    let lifetime = Duration::from_secs(8);
    for round in 0..3 {
        let key = format!("life/{round}");
        let mut client = StoreClient::new("life", &addresses, 0);
        let sent = Instant::now();
        let set = Request::of(["SET", &key, "v", "PX", "8000"]);
        assert_eq!(
            client.call_until_answered(&set, RECOVERY).payload,
            b"+OK\r\n"
        );
        let leader = cluster.wait_leader();
        cluster.nodes[leader].kill();
        cluster.wait_leader_other_than(leader);
        cluster.start_node(leader);
        cluster.wait_ready();
        loop {
            let reply = client.call_until_answered(&Request::get(&key), RECOVERY);
            let now = Instant::now();
            if reply.payload == b"$-1\r\n" {
                assert!(now - sent >= lifetime, "K6: gone after {:?}", now - sent);
                break;
            }
            assert_eq!(reply.payload, blob(b"v"));
            assert!(
                now - sent < lifetime + Duration::from_secs(35),
                "K7: still there after {:?}",
                now - sent
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Requests are judged by the store's clock; a leader whose clock is behind refuses no client that is right by the
/// store.
#[test]
fn a_cluster_with_one_skewed_node_serves() {
    let Some(plan) = skewed([0, 0, 40]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    let mut client = StoreClient::new("serves", &cluster.addresses(), 0);
    through_all_leaders(&mut cluster, |_, leader| {
        let reply =
            client.call_until_answered(&Request::set("serves", leader.to_string()), RECOVERY);
        assert_eq!(
            reply.payload,
            b"+OK\r\n",
            "{:?}",
            String::from_utf8_lossy(&reply.payload)
        );
    });
    wait::until("all nodes to agree", RECOVERY, || {
        (0..3)
            .all(|node| StoreClient::connected_or_none("agree", cluster.mqtt(node)).is_some())
            .then_some(())
    });
}

/// A SET of a client whose clock is that many seconds ahead; it succeeds, and its version is near that clock.
fn set_at(client: &mut StoreClient, key: &str, ahead_s: i64) {
    let timestamp = Hlc::ahead("client", ahead_s * 1000);
    let set = Request::set(key, "v").at(&timestamp.to_string());
    let reply = client.call_until_answered(&set, RECOVERY);
    let text = String::from_utf8_lossy(&reply.payload).into_owned();
    assert_eq!(text, "+OK\r\n", "a client whose clock is right is refused");
    let version = reply.version.expect("it has one");
    let ahead_ms = version.wall_ms.saturating_sub(timestamp.wall_ms);
    assert!(
        ahead_ms < 60_000,
        "a client takes a version {ahead_ms} ms ahead for wrong"
    );
}

/// Clocks that are five minutes off on both sides have no say, whoever leads; who has them is named.
#[test]
fn clocks_five_minutes_off_are_passed_over_and_named() {
    let Some(plan) = skewed([0, 300, -300]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    let mut client = StoreClient::new("right", &cluster.addresses(), 0);
    through_all_leaders(&mut cluster, |cluster, leader| {
        set_at(&mut client, &format!("five/{leader}"), 0);
        wait::until("both wrong clocks to be named", RECOVERY, || {
            let wrong = cluster.nodes[leader].metric("quorumq_clocks_wrong")?;
            let own = cluster.nodes[1].metric("quorumq_clock_off_ms")?;
            (wrong == 2.0 && (290_000.0..310_000.0).contains(&own)).then_some(())
        });
        let log = cluster.nodes[leader].log_text();
        assert!(log.contains("the wall clock of the node that is named is wrong"));
    });
}

/// A cluster that was killed young and is started hours later goes on with the time of a majority's clocks; what was to
/// expire meanwhile has expired, and one wrong clock changes nothing.
#[test]
fn a_cluster_that_was_stopped_for_hours_goes_on_with_real_time() {
    let Some(plan) = skewed([0, 0, 0]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    let addresses = cluster.addresses();
    let mut client = StoreClient::new("hours", &addresses, 0);
    let lease = Request::of(["SET", "hours/lease", "v", "PX", "3600000"]);
    assert_eq!(
        client.call_until_answered(&lease, RECOVERY).payload,
        b"+OK\r\n"
    );
    set_at(&mut client, "hours/kept", 0);
    for (round, offsets_s) in [[10_800, 10_800, 10_800], [21_600, 21_900, 21_600]]
        .into_iter()
        .enumerate()
    {
        for node in 0..3 {
            cluster.nodes[node].kill();
        }
        for (node, offset_s) in offsets_s.into_iter().enumerate() {
            start_with_offset(&mut cluster, node, offset_s);
        }
        cluster.wait_ready();
        let mut client = StoreClient::new("hours", &addresses, 0);
        set_at(
            &mut client,
            &format!("hours/{round}"),
            i64::from(offsets_s[0]),
        );
        let gone = client.call_until_answered(&Request::get("hours/lease"), RECOVERY);
        assert_eq!(gone.payload, b"$-1\r\n", "an hour has passed");
        let kept = client.call_until_answered(&Request::get("hours/kept"), RECOVERY);
        assert_eq!(kept.payload, blob(b"v"));
    }
}

/// Clocks that were all set forward under a running cluster move nothing by themselves; an operator's word does.
#[test]
fn log_time_is_moved_to_clocks_that_were_all_set_forward() {
    let Some(plan) = skewed([0, 0, 0]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    for node in 0..3 {
        cluster.nodes[node].kill();
        start_with_offset(&mut cluster, node, 7_200);
        cluster.wait_ready();
    }
    let mut client = StoreClient::new("forward", &cluster.addresses(), 0);
    let timestamp = Hlc::ahead("client", 7_200_000);
    let set = Request::set("forward", "v").at(&timestamp.to_string());
    let reply = client.call_until_answered(&set, RECOVERY);
    let text = String::from_utf8_lossy(&reply.payload).into_owned();
    assert!(text.starts_with("-ERR"), "log time has jumped: {text}");
    let follower = cluster.a_follower();
    let ask = |node: usize| {
        let http = cluster.nodes[node].addresses.http;
        http::ask(http, "POST", "/v1/cluster/log-time", &[], "{}").expect("the node answers")
    };
    let refused = ask(follower);
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.contains("ask it"), "{}", refused.body);
    // It does not lead before it knows the others' clocks.
    wait::until("log time to be moved", RECOVERY, || {
        let moved = ask(cluster.wait_leader());
        (moved.status == 200).then_some(())
    });
    set_at(&mut client, "forward", 7_200);
}

/// K6: a lease is not cut short by a node that comes back with a clock far ahead, and then leads; nor by a leader that
/// was stopped for a while.
#[test]
fn a_lease_outlives_a_node_with_a_wrong_clock_and_a_leader_that_was_stopped() {
    let Some(plan) = skewed([0, 0, 0]) else {
        return;
    };
    let mut cluster = Cluster::start_with(plan);
    let lifetime = Duration::from_secs(12);
    let mut client = StoreClient::new("lease", &cluster.addresses(), 0);
    for offset_s in [300, -300] {
        let follower = cluster.a_follower();
        let key = format!("lease/{offset_s}");
        let sent = Instant::now();
        let set = Request::of(["SET", &key, "v", "PX", "12000"]);
        assert_eq!(
            client.call_until_answered(&set, RECOVERY).payload,
            b"+OK\r\n"
        );
        cluster.nodes[follower].kill();
        start_with_offset(&mut cluster, follower, offset_s);
        cluster.wait_ready();
        let leader = cluster.wait_leader();
        cluster.nodes[leader].pause();
        cluster.wait_leader_other_than(leader);
        std::thread::sleep(Duration::from_secs(2));
        cluster.nodes[leader].resume();
        loop {
            let reply = client.call_until_answered(&Request::get(&key), RECOVERY);
            let age = sent.elapsed();
            if reply.payload == b"$-1\r\n" {
                assert!(age >= lifetime, "K6: gone after {age:?}");
                break;
            }
            assert!(age < lifetime + Duration::from_secs(35), "K7: {age:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        set_at(&mut client, "lease/right", 0);
    }
}

/// P8: a ban lasts as long as it says, whatever the clock shows of the node that was asked for it.
#[test]
fn a_ban_by_a_node_with_a_wrong_clock_lasts_as_long_as_it_says() {
    let Some(plan) = skewed([0, 0, -300]) else {
        return;
    };
    let cluster = Cluster::start_with(plan);
    let code = |node: usize| {
        let connect = Connect::v5("banned");
        let mut connection = Connection::open(cluster.mqtt(node), connect.level).ok()?;
        connection.send(&connect.bytes());
        match connection.receive(RECOVERY) {
            Ok(Packet::Connack(connack)) => Some(connack.code),
            _ => None,
        }
    };
    let body = "{\"target\":\"client:banned\",\"seconds\":4}";
    let asked = cluster.nodes[2].addresses.http;
    let banned = http::ask(asked, "POST", "/v1/bans", &[], body).expect("the node answers");
    assert_eq!(banned.status, 200, "{}", banned.body);
    let since = Instant::now();
    // Log time goes on with each batch.
    while since.elapsed() < Duration::from_secs(2) {
        for node in 0..3 {
            assert_eq!(code(node), Some(0x8A), "after {:?}", since.elapsed());
        }
        let session = Connection::v5(cluster.mqtt(0), "another");
        drop(session);
    }
    wait::until("the end of the ban", Duration::from_secs(20), || {
        (code(2) == Some(0)).then_some(())
    });
    assert!(since.elapsed() > Duration::from_secs(3));
}
