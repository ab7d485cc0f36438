//! The log on disk: what it guarantees across restarts, kills, damage and a full disk.

mod directory;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use directory::Directory;
use parking_lot::Mutex;
use quorumq::base::ids::GROUP_ZERO;
use quorumq::testing::{BeforeSync, Bounds, EXIT_IO, GroupLog, LogMetrics, Mark, NodeLog, Record};
use tokio::sync::oneshot;

/// Names the directory for a test that runs as a child of another.
const CHILD: &str = "QUORUMQ_TEST_LOG_CHILD";

fn record(index: u64, term: u64, size: usize) -> Record {
    let text = format!("{index}/{term}/");
    let mut payload = text.into_bytes();
    payload.resize(payload.len().max(size), b'.');
    Record {
        index,
        term,
        kind: 1,
        payload: payload.into(),
    }
}

fn mark(term: u64, index: u64) -> Mark {
    Mark {
        term,
        index,
        log_id: format!("{term}-{index}").into(),
    }
}

fn open_with(path: &Path, cache: usize, before_sync: Option<BeforeSync>) -> (NodeLog, GroupLog) {
    let db = NodeLog::open(path, Arc::new(LogMetrics::default()), before_sync).unwrap();
    let log = db.group(GROUP_ZERO, cache);
    (db, log)
}

fn open(path: &Path) -> (NodeLog, GroupLog) {
    open_with(path, 1 << 20, None)
}

async fn append(log: &GroupLog, records: Vec<Record>) {
    let (done, durable) = oneshot::channel();
    let tell = Box::new(move || done.send(()).expect("the test waits for it"));
    log.append(records, tell).await.unwrap();
    durable.await.unwrap();
}

async fn read_all(log: &GroupLog) -> Vec<Record> {
    log.read(0, u64::MAX, usize::MAX).await
}

#[tokio::test]
async fn everything_comes_back_after_a_restart() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    append(&log, (0..10).map(|index| record(index, 1, 0)).collect()).await;
    append(&log, (10..20).map(|index| record(index, 2, 0)).collect()).await;
    log.save_vote(Bytes::from_static(b"vote")).await.unwrap();
    log.save_committed(Some(mark(2, 15)));
    log.write_committed().await.unwrap();
    log.purge(4, Bytes::from_static(b"purged")).await.unwrap();
    let wanted = read_all(&log).await;
    db.close().await;
    drop((db, log));

    let (_db, log) = open(dir.path());
    let bounds = Bounds {
        start: 5,
        purged: Some(Bytes::from_static(b"purged")),
        last: Some((2, 19)),
    };
    assert_eq!(log.bounds(), bounds);
    assert_eq!(log.vote().unwrap(), "vote");
    assert_eq!(log.committed(), Some(mark(2, 15).log_id));
    assert_eq!(read_all(&log).await, wanted);
    assert_eq!(wanted.len(), 15);
}

#[tokio::test]
async fn a_truncated_tail_stays_gone_however_jobs_queue_up() {
    let dir = Directory::new();
    // The first sync waits until everything else is queued behind it.
    let (open_gate, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    // An error says that the gate is open for good.
    let hold: BeforeSync = Arc::new(move || {
        let _ = gate.lock().recv();
    });
    let (db, log) = open_with(dir.path(), 1 << 20, Some(hold));
    let nothing = || -> Box<dyn FnOnce() + Send> { Box::new(|| ()) };
    log.append(
        (0..10).map(|index| record(index, 1, 0)).collect(),
        nothing(),
    )
    .await
    .unwrap();
    log.truncate(5).await.unwrap();
    assert_eq!(log.bounds().last, Some((1, 4)), "gone at once for readers");
    log.append((5..7).map(|index| record(index, 2, 0)).collect(), nothing())
        .await
        .unwrap();
    log.truncate(6).await.unwrap();
    log.append(vec![record(6, 3, 0)], nothing()).await.unwrap();
    let wanted: Vec<Record> = (0..5)
        .map(|index| record(index, 1, 0))
        .chain([record(5, 2, 0), record(6, 3, 0)])
        .collect();
    assert_eq!(read_all(&log).await, wanted, "before anything is written");
    drop(open_gate);
    db.close().await;
    drop((db, log));
    let (_db, log) = open(dir.path());
    assert_eq!(read_all(&log).await, wanted, "after a restart");
}

/// A copy while nothing is written to the segments. The thread that prepares them goes on: a file may get its name
/// meanwhile, and what notes the newest segment is copied first, because it follows the segment.
fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let entries = std::fs::read_dir(from).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort_by_key(|name| name != "begun");
    for name in names {
        match std::fs::copy(from.join(&name), to.join(&name)) {
            Err(error) if name.to_string_lossy().ends_with(".partial") => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            }
            copied => drop(copied.unwrap()),
        }
    }
}

