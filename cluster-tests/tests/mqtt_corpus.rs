//! Conversations of `corpus/` with the nodes of a running cluster. `RULE=part of a name` picks some by the beginning of
//! `folder/name`; `QUORUMQ_REWRITE=1` writes what came into the files.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::corpus;

#[test]
fn conversations() {
    let mut cluster = Cluster::start();
    let picked: Vec<String> = std::env::var("RULE").into_iter().collect();
    let told = corpus::hold_all("quorumq", &picked, &cluster.addresses());
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
    assert!(told.complaints().is_empty(), "{}", told.report());
}
