//! When to take snapshots and how much log to keep.
//!
//! A follower that was away catches up from the log as long as it lasts, so it is kept by time and bytes. Nothing
//! is purged that the state has not flushed: only what a snapshot covers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;

use super::config::Retention;
use super::metrics::Metrics;
use super::type_config::CoreRaft;
use crate::storage::GroupLog;

/// How often the log is measured and the commit mark written when nothing else is.
const TICK: Duration = Duration::from_millis(500);
/// Distance of the measurements kept.
const STRIDE: Duration = Duration::from_secs(5);

/// The log at one moment: everything below `next` had been appended, `bytes` in all.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    next: u64,
    bytes: u64,
}

struct Keeper {
    core: CoreRaft,
    log: GroupLog,
    metrics: Arc<Metrics>,
    retention: Retention,
    marks: VecDeque<Mark>,
    /// The log when the last snapshot was asked for.
    last_snapshot: Mark,
    purged: u64,
}

/// Runs until Raft ends.
pub(super) fn keep(core: CoreRaft, log: GroupLog, metrics: Arc<Metrics>, retention: Retention) {
    let now = Mark {
        at: Instant::now(),
        next: log.next(),
        bytes: metrics.log.append_bytes.load(Relaxed),
    };
    let mut keeper = Keeper {
        purged: log.bounds().start,
        core,
        log,
        metrics,
        retention,
        marks: VecDeque::from([now]),
        last_snapshot: now,
    };
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TICK).await;
            if keeper.tick().await.is_none() {
                return;
            }
        }
    });
}

impl Keeper {
    /// `None` when Raft or the log has ended.
    async fn tick(&mut self) -> Option<()> {
        if self.log.is_closed() {
            return None;
        }
        self.log.write_committed().await.ok()?;
        let now = Mark {
            at: Instant::now(),
            next: self.log.next(),
            bytes: self.metrics.log.append_bytes.load(Relaxed),
        };
        let newest = self.marks.back().map_or(now.at, |mark| mark.at);
        if now.at.duration_since(newest) >= STRIDE {
            self.marks.push_back(now);
        }
        let appended = now.bytes.saturating_sub(self.last_snapshot.bytes);
        let waited = now.at.duration_since(self.last_snapshot.at).as_millis();
        let due = appended >= self.retention.snapshot_bytes
            || (appended > 0 && waited >= u128::from(self.retention.snapshot_interval_ms));
        if due {
            self.last_snapshot = now;
            self.core.trigger().snapshot().await.ok()?;
        }
        self.purge(now).await
    }

    async fn purge(&mut self, now: Mark) -> Option<()> {
        let snapshot = self.core.data_metrics().borrow_watched().snapshot;
        let Some(snapshot) = snapshot else {
            return Some(());
        };
        let from = keep_from(&mut self.marks, now, &self.retention);
        let upto = from.saturating_sub(1).min(snapshot.index);
        // Small purges cost as much as large ones.
        if upto < self.purged.saturating_add(1) {
            return Some(());
        }
        self.core.trigger().purge_log(upto).await.ok()?;
        self.purged = upto + 1;
        Some(())
    }
}

/// The first index that has to stay. Forgets marks that are not needed any more.
fn keep_from(marks: &mut VecDeque<Mark>, now: Mark, retention: &Retention) -> u64 {
    let age = Duration::from_millis(retention.keep_ms);
    let removable = |mark: &Mark| {
        let newer = now.bytes.saturating_sub(mark.bytes);
        let old = now.at.duration_since(mark.at) >= age && newer >= retention.min_log_bytes;
        old || newer >= retention.max_log_bytes
    };
    // The newest removable mark stays as the oldest: it says where the log begins until the next one is removable.
    while marks.get(1).is_some_and(removable) {
        marks.pop_front();
    }
    match marks.front() {
        Some(mark) if removable(mark) => mark.next,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Retention = Retention {
        snapshot_bytes: 0,
        snapshot_interval_ms: 0,
        keep_ms: 10_000,
        min_log_bytes: 100,
        max_log_bytes: 1_000,
    };

    /// One entry of ten bytes a second.
    fn marks(seconds: u64, start: Instant) -> VecDeque<Mark> {
        (0..=seconds).map(|second| mark(second, start)).collect()
    }

    fn mark(second: u64, start: Instant) -> Mark {
        Mark {
            at: start + Duration::from_secs(second),
            next: second,
            bytes: second * 10,
        }
    }

    #[test]
    fn young_entries_stay() {
        let start = Instant::now();
        assert_eq!(
            keep_from(&mut marks(9, start), mark(9, start), &RETENTION),
            0
        );
        assert_eq!(
            keep_from(&mut marks(30, start), mark(30, start), &RETENTION),
            20
        );
    }

    #[test]
    fn old_entries_stay_while_the_log_is_small() {
        let start = Instant::now();
        let mut idle = mark(5, start);
        idle.at += Duration::from_secs(3600);
        assert_eq!(keep_from(&mut marks(5, start), idle, &RETENTION), 0);
    }

    #[test]
    fn a_large_log_loses_young_entries_too() {
        let start = Instant::now();
        let mut burst = mark(5, start);
        burst.bytes += 1_000;
        burst.next = 500;
        assert_eq!(keep_from(&mut marks(5, start), burst, &RETENTION), 5);
    }

    #[test]
    fn marks_that_have_served_go() {
        let start = Instant::now();
        let mut kept = marks(30, start);
        keep_from(&mut kept, mark(30, start), &RETENTION);
        assert_eq!(kept.len(), 11, "the border and what is younger");
        assert_eq!(
            keep_from(&mut kept, mark(30, start), &RETENTION),
            20,
            "still known"
        );
    }
}
