//! Random faults from a seed: `make chaos SEED=7 SECONDS_OF_FAULTS=300`. First safety is judged, under faults. Then the
//! faults end, and all nodes must serve and agree again (C1). `make chaos SECURE=1`: the nodes have certificates, and
//! clients come over TLS with a password.

mod secure;

use cluster_tests::cluster::{Cluster, DEADLINE, Plan};
use cluster_tests::faults::{self, setting};
use cluster_tests::random::Random;
use cluster_tests::trial::{self, RECOVERY};
use cluster_tests::workload::Load;
use secure::Secure;
use std::time::{Duration, Instant};

#[test]
#[ignore = "long; `make chaos` runs it"]
fn chaos() {
    let seed = setting("QUORUMQ_CHAOS_SEED", 1);
    let seconds = setting("QUORUMQ_CHAOS_SECONDS", 60);
    let mut random = Random::new(seed);
    let secure = (setting("QUORUMQ_CHAOS_SECURE", 0) != 0).then(Secure::new);
    let plan = secure.as_ref().map_or_else(Plan::default, Secure::plan);
    let mut cluster = Cluster::start_with(Plan {
        // Snapshots often, so that they meet the faults too.
        network: true,
        extra: plan.extra + "[raft]\nsnapshot_log_bytes = 1048576\nkeep_log_s = 0\n",
        // The last round begins just before the time is over.
        deadline: Duration::from_secs(seconds) + DEADLINE,
        ..plan
    });
    let _doors = secure.as_ref().map(|secure| secure.open(&mut cluster));
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

/// One fault, and perhaps the time until the cluster has got over it.
fn one(cluster: &mut Cluster, load: &Load, random: &mut Random) {
    faults::one(cluster, random);
    if random.chance(50) {
        cluster.wait_ready();
    }
    if random.chance(70) {
        load.wait_progress(100, RECOVERY);
    }
}
