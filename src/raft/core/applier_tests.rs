//! The thread shows the state exactly as it is after the entry that asks for it, whatever follows in the same job.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;

use super::super::apply::Look;
use super::super::type_config::Batch;
use super::*;
use crate::base::ids::GROUP_ZERO;
use crate::raft::metrics::LogMetrics;
use crate::raft::types::NOTHING;
use crate::storage::{Directory, NodeLog, StateView};

/// Writes a row per entry, and asks for a view after every third.
struct EveryThird {
    last: u64,
    found: mpsc::Sender<(u64, Vec<u8>)>,
    /// Closed when views may be read.
    go_on: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Apply for EveryThird {
    fn apply(&mut self, index: LogIndex, _batch: Bytes, tables: &mut Tables<'_>) {
        self.last = index.0;
        tables.put_bytes(vec![1, index.0 as u8], vec![0]);
    }

    fn look(&mut self) -> Option<Look> {
        let (index, found) = (self.last, self.found.clone());
        let go_on = Arc::clone(&self.go_on);
        let work = move |view: &StateView<'_>| {
            let _ = go_on.lock().recv();
            let mut keys = Vec::new();
            view.scan(&[1], &[2], &mut |key, _| {
                keys.push(key[1]);
                true
            });
            found.send((index, keys)).expect("the test goes on");
        };
        (index % 3 == 0).then(|| Box::new(work) as Look)
    }

    fn committed(&mut self, _last: LogIndex) {}

    fn restored(&mut self, _backing: &dyn Backing, _last: LogIndex) {}
}

/// The replica of an empty directory, and its log.
fn target(data: &Path) -> (Target, NodeLog) {
    let counters = Arc::new(LogMetrics::default());
    let node_log = NodeLog::open(&data.join("log"), Arc::clone(&counters), None);
    let node_log = node_log.expect("an empty directory");
    let target = Target {
        state: Arc::new(StateDb::open(data).expect("an empty directory")),
        snapshots: Arc::new(Snapshots::open(data).expect("an empty directory")),
        log: node_log.group(GROUP_ZERO, 0),
        metrics: Arc::new(Metrics::new(counters)),
        applied: watch::channel(NOTHING).0,
        term: watch::channel(0).0,
        removed: Removed::default(),
    };
    (target, node_log)
}

fn entry(index: u64) -> (Entry, Option<Responder>) {
    let payload = Payload::Normal(Batch(Bytes::new()));
    let log_id = encoding::log_id(1, index);
    (Entry { log_id, payload }, None)
}

#[tokio::test]
async fn a_view_has_the_rows_of_its_entry_and_none_of_the_next() {
    let dir = Directory::new();
    let (target, _log) = target(dir.path());
    let state = Arc::clone(&target.state);
    let (found, finds) = mpsc::channel();
    let (held, go_on) = mpsc::channel();
    let apply = EveryThird {
        last: 0,
        found,
        go_on: Arc::new(Mutex::new(go_on)),
    };
    let applier = StateMachineApplier::start(Box::new(apply), target).expect("a thread");
    for entries in [(1..=7), (8..=9), (10..=20)] {
        let entries = entries.map(entry).collect();
        let applied = applier.ask(|done| Job::Apply { entries, done }).await;
        applied.expect("the thread runs");
    }
    // Nothing is read before everything is applied.
    drop(held);
    let mut views: Vec<(u64, Vec<u8>)> = Vec::new();
    while views.len() < 6 {
        let view = finds.recv_timeout(Duration::from_secs(60));
        views.push(view.expect("the threads run"));
    }
    views.sort();
    let expected = [3u8, 6, 9, 12, 15, 18].map(|last| (last.into(), (1..=last).collect()));
    assert_eq!(views, expected);
    let mut last = 0;
    state.scan(&[1], &[2], &mut |key, _| {
        last = key[1];
        true
    });
    assert_eq!(last, 20, "what follows is applied, too");
    applier.stop().await;
}

/// Takes its time for every entry, and notes up to which ones its outputs are released.
struct Slow(Arc<Mutex<Vec<u64>>>);

impl Apply for Slow {
    fn apply(&mut self, _index: LogIndex, _batch: Bytes, _tables: &mut Tables<'_>) {
        std::thread::sleep(TOGETHER);
    }

    fn committed(&mut self, last: LogIndex) {
        self.0.lock().push(last.0);
    }

    fn restored(&mut self, _backing: &dyn Backing, _last: LogIndex) {}
}

/// However many are ready together: whoever waits for the first does not wait for all.
#[tokio::test]
async fn entries_that_take_long_are_written_one_by_one() {
    let dir = Directory::new();
    let (target, _log) = target(dir.path());
    let released = Arc::<Mutex<Vec<u64>>>::default();
    let apply = Box::new(Slow(Arc::clone(&released)));
    let applier = StateMachineApplier::start(apply, target).expect("a thread");
    let entries = (1..=5).map(entry).collect();
    let applied = applier.ask(|done| Job::Apply { entries, done }).await;
    applied.expect("the thread runs");
    assert_eq!(*released.lock(), [1, 2, 3, 4, 5]);
    applier.stop().await;
}

/// Its files differ from those of the snapshot before: who has received some of those must not mix them.
#[tokio::test]
async fn a_snapshot_after_a_take_over_is_another_one() {
    let dir = Directory::new();
    let (target, _log) = target(dir.path());
    let (state, snapshots) = (Arc::clone(&target.state), Arc::clone(&target.snapshots));
    let apply = EveryThird {
        last: 0,
        found: mpsc::channel().0,
        go_on: Arc::new(Mutex::new(mpsc::channel().1)),
    };
    let applier = StateMachineApplier::start(Box::new(apply), target).expect("a thread");
    let mut ids = Vec::new();
    for version in [9u32, 9, 10] {
        state.write(Changes::new(), &[(MACHINE, &version.to_be_bytes())]);
        let taken = take_snapshot(&applier, &snapshots).await.expect("taken");
        ids.push(taken.1.id);
    }
    assert_eq!(ids[0], ids[1], "nothing is new");
    assert!(ids[1] < ids[2], "{ids:?}");
    applier.stop().await;
}
