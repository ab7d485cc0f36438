//! The log against a model of it, with segments of some kilobytes: whatever is done to it, it holds what the model
//! holds, read from disk, and after a restart.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use rocksdb::{DB, Options, WriteBatch};

use super::{Bounds, GroupLog, Mark, NodeLog, Record, take_over};
use crate::base::ids::GroupId;
use crate::storage::metrics::LogMetrics;
use crate::storage::open_error::OpenError;
use crate::storage::{Directory, faults};

const GROUPS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// How many entries of how many bytes.
    Append(usize, usize),
    /// How many of the last entries go.
    Truncate(usize),
    /// How many of the first entries go.
    Purge(usize),
    /// The log goes on behind a snapshot, so many entries further on.
    Skip(u64),
    Vote,
    Committed,
    /// From which part on, and how many bytes.
    Read(u8, usize),
    Restart,
    /// The process ends without closing the log.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_usize..12, 0_usize..9_000).prop_map(|(count, size)| Step::Append(count, size)),
        // Many small ones make many points.
        2 => (1_usize..200, 0_usize..40).prop_map(|(count, size)| Step::Append(count, size)),
        4 => (0_usize..30).prop_map(Step::Truncate),
        3 => (0_usize..40).prop_map(Step::Purge),
        1 => (1_u64..9).prop_map(Step::Skip),
        1 => Just(Step::Vote),
        1 => Just(Step::Committed),
        4 => (any::<u8>(), 1_usize..60_000).prop_map(|(from, bytes)| Step::Read(from, bytes)),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ]
}

/// What a group's log has to hold.
#[derive(Clone, Debug, Default)]
struct Model {
    entries: BTreeMap<u64, Record>,
    start: u64,
    purged: Option<Bytes>,
    vote: Option<Bytes>,
    committed: Option<Bytes>,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        let last = self.entries.keys().next_back();
        last.map_or(self.start, |last| last + 1)
    }

    fn bounds(&self) -> Bounds {
        let last = self.entries.values().next_back();
        Bounds {
            start: self.start,
            purged: self.purged.clone(),
            last: last.map(|record| (record.term, record.index)),
        }
    }

    fn purge(&mut self, upto: u64, log_id: &Bytes) {
        self.entries.retain(|index, _| *index > upto);
        (self.start, self.purged) = (upto + 1, Some(log_id.clone()));
    }
}

struct Opened {
    node: NodeLog,
    groups: Vec<GroupLog>,
}

fn open(path: &Path) -> Opened {
    let node = NodeLog::open(path, Arc::new(LogMetrics::default()), None).expect("it opens");
    // Nothing stays in memory once it is durable and applied.
    let groups = (0..GROUPS).map(|group| node.group(GroupId(group as u32), 0));
    Opened {
        groups: groups.collect(),
        node,
    }
}

/// Has the log be as one that a process left that was killed: nothing is closed, and what was written is there.
async fn kill(opened: Opened, path: &Path) -> Opened {
    let (aside, copy) = (path.with_extension("aside"), path.with_extension("copy"));
    for log in &opened.groups {
        let log = log.clone();
        let synced = tokio::task::spawn_blocking(move || log.sync_blocking());
        synced.await.expect("it syncs");
    }
    std::fs::create_dir(&copy).expect("a new directory");
    for entry in std::fs::read_dir(path).expect("a directory") {
        let file = entry.expect("a file").path();
        let name = file.file_name().expect("a name");
        // One that is being made, or removed, may be gone.
        let _ = std::fs::copy(&file, copy.join(name));
    }
    opened.node.close().await;
    drop(opened);
    std::fs::rename(path, &aside).expect("a free name");
    std::fs::rename(&copy, path).expect("a free name");
    std::fs::remove_dir_all(&aside).expect("it goes");
    open(path)
}

async fn append(log: &GroupLog, model: &mut Model, count: usize, size: usize) {
    model.term += 1;
    let next = model.next();
    let records: Vec<Record> = (next..next + count as u64)
        .map(|index| Record {
            index,
            term: model.term,
            kind: 1,
            payload: format!("{index}/{:size$}", model.term).into(),
        })
        .collect();
    let (done, durable) = tokio::sync::oneshot::channel();
    let told = Box::new(move || {
        let _ = done.send(());
    });
    log.append(records.clone(), told).await.expect("it is open");
    model
        .entries
        .extend(records.into_iter().map(|record| (record.index, record)));
    if size.is_multiple_of(2) {
        // Others are queued with what follows.
        durable.await.expect("it becomes durable");
        log.applied(u64::MAX);
    }
}

