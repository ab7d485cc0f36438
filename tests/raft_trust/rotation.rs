//! Certificates and their authority are replaced.

use quorumq::base::proto::raft as pb;
use quorumq::testing::Reload;

use crate::authority::{Authority, Files, Subject};
use crate::proved::{NAME, Proved};

/// Changes the files of one node after the other, and writes after each.
async fn rotate(proved: &Proved, step: &str, change: impl Fn(u64, &Files)) {
    for (id, node) in &proved.cluster.nodes {
        change(*id, &proved.files(*id));
        assert_eq!(node.raft.trust().reload(), Reload::Used);
        proved.cluster.write(step, &id.to_string()).await;
    }
    proved.cluster.everywhere(step, "3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_their_authority_are_replaced_in_a_running_cluster() {
    let proved = Proved::start().await;
    let term = proved.state()[0].0;
    let (old, new) = (proved.authority.clone(), Authority::new("new"));
    rotate(&proved, "both", |_, files| {
        files.put_authorities(&[&old, &new])
    })
    .await;
    rotate(&proved, "certificates", |id, files| {
        files.put_certificate(&new, &Subject::node(NAME, id));
    })
    .await;
    rotate(&proved, "new", |_, files| files.put_authorities(&[&new])).await;
    // Who has a certificate of the old one is a stranger now.
    let (leader, voter, other) = proved.followers().await;
    for to in [leader, other] {
        let read = pb::ReadIndexRequest { group: 0 };
        assert!(proved.peer(to, voter).read_index(read).await.is_err());
    }
    let after = proved.state()[0].0;
    assert!(
        after <= term + 2,
        "connections broke, at most: {term}, {after}"
    );
}
