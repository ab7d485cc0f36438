//! Three replicas over real gRPC: what the rooms above may rely on.

mod directory;
mod raft_support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use bytes::Bytes;
use quorumq::base::ids::NodeId;
use quorumq::testing::{BeforeSync, ChangeError, DataDir, Raft, Role};
use raft_support::{Cluster, config, eventually, insist, row, times_written};

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

/// A heartbeat is answered without waiting for the disk, so the leader keeps its lease and takes writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_disks_of_the_followers_cost_neither_the_leader_nor_a_proposal() {
    let slow = Arc::new(AtomicBool::new(false));
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    for id in followers {
        cluster.kill(id).await;
        let slow = Arc::clone(&slow);
        let before_sync: BeforeSync = Arc::new(move || {
            if slow.load(Relaxed) {
                // More than two leases.
                std::thread::sleep(Duration::from_millis(700));
            }
        });
        cluster
            .run_with(id, |config| config.before_sync = Some(before_sync))
            .await;
    }
    cluster.write("before", "1").await;
    cluster.everywhere("before", "1").await;
    let leader = &cluster.nodes[&cluster.leader().await];
    let term = leader.raft.status().term;
    slow.store(true, Relaxed);
    let mut silent_ms = 0;
    for number in 0..150 {
        leader
            .raft
            .propose(Bytes::from(format!("slow{number}=1")))
            .await
            .unwrap();
        silent_ms = silent_ms.max(leader.raft.status().majority_ms.unwrap_or(u64::MAX));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slow.store(false, Relaxed);
    for number in 0..150 {
        cluster.everywhere(&format!("slow{number}"), "1").await;
        assert_eq!(
            times_written(&*leader.raft.backing(), &format!("slow{number}")),
            1
        );
    }
    let status = leader.raft.status();
    assert_eq!(status.term, term, "nobody campaigned");
    assert!(silent_ms < 600, "a majority was silent for {silent_ms} ms");
}

