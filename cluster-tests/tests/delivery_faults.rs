//! Nodes killed, paused and restarted while thousands of QoS 1 and QoS 2 messages flow to durable sessions: P1, P3 to
//! P6; D1 to D7, D9, S1 to S3. `QUORUMQ_SEED` adds a seed to those of each test.

use cluster_tests::cluster::Cluster;
use cluster_tests::delivery::load::{Load, Shape};
use cluster_tests::delivery::trial::{self, RECOVERY};
use cluster_tests::trial::seed;
use std::time::Duration;

/// Messages acknowledged before, between and after faults.
const SOME: usize = 300;

/// Longer than an election, shorter than the lease.
const SHORT: Duration = Duration::from_millis(1500);

/// Longer than `cluster.give_up_ms` and `cluster.node_lease_ms`, so that everybody has given the node up.
const LONG: Duration = Duration::from_millis(6500);

/// A trial for each of some seeds, all on one cluster; `fault` is told which of them it is, from 0.
#[track_caller]
fn trials(name: &str, rounds: u64, fault: impl Fn(&mut Cluster, &Load, u64)) {
    let mut cluster = Cluster::start();
    for round in 0..rounds {
        let seed = seed() + round;
        let shape = Shape::new(&format!("{name}-{seed}"), seed);
        let result = trial::with(&mut cluster, &shape, |cluster, load| {
            load.wait_progress(SOME, RECOVERY);
            fault(cluster, load, round);
            load.wait_progress(SOME, RECOVERY);
        });
        assert!(
            result.accepted > 2 * SOME,
            "too little to judge: {result:?}"
        );
        assert_eq!(result.refused, 0, "a majority serves: {result:?}");
    }
}

/// The node that most subscribers are connected to and that does not lead.
fn owner(cluster: &Cluster, load: &Load) -> usize {
    let leader = cluster.wait_leader();
    load.busiest_node(cluster.nodes.len(), |node| node != leader)
}

fn restart(cluster: &mut Cluster, indices: &[usize]) {
    for index in indices {
        cluster.start_node(*index);
    }
    cluster.wait_ready();
}

/// Clients close their own connections, or take them over, all the time; the cluster is well.
#[test]
fn clients_come_and_go() {
    let mut cluster = Cluster::start();
    let shape = Shape {
        cuts: 10,
        ..Shape::new("come-and-go", seed())
    };
    let result = trial::with(&mut cluster, &shape, |_, load| {
        load.wait_progress(2000, Duration::from_secs(40));
    });
    assert!(result.reconnects > 50, "too little to judge: {result:?}");
    assert!(result.duplicates > 50, "too little to judge: {result:?}");
    let ended = "quorumq_disconnects_total{reason=\"taken_over\"}";
    let taken_over: f64 = cluster
        .nodes
        .iter()
        .filter_map(|node| node.metric(ended))
        .sum();
    assert!(taken_over > 20.0, "too little to judge: {taken_over}");
}

#[test]
fn the_owner_of_sessions_is_killed() {
    trials("kill-owner", 2, |cluster, load, _| {
        let owner = owner(cluster, load);
        cluster.nodes[owner].kill();
        load.wait_progress(SOME, RECOVERY);
        restart(cluster, &[owner]);
    });
}

#[test]
fn the_leader_is_killed() {
    trials("kill-leader", 2, |cluster, load, _| {
        let leader = cluster.wait_leader();
        cluster.nodes[leader].kill();
        load.wait_progress(SOME, RECOVERY);
        restart(cluster, &[leader]);
    });
}

#[test]
fn the_owner_and_the_leader_are_killed_at_once() {
    trials("kill-both", 2, |cluster, load, _| {
        let (leader, owner) = (cluster.wait_leader(), owner(cluster, load));
        cluster.nodes[leader].kill();
        cluster.nodes[owner].kill();
        restart(cluster, &[leader, owner]);
    });
}

#[test]
fn all_nodes_are_killed_at_once() {
    trials("kill-all", 1, |cluster, _, _| {
        for node in &mut cluster.nodes {
            node.kill();
        }
        restart(cluster, &[0, 1, 2]);
    });
}

#[test]
fn the_leader_is_paused() {
    trials("pause-leader", 2, |cluster, load, round| {
        let leader = cluster.wait_leader();
        cluster.nodes[leader].pause();
        load.wait_progress(SOME, RECOVERY);
        std::thread::sleep(if round == 0 { SHORT } else { LONG });
        cluster.nodes[leader].resume();
    });
}

/// A node is paused with clients' packets in its sockets, and goes on when their sessions have moved to other nodes.
#[test]
fn the_owner_of_sessions_is_paused() {
    trials("pause-owner", 1, |cluster, load, _| {
        let owner = owner(cluster, load);
        cluster.nodes[owner].pause();
        load.wait_progress(SOME, RECOVERY);
        std::thread::sleep(LONG);
        cluster.nodes[owner].resume();
    });
}

/// C3: each node is asked to stop, and comes back.
#[test]
fn a_rolling_restart_loses_nothing() {
    trials("rolling", 1, |cluster, load, _| {
        for index in 0..cluster.nodes.len() {
            let status = cluster.nodes[index].terminate();
            assert!(status.success(), "a node that is asked to stop: {status}");
            load.wait_progress(SOME, RECOVERY);
            restart(cluster, &[index]);
        }
    });
}
