//! P2, P11: disks whose syncs stall. A stall costs time, as much as it must: nobody gives up, nothing that was accepted
//! is lost in silence, and a minority's slow disks slow nobody else.

use cluster_tests::check::{kv, linearizable};
use cluster_tests::cluster::{Cluster, Disk, Plan};
use cluster_tests::hostile::{Terms, beside_on};
use cluster_tests::random::Random;
use cluster_tests::skip::skip;
use cluster_tests::trial::{self, RECOVERY};
use cluster_tests::wait;
use cluster_tests::workload::{Load, Shape};
use std::time::{Duration, Instant};

/// Three nodes with disks that can stall, unless there is no C compiler here.
fn cluster(seconds: u64) -> Option<Cluster> {
    let cluster = Cluster::start_with(Plan {
        stalls: true,
        deadline: Duration::from_secs(seconds) + cluster_tests::cluster::DEADLINE,
        ..Plan::default()
    });
    if !cluster.disks_can_stall() {
        skip("disks cannot be made to stall here; it takes a C compiler");
        return None;
    }
    Some(cluster)
}

/// What nodes say when they give up, or when others have given them up.
const GIVEN_UP: [&str; 2] = [
    "the quorum can't be reached",
    "has ended this node's incarnation",
];

fn given_up(cluster: &Cluster) -> Vec<String> {
    let logs = cluster.nodes.iter().map(|node| (node.id, node.log_text()));
    let found = logs.flat_map(|(id, log)| {
        let lines = log
            .lines()
            .filter(|line| GIVEN_UP.iter().any(|why| line.contains(why)));
        lines
            .map(|line| format!("node {id}: {line}"))
            .collect::<Vec<_>>()
    });
    found.collect()
}

#[track_caller]
fn assert_nobody_gave_up(cluster: &Cluster) {
    let given_up = given_up(cluster);
    assert!(given_up.is_empty(), "a node gave up falsely: {given_up:#?}");
}

/// How many entries leaders have held back.
fn held_back(cluster: &Cluster) -> f64 {
    let of = |node: usize| {
        wait::until("the metrics of a node", RECOVERY, || {
            cluster.nodes[node].metric("quorumq_raft_held_back_total")
        })
    };
    (0..cluster.nodes.len()).map(of).sum()
}

#[test]
fn a_stalling_follower_slows_nobody_else() {
    let Some(mut cluster) = cluster(0) else {
        return;
    };
    let stalled = cluster.a_follower();
    let terms = Terms {
        nodes: (0..3).filter(|node| *node != stalled).collect(),
        ..Terms::default()
    };
    let former = held_back(&cluster);
    beside_on(&mut cluster, &terms, |cluster| {
        for millis in [200, 500, 1000, 2000] {
            for disk in [Disk::Frozen, Disk::Well] {
                cluster.nodes[stalled].set_disk(disk);
                std::thread::sleep(Duration::from_millis(millis));
            }
        }
    });
    assert_nobody_gave_up(&cluster);
    // A machine that is busy with other things may hold a few back.
    let more = held_back(&cluster) - former;
    assert!(more < 20.0, "{more} entries were held back");
}

/// A majority whose syncs take 0.3 s: writes take that long, or twice when one just missed a sync, and no longer.
#[test]
fn stalling_followers_cost_their_stalls_and_no_more() {
    const STALL: Duration = Duration::from_millis(300);
    let Some(mut cluster) = cluster(0) else {
        return;
    };
    let leader = cluster.wait_leader();
    let result = trial::with_cluster("stalls", &mut cluster, |cluster, _| {
        for node in (0..3).filter(|node| *node != leader) {
            cluster.nodes[node].set_disk(Disk::Slow(STALL));
        }
        std::thread::sleep(Duration::from_secs(8));
        for node in &cluster.nodes {
            node.set_disk(Disk::Well);
        }
    });
    assert_nobody_gave_up(&cluster);
    assert_eq!(result.unknown, 0, "requests without an answer: {result:?}");
    result.assert_gap_below(STALL * 4);
}

/// Some disks freeze at once, each for 0.2 to 2 s.
fn freeze_some(cluster: &Cluster, random: &mut Random) {
    let mut frozen: Vec<(u64, usize)> = (0..cluster.nodes.len())
        .filter_map(|node| {
            let freezes = random.chance(60);
            freezes.then(|| (200 + random.below(1800), node))
        })
        .collect();
    frozen.sort_unstable();
    for (_, node) in &frozen {
        cluster.nodes[*node].set_disk(Disk::Frozen);
    }
    let began = Instant::now();
    for (millis, node) in frozen {
        std::thread::sleep(Duration::from_millis(millis).saturating_sub(began.elapsed()));
        cluster.nodes[node].set_disk(Disk::Well);
    }
}

/// Stalls of any of the nodes, from a seed.
fn random_stalls(seconds: u64) {
    let Some(cluster) = cluster(seconds) else {
        return;
    };
    let mut random = Random::new(trial::seed());
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        let shape = Shape {
            name: format!("stalls-{round}"),
            seed: trial::seed(),
            // Longer than any stall: what is not answered by then was lost.
            timeout: Duration::from_secs(15),
            ..Shape::default()
        };
        let load = Load::start(&cluster.addresses(), shape);
        load.wait_progress(100, RECOVERY);
        for _ in 0..4 {
            freeze_some(&cluster, &mut random);
            std::thread::sleep(Duration::from_millis(300 + random.below(1200)));
        }
        for node in &cluster.nodes {
            node.set_disk(Disk::Well);
        }
        load.wait_progress(200, RECOVERY);
        let history = load.stop(&cluster.addresses());
        let operations = history.operations();
        let unknown = operations.iter().filter(|operation| !operation.is_known());
        let (all, unknown) = (operations.len(), unknown.count());
        let gap = history.longest_write_gap();
        eprintln!("round {round}: {all} operations, {unknown} unanswered, longest gap {gap:.1?}");
        kv::assert_none(&kv::version_violations(&operations));
        linearizable::assert_linearizable(&operations);
        assert_eq!(unknown, 0, "lost in silence, of {all}");
        assert_nobody_gave_up(&cluster);
    }
}

#[test]
fn nobody_gives_up_when_disks_stall() {
    random_stalls(15);
}

#[test]
#[ignore = "long; `STALLS=1 make chaos` runs it"]
fn chaos_of_stalls() {
    let seconds = std::env::var("QUORUMQ_CHAOS_SECONDS").ok();
    random_stalls(seconds.and_then(|text| text.parse().ok()).unwrap_or(60));
}