/// The others go on without the leader's disk, until the leader holds so much for it that it takes no entry any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_stands_still_hands_leadership_over() {
    let stalled = Arc::new(AtomicU64::new(0));
    let mut cluster = Cluster::start(3).await;
    for id in 1..=3 {
        cluster.kill(id).await;
        let stalled = Arc::clone(&stalled);
        let before_sync: BeforeSync = Arc::new(move || {
            while stalled.load(Relaxed) == id {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        cluster
            .run_with(id, |config| config.before_sync = Some(before_sync))
            .await;
    }
    cluster.write("before", "1").await;
    cluster.everywhere("before", "1").await;
    let former = cluster.leader().await;
    stalled.store(former, Relaxed);
    let leader = &cluster.nodes[&former].raft;
    leader
        .propose(Bytes::from_static(b"stalled=1"))
        .await
        .unwrap();
    let others = || {
        let mut others = cluster.nodes.values().filter(|node| node.id.0 != former);
        others.any(|node| node.leads()).then_some(())
    };
    eventually("another leader", others).await;
    stalled.store(0, Relaxed);
    cluster.write("after", "1").await;
    cluster.everywhere("stalled", "1").await;
    cluster.everywhere("after", "1").await;
}

/// A leader without a majority takes no writes; what was proposed then is appended once it takes them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_the_log_does_not_take_waits_instead_of_being_lost() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    for id in &followers {
        cluster.kill(*id).await;
    }
    let raft = cluster.nodes[&leader].raft.clone();
    // Longer than the lease.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waiting = raft.clone();
    let proposed =
        tokio::spawn(async move { waiting.propose(Bytes::from_static(b"held=1")).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(
        !proposed.is_finished(),
        "it is not in the log, and nobody was told that it is"
    );
    for id in followers {
        cluster.run(id).await;
    }
    match proposed.await.unwrap() {
        Ok(()) => cluster.everywhere("held", "1").await,
        Err(_) => {
            // Another one leads: whoever proposed is told, and proposes there.
            cluster.write("held", "1").await;
        }
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
            insist("a read", || node.raft.read_barrier()).await;
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
    // It waits for a majority, or for another leader.
    let raft = &cluster.nodes[&leader].raft;
    let proposed = raft.propose(Bytes::from_static(b"a=2"));
    let proposed = tokio::time::timeout(Duration::from_secs(1), proposed).await;
    assert!(!matches!(proposed, Ok(Ok(()))), "not in the log");
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
    let asked = &cluster.nodes[&other].raft;
    let now = insist("a transfer", || asked.transfer_leader(Some(NodeId(to)))).await;
    assert_eq!(now, NodeId(to));
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

/// Takes a snapshot on every running node and purges its log.
async fn purge_everywhere(cluster: &Cluster) {
    for node in cluster.nodes.values() {
        let upto = node.raft.snapshot().await.unwrap();
        node.raft.purge(upto).await.unwrap();
        let purged = || (node.raft.status().purged? >= upto.0).then_some(());
        eventually("the purge", purged).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_behind_the_log_gets_a_snapshot_and_nothing_old_shines_through() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.write("gone", "1").await;
    cluster.everywhere("gone", "1").await;
    let lagging = cluster
        .nodes
        .keys()
        .copied()
        .find(|id| *id != leader)
        .unwrap();
    cluster.kill(lagging).await;
    cluster.write("gone", "").await;
    for number in 0..50 {
        cluster.write(&format!("key{number}"), "x").await;
    }
    purge_everywhere(&cluster).await;
    cluster.write("after", "2").await;
    cluster.run(lagging).await;
    cluster.everywhere("after", "2").await;
    let node = &cluster.nodes[&lagging];
    assert_eq!(node.raft.metrics().snapshots_installed.load(Relaxed), 1);
    assert_eq!(row(&*node.raft.backing(), "gone"), None);
    assert_eq!(row(&*node.raft.backing(), "key49").unwrap(), "x");
    assert_eq!(
        node.seen.lock().restored.len(),
        2,
        "at the start and after the snapshot"
    );
    // What it received it can pass on.
    cluster.kill(leader).await;
    cluster.write("later", "3").await;
    cluster.run(leader).await;
    cluster.everywhere("later", "3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_until_it_leaves_and_joins_under_a_new_id() {
    let mut cluster = Cluster::start(3).await;
    cluster.write("a", "1").await;
    cluster.everywhere("a", "1").await;
    cluster.kill(1).await;
    cluster.write("b", "2").await;
    cluster.run_wiped(1).await;
    let node = &cluster.nodes[&1];
    eventually("the refusal", || node.raft.status().directory_mismatch).await;
    assert_eq!(node.raft.applied().borrow().0, 0, "it was given nothing");
    let again = node.raft.bootstrap(cluster.peers()).await;
    assert!(
        matches!(
            again,
            Err(ChangeError::OtherDataDirectory {
                node: NodeId(1),
                ..
            })
        ),
        "no second cluster: {again:?}"
    );
    let via = cluster.addresses[&2].to_string();
    let joined = node.raft.join(&via).await;
    assert!(
        matches!(joined, Err(ChangeError::OtherDataDirectory { .. })),
        "{joined:?}"
    );
    cluster.kill(1).await;

    cluster.write("c", "3").await;
    let asked = &cluster.nodes[&2].raft;
    insist("a removal", || asked.remove(NodeId(1))).await;
    cluster.run(4).await;
    insist("a join", || cluster.nodes[&4].raft.join(&via)).await;
    cluster.everywhere("c", "3").await;
    let status = cluster.nodes[&2].raft.status();
    let members: Vec<(u64, Role)> = status.members.iter().map(|m| (m.node, m.role)).collect();
    assert_eq!(
        members,
        [(2, Role::Voter), (3, Role::Voter), (4, Role::Voter)]
    );
    assert!(!status.joint);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_leader_hands_over_and_the_rest_goes_on() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.write("a", "1").await;
    let other = cluster
        .nodes
        .keys()
        .copied()
        .find(|id| *id != leader)
        .unwrap();
    let asked = &cluster.nodes[&other].raft;
    insist("a removal", || asked.remove(NodeId(leader))).await;
    let gone = cluster.nodes.remove(&leader).unwrap();
    let now = cluster.write("b", "2").await;
    assert_ne!(now, leader);
    assert_eq!(cluster.nodes[&now].raft.status().members.len(), 2);
    gone.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_shuts_down_hands_over_first() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.write("a", "1").await;
    let term = cluster.nodes[&leader].raft.status().term;
    cluster.nodes.remove(&leader).unwrap().shutdown().await;
    let next = cluster.leader().await;
    assert_eq!(
        cluster.nodes[&next].raft.status().term,
        term + 1,
        "one election, no timeout"
    );
    cluster.run(leader).await;
    cluster.everywhere("a", "1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_is_a_cluster() {
    let mut cluster = Cluster::start(1).await;
    cluster.write("a", "1").await;
    insist("a read", || cluster.nodes[&1].raft.read_barrier()).await;
    cluster.kill(1).await;
    cluster.run(1).await;
    cluster.leader().await;
    assert_eq!(row(&*cluster.nodes[&1].raft.backing(), "a").unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_different_machines_refuse_each_other_and_name_it() {
    let mut cluster = Cluster::start(3).await;
    cluster.write("a", "1").await;
    // A newer machine refuses a state that lacks committed entries.
    cluster.everywhere("a", "1").await;
    cluster.nodes.remove(&3).unwrap().shutdown().await;
    cluster.run_with(3, |config| config.machine += 1).await;
    let names_it = |node: u64, other: &str| {
        let named = cluster.nodes[&node].raft.status().other_versions;
        let mut named = named.iter();
        named.any(|(from, _)| from == other).then_some(())
    };
    let calls = async {
        // It asks the others for their votes, and they send it entries.
        eventually("node 3 to be named", || {
            names_it(1, "3").or_else(|| names_it(2, "3"))
        })
        .await;
        eventually("the others to be named", || {
            names_it(3, "1").or_else(|| names_it(3, "2"))
        })
        .await;
    };
    calls.await;
    cluster.write("b", "2").await;
    assert_eq!(row(&*cluster.nodes[&3].raft.backing(), "b"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_machine_takes_the_state_over_and_an_older_one_does_not() {
    let mut cluster = Cluster::start(1).await;
    cluster.write("a", "1").await;
    cluster.nodes.remove(&1).unwrap().shutdown().await;
    cluster.run_with(1, |config| config.machine += 1).await;
    cluster.write("b", "2").await;
    cluster.nodes.remove(&1).unwrap().shutdown().await;
    let older = config(1, cluster.addresses[&1]);
    let data = DataDir::open(&cluster.dir(1), older.node, &older.cluster).unwrap();
    let refused = Raft::start(older, data, Box::new(raft_support::Rows::default())).await;
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("start the newer release again"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_machine_refuses_a_state_that_lacks_committed_entries() {
    let mut cluster = Cluster::start(1).await;
    cluster.write("a", "1").await;
    // Each append writes down what is committed so far; the state is not flushed when the process dies.
    for number in 0..20 {
        cluster.write("b", &number.to_string()).await;
    }
    cluster.kill(1).await;
    let mut newer = config(1, cluster.addresses[&1]);
    newer.machine += 1;
    let data = DataDir::open(&cluster.dir(1), newer.node, &newer.cluster).unwrap();
    let refused = Raft::start(newer, data, Box::new(raft_support::Rows::default())).await;
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("start the older release once more"),
        "{error}"
    );
    cluster.run(1).await;
    cluster.everywhere("b", "19").await;
}
