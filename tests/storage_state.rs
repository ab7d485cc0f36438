//! The applied state, snapshots and the data directory: what they guarantee at every step of a replacement.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use quorumq::base::ids::NodeId;
use quorumq::testing::{Backing, Change, Changes};
use quorumq::testing::{
    DataDir, FORMAT, Incoming, OpenError, SnapshotFile, Snapshots, StateDb, wait_closed,
};

fn changes(rows: &[(&str, Option<&str>)]) -> Changes {
    rows.iter()
        .map(|(key, value)| {
            let change = value.map_or(Change::Delete, |value| {
                Change::Put(Bytes::copy_from_slice(value.as_bytes()))
            });
            (key.as_bytes().to_vec(), change)
        })
        .collect()
}

fn rows(state: &StateDb) -> Vec<(String, String)> {
    let mut found = Vec::new();
    state.scan(b"a", b"z", &mut |key, value| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        found.push((text(key), text(value)));
        true
    });
    found
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// A directory with an old state, and beside it a database with a new one.
fn old_and_new(data: &Path) -> std::path::PathBuf {
    let state = StateDb::open(data).unwrap();
    state.write(
        changes(&[("a", Some("new")), ("b", Some("new"))]),
        &[(b"applied", b"2")],
    );
    let replacement = data.join("incoming-database");
    state.checkpoint(&replacement).unwrap();
    state.write(
        changes(&[("a", Some("old")), ("b", None), ("c", Some("old"))]),
        &[(b"applied", b"1")],
    );
    state.flush();
    replacement
}

/// Waits for the thread that closes a replaced database: at the end of the process it may not be in RocksDB.
fn close(state: StateDb, data: &Path) {
    drop(state);
    assert!(wait_closed(data, Duration::from_secs(60)));
}

fn assert_old(state: &StateDb) {
    assert_eq!(rows(state), [pair("a", "old"), pair("c", "old")]);
    assert_eq!(state.reserved(b"applied").unwrap(), "1");
}

fn assert_new(state: &StateDb) {
    assert_eq!(rows(state), [pair("a", "new"), pair("b", "new")]);
    assert_eq!(state.reserved(b"applied").unwrap(), "2");
}

#[test]
fn a_replacement_shows_nothing_of_the_old_state_now_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let replacement = old_and_new(dir.path());
    let state = StateDb::open(dir.path()).unwrap();
    assert_old(&state);
    state.replace(&replacement).unwrap();
    assert_new(&state);
    state.write(changes(&[("d", Some("later"))]), &[]);
    state.flush();
    close(state, dir.path());
    let state = StateDb::open(dir.path()).unwrap();
    assert_eq!(rows(&state).last(), Some(&pair("d", "later")));
    assert_eq!(fs::read_dir(dir.path().join("state")).unwrap().count(), 1);
}

#[test]
fn a_crash_after_moving_the_replacement_leaves_the_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let replacement = old_and_new(dir.path());
    fs::rename(&replacement, dir.path().join("state/2")).unwrap();
    assert_old(&StateDb::open(dir.path()).unwrap());
    assert!(
        !dir.path().join("state/2").exists(),
        "what was left is removed"
    );
}

#[test]
fn a_crash_while_the_switch_is_written_leaves_the_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let replacement = old_and_new(dir.path());
    fs::rename(&replacement, dir.path().join("state/2")).unwrap();
    fs::write(dir.path().join("state.partial"), "2").unwrap();
    assert_old(&StateDb::open(dir.path()).unwrap());
}

#[test]
fn a_crash_after_the_switch_leaves_the_new_state() {
    let dir = tempfile::tempdir().unwrap();
    let replacement = old_and_new(dir.path());
    fs::rename(&replacement, dir.path().join("state/2")).unwrap();
    fs::write(dir.path().join("state.current"), "2\n").unwrap();
    assert_new(&StateDb::open(dir.path()).unwrap());
    assert!(
        !dir.path().join("state/1").exists(),
        "the old one is removed"
    );
}

#[test]
fn a_replacement_that_is_no_database_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    old_and_new(dir.path());
    let broken = dir.path().join("broken");
    fs::create_dir(&broken).unwrap();
    fs::write(broken.join("CURRENT"), "MANIFEST-000042\n").unwrap();
    let state = StateDb::open(dir.path()).unwrap();
    assert!(state.replace(&broken).is_err());
    assert_old(&state);
    drop(state);
    assert_old(&StateDb::open(dir.path()).unwrap());
}

#[test]
fn a_reader_keeps_what_it_reads_while_the_state_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let replacement = old_and_new(dir.path());
    let state = StateDb::open(dir.path()).unwrap();
    let mut found = Vec::new();
    state.scan(b"a", b"z", &mut |key, _| {
        if found.is_empty() {
            state.replace(&replacement).unwrap();
        }
        found.push(key.to_vec());
        true
    });
    assert_eq!(found, [b"a", b"c"], "one state, not a mixture");
    assert_new(&state);
    close(state, dir.path());
}

