//! A trial: a cluster under load suffers a fault, and everything that its clients saw is judged.

use crate::check::{kv, linearizable};
use crate::cluster::{Cluster, Plan};
use crate::watcher::Watcher;
use crate::workload::{Load, Shape};
use std::time::Duration;

/// How long a cluster may take to serve again after a fault.
pub const RECOVERY: Duration = Duration::from_secs(20);

/// The longest time without an acknowledged write that an orderly step may cost: a stop, a hand-over, a change of
/// members. It is `cluster.node_lease_ms`, because an orderly step must not wait for a lease to end. It says nothing
/// else about speed, which `make bench` measures on a quiet machine.
pub const ORDERLY_GAP: Duration = Duration::from_secs(5);

/// The longest time without an acknowledged write when a leader is killed: twice an election and twice the 3 s that
/// clients wait before they go to another node, rounded up. It separates a failover from none; `make bench` measures
/// the time.
pub const FAILOVER_GAP: Duration = Duration::from_secs(10);

/// Keys that are watched.
const WATCHED: usize = 4;

/// What a trial showed.
#[derive(Debug, Clone, Copy)]
pub struct TrialResult {
    pub operations: usize,
    pub unknown: usize,
    /// Longest time between two acknowledged writes.
    pub longest_gap: Duration,
    /// Connections of watchers that were cut.
    pub cut: usize,
}

impl TrialResult {
    /// Judges the one figure of time, after everything about data has been judged.
    #[track_caller]
    pub fn assert_gap_below(&self, bound: Duration) {
        let gap = self.longest_gap;
        assert!(
            gap < bound,
            "no write was acknowledged for {gap:?}: {self:?}"
        );
    }
}

/// Loads a cluster of three, does `fault` to it (which must leave all nodes running), and judges: K1, K3, K4, K9,
/// and that the nodes' states are the same.
#[track_caller]
pub fn with(name: &str, plan: Plan, fault: impl FnOnce(&mut Cluster, &Load)) -> TrialResult {
    let mut cluster = Cluster::start_with(plan);
    with_cluster(name, &mut cluster, fault)
}

/// The same on a cluster that runs.
#[track_caller]
pub fn with_cluster(
    name: &str,
    cluster: &mut Cluster,
    fault: impl FnOnce(&mut Cluster, &Load),
) -> TrialResult {
    let shape = Shape {
        name: name.to_owned(),
        seed: seed(),
        ..Shape::default()
    };
    let load = Load::start(&cluster.addresses(), shape.clone());
    let watchers: Vec<Watcher> = (0..cluster.nodes.len())
        .map(|node| {
            let client_id = format!("{name}-watcher-{node}");
            Watcher::start(
                &client_id,
                cluster.mqtt(node),
                &shape,
                WATCHED,
                &load.history,
            )
        })
        .collect();
    load.wait_progress(200, RECOVERY);
    fault(cluster, &load);
    load.wait_progress(200, RECOVERY);
    cluster.wait_ready();
    cluster.assert_states_agree();
    let history = load.stop(&cluster.addresses());
    let watched: Vec<kv::WatchedKey> = watchers.into_iter().flat_map(Watcher::stop).collect();
    let operations = history.operations();
    let result = TrialResult {
        operations: operations.len(),
        unknown: operations
            .iter()
            .filter(|operation| !operation.is_known())
            .count(),
        longest_gap: history.longest_write_gap(),
        cut: watched.iter().filter(|watched| watched.cut).count() / WATCHED,
    };
    eprintln!("trial {name}: {result:?}");
    let mut violations = kv::version_violations(&operations);
    for watched in &watched {
        violations.extend(kv::notification_violations(watched, &operations));
    }
    kv::assert_none(&violations);
    linearizable::assert_linearizable(&operations);
    for node in &cluster.nodes {
        let log = node.log_text();
        assert!(
            !log.contains("panicked at"),
            "C2: node {} has panicked",
            node.id
        );
    }
    result
}

/// `QUORUMQ_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("QUORUMQ_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1)
}
