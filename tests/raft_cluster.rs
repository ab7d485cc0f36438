//! Three replicas over real gRPC: what the layers above may rely on.

mod raft_support;

use bytes::Bytes;
use quorumq::ids::NodeId;
use quorumq::raft::ChangeError;
use raft_support::{Cluster, eventually, row, times_written};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_reaches_every_replica_in_the_order_of_its_proposal() {
    let cluster = Cluster::start(3).await;
    let leader = &cluster.nodes[&cluster.leader().await];
    for number in 0..500 {
        let batch = Bytes::from(format!("key{}={number}", number % 7));
        leader.raft.propose(batch).await.unwrap();
    }
    let wanted: Vec<Bytes> = (0..500)
        .map(|n| Bytes::from(format!("key{}={n}", n % 7)))
        .collect();
    for node in cluster.nodes.values() {
        eventually("all batches", || {
            (node.seen.lock().released.len() >= wanted.len()).then_some(())
        })
        .await;
        let seen = node.seen.lock();
        let got: Vec<Bytes> = seen
            .released
            .iter()
            .map(|(_, batch)| batch.clone())
            .collect();
        assert_eq!(got, wanted, "node {}", node.id);
        assert!(seen.released.is_sorted_by(|a, b| a.0 < b.0), "indexes rise");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_refuse_proposals_and_name_the_leader() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for node in cluster.nodes.values().filter(|node| node.id.0 != leader) {
        eventually("the follower to know", || {
            node.raft.leadership().borrow().leader
        })
        .await;
        let refused = node
            .raft
            .propose(Bytes::from_static(b"a=1"))
            .await
            .unwrap_err();
        assert_eq!(refused.leader, Some(NodeId(leader)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_survives_the_leader() {
    let mut cluster = Cluster::start(3).await;
    let first = cluster.write("a", "1").await;
    let written = times_written(&*cluster.nodes[&first].raft.backing(), "a");
    cluster.kill(first).await;
    let second = cluster.write("b", "2").await;
    assert_ne!(first, second);
    cluster.everywhere("a", "1").await;
    cluster.run(first).await;
    cluster.everywhere("a", "1").await;
    cluster.everywhere("b", "2").await;
    for node in cluster.nodes.values() {
        assert_eq!(
            times_written(&*node.raft.backing(), "a"),
            written,
            "applied once per entry"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_barrier_on_any_replica_shows_every_write_acknowledged_before() {
    let cluster = Cluster::start(3).await;
    for number in 0..100 {
        let value = number.to_string();
        cluster.write("a", &value).await;
        for node in cluster.nodes.values() {
            node.raft.read_barrier().await.unwrap();
            assert_eq!(
                row(&*node.raft.backing(), "a").unwrap(),
                value,
                "node {}",
                node.id
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_confirms_no_read_and_accepts_no_write() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.write("a", "1").await;
    let others: Vec<u64> = cluster
        .nodes
        .keys()
        .copied()
        .filter(|id| *id != leader)
        .collect();
    for other in others {
        cluster.kill(other).await;
    }
    assert!(cluster.nodes[&leader].raft.read_barrier().await.is_err());
    let _ = cluster.nodes[&leader]
        .raft
        .propose(Bytes::from_static(b"a=2"))
        .await;
    assert_eq!(
        row(&*cluster.nodes[&leader].raft.backing(), "a").unwrap(),
        "1"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_when_asked() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let to = cluster
        .nodes
        .keys()
        .copied()
        .find(|id| *id != leader)
        .unwrap();
    let other = cluster
        .nodes
        .keys()
        .copied()
        .find(|id| *id != leader && *id != to)
        .unwrap();
    // Asked of a node that does not lead, which passes it on.
    let now = cluster.nodes[&other]
        .raft
        .transfer_leader(Some(NodeId(to)))
        .await;
    assert_eq!(now, Ok(NodeId(to)));
    cluster.write("a", "1").await;
    assert_eq!(cluster.leader().await, to);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_lowest_id_bootstraps_and_only_once() {
    let cluster = Cluster::start(3).await;
    let members = cluster.peers();
    for node in cluster.nodes.values() {
        let initialised = || (!node.raft.status().members.is_empty()).then_some(());
        eventually("membership", initialised).await;
        assert_eq!(
            node.raft.bootstrap(members.clone()).await,
            Ok(()),
            "nothing happens"
        );
    }
    let stranger = raft_support::listen(None).await;
    let node = raft_support::Node::start(9, &cluster.dir(9), stranger).await;
    let refused = node.raft.bootstrap(members).await;
    assert_eq!(
        refused,
        Err(ChangeError::NotTheLowest { lowest: NodeId(1) })
    );
}
