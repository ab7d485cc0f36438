//! Nodes killed, paused and stopped in the middle of SET, GET, DEL, VDEL and KEYNOTIFY load: P2, P7, P8, K1, K2, K3,
//! K9.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::store::{Request, StoreClient, blob};
use cluster_tests::trial::{self, FAILOVER_GAP, ORDERLY_GAP, RECOVERY};
use cluster_tests::wait;
use cluster_tests::workload::Load;
use std::time::{Duration, Instant};

/// Pauses longer than `cluster.give_up_ms` and `cluster.node_lease_ms`, so that everybody has given the node up.
const LONG: Duration = Duration::from_millis(6500);

/// Pauses longer than an election, shorter than the lease.
const SHORT: Duration = Duration::from_millis(1500);

/// Less than `cluster.node_lease_ms`, which is 5 s: a longer time means a wait for the lease.
const UNLEASED: Duration = Duration::from_secs(4);

fn kill_and_restart(cluster: &mut Cluster, load: &Load, index: usize) {
    cluster.nodes[index].kill();
    load.wait_progress(300, RECOVERY);
    cluster.start_node(index);
    cluster.wait_ready();
}

#[test]
fn the_leader_is_killed_three_times() {
    let result = trial::with("kill-leader", Plan::default(), |cluster, load| {
        for _ in 0..3 {
            let leader = cluster.wait_leader();
            kill_and_restart(cluster, load, leader);
        }
    });
    result.assert_gap_below(FAILOVER_GAP);
    assert!(
        result.cut <= 3,
        "watchers of nodes that lived stayed connected: {result:?}"
    );
}

#[test]
fn followers_are_killed() {
    let result = trial::with("kill-follower", Plan::default(), |cluster, load| {
        for _ in 0..2 {
            let follower = cluster.a_follower();
            kill_and_restart(cluster, load, follower);
        }
    });
    assert!(
        result.cut <= 2,
        "watchers of nodes that lived stayed connected: {result:?}"
    );
}

#[test]
fn the_leader_is_paused() {
    trial::with("pause-leader", Plan::default(), |cluster, load| {
        for pause in [SHORT, LONG] {
            let leader = cluster.wait_leader();
            cluster.nodes[leader].pause();
            load.wait_progress(300, RECOVERY);
            std::thread::sleep(pause);
            cluster.nodes[leader].resume();
            load.wait_progress(300, RECOVERY);
        }
    });
}

#[test]
fn followers_are_paused() {
    trial::with("pause-follower", Plan::default(), |cluster, load| {
        for pause in [SHORT, LONG] {
            let follower = cluster.a_follower();
            cluster.nodes[follower].pause();
            load.wait_progress(300, RECOVERY);
            std::thread::sleep(pause);
            cluster.nodes[follower].resume();
            load.wait_progress(300, RECOVERY);
        }
    });
}

#[test]
fn the_leader_is_paused_and_then_killed() {
    trial::with("pause-kill", Plan::default(), |cluster, load| {
        let leader = cluster.wait_leader();
        cluster.nodes[leader].pause();
        load.wait_progress(200, RECOVERY);
        kill_and_restart(cluster, load, leader);
    });
}

/// K2: what was acknowledged was synced by a majority.
#[test]
fn all_nodes_are_killed_at_once() {
    trial::with("kill-all", Plan::default(), |cluster, load| {
        for _ in 0..2 {
            for node in &mut cluster.nodes {
                node.kill();
            }
            for node in &mut cluster.nodes {
                node.start();
            }
            cluster.wait_ready();
            load.wait_progress(300, RECOVERY);
        }
    });
}

/// C3: a rolling restart loses nothing, and no step waits for a lease.
#[test]
fn a_rolling_restart_is_hardly_noticed() {
    let result = trial::with("rolling", Plan::default(), |cluster, load| {
        for index in 0..3 {
            let status = cluster.nodes[index].terminate();
            assert!(
                status.success(),
                "a node that is asked to stop ends with {status}"
            );
            load.wait_progress(200, RECOVERY);
            cluster.start_node(index);
            cluster.wait_ready();
            load.wait_progress(200, RECOVERY);
        }
    });
    result.assert_gap_below(ORDERLY_GAP);
}