/// Index and term of a mark's log id.
fn place(log_id: &[u8]) -> (u64, u64) {
    let text = std::str::from_utf8(log_id).unwrap();
    let (term, index) = text.split_once('-').unwrap();
    (index.parse().unwrap(), term.parse().unwrap())
}

#[tokio::test]
async fn a_crash_before_any_sync_leaves_no_committed_mark_past_the_log() {
    let dir = Directory::new();
    let (log_dir, crashes) = (dir.path().join("log"), dir.path().join("crashes"));
    std::fs::create_dir_all(&crashes).unwrap();
    let (open_gate, gate) = std::sync::mpsc::channel::<()>();
    let (gate, number) = (Mutex::new(gate), Mutex::new(0));
    let (from, to) = (log_dir.clone(), crashes.clone());
    // The first sync waits until everything is queued; then every sync begins with a crash.
    let crash: BeforeSync = Arc::new(move || {
        let _ = gate.lock().recv();
        let mut number = number.lock();
        copy_directory(&from, &to.join(number.to_string()));
        *number += 1;
    });
    let (db, log) = open_with(&log_dir, 1 << 20, Some(crash));
    let nothing = || -> Box<dyn FnOnce() + Send> { Box::new(|| ()) };
    // Each append is a write of its own, because one is as large as a write may be.
    for index in 0..4 {
        log.append(vec![record(index, 1, 5 << 20)], nothing())
            .await
            .unwrap();
        log.save_committed(Some(mark(1, index.min(1))));
    }
    // Another leader replaces the end of the log, which was not committed, by as many entries that are.
    log.truncate(2).await.unwrap();
    for index in 2..4 {
        log.append(vec![record(index, 2, 5 << 20)], nothing())
            .await
            .unwrap();
    }
    log.save_committed(Some(mark(2, 3)));
    drop(open_gate);
    db.close().await;
    assert_eq!(log.committed(), Some(mark(2, 3).log_id));
    drop((db, log));

    let mut marks = 0;
    for entry in std::fs::read_dir(&crashes).unwrap() {
        let (_db, log) = open(&entry.unwrap().path());
        let Some(committed) = log.committed() else {
            continue;
        };
        marks += 1;
        let (index, term) = place(&committed);
        let records = read_all(&log).await;
        let found = records.iter().find(|record| record.index == index);
        let found = found.map(|record| record.term);
        assert_eq!(found, Some(term), "the entry at {index} is in the log");
    }
    assert!(marks >= 2, "marks are written while entries wait: {marks}");
    let (_db, log) = open(&log_dir);
    assert_eq!(log.committed(), Some(mark(2, 3).log_id));
}

#[tokio::test]
async fn a_vote_waits_for_one_sync_however_much_is_queued_before_it() {
    let dir = Directory::new();
    let (open_gate, gate) = std::sync::mpsc::channel::<()>();
    let (gate, syncs) = (Mutex::new(gate), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&syncs);
    let hold: BeforeSync = Arc::new(move || {
        *counted.lock() += 1;
        let _ = gate.lock().recv();
    });
    let (db, log) = open_with(dir.path(), 1 << 20, Some(hold));
    let order = Arc::new(Mutex::new(Vec::new()));
    for index in 0..8 {
        let order = Arc::clone(&order);
        let durable = Box::new(move || order.lock().push(index));
        log.append(vec![record(index, 1, 5 << 20)], durable)
            .await
            .unwrap();
    }
    assert!(log.bytes_queued() >= 40 << 20);
    let room = tokio::time::timeout(Duration::from_millis(50), log.room());
    assert!(room.await.is_err(), "nobody takes more in meanwhile");
    let voting = log.clone();
    let vote = tokio::spawn(async move { voting.save_vote(Bytes::from_static(b"vote")).await });
    // The vote is in the queue once its task has run, which it does before this one is woken.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(open_gate);
    vote.await.unwrap().unwrap();
    assert_eq!(
        *order.lock(),
        (0..8).collect::<Vec<_>>(),
        "a durable vote says that everything before it is durable"
    );
    log.room().await;
    assert_eq!(log.bytes_queued(), 0);
    // The first append may have been taken before the vote was queued.
    assert!(*syncs.lock() <= 2, "{} syncs", syncs.lock());
    db.close().await;
}

