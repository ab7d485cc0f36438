//! How long writes stand still when the leader dies, and whether slow disks alone end a leadership.
//!
//! Measurements of this machine, not rules: run them with
//! `cargo test --release --test raft_failover -- --ignored --nocapture --test-threads 1`.

mod directory;
mod raft_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use directory::Directory;
use parking_lot::Mutex;
use quorumq::testing::{Raft, Retention, Timing};
use raft_support::{Cluster, Node, Settings, config, eventually, listen, row};

const KILLS: usize = 20;

/// The replicas that run.
type Replicas = Arc<Mutex<BTreeMap<u64, Raft>>>;

fn replicas(cluster: &Cluster) -> Replicas {
    let replicas = cluster
        .nodes
        .iter()
        .map(|(id, node)| (*id, node.raft.clone()));
    Arc::new(Mutex::new(replicas.collect()))
}

/// Writes one value to whoever leads and waits until it is applied there.
async fn write(replicas: &Replicas, value: &str) -> bool {
    let leads = |raft: &&Raft| raft.leadership().borrow().is_leader;
    let Some(leader) = replicas.lock().values().find(leads).cloned() else {
        return false;
    };
    let mut applied = leader.applied();
    if leader
        .propose(Bytes::from(format!("w={value}")))
        .await
        .is_err()
    {
        return false;
    }
    let backing = leader.backing();
    let written = async {
        while row(&*backing, "w").as_deref() != Some(value.as_bytes()) {
            if applied.changed().await.is_err() {
                return false;
            }
        }
        true
    };
    let written = tokio::time::timeout(Duration::from_millis(300), written).await;
    written.unwrap_or(false)
}

