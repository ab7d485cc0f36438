//! Conversations of `corpus/` with the nodes of a running cluster. `RULE=` the beginning of a `folder/name` picks some;
//! `QUORUMQ_REWRITE=1` writes what came into the files.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::corpus;
use cluster_tests::wire::Connect;

#[test]
fn conversations() {
    let picked: Vec<String> = std::env::var("RULE").into_iter().collect();
    let is_apart = |name: &String| corpus::APART.iter().any(|folder| name.starts_with(folder));
    if !picked.iter().any(is_apart) {
        hold(Plan::default(), &picked, 0);
    }
}

#[test]
fn conversations_with_low_limits() {
    let plan = Plan {
        mqtt: corpus::LOW_LIMITS.into(),
        size: 1,
        ..Plan::default()
    };
    hold(plan, &[corpus::LIMITS.into()], 0);
}

#[test]
fn conversations_with_a_node_that_asks_for_a_log_in() {
    let mut users = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::io::Write::write_all(&mut users, corpus::USERS.as_bytes()).expect("it can be written");
    let plan = Plan {
        mqtt: "connect_timeout_s = 3".into(),
        extra: format!("[auth]\nscram_file = {:?}", users.path()),
        size: 1,
        ..Plan::default()
    };
    hold(plan, &[corpus::LOG_IN.into()], 0x87);
}

/// `code` is what a plain CONNECT is answered with afterwards.
fn hold(plan: Plan, picked: &[String], code: u8) {
    let mut cluster = Cluster::start_with(plan);
    let report = corpus::hold_all("quorumq", picked, &cluster.addresses());
    // P12: whatever was sent, every node lives and serves.
    for index in 0..cluster.nodes.len() {
        assert!(
            cluster.nodes[index].is_running(),
            "node {} has ended",
            index + 1
        );
        let after = Connection::try_connect(cluster.mqtt(index), &Connect::v5("after"));
        assert_eq!(after.map(|(_, connack)| connack.code), Ok(code));
    }
    eprintln!("{}", report.summary());
    assert!(!report.verdicts.is_empty(), "nothing picked");
    assert!(report.complaints().is_empty(), "{}", report.summary());
}