async fn do_step(opened: &Opened, models: &mut [Model], group: usize, step: &Step) {
    let (log, model) = (&opened.groups[group], &mut models[group]);
    match *step {
        Step::Append(count, size) => append(log, model, count, size).await,
        Step::Truncate(count) => {
            let from = model.next().saturating_sub(count as u64).max(model.start);
            model.entries.retain(|index, _| *index < from);
            log.truncate(from).await.expect("it is open");
        }
        Step::Purge(count) if !model.entries.is_empty() => {
            let upto = (model.start + count as u64).min(model.next() - 1);
            let log_id = Bytes::from(format!("purged {upto}"));
            model.purge(upto, &log_id);
            log.purge(upto, log_id).await.expect("it is open");
        }
        Step::Skip(further) => {
            let upto = model.next() + further;
            let log_id = Bytes::from(format!("snapshot {upto}"));
            model.purge(upto, &log_id);
            log.purge(upto, log_id).await.expect("it is open");
        }
        Step::Vote => {
            model.term += 1;
            let vote = Bytes::from(format!("vote {}", model.term));
            log.save_vote(vote.clone()).await.expect("it is open");
            model.vote = Some(vote);
        }
        Step::Committed if !model.entries.is_empty() => {
            let last = &model.entries[&(model.next() - 1)];
            let log_id = Bytes::from(format!("committed {}", last.index));
            let (term, index) = (last.term, last.index);
            model.committed = Some(log_id.clone());
            let mark = Mark {
                term,
                index,
                log_id,
            };
            log.save_committed(Some(mark));
            log.write_committed().await.expect("it is open");
        }
        Step::Read(part, bytes) => {
            let length = model.next() - model.start;
            let from = model.start + length * u64::from(part) / 256;
            let records = log.read(from, model.next(), bytes).await;
            let mut weight = 0;
            let wanted = model.entries.range(from..).map(|(_, record)| record);
            let wanted: Vec<&Record> = wanted
                .take_while(|record| {
                    let has_room = weight < bytes;
                    weight += record.weight();
                    has_room
                })
                .collect();
            assert!(records.iter().eq(wanted), "entries from {from} on");
        }
        _ => {}
    }
}

async fn compare(opened: &Opened, models: &[Model]) {
    for (log, model) in opened.groups.iter().zip(models) {
        assert_eq!(log.bounds(), model.bounds());
        assert_eq!(log.vote(), model.vote);
        assert_eq!(log.committed(), model.committed);
        let records = log.read(0, u64::MAX, usize::MAX).await;
        assert!(
            records.iter().eq(model.entries.values()),
            "{records:?} are not {model:?}"
        );
    }
}

