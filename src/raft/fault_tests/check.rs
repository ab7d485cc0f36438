//! Opens a replica on what a crash left, and looks whether everything is there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use openraft::StorageHelper;

use super::journal::Acknowledged;
use super::replica::{Replica, membership, record, rows};
use crate::machine::tables::Backing;
use crate::raft::core::applier;
use crate::raft::core::encoding;
use crate::raft::core::state_machine::meta_of;
use crate::raft::core::type_config::LogId;
use crate::storage::{Snapshot, StateDb};

/// Checks the data directory `data`. A snapshot is copied to `scratch`.
pub async fn check(data: &Path, scratch: &Path, acknowledged: &Acknowledged) {
    let kept = newest_complete(data);
    assert!(
        kept >= acknowledged.snapshot,
        "a snapshot is kept: {kept:?}"
    );
    let mut replica = Replica::open(data, acknowledged.machine)
        .await
        .expect("the replica starts");
    let mut helper = StorageHelper::new(&mut replica.log, &mut replica.machine).with_id(1);
    let state = helper.get_initial_state().await.expect("Raft starts");
    let term = state.vote_ref().leader_id.term;
    assert!(term >= acknowledged.vote, "the vote is kept: {term}");
    let applied = check_state(&replica.stores.state, acknowledged);
    check_log(&replica, applied, acknowledged).await;
    if let Some(snapshot) = replica.stores.snapshots.current() {
        check_snapshot(&snapshot, scratch, acknowledged);
    }
    replica.close().await;
}

/// The newest snapshot that the next start finds.
fn newest_complete(data: &Path) -> Option<String> {
    let dirs = fs::read_dir(data.join("snapshots")).into_iter().flatten();
    let dirs = dirs.map(|dir| dir.expect("a directory").path());
    let complete = dirs.filter(|dir| dir.extension().is_none() && dir.join("meta").exists());
    complete
        .filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned()))
        .max()
}

/// Checks the rows, and returns up to where they are applied.
fn check_state(state: &StateDb, acknowledged: &Acknowledged) -> Option<LogId> {
    let (applied, stored) = applier::stored(state).expect("well-formed");
    let mut found = BTreeMap::new();
    state.scan(b"k", b"l", &mut |key, value| {
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
    applied
}

async fn check_log(replica: &Replica, applied: Option<LogId>, acknowledged: &Acknowledged) {
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
             {:?}",
            log.next(),
            acknowledged.durable.last_key_value(),
        );
    }
    let snapshot = replica.stores.snapshots.current();
    let reaches =
        snapshot.and_then(|snapshot| meta_of(&snapshot).expect("well-formed").last_log_id);
    assert!(
        reaches.map_or(0, |id| id.index + 1) >= start,
        "a snapshot covers what is purged"
    );
}

/// Another replica could install it.
fn check_snapshot(snapshot: &Snapshot, scratch: &Path, acknowledged: &Acknowledged) {
    let meta = meta_of(snapshot).expect("well-formed");
    snapshot
        .copy_to(&scratch.join("state").join("1"))
        .expect("a copy");
    let copy = StateDb::open(scratch).expect("a whole snapshot");
    assert_eq!(check_state(&copy, acknowledged), meta.last_log_id);
    let machine = copy.reserved(applier::MACHINE).expect("its version");
    assert_eq!(
        machine[..],
        acknowledged.machine.to_be_bytes(),
        "no snapshot of another machine is kept"
    );
}
