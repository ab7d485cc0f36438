//! Crashes at every step of the storage, from a seed.
//!
//! A replica's log, state and snapshots are driven as the Raft library drives them. At random steps the data directory
//! is copied as a crash would leave it: what was not synced of the log, or of a file under way, may be cut anywhere.
//! Then a replica is opened on each copy. It has to start, and nothing that was acknowledged before the crash may be
//! missing.

mod crash;
mod driver;
mod replica;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::StorageHelper;
use parking_lot::Mutex;

use self::crash::{Acknowledged, Image, Random, Shared};
use self::driver::Driver;
use self::replica::{Replica, membership, record, rows};
use super::core::applier;
use super::core::encoding;
use super::core::state_machine::meta_of;
use crate::machine::tables::Backing;
use crate::storage::{Step, listen, wait_closed};

/// How long the test goes on with further seeds.
const DURATION: Duration = Duration::from_secs(30);
/// Crashes that it looks at even when that takes longer.
const MIN_CASES: usize = 200;
/// Operations of one run.
const OPERATIONS: u32 = 60;
/// One run, and the crashes in it.
async fn run(seed: u64, root: &Path) -> Vec<Image> {
    let (data, crashes) = (root.join("data"), root.join("crashes"));
    fs::create_dir_all(&crashes).expect("a directory");
    let shared = Arc::new(Mutex::new(Shared {
        random: Random::new(seed),
        acknowledged: Acknowledged::default(),
        synced: 0,
        images: Vec::new(),
    }));
    let (listening, directory) = (Arc::clone(&shared), data.clone());
    let listener = listen(&data, move |step, path| {
        listening.lock().at(&directory, &crashes, step, path);
    });
    let mut driver = Driver {
        replica: Replica::open(&data).await,
        shared: Arc::clone(&shared),
        scratch: root.to_owned(),
        term: 0,
        log: Vec::new(),
        committed: 0,
        applied: 0,
        purged: 0,
    };
    driver.vote().await;
    driver.append().await;
    for _ in 0..OPERATIONS {
        match driver.below(20) {
            0..9 => driver.append().await,
            9..11 => driver.vote().await,
            11..16 => driver.commit().await,
            16..18 => driver.snapshot().await,
            18 => driver.install().await,
            _ => {
                let written = driver.replica.stores.log.write_committed().await;
                written.expect("the log is open");
            }
        }
    }
    // The listening ends when nobody writes any more. A sync that it does not hear of would be cut from the image of a
    // thread that is still at a step that it was told of.
    driver.replica.close().await;
    let is_closed = wait_closed(&data, Duration::from_secs(60));
    assert!(is_closed, "somebody still holds a store");
    drop(listener);
    std::mem::take(&mut shared.lock().images)
}

/// Opens a replica on what a crash left, and looks whether everything is there.
async fn check(image: &Image) {
    let acknowledged = &image.acknowledged;
    let mut replica = Replica::open(&image.path).await;
    let mut helper = StorageHelper::new(&mut replica.log, &mut replica.machine).with_id(1);
    let state = helper
        .get_initial_state()
        .await
        .expect("the replica starts");
    assert!(
        state.vote_ref().leader_id.term >= acknowledged.vote,
        "the vote is kept"
    );

    let (applied, stored) = applier::stored(&replica.stores.state).expect("well-formed");
    let mut found = BTreeMap::new();
    replica.stores.state.scan(b"k", b"l", &mut |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        true
    });
    if let Some(applied) = applied {
        let term = acknowledged.committed.get(applied.index as usize);
        assert_eq!(
            term,
            Some(&encoding::term_of(&applied)),
            "only what is committed is applied"
        );
        assert_eq!(stored.membership(), &membership());
    }
    assert_eq!(
        found,
        rows(applied.map_or(0, |id| id.index)),
        "the rows of {applied:?}"
    );

    let log = &replica.stores.log;
    let records = log.read(0, u64::MAX, usize::MAX).await;
    let start = log.bounds().start;
    let indexes = records.iter().map(|record| record.index);
    assert!(indexes.eq(start..log.next()), "the log has no holes");
    let covered = applied.map_or(0, |id| id.index + 1);
    for (index, term) in acknowledged.durable.range(covered..) {
        let found = records.iter().find(|record| record.index == *index);
        assert_eq!(
            found,
            Some(&record(*term, *index)),
            "a durable entry is kept: {index} is not in {start}..{}, {applied:?} is applied, the last durable one is \
             {:?}, and the crash left {:?}",
            log.next(),
            acknowledged.durable.last_key_value(),
            image.files
        );
    }
    let snapshot = replica.stores.snapshots.current();
    let reaches =
        snapshot.and_then(|snapshot| meta_of(&snapshot).expect("well-formed").last_log_id);
    assert!(
        reaches.map_or(0, |id| id.index + 1) >= start,
        "a snapshot covers what is purged"
    );
    replica.close().await;
}

#[test]
fn a_crash_at_any_step_loses_nothing_that_was_acknowledged() {
    let memory = Path::new("/dev/shm");
    let root = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let root = root.expect("a temporary directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let started = Instant::now();
    let (mut seed, mut steps) = (0, BTreeMap::<Step, usize>::new());
    while started.elapsed() < DURATION || steps.values().sum::<usize>() < MIN_CASES {
        seed += 1;
        let dir = root.path().join(seed.to_string());
        for (number, image) in runtime.block_on(run(seed, &dir)).into_iter().enumerate() {
            *steps.entry(image.step).or_default() += 1;
            let step = image.step;
            let checked = runtime.block_on(runtime.spawn(async move { check(&image).await }));
            assert!(
                checked.is_ok(),
                "seed {seed}, crash {number} at {step:?}: {checked:?}"
            );
        }
        assert!(
            wait_closed(&dir, Duration::from_secs(60)),
            "somebody still holds a store"
        );
        fs::remove_dir_all(&dir).expect("nobody uses it");
    }
    println!("{seed} seeds: {steps:?}");
    assert!(steps.len() >= 11, "every kind of step: {steps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_another_machine_version_changes_nothing() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let shared = Arc::new(Mutex::new(Shared {
        random: Random::new(1),
        acknowledged: Acknowledged::default(),
        synced: 0,
        images: Vec::new(),
    }));
    let mut driver = Driver {
        replica: Replica::open(&root.path().join("data")).await,
        shared,
        scratch: root.path().to_owned(),
        term: 0,
        log: Vec::new(),
        committed: 0,
        applied: 0,
        purged: 0,
    };
    driver.vote().await;
    driver.append().await;
    driver.install().await;
    let state = Arc::clone(&driver.replica.stores.state);
    let before = applier::stored(&state).expect("well-formed");
    let last = before.0.expect("something is applied");
    let (present, further) = (crate::machine::VERSION, last.index + 5);
    for (machine, announced, is_taken) in [
        (Some(present + 1), further, false),
        (None, further, false),
        (Some(present), further + 1, false),
        (Some(present), further, true),
    ] {
        let installed = driver.install_other(machine, further, announced).await;
        assert_eq!(installed, is_taken, "{machine:?}, {announced}");
        let (applied, _) = applier::stored(&state).expect("well-formed");
        let expected = if is_taken { further } else { last.index };
        assert_eq!(applied.map(|id| id.index), Some(expected));
    }
    drop(state);
    driver.replica.close().await;
}
