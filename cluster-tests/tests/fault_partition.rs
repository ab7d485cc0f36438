//! P11, P2: the network between nodes is cut, both ways and one way. The majority goes on, nobody else answers, and
//! when it is healed everything serves again by itself (C1).

use cluster_tests::cluster::Plan;
use cluster_tests::trial::{self, RECOVERY};
use std::time::Duration;

/// Longer than `cluster.give_up_ms` and `cluster.node_lease_ms`.
const LONG: Duration = Duration::from_millis(6500);

fn plan() -> Plan {
    Plan {
        network: true,
        ..Plan::default()
    }
}

#[test]
fn the_leader_is_isolated() {
    trial::with("isolate-leader", plan(), |cluster, load| {
        for _ in 0..2 {
            let leader = cluster.wait_leader();
            cluster.network().isolate(leader);
            load.wait_progress(200, RECOVERY);
            // Clients of the isolated node are refused before others may own their sessions.
            cluster.nodes[leader].wait_not_ready(LONG);
            std::thread::sleep(LONG);
            load.wait_progress(200, RECOVERY);
            cluster.network().heal();
            cluster.wait_ready();
        }
    });
}

/// Pre-Vote: a node that comes back from an isolation has no reason to unseat the leader.
#[test]
fn a_follower_that_was_isolated_does_not_disturb_the_leader() {
    trial::with("isolate-follower", plan(), |cluster, load| {
        let follower = cluster.a_follower();
        let leader = cluster.wait_leader();
        let term = |cluster: &cluster_tests::cluster::Cluster| {
            cluster.nodes[leader]
                .metric("quorumq_raft_term")
                .expect("it is measured")
        };
        let before = term(cluster);
        cluster.network().isolate(follower);
        cluster.nodes[follower].wait_not_ready(LONG);
        load.wait_progress(200, RECOVERY);
        cluster.network().heal();
        cluster.wait_ready();
        load.wait_progress(200, RECOVERY);
        assert_eq!(cluster.wait_leader(), leader);
        assert_eq!(term(cluster), before, "an election was held");
    });
}

/// One way: the leader's messages leave, and no answer reaches it; then its messages do not leave.
#[test]
fn the_leader_is_half_cut_off() {
    trial::with("half-leader", plan(), |cluster, load| {
        for inbound in [true, false] {
            let leader = cluster.wait_leader();
            for other in (0..3).filter(|other| *other != leader) {
                if inbound {
                    cluster.network().cut(other, leader);
                } else {
                    cluster.network().cut(leader, other);
                }
            }
            std::thread::sleep(LONG);
            load.wait_progress(200, RECOVERY);
            cluster.network().heal();
            cluster.wait_ready();
            load.wait_progress(200, RECOVERY);
        }
    });
}

/// Two nodes do not see each other, and both see the third.
#[test]
fn two_nodes_do_not_see_each_other() {
    trial::with("bridge", plan(), |cluster, load| {
        let leader = cluster.wait_leader();
        let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
        // First the two followers, then the leader and one of them.
        for (one, other) in [(others[0], others[1]), (leader, others[0])] {
            cluster.network().separate(one, other);
            std::thread::sleep(LONG);
            load.wait_progress(200, RECOVERY);
            cluster.network().heal();
            cluster.wait_ready();
        }
    });
}
