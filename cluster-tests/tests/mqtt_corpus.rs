//! Conversations of `corpus/` with the nodes of a running cluster. `RULE=` the beginning of a `folder/name` picks some;
//! `QUORUMQ_REWRITE=1` writes what came into the files.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::corpus;
use cluster_tests::wire::Connect;
use std::net::{SocketAddr, TcpListener};

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

#[test]
fn conversations_with_nodes_that_publish_events() {
    let plan = Plan {
        mqtt: corpus::SHORT_QUEUES.into(),
        extra: "[events]\nmqtt = true".into(),
        ..Plan::default()
    };
    hold(plan, &[corpus::EVENTS.into()], 0);
}

/// The first node has the API of back ends; any would do.
#[test]
fn conversations_with_a_hub() {
    let mut policies = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let written = std::io::Write::write_all(&mut policies, corpus::HUB_POLICIES.as_bytes());
    written.expect("it can be written");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let hub = taken.local_addr().expect("it is bound");
    drop(taken);
    let plan = Plan {
        extra: format!(
            "[hub]\nhost_names = [\"{}\"]\npolicies_file = {:?}\nallow_plaintext = true\n",
            corpus::HUB_HOST,
            policies.path()
        ),
        environment: vec![(0, "QUORUMQ__HUB__HTTPS_LISTEN".to_owned(), hub.to_string())],
        ..Plan::default()
    };
    hold_with_hub(plan, &[corpus::HUB.into()], 0, Some(hub));
}

fn hold(plan: Plan, picked: &[String], code: u8) {
    hold_with_hub(plan, picked, code, None);
}

/// `code` is what a plain CONNECT is answered with afterwards.
fn hold_with_hub(plan: Plan, picked: &[String], code: u8, hub: Option<SocketAddr>) {
    let mut cluster = Cluster::start_with(plan);
    let report = corpus::hold_with_hub("quorumq", picked, &cluster.addresses(), hub);
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