fn file(name: &str, bytes: u64) -> SnapshotFile {
    SnapshotFile {
        name: name.to_owned(),
        bytes,
        crc: None,
    }
}

#[test]
fn an_interrupted_transfer_goes_on_with_the_files_that_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let files = vec![file("one", 4), file("two", 4), file("empty", 0)];
    let mut incoming = snapshots.receive("id", files.clone()).unwrap();
    assert_eq!(incoming.have(), Vec::<u32>::new());
    incoming
        .chunk(0, 0, b"1111", crc32c::crc32c(b"1111"))
        .unwrap();
    incoming.end_file(0, crc32c::crc32c(b"1111")).unwrap();
    incoming.chunk(1, 0, b"22", crc32c::crc32c(b"22")).unwrap();
    drop(incoming);

    let snapshots = Snapshots::open(dir.path()).unwrap();
    let mut incoming = snapshots.receive("id", files.clone()).unwrap();
    assert_eq!(incoming.have(), [0], "half a file is no file");
    incoming.chunk(1, 0, b"22", crc32c::crc32c(b"22")).unwrap();
    incoming.chunk(1, 2, b"22", crc32c::crc32c(b"22")).unwrap();
    incoming.end_file(1, crc32c::crc32c(b"2222")).unwrap();
    incoming.end_file(2, 0).unwrap();
    let path = incoming.done().unwrap();
    assert_eq!(fs::read(path.join("two")).unwrap(), b"2222");

    let incoming = snapshots.receive("another", files).unwrap();
    assert_eq!(
        incoming.have(),
        Vec::<u32>::new(),
        "another snapshot's files don't count"
    );
}

#[test]
fn a_newer_snapshot_keeps_the_files_that_it_shares_with_the_one_being_received() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let put = |incoming: &mut Incoming, position: u32, data: &[u8]| {
        let crc = crc32c::crc32c(data);
        incoming.chunk(position, 0, data, crc).unwrap();
        incoming.end_file(position, crc).unwrap();
    };
    let old = ["same", "size", "sum", "unnamed", "gone"].map(|name| file(name, 4));
    let mut incoming = snapshots.receive("01", old.to_vec()).unwrap();
    for position in 0..5 {
        put(&mut incoming, position, b"1111");
    }
    drop(incoming);

    let known = |name, bytes, content: &[u8]| SnapshotFile {
        crc: Some(crc32c::crc32c(content)),
        ..file(name, bytes)
    };
    let new = vec![
        known("same", 4, b"1111"),
        known("size", 5, b"11111"),
        known("sum", 4, b"2222"),
        file("unnamed", 4),
        known("never", 4, b"1111"),
    ];
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let incoming = snapshots.receive("02", new.clone()).unwrap();
    assert_eq!(incoming.have(), [0], "what is the same, and nothing else");
    drop(incoming);
    // It is passed on from there, too, and one transfer may come to its end.
    let mut incoming = snapshots.receive("03", new[..1].to_vec()).unwrap();
    assert_eq!(incoming.have(), [0]);
    assert!(incoming.chunk(0, 0, b"11111", 0).is_err());
    let path = incoming.done().unwrap();
    assert_eq!(fs::read(path.join("same")).unwrap(), b"1111");
    let left: Vec<_> = fs::read_dir(dir.path().join("incoming")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_sender_names_the_checksums_of_files_that_a_later_snapshot_shares() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDb::open(dir.path()).unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let take = |id: &str| {
        state.checkpoint(&snapshots.prepare(id).unwrap()).unwrap();
        snapshots.finish(id, Bytes::new()).unwrap()
    };
    state.write(changes(&[("a", Some("1"))]), &[]);
    let first = take("01");
    let tables = |files: Vec<SnapshotFile>| -> Vec<SnapshotFile> {
        let mut files = files;
        files.retain(|file| file.name.ends_with(".sst"));
        files
    };
    let sent = tables(first.files().unwrap());
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].crc, None, "not read yet");
    first.note_checksum(&sent[0].name, 7).unwrap();
    state.write(changes(&[("b", Some("1"))]), &[]);
    let mut later = tables(take("02").files().unwrap());
    later.sort_by_key(|file| file.crc);
    let checksums: Vec<_> = later.iter().map(|file| file.crc).collect();
    assert_eq!(checksums, [None, Some(7)]);
}

#[test]
fn a_snapshot_finished_after_a_later_one_does_not_replace_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDb::open(dir.path()).unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    for id in ["01", "02"] {
        state.checkpoint(&snapshots.prepare(id).unwrap()).unwrap();
    }
    snapshots.finish("02", Bytes::new()).unwrap();
    drop(snapshots.finish("01", Bytes::new()).unwrap());
    assert_eq!(snapshots.current().unwrap().id, "02");
    assert!(!dir.path().join("snapshots/01").exists());
}