#[tokio::test]
async fn callbacks_come_in_the_order_of_the_appends() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    let order = Arc::new(Mutex::new(Vec::new()));
    for index in 0..500 {
        let order = Arc::clone(&order);
        let durable = Box::new(move || order.lock().push(index));
        log.append(vec![record(index, 1, 0)], durable)
            .await
            .unwrap();
    }
    db.close().await;
    assert_eq!(*order.lock(), (0..500).collect::<Vec<_>>());
}

#[tokio::test]
async fn nothing_leaves_memory_before_it_is_durable_and_applied() {
    let dir = Directory::new();
    let (_db, log) = open_with(dir.path(), 10_000, None);
    append(
        &log,
        (0..100).map(|index| record(index, 1, 1_000)).collect(),
    )
    .await;
    assert!(log.bytes_in_memory() > 100_000, "nothing is applied");
    log.applied(49);
    assert!(
        (50_000..60_000).contains(&log.bytes_in_memory()),
        "the rest is not applied"
    );
    log.applied(99);
    assert!(log.bytes_in_memory() <= 10_000);
    // From disk, from memory, and from both.
    for range in [0..20, 95..100, 0..100, 30..31] {
        let records = log.read(range.start, range.end, usize::MAX).await;
        let wanted: Vec<Record> = range.map(|index| record(index, 1, 1_000)).collect();
        assert_eq!(records, wanted);
    }
    let limited = log.read(0, 100, 5_000).await;
    assert_eq!(limited.len(), 5, "stops at the limit");
    assert_eq!(
        log.read(10, 100, 1).await.len(),
        1,
        "but never before the first"
    );
}

#[tokio::test]
async fn an_empty_log_may_begin_anywhere_after_a_snapshot() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    append(&log, (0..5).map(|index| record(index, 1, 0)).collect()).await;
    log.purge(99, Bytes::from_static(b"far")).await.unwrap();
    assert_eq!(log.bounds().last, None);
    assert_eq!(read_all(&log).await, []);
    append(&log, vec![record(100, 7, 0)]).await;
    db.close().await;
    drop((db, log));
    let (_db, log) = open(dir.path());
    assert_eq!(log.bounds().last, Some((7, 100)));
    assert_eq!(read_all(&log).await, [record(100, 7, 0)]);
}

/// Bytes of a sector: a frame begins at a multiple.
const SECTOR: usize = 512;

fn segment(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.segment"))
}

/// Where the last frame of the first segment begins. Frames are as they are written: every sector that begins with one
/// names itself at byte 16.
fn last_frame(dir: &Path) -> usize {
    let bytes = std::fs::read(segment(dir, 1)).unwrap();
    let mut frames = bytes.chunks(SECTOR).enumerate();
    let begins = |(at, sector): &(usize, &[u8])| {
        let offset = (at * SECTOR) as u32;
        sector[16..20] == offset.to_le_bytes() && sector[8..16] == 1_u64.to_le_bytes()
    };
    let last = frames.rfind(begins);
    last.map(|(at, _)| at * SECTOR).unwrap()
}

fn invert(path: &Path, at: usize, bytes: usize) {
    let mut content = std::fs::read(path).unwrap();
    for byte in &mut content[at..at + bytes] {
        *byte ^= 0xff;
    }
    std::fs::write(path, content).unwrap();
}

fn refusal(dir: &Path) -> String {
    match NodeLog::open(dir, Arc::new(LogMetrics::default()), None) {
        Ok(_) => panic!("the log is taken"),
        Err(error) => error.to_string(),
    }
}

/// A log of eleven entries, in a state in which a process ended that was killed.
async fn killed(dir: &Path) {
    let running = dir.with_extension("running");
    let (db, log) = open(&running);
    append(&log, (0..10).map(|index| record(index, 1, 500)).collect()).await;
    append(&log, vec![record(10, 1, 1_500)]).await;
    copy_directory(&running, dir);
    db.close().await;
}

#[tokio::test]
async fn a_torn_tail_loses_only_what_was_being_written() {
    let dir = Directory::new();
    // The entry takes four sectors, any of which may be missing.
    for sector in 0..4 {
        let path = dir.path().join(sector.to_string());
        killed(&path).await;
        let at = last_frame(&path);
        invert(&segment(&path, 1), at + sector * SECTOR, 100);
        let (db, log) = open(&path);
        let wanted: Vec<Record> = (0..10).map(|index| record(index, 1, 500)).collect();
        assert_eq!(read_all(&log).await, wanted, "without sector {sector}");
        // What is written over it counts, and nothing that was behind it.
        append(&log, vec![record(10, 2, 0)]).await;
        db.close().await;
        drop((db, log));
        let (_db, log) = open(&path);
        assert_eq!(log.bounds().last, Some((2, 10)));
        assert_eq!(read_all(&log).await.last(), Some(&record(10, 2, 0)));
    }
}

