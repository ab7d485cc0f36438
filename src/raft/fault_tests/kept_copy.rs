//! A snapshot that was installed, but of which no copy could be kept, with the Raft library's core.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::driver::{Driver, Source, meta};
use super::random::Random;
use super::replica::Replica;
use super::run::Faults;
use crate::base::ids::NodeId;
use crate::machine::VERSION;
use crate::raft::core::applier;
use crate::raft::core::encoding;
use crate::raft::core::state_machine::{SnapshotData, meta_of};
use crate::raft::core::type_config::{LogId, Vote};
use crate::raft::start::start_core;
use crate::raft::transport::channels::ChannelPool;
use crate::raft::transport::identity::Identity;
use crate::raft::types::NOTHING;
use crate::storage::{Bounds, Step, listen, wait_closed};

/// Has the core install `source`, and returns what it said and what its log was before and is then.
async fn install(replica: &Replica, last: LogId, source: SnapshotData) -> (String, Bounds, Bounds) {
    let identity = Identity {
        node: NodeId(1),
        cluster: replica.config.cluster.clone(),
        directory: String::new(),
        address: replica.config.address.clone(),
        machine: VERSION,
    };
    let channels = ChannelPool::new(identity, replica.config.trust.clone());
    let (committed, _) = watch::channel(NOTHING);
    let (stores, applier) = (&replica.stores, &replica.applier);
    let core = start_core(&replica.config, stores, applier, &channels, committed).await;
    let core = core.expect("it starts");
    let before = stores.log.bounds();
    let snapshot = openraft::Snapshot {
        meta: meta(encoding::log_id(1, 0), last),
        snapshot: source,
    };
    let vote = Vote::new_committed(encoding::term_of(&last), 2);
    let installed = core.install_full_snapshot(vote, snapshot).await;
    // It has ended already when it has failed.
    let _ = core.shutdown().await;
    let said = installed
        .err()
        .map_or_else(String::new, |error| error.to_string());
    (said, before, stores.log.bounds())
}

async fn installs(copy_fails: bool) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let faults = Faults::new(1, root.path());
    let data = faults.places().data.clone();
    let mut driver = Driver::new(Random::new(1), Arc::clone(&faults));
    assert!(driver.open_as(VERSION).await);
    driver.vote().await;
    driver.append().await;
    driver.settle().await;
    let last = encoding::log_id(1, driver.replica().stores.log.next() + 5);
    let meta = meta(encoding::log_id(1, 0), last);
    let source = Source::new(&faults.places().scratch, Some(VERSION), last, &meta);
    let database = driver.receive(&source).expect("a whole snapshot");
    let listener = listen(&data, move |step, _| match step {
        Step::CheckpointTaking if copy_fails => Err(io::Error::other("no copy")),
        _ => Ok(()),
    });

    let received = SnapshotData::Received(database);
    let (said, before, after) = install(driver.replica(), last, received).await;
    let told = "keeping a copy of the installed snapshot: no copy";
    assert_eq!(said.contains(told), copy_fails, "{said}");
    assert_eq!(before.start, 0);
    let expected = if copy_fails { 0 } else { last.index + 1 };
    assert_eq!(after.start, expected, "{after:?}");
    assert_eq!(after.last.is_some(), copy_fails, "{after:?}");
    let (applied, _) = applier::stored(&driver.replica().stores.state).expect("well-formed");
    assert_eq!(applied, Some(last), "the state is the new one");

    // The next start takes the copy.
    drop(listener);
    driver.close().await;
    assert!(wait_closed(root.path(), Duration::from_secs(60)));
    assert!(driver.open_as(VERSION).await);
    let kept = driver.replica().stores.snapshots.current();
    let kept = meta_of(&kept.expect("a copy")).expect("well-formed");
    assert_eq!(kept.last_log_id, Some(last));
    driver.close().await;
    assert!(wait_closed(root.path(), Duration::from_secs(60)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_copy_of_an_installed_snapshot_the_log_is_not_purged() {
    installs(true).await;
    installs(false).await;
}