#[test]
fn damaged_or_misplaced_parts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let receive = || snapshots.receive("id", vec![file("one", 4)]).unwrap();
    let good = crc32c::crc32c(b"11");
    assert!(receive().chunk(0, 0, b"11", good ^ 1).is_err(), "checksum");
    assert!(receive().chunk(0, 2, b"11", good).is_err(), "gap");
    assert!(receive().chunk(1, 0, b"11", good).is_err(), "no such file");
    assert!(receive().end_file(0, 0).is_err(), "never begun");
    assert!(receive().done().is_err(), "missing");
    let mut incoming = receive();
    incoming.chunk(0, 0, b"11", good).unwrap();
    assert!(incoming.end_file(0, good).is_err(), "too short");
    let mut incoming = receive();
    incoming.chunk(0, 0, b"11", good).unwrap();
    assert!(
        incoming
            .chunk(0, 2, b"111", crc32c::crc32c(b"111"))
            .is_err(),
        "too long"
    );
    for name in ["", "..", "a/b", "../x", "x.part", "ünïcode"] {
        assert!(
            snapshots.receive("id", vec![file(name, 1)]).is_err(),
            "{name:?}"
        );
        assert!(snapshots.receive(name, Vec::new()).is_err(), "{name:?}");
    }
}

#[test]
fn only_complete_snapshots_count_and_only_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDb::open(dir.path()).unwrap();
    state.write(changes(&[("a", Some("1"))]), &[]);
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let take = |id: &str| {
        state.checkpoint(&snapshots.prepare(id).unwrap()).unwrap();
        snapshots
            .finish(id, Bytes::copy_from_slice(id.as_bytes()))
            .unwrap()
    };
    let first = take("01");
    let second = take("02");
    assert!(
        !first.files().unwrap().is_empty(),
        "a reader keeps its files"
    );
    drop(first);
    assert!(!dir.path().join("snapshots/01").exists());
    drop(second);
    // A crash before the third is finished.
    state.checkpoint(&snapshots.prepare("03").unwrap()).unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    let current = snapshots.current().unwrap();
    assert_eq!((current.id.as_str(), &current.meta[..]), ("02", &b"02"[..]));
    assert!(!dir.path().join("snapshots/03").exists());
}

#[test]
fn a_directory_that_has_lost_its_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/down/data");
    let open = || DataDir::open(&path, NodeId(1), "cluster");
    drop(open().unwrap());
    drop(open().expect("no log was made yet"));
    let refused = |what: &str| match open() {
        Err(OpenError::LogLost { node: 1, .. }) => {}
        other => panic!("{what}: {other:?}"),
    };
    // A release that did not note the log.
    fs::create_dir(path.join("state")).unwrap();
    refused("a state without a log");
    fs::create_dir(path.join("log")).unwrap();
    refused("an empty log directory");
    for made in ["CURRENT", "00000000000000000001.segment"] {
        let made = path.join("log").join(made);
        fs::write(&made, "").unwrap();
        drop(open().expect("both are here"));
        fs::remove_file(made).unwrap();
    }
    fs::write(path.join("log/00000000000000000001.segment"), "").unwrap();
    open().unwrap().note_log().unwrap();
    drop(open().expect("both are here"));
    for lost in ["log", "state"] {
        fs::remove_dir_all(path.join(lost)).unwrap();
        refused(lost);
    }
}

#[test]
fn a_data_directory_belongs_to_one_process_node_and_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let open = |node, cluster| DataDir::open(&path, NodeId(node), cluster);
    let first = open(1, "cluster").unwrap();
    let uuid = first.uuid().to_owned();
    match open(1, "cluster") {
        Err(OpenError::InUse { pid, .. }) => assert_eq!(pid, Some(std::process::id().to_string())),
        other => panic!("{other:?}"),
    }
    drop(first);
    assert!(matches!(
        open(2, "cluster"),
        Err(OpenError::OtherNode {
            stored: 1,
            given: 2,
            ..
        })
    ));
    assert!(matches!(
        open(1, "other"),
        Err(OpenError::OtherCluster { .. })
    ));
    assert_eq!(open(1, "cluster").unwrap().uuid(), uuid, "made once");
    let meta = fs::read_to_string(path.join("meta")).unwrap();
    let newer = meta.replace(&format!("format = {FORMAT}"), "format = 99");
    fs::write(path.join("meta"), newer).unwrap();
    assert!(matches!(
        open(1, "cluster"),
        Err(OpenError::Format { stored: 99, .. })
    ));
    fs::write(path.join("meta"), "nonsense").unwrap();
    assert!(matches!(open(1, "cluster"), Err(OpenError::Damaged { .. })));
    fs::remove_file(path.join("meta")).unwrap();
    fs::create_dir(path.join("log")).unwrap();
    assert!(
        matches!(open(1, "cluster"), Err(OpenError::Damaged { .. })),
        "data without its meta"
    );
}
