//! What a start does before it counts on what it has found.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::Mutex;

use super::change::Change;
use super::frame::{self, Place, SECTOR};
use super::{GroupLog, NodeLog, Record};
use crate::base::ids::GROUP_ZERO;
use crate::storage::Directory;
use crate::storage::faults::{self, Step};
use crate::storage::metrics::LogMetrics;
use crate::storage::open_error::OpenError;

fn open(path: &Path) -> Result<NodeLog, OpenError> {
    NodeLog::open(path, Arc::new(LogMetrics::default()), None)
}

async fn append(log: &GroupLog, index: u64, payload: Bytes) {
    let (done, durable) = tokio::sync::oneshot::channel();
    let told = Box::new(move || {
        let _ = done.send(());
    });
    let record = Record {
        index,
        term: 1,
        kind: 1,
        payload,
    };
    log.append(vec![record], told).await.expect("it is open");
    durable.await.expect("it becomes durable");
}

fn first_segment(dir: &Path) -> PathBuf {
    dir.join(format!("{:020}.segment", 1))
}

/// What a killed process leaves of a log whose entries have these payloads; the last one may need to know the log's
/// number.
async fn killed(path: &Path, first: &'static [u8], last: impl FnOnce(u64) -> Bytes) {
    let running = path.with_extension("running");
    let node = open(&running).expect("a new log");
    let log = node.group(GROUP_ZERO, 0);
    append(&log, 0, first.into()).await;
    let content = fs::read(first_segment(&running)).expect("it is there");
    let number = content[32..].first_chunk().expect("a frame");
    append(&log, 1, last(u64::from_le_bytes(*number))).await;
    fs::create_dir(path).expect("a new directory");
    fs::copy(first_segment(&running), first_segment(path)).expect("it can be copied");
    node.close().await;
}

#[tokio::test]
async fn what_was_found_is_durable_before_anything_is_added() {
    let dir = Directory::new();
    let path = dir.path().join("log");
    killed(&path, b"first", |_| "last".into()).await;
    let segment = first_segment(&path);
    let file = File::options().write(true).open(&segment).expect("a file");
    file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&steps);
    let listener = faults::listen(&path, move |step, path| {
        let written = fs::metadata(path)?.modified()? > SystemTime::UNIX_EPOCH;
        seen.lock().push((step, path.to_owned(), written));
        Ok(())
    });
    let node = open(&path).expect("it opens");
    drop(listener);
    let steps = std::mem::take(&mut *steps.lock());
    let is_first_write =
        |(step, file, _): &(Step, PathBuf, _)| *step == Step::LogWriting && *file == segment;
    let before = &steps[..steps
        .iter()
        .position(is_first_write)
        .expect("a frame is written")];
    // The tail is written once more, and synced; and so are the names.
    assert!(
        before.contains(&(Step::FileSynced, segment.clone(), true)),
        "{steps:?}"
    );
    assert!(
        before.contains(&(Step::DirectorySynced, path, true)),
        "{steps:?}"
    );
    node.close().await;
}

#[tokio::test]
async fn a_start_that_can_not_make_durable_what_it_found_is_none() {
    let dir = Directory::new();
    let path = dir.path().join("log");
    killed(&path, b"first", |_| "last".into()).await;
    for failing in [Step::FileWritten, Step::DirectoryChanged] {
        let _listener = faults::listen(&path, move |step, _| match step {
            step if step == failing => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        });
        assert!(open(&path).is_err(), "{failing:?}");
    }
    let node = open(&path).expect("it opens");
    let read = node.group(GROUP_ZERO, 0).read(0, 9, usize::MAX).await;
    assert_eq!(read.len(), 2);
    node.close().await;
}

/// An entry that has, at each place at which a frame could begin, a frame of the log with this number, which says that
/// everything before it is durable. Its first byte is at `begin` in its segment.
fn forged(begin: usize, log: u64) -> Bytes {
    let mut payload = vec![b'.'; begin.next_multiple_of(SECTOR) - begin];
    for sector in 0..8 {
        let offset = (begin.next_multiple_of(SECTOR) + sector * SECTOR) as u32;
        let mut buffer = Vec::new();
        frame::begin(&mut buffer);
        Change::Closed.encode(&mut buffer);
        let place = Place {
            log,
            segment: 1,
            offset,
            previous: 0,
            durable: offset,
        };
        frame::finish(&mut buffer, place).expect("it is short");
        payload.extend_from_slice(&buffer);
    }
    payload.into()
}

