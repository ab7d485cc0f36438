//! Random faults from a seed: `make chaos SEED=7 SECONDS_OF_FAULTS=300`. First safety is judged, under faults. Then the
//! faults end, and all nodes must serve and agree again (C1).

use cluster_tests::cluster::{Cluster, DEADLINE, Plan};
use cluster_tests::random::Random;
use cluster_tests::trial::{self, RECOVERY};
use cluster_tests::workload::Load;
use std::time::{Duration, Instant};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
#[ignore = "long; `make chaos` runs it"]
fn chaos() {
    let seed = setting("QUORUMQ_CHAOS_SEED", 1);
    let seconds = setting("QUORUMQ_CHAOS_SECONDS", 60);
    let mut random = Random::new(seed);
    let mut cluster = Cluster::start_with(Plan {
        // Snapshots often, so that they meet the faults too.
        network: true,
        extra: "[raft]\nsnapshot_log_bytes = 1048576\nkeep_log_s = 0\n".into(),
        // The last round begins just before the time is over.
        deadline: Duration::from_secs(seconds) + DEADLINE,
        ..Plan::default()
    });
    let began = Instant::now();
    let mut round = 0;
    // Histories are judged in slices, to keep the search for an order short.
    while began.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        trial::with_cluster(
            &format!("chaos-{seed}-{round}"),
            &mut cluster,
            |cluster, load| {
                for _ in 0..3 {
                    one(cluster, load, &mut random);
                }
            },
        );
    }
}

/// One fault, and the time after which it is over.
fn one(cluster: &mut Cluster, load: &Load, random: &mut Random) {
    let victim = random.below(cluster.nodes.len() as u64) as usize;
    let while_down = Duration::from_millis(random.below(4000));
    let fault = random.below(8);
    eprintln!(
        "chaos: fault {fault} on node {} for {while_down:?}",
        victim + 1
    );
    match fault {
        0 | 1 => {
            cluster.nodes[victim].kill();
            std::thread::sleep(while_down);
            cluster.start_node(victim);
        }
        2 => {
            cluster.nodes[victim].pause();
            std::thread::sleep(while_down);
            cluster.nodes[victim].resume();
        }
        3 => {
            cluster.nodes[victim].pause();
            std::thread::sleep(while_down);
            cluster.nodes[victim].kill();
            cluster.start_node(victim);
        }
        5 | 6 => {
            let other = (victim + 1) % cluster.nodes.len();
            match random.below(3) {
                0 => cluster.network().isolate(victim),
                1 => cluster.network().separate(victim, other),
                _ => cluster.network().cut(victim, other),
            }
            std::thread::sleep(while_down);
            cluster.network().heal();
        }
        4 => {
            cluster.nodes[victim].terminate();
            std::thread::sleep(while_down);
            cluster.start_node(victim);
        }
        _ => {
            for node in &mut cluster.nodes {
                node.kill();
            }
            for index in 0..cluster.nodes.len() {
                cluster.start_node(index);
            }
        }
    }
    if random.chance(50) {
        cluster.wait_ready();
    }
    if random.chance(70) {
        load.wait_progress(100, RECOVERY);
    }
}