/// Writes one after the other until told to stop; returns the longest pause between two writes.
async fn longest_pause(replicas: Replicas, stop: Arc<AtomicBool>) -> Duration {
    let (mut last, mut longest, mut number) = (Instant::now(), Duration::ZERO, 0u64);
    while !stop.load(Relaxed) {
        number += 1;
        if write(&replicas, &number.to_string()).await {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    longest.max(last.elapsed())
}

/// Three replicas with such timings, bootstrapped.
async fn cluster_with(timing: Timing) -> Cluster {
    let root = Directory::new();
    let mut nodes = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for id in 1..=3 {
        let listener = listen(None).await;
        let address = listener.local_addr().unwrap();
        addresses.insert(id, address);
        let mut config = config(id, address);
        config.timing = timing;
        let dir = root.path().join(id.to_string());
        nodes.insert(id, Node::start_with(config, &dir, listener).await);
    }
    let cluster = Cluster {
        settings: Arc::new(|_, _| {}),
        nodes,
        addresses,
        root,
    };
    let made = cluster.nodes[&1].raft.bootstrap(cluster.peers()).await;
    made.unwrap();
    cluster
}

/// The lease is 4 s, and the draw beyond it 3.9 s at least: only the broken connections explain an earlier election.
/// The last heartbeat came up to a second before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_connections_broke_is_replaced_when_its_lease_ends() {
    let mut cluster = cluster_with(Timing {
        heartbeat_ms: 1_000,
        election_min_ms: 3_900,
        election_max_ms: 4_000,
    })
    .await;
    let leader = cluster.write("a", "1").await;
    cluster.everywhere("a", "1").await;
    let killed = Instant::now();
    cluster.kill(leader).await;
    cluster.leader().await;
    let pause = killed.elapsed();
    assert!(pause < Duration::from_millis(6_800), "{pause:?}");
    assert!(
        pause > Duration::from_millis(2_500),
        "the lease is respected: {pause:?}"
    );
}

/// A follower that answers, but always some seconds late, lacks what the leader is about to purge whenever it purges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_stays_behind_does_not_keep_its_leaders_log() {
    let slow = Arc::new(AtomicU64::new(0));
    let is_slow = Arc::clone(&slow);
    let settings: Settings = Arc::new(move |id, config| {
        let slow = Arc::clone(&is_slow);
        config.before_sync = Some(Arc::new(move || {
            if slow.load(Relaxed) == id {
                std::thread::sleep(Duration::from_secs(3));
            }
        }));
        config.retention = Retention {
            snapshot_bytes: 32 << 10,
            keep_ms: 1_000,
            min_log_bytes: 32 << 10,
            max_log_bytes: 64 << 10,
            ..Retention::default()
        };
    });
    let cluster = Cluster::start_with(3, settings).await;
    let leader = cluster.leader().await;
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    slow.store(follower, Relaxed);
    let raft = cluster.nodes[&leader].raft.clone();
    let writes = tokio::spawn({
        let raft = raft.clone();
        async move {
            let value = "v".repeat(4 << 10);
            loop {
                let batch = Bytes::from(format!("w={value}"));
                raft.propose(batch).await.expect("it leads");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
    // Once may be before the follower is slow.
    for _ in 0..3 {
        let now = raft.status().last_log;
        let is_purged = || (raft.status().purged > Some(now)).then_some(());
        eventually("the log to be purged", is_purged).await;
    }
    assert!(!writes.is_finished());
    writes.abort();
    slow.store(0, Relaxed);
    cluster.write("after", "1").await;
    cluster.everywhere("after", "1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a measurement"]
async fn pause_of_writes_when_the_leader_dies() {
    let mut cluster = Cluster::start(3).await;
    let mut pauses = Vec::new();
    for _ in 0..KILLS {
        let leader = cluster.write("a", "1").await;
        cluster.everywhere("a", "1").await;
        let stop = Arc::new(AtomicBool::new(false));
        let replicas = replicas(&cluster);
        let writer = tokio::spawn(longest_pause(Arc::clone(&replicas), Arc::clone(&stop)));
        tokio::time::sleep(Duration::from_millis(300)).await;
        replicas.lock().remove(&leader);
        cluster.kill(leader).await;
        tokio::time::sleep(Duration::from_millis(1_700)).await;
        stop.store(true, Relaxed);
        pauses.push(writer.await.unwrap());
        println!("{:?}", pauses[pauses.len() - 1]);
        drop(replicas);
        cluster.run(leader).await;
    }
    pauses.sort();
    println!(
        "longest pause of writes over {KILLS} kills: median {:?}, max {:?}",
        pauses[KILLS / 2],
        pauses[KILLS - 1]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a measurement"]
async fn slow_syncs_alone_end_no_leadership() {
    let root = Directory::new();
    let mut nodes = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    let syncs = Arc::new(AtomicU64::new(0));
    for id in 1..=3 {
        let listener = listen(None).await;
        let address = listener.local_addr().unwrap();
        addresses.insert(id, address);
        let mut config = config(id, address);
        let syncs = Arc::clone(&syncs);
        // Every fifth sync takes 8 to 100 ms.
        config.before_sync = Some(Arc::new(move || {
            let number = syncs.fetch_add(1, Relaxed);
            if number.is_multiple_of(5) {
                std::thread::sleep(Duration::from_millis(8 + (number * 37) % 93));
            }
        }));
        nodes.insert(
            id,
            Node::start_with(config, &root.path().join(id.to_string()), listener).await,
        );
    }
    let cluster = Cluster {
        settings: Arc::new(|_, _| {}),
        root,
        nodes,
        addresses,
    };
    cluster.nodes[&1]
        .raft
        .bootstrap(cluster.peers())
        .await
        .unwrap();
    let leader = cluster.write("a", "1").await;
    let term = cluster.nodes[&leader].raft.status().term;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(longest_pause(replicas(&cluster), Arc::clone(&stop)));
    tokio::time::sleep(Duration::from_secs(20)).await;
    stop.store(true, Relaxed);
    let pause = writer.await.unwrap();
    let now = cluster.nodes[&leader].raft.status().term;
    println!(
        "{} syncs, longest pause {pause:?}, terms {term} to {now}",
        syncs.load(Relaxed)
    );
    assert_eq!(term, now, "no election");
}