#[tokio::test]
async fn frames_in_what_a_client_sends_are_no_proof_of_damage() {
    const PLAIN: &[u8] = b"where does an entry begin?";
    let dir = Directory::new();
    let plain = dir.path().join("plain");
    killed(&plain, b"first", |_| PLAIN.into()).await;
    let content = fs::read(first_segment(&plain)).expect("it is there");
    let begin = content
        .windows(PLAIN.len())
        .position(|bytes| bytes == PLAIN);
    let begin = begin.expect("it was appended");
    // That it knows the number is what a client can not do, and shows that the frames are where they would be found.
    for (name, knows_number) in [("stranger", false), ("knows", true)] {
        let path = dir.path().join(name);
        let payload = |number: u64| forged(begin, number ^ u64::from(!knows_number));
        killed(&path, b"first", payload).await;
        // The first sector of the frame was not written.
        let mut content = fs::read(first_segment(&path)).expect("it is there");
        let torn = begin / SECTOR * SECTOR;
        content[torn..torn + SECTOR].fill(0);
        fs::write(first_segment(&path), content).expect("it can be written");
        match open(&path) {
            Ok(node) => {
                assert!(!knows_number);
                let read = node.group(GROUP_ZERO, 0).read(0, 9, usize::MAX).await;
                assert_eq!(read.len(), 1);
                node.close().await;
            }
            Err(refused) => assert!(knows_number, "{refused}"),
        }
    }
}

#[tokio::test]
async fn a_torn_first_frame_does_not_come_back() {
    let dir = Directory::new();
    let running = dir.path().join("running");
    let node = open(&running).expect("a new log");
    let log = node.group(GROUP_ZERO, 0);
    append(&log, 0, "first".into()).await;
    let second = |path: &Path| path.join(format!("{:020}.segment", 2));
    let path = dir.path().join("log");
    fs::create_dir(&path).expect("a new directory");
    fs::copy(first_segment(&running), first_segment(&path)).expect("it can be copied");
    // The first segment has no room for this.
    append(&log, 1, vec![b'.'; 40 << 10].into()).await;
    node.close().await;
    let mut content = fs::read(second(&running)).expect("it is there");
    let length = u32::from_le_bytes(*content[4..].first_chunk().expect("a frame")) as usize;
    let last = frame::HEADER + length - 1;
    content[last + 1..].fill(0);
    // The power was cut when the first frame of the second one was half written, and once more, after a vote, when
    // another one was, which left the other half.
    content[last] ^= 0xff;
    fs::write(second(&path), &content).expect("it can be written");
    let node = open(&path).expect("nothing counts behind the first segment");
    let vote = Bytes::from_static(b"vote");
    let log = node.group(GROUP_ZERO, 0);
    log.save_vote(vote.clone()).await.expect("it is open");
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).expect("a new directory");
    for file in [first_segment(&path), second(&path)] {
        let name = file.file_name().expect("a name");
        fs::copy(&file, copy.join(name)).expect("it can be copied");
    }
    node.close().await;
    let mut found = fs::read(second(&copy)).expect("it is there");
    found[last] = content[last] ^ 0xff;
    fs::write(second(&copy), found).expect("it can be written");
    let node = open(&copy).expect("it opens");
    assert_eq!(node.group(GROUP_ZERO, 0).vote(), Some(vote));
    node.close().await;
}

#[tokio::test]
async fn only_a_log_that_was_closed_says_that_all_of_it_is_durable() {
    let dir = Directory::new();
    for is_closed in [true, false] {
        let node = open(&dir.path().join(is_closed.to_string())).expect("a new log");
        let log = node.group(GROUP_ZERO, 0);
        if is_closed {
            node.close().await;
        }
        drop(node);
        assert!(log.is_closed(), "its thread has ended");
        let synced = tokio::task::spawn_blocking(move || log.sync_blocking());
        assert_eq!(synced.await.expect("it returns"), is_closed);
    }
}