#[tokio::test]
async fn damage_before_the_tail_is_refused() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    for index in 0..200 {
        append(&log, vec![record(index, 1, 1_000)]).await;
    }
    db.close().await;
    drop((db, log));
    // The first frame, one in the middle, and the last one with an entry: the log was closed behind it.
    let last = last_frame(dir.path());
    for at in [0, last / 2 / SECTOR * SECTOR + 10, last - 600] {
        invert(&segment(dir.path(), 1), at, 16);
        let refusal = refusal(dir.path());
        assert!(refusal.contains("damaged"), "{refusal}");
        assert!(refusal.contains("segment"), "{refusal}");
        invert(&segment(dir.path(), 1), at, 16);
    }
    let (_db, log) = open(dir.path());
    assert_eq!(read_all(&log).await.len(), 200);
}

/// Appends entries of 1 MiB until there is a third segment, 4 and 8 MiB behind the beginning.
async fn three_segments(log: &GroupLog) -> u64 {
    for index in 0..13 {
        append(log, vec![record(index, 1, 1 << 20)]).await;
    }
    13
}

#[tokio::test]
async fn a_missing_segment_is_refused() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    three_segments(&log).await;
    db.close().await;
    drop((db, log));
    for missing in [1, 2, 3] {
        let path = segment(dir.path(), missing);
        let aside = path.with_extension("aside");
        std::fs::rename(&path, &aside).unwrap();
        let refusal = refusal(dir.path());
        assert!(refusal.contains("is missing"), "{refusal}");
        // Nothing was removed: when it is back, all is well.
        std::fs::rename(aside, path).unwrap();
    }
    let (_db, log) = open(dir.path());
    assert_eq!(read_all(&log).await.len(), 13);
}

#[tokio::test]
async fn a_purge_gives_segments_back_and_later_ones_take_their_place() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    let mut next = three_segments(&log).await;
    log.purge(next - 2, Bytes::from_static(b"purged"))
        .await
        .unwrap();
    for _ in 0..100 {
        append(&log, vec![record(next, 1, 1 << 20)]).await;
        next += 1;
        if next.is_multiple_of(10) {
            log.purge(next - 3, Bytes::from_static(b"purged"))
                .await
                .unwrap();
        }
    }
    log.purge(next - 4, Bytes::from_static(b"purged"))
        .await
        .unwrap();
    db.close().await;
    assert_eq!(read_all(&log).await.len(), 3);
    drop((db, log));
    let (_db, log) = open(dir.path());
    let wanted: Vec<Record> = (next - 3..next)
        .map(|index| record(index, 1, 1 << 20))
        .collect();
    assert!(read_all(&log).await == wanted);
    let names = std::fs::read_dir(dir.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.len() <= 4, "{names:?}");
}

/// Appends for ever, and prints each index once it is durable. Runs only as a child.
#[tokio::test]
async fn child_appends_for_ever() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let (_db, log) = open(Path::new(&dir));
    for index in 0.. {
        append(&log, vec![record(index, 1, 3_000)]).await;
        let mut out = std::io::stdout();
        writeln!(out, "durable {index}").unwrap();
        out.flush().unwrap();
    }
}

fn child(shell: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_appends_for_ever", "--nocapture"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn durable(line: &str) -> Option<u64> {
    line.strip_prefix("durable ")?.parse().ok()
}

async fn check_all_there(dir: &Path, last: u64) {
    let (_db, log) = open(dir);
    let records = log.read(0, last + 1, usize::MAX).await;
    let wanted: Vec<Record> = (0..=last).map(|index| record(index, 1, 3_000)).collect();
    assert!(
        records == wanted,
        "what was durable up to {last} is there, {} read",
        records.len()
    );
}

#[tokio::test]
async fn kill_9_loses_nothing_that_was_durable() {
    let dir = Directory::new();
    let mut child = child("", dir.path()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut last = None;
    for line in out.lines().map_while(Result::ok) {
        last = durable(&line).or(last);
        if last == Some(100) {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    check_all_there(dir.path(), last.unwrap()).await;
}

#[tokio::test]
async fn a_failed_write_stops_the_process_and_loses_nothing_that_was_durable() {
    let dir = Directory::new();
    let (db, log) = open(dir.path());
    db.close().await;
    drop((db, log));
    // No file may be written beyond 512 KiB.
    let output = child("trap '' XFSZ; ulimit -f 1024;", dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(EXIT_IO));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("storage failed while writing the log"),
        "{stderr}"
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().filter_map(durable).next_back().unwrap();
    check_all_there(dir.path(), last).await;
}
