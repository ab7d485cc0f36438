//! Conversations of `corpus/`, each against a node of a running cluster.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::corpus;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn conversations() {
    let mut cluster = Cluster::start();
    let mut count = 0;
    let mut broken = Vec::new();
    for folder in ["connect", "malformed", "publish", "subscribe", "session"] {
        for (index, path) in corpus::files(folder).into_iter().enumerate() {
            let mut nodes = cluster.addresses();
            nodes.rotate_left(index % 3);
            count += 1;
            if catch_unwind(AssertUnwindSafe(|| corpus::hold(&path, &nodes))).is_err() {
                broken.push(format!(
                    "{folder}/{}",
                    path.file_stem().unwrap_or_default().to_string_lossy()
                ));
            }
        }
    }
    // P12: whatever was sent, every node lives and serves.
    for index in 0..cluster.nodes.len() {
        assert!(
            cluster.nodes[index].is_running(),
            "node {} has ended",
            index + 1
        );
        Connection::v5(cluster.mqtt(index), "after").expect_nothing();
    }
    assert!(
        broken.is_empty(),
        "{} of {count} conversations went otherwise: {broken:#?}",
        broken.len()
    );
}