async fn run(steps: &[(usize, Step)]) {
    let dir = Directory::new();
    let path = dir.path().join("log");
    let mut opened = open(&path);
    let mut models = vec![Model::default(); GROUPS];
    for (group, step) in steps {
        match step {
            Step::Restart => {
                opened.node.close().await;
                drop(opened);
                opened = open(&path);
                compare(&opened, &models).await;
            }
            Step::Kill => {
                opened = kill(opened, &path).await;
                compare(&opened, &models).await;
            }
            step => do_step(&opened, &mut models, *group, step).await,
        }
    }
    opened.node.close().await;
    drop(opened);
    compare(&open(&path), &models).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_log_holds_what_the_model_holds(
        steps in proptest::collection::vec((0..GROUPS, step()), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(run(&steps));
    }
}

/// Makes a log of format 1 with entries 3 to 9.
fn former(path: &Path) {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let db = DB::open_cf(&options, path, ["meta"]).expect("a new database");
    let meta = db.cf_handle("meta").expect("it was made");
    let mut batch = WriteBatch::default();
    let key = |number: u8| [0, 0, 0, 0, number];
    batch.put_cf(meta, key(1), b"vote");
    let purged = [&2_u64.to_be_bytes()[..], b"purged"].concat();
    batch.put_cf(meta, key(2), purged);
    batch.put_cf(meta, key(3), b"committed");
    // Some that were purged may show again.
    for index in 1_u64..10 {
        let key = [&0_u32.to_be_bytes()[..], &index.to_be_bytes()].concat();
        let value = [
            &[1][..],
            &7_u64.to_be_bytes(),
            &index.to_string().into_bytes(),
        ]
        .concat();
        batch.put(key, value);
    }
    db.write(batch).expect("it is written");
}

async fn check_taken_over(path: &Path) {
    take_over(path, || Ok(())).expect("it is taken over");
    let opened = open(path);
    let log = &opened.groups[0];
    let bounds = Bounds {
        start: 3,
        purged: Some(Bytes::from_static(b"purged")),
        last: Some((7, 9)),
    };
    assert_eq!(log.bounds(), bounds);
    assert_eq!(log.vote().as_deref(), Some(&b"vote"[..]));
    assert_eq!(log.committed().as_deref(), Some(&b"committed"[..]));
    let records = log.read(0, u64::MAX, usize::MAX).await;
    let payloads: Vec<&[u8]> = records.iter().map(|record| &record.payload[..]).collect();
    assert_eq!(payloads, [&b"3"[..], b"4", b"5", b"6", b"7", b"8", b"9"]);
    assert!(!path.join("CURRENT").exists());
    assert!(!path.with_extension("rocksdb").exists());
    opened.node.close().await;
}

#[tokio::test]
async fn a_log_of_the_former_format_is_taken_over_once() {
    let dir = Directory::new();
    let path = dir.path().join("log");
    former(&path);
    // A half of a new log, which an earlier attempt left.
    std::fs::create_dir(path.with_extension("new")).expect("a new directory");
    std::fs::write(path.with_extension("new").join("half"), "").expect("a new file");
    check_taken_over(&path).await;
    check_taken_over(&path).await;

    // The process ended between the two renames, or behind them.
    let old = path.with_extension("rocksdb");
    former(&old);
    std::fs::rename(&path, path.with_extension("new")).expect("a free name");
    check_taken_over(&path).await;
    former(&old);
    check_taken_over(&path).await;
    // The new log is gone.
    std::fs::remove_dir_all(&path).expect("it was there");
    former(&old);
    check_taken_over(&path).await;
}

#[tokio::test]
async fn a_log_of_the_former_format_that_can_not_be_removed_is_not_run_beside() {
    let dir = Directory::new();
    let path = dir.path().join("log");
    former(&path);
    {
        let old = path.with_extension("rocksdb");
        let _listener = faults::listen(&old, |step, _| match step {
            faults::Step::DirectoryRemoving => Err(std::io::ErrorKind::PermissionDenied.into()),
            _ => Ok(()),
        });
        // Neither by this start nor by the next one.
        for _ in 0..2 {
            assert!(take_over(&path, || Ok(())).is_err());
            assert!(old.exists());
        }
    }
    check_taken_over(&path).await;
}

#[test]
fn a_log_of_the_former_format_that_can_not_be_copied_stays() {
    let dir = Directory::new();
    let path = dir.path().join("log");
    former(&path);
    let refused = take_over(&path, || Err(OpenError::damaged(&path, "not now")));
    assert!(refused.is_err());
    assert!(path.join("CURRENT").exists());
    // Half of the WAL is another one.
    let wal = std::fs::read_dir(&path).expect("a directory");
    let wal = wal.map(|entry| entry.expect("a file").path());
    let wal = wal.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let wal = wal.max_by_key(|path| path.metadata().map_or(0, |data| data.len()));
    let wal = wal.expect("it has one");
    let mut content = std::fs::read(&wal).expect("it can be read");
    let middle = content.len() / 2;
    content[middle] ^= 0xff;
    content.extend_from_within(..);
    std::fs::write(&wal, content).expect("it can be written");
    assert!(take_over(&path, || Ok(())).is_err());
    assert!(path.join("CURRENT").exists());
    assert!(!path.with_extension("new").exists());
}

#[test]
fn a_log_of_the_former_format_behind_a_link_is_not_begun_with() {
    let dir = Directory::new();
    let (path, elsewhere) = (dir.path().join("log"), dir.path().join("elsewhere"));
    former(&elsewhere);
    std::os::unix::fs::symlink(&elsewhere, &path).expect("a free name");
    let refused = take_over(&path, || panic!("nothing is noted"));
    let refused = refused.expect_err("it can't be renamed").to_string();
    assert!(refused.contains("move its files"), "{refused}");
    assert!(path.join("CURRENT").exists());
}
