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
        let keep_from = self.keep_from(now);
        let upto = keep_from.saturating_sub(1).min(snapshot.index);
        // Small purges cost as much as large ones.
        if upto < self.purged.saturating_add(1) {
            return Some(());
        }
        self.core.trigger().purge_log(upto).await.ok()?;
        self.purged = upto + 1;
        Some(())
    }

    /// The first index that has to stay.
    fn keep_from(&mut self, now: Mark) -> u64 {
        let age = Duration::from_millis(self.retention.keep_ms);
        let removable = |mark: &Mark, retention: &Retention| {
            let newer = now.bytes.saturating_sub(mark.bytes);
            let old = now.at.duration_since(mark.at) >= age && newer >= retention.min_log_bytes;
            old || newer >= retention.max_log_bytes
        };
        let mut from = 0;
        // The newest mark that is removable stays as the oldest, so that the log's size below it is known.
        while let Some(mark) = self.marks.front() {
            if !removable(mark, &self.retention) {
                break;
            }
            from = mark.next;
            if self
                .marks
                .get(1)
                .is_some_and(|next| removable(next, &self.retention))
            {
                self.marks.pop_front();
            } else {
                break;
            }
        }
        from
    }
}
