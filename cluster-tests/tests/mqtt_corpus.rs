//! Conversations of `corpus/` with the nodes of a running cluster. `RULE=` the beginning of a `folder/name` picks some;
//! `QUORUMQ_REWRITE=1` writes what came into the files.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::corpus;

#[test]
fn conversations() {
    let picked: Vec<String> = std::env::var("RULE").into_iter().collect();
    if picked.iter().all(|name| !name.starts_with(corpus::LIMITS)) {
        hold(Plan::default(), &picked);
    }
}

#[test]
fn conversations_with_low_limits() {
    let plan = Plan {
        mqtt: corpus::LOW_LIMITS.into(),
        size: 1,
        ..Plan::default()
    };
    hold(plan, &[corpus::LIMITS.into()]);
}

fn hold(plan: Plan, picked: &[String]) {
    let mut cluster = Cluster::start_with(plan);
    let told = corpus::hold_all("quorumq", picked, &cluster.addresses());
    // P12: whatever was sent, every node lives and serves.
    for index in 0..cluster.nodes.len() {
        assert!(
            cluster.nodes[index].is_running(),
            "node {} has ended",
            index + 1
        );
        Connection::v5(cluster.mqtt(index), "after").expect_nothing();
    }
    eprintln!("{}", told.report());
    assert!(!told.outcomes.is_empty(), "nothing picked");
    assert!(told.complaints().is_empty(), "{}", told.report());
}