/// A node that stops in order says so: a subscription elsewhere counts at once, and need not wait for its lease to end.
#[test]
fn a_node_that_stops_in_order_holds_up_no_subscription() {
    let mut cluster = Cluster::start();
    for index in 0..3 {
        let status = cluster.nodes[index].terminate();
        assert!(status.success(), "{status}");
        let other = (index + 1) % 3;
        let started = Instant::now();
        let mut client = Connection::v5(cluster.mqtt(other), &format!("subscriber-{index}"));
        client.subscribe(&[("a/#", 1)]);
        let taken = started.elapsed();
        assert!(taken < UNLEASED, "SUBACK after {taken:?}");
        client.disconnect();
        cluster.start_node(index);
        cluster.wait_ready();
    }
}

/// A node that was away catches up, and answers with what was written meanwhile.
#[test]
fn a_restarted_node_catches_up() {
    let mut cluster = Cluster::start();
    let follower = cluster.a_follower();
    cluster.nodes[follower].kill();
    let leader = cluster.wait_leader();
    let mut writer = StoreClient::connected("writer", cluster.mqtt(leader));
    for number in 0..500 {
        writer.expect(
            &Request::set(format!("away/{number}"), number.to_string()),
            "+OK\r\n",
        );
    }
    cluster.start_node(follower);
    cluster.wait_ready();
    let mut reader = StoreClient::connected("reader", cluster.mqtt(follower));
    for number in 0..500_u32 {
        reader.expect(
            &Request::get(format!("away/{number}")),
            blob(number.to_string().as_bytes()),
        );
    }
}

/// A node that was away for longer than the log reaches back is sent a snapshot.
#[test]
fn a_lagging_node_is_sent_a_snapshot() {
    let mut cluster = Cluster::start_with(Plan {
        extra: "[raft]\nsnapshot_log_bytes = 1048576\nkeep_log_s = 0\n".into(),
        ..Plan::default()
    });
    let follower = cluster.a_follower();
    let behind = cluster.nodes[follower]
        .metric("quorumq_raft_last_log_index")
        .expect("it is measured");
    cluster.nodes[follower].kill();
    let leader = cluster.wait_leader();
    let mut writer = StoreClient::connected("writer", cluster.mqtt(leader));
    let value = vec![b'x'; 20_000];
    let mut written = 0;
    let purged = |cluster: &Cluster| {
        cluster.nodes[leader]
            .metric("quorumq_raft_purged_index")
            .unwrap_or(0.0)
    };
    while purged(&cluster) <= behind {
        for _ in 0..50 {
            writer.expect(
                &Request::set(format!("lag/{}", written % 97), &value),
                "+OK\r\n",
            );
            written += 1;
        }
        assert!(
            written < 20_000,
            "the log is not purged: {} after {written} writes",
            purged(&cluster)
        );
    }
    writer.expect(&Request::set("lag/last", "1"), "+OK\r\n");
    cluster.start_node(follower);
    cluster.wait_ready();
    // Metrics are copied twice a second.
    wait::until("the snapshot to be counted", Duration::from_secs(5), || {
        let installed = cluster.nodes[follower].metric("quorumq_raft_snapshots_installed_total")?;
        (installed >= 1.0).then_some(())
    });
    let mut reader = StoreClient::connected("reader", cluster.mqtt(follower));
    reader.expect(&Request::get("lag/last"), blob(b"1"));
    for key in 0..97 {
        reader.expect(&Request::get(format!("lag/{key}")), blob(&value));
    }
    // It can lead, so the snapshot is complete.
    cluster.nodes[leader].kill();
    let mut writer = StoreClient::new("after", &cluster.addresses(), follower);
    let reply = writer.call_until_answered(&Request::set("lag/last", "2"), RECOVERY);
    assert_eq!(reply.payload, b"+OK\r\n");
    // The node restarts from the snapshot's files.
    cluster.nodes[follower].kill();
    cluster.start_node(follower);
    cluster.start_node(leader);
    cluster.wait_ready();
    let mut reader = StoreClient::connected("reader", cluster.mqtt(follower));
    reader.expect(&Request::get("lag/last"), blob(b"2"));
    reader.expect(&Request::get("lag/5"), blob(&value));
}
