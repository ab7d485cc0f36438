//! When to take snapshots, and how much log to keep.
//!
//! A follower that was away catches up from the log as far back as it reaches, so the log is kept by time and bytes.
//! The task samples the log's length now and then, to know later which entries are old.
//!
//! The library purges nothing that a stream of entries may still need. A follower that is slower than its leader for
//! hours would keep the whole log, so beyond twice its size such streams are given up ([`Overdue`]).
//!
//! Invariant: only what a snapshot covers is purged, because the state on disk may lack the rest. See
//! `docs/spec/replication.md`, Storage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;

use super::config::Retention;
use super::state_machine::CoreRaft;
use crate::raft::metrics::Metrics;
use crate::storage::GroupLog;

/// How often the log is looked at, and the committed log id written when no append takes it along.
const TICK: Duration = Duration::from_millis(500);
/// Least time between two samples that are kept, unless the log grows faster than by its greatest length in so many.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
const MOST_SAMPLES: u64 = 64;

/// Where the log is to begin although streams of entries need more of it. A stream whose follower has not come so far
/// ends, and the follower gets a snapshot.
#[derive(Clone, Default)]
pub struct Overdue(Arc<AtomicU64>);

impl Overdue {
    /// Whether a follower that has everything up to `index` needs what is to go.
    pub fn is_needed_behind(&self, index: u64) -> bool {
        index.saturating_add(1) < self.0.load(Relaxed)
    }
}

/// The log at one moment: everything below `next` had been appended, `bytes` in all with what was there at the start.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    next: u64,
    bytes: u64,
}

struct Keeper {
    core: CoreRaft,
    log: GroupLog,
    metrics: Arc<Metrics>,
    retention: Retention,
    overdue: Overdue,
    /// The log where it was first asked to begin and does not yet.
    waits: Option<Sample>,
    samples: VecDeque<Sample>,
    /// The log when the last snapshot was asked for.
    last_snapshot: Sample,
    /// Index after the last one that was asked to be purged.
    purged: u64,
    /// Bytes of the log at the start, about.
    found: u64,
}

/// Starts the task that takes snapshots and purges. It runs until Raft ends.
pub fn keep(
    core: CoreRaft,
    log: GroupLog,
    metrics: Arc<Metrics>,
    retention: Retention,
    overdue: Overdue,
) {
    // How old it is what was there is not known: it counts as new.
    let at = Instant::now();
    let stored = log.stored().into_iter();
    let mut samples: VecDeque<Sample> = stored
        .map(|(next, bytes)| Sample { at, next, bytes })
        .collect();
    let found = samples.back().map_or(0, |newest| newest.bytes);
    let now = Sample {
        at,
        next: log.next(),
        bytes: found + metrics.log.append_bytes.load(Relaxed),
    };
    samples.push_back(now);
    let mut keeper = Keeper {
        found,
        purged: log.bounds().start,
        core,
        log,
        metrics,
        retention,
        overdue,
        waits: None,
        samples,
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
    /// One look at the log; `None` when Raft or the log has ended.
    async fn tick(&mut self) -> Option<()> {
        if self.log.is_closed() {
            return None;
        }
        self.log.write_committed().await.ok()?;
        let now = Sample {
            at: Instant::now(),
            next: self.log.next(),
            bytes: self.found + self.metrics.log.append_bytes.load(Relaxed),
        };
        let newest = self.samples.back().copied().unwrap_or(now);
        let is_due = now.at.duration_since(newest.at) >= SAMPLE_INTERVAL
            || now.bytes.saturating_sub(newest.bytes)
                >= self.retention.max_log_bytes / MOST_SAMPLES;
        if now.next > newest.next && is_due {
            self.samples.push_back(now);
        }
        let appended = now.bytes.saturating_sub(self.last_snapshot.bytes);
        let waited = now.at.duration_since(self.last_snapshot.at).as_millis();
        let has_grown = now.next > self.last_snapshot.next;
        let due = appended >= self.retention.snapshot_bytes
            || (has_grown && waited >= u128::from(self.retention.snapshot_interval_ms));
        if due {
            self.last_snapshot = now;
            self.core.trigger().snapshot().await.ok()?;
        }
        self.purge(now).await
    }

    async fn purge(&mut self, now: Sample) -> Option<()> {
        let snapshot = self.core.data_metrics().borrow_watched().snapshot;
        let Some(snapshot) = snapshot else {
            return Some(());
        };
        let from = keep_from(&mut self.samples, now, &self.retention);
        self.give_up(now);
        let upto = from.saturating_sub(1).min(snapshot.index);
        // Small purges cost as much as large ones.
        if upto < self.purged.saturating_add(1) {
            return Some(());
        }
        self.core.trigger().purge_log(upto).await.ok()?;
        self.purged = upto + 1;
        if self.waits.is_none() {
            self.waits = self.samples.front().copied();
        }
        Some(())
    }

    /// Says which entries no stream may need any more, when those that wait to be purged make the log too long.
    fn give_up(&mut self, now: Sample) {
        let begin = self.log.bounds().start;
        if self.waits.is_some_and(|waits| begin >= waits.next) {
            self.waits = None;
        }
        let most = self.retention.max_log_bytes.saturating_mul(2);
        if self
            .waits
            .is_some_and(|waits| now.bytes.saturating_sub(waits.bytes) >= most)
        {
            self.overdue.0.store(self.purged, Relaxed);
        }
    }
}

/// The first index that has to stay. Forgets samples that are not needed any more.
fn keep_from(samples: &mut VecDeque<Sample>, now: Sample, retention: &Retention) -> u64 {
    let age = Duration::from_millis(retention.keep_ms);
    let removable = |sample: &Sample| {
        let newer = now.bytes.saturating_sub(sample.bytes);
        let old = now.at.duration_since(sample.at) >= age && newer >= retention.min_log_bytes;
        old || newer >= retention.max_log_bytes
    };
    // The newest sample whose entries may go stays as the oldest: it says where the log begins until the next may go.
    while samples.get(1).is_some_and(removable) {
        samples.pop_front();
    }
    match samples.front() {
        Some(sample) if removable(sample) => sample.next,
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
    fn samples(seconds: u64, start: Instant) -> VecDeque<Sample> {
        (0..=seconds).map(|second| sample(second, start)).collect()
    }

    fn sample(second: u64, start: Instant) -> Sample {
        Sample {
            at: start + Duration::from_secs(second),
            next: second,
            bytes: second * 10,
        }
    }

    #[test]
    fn a_log_is_a_small_part_of_its_volume() {
        let most = |bytes| Retention::default().on_volume(bytes).max_log_bytes;
        assert_eq!(most(0), 4 << 30);
        assert_eq!(most(8 << 30), 1 << 30);
        assert_eq!(most(1 << 40), 4 << 30);
        assert_eq!(most(100 << 20), Retention::default().min_log_bytes);
    }

    #[test]
    fn what_was_there_at_the_start_goes_when_it_is_old_and_there_is_more() {
        let start = Instant::now();
        let found = |next, bytes| Sample {
            at: start,
            next,
            bytes,
        };
        let mut samples = VecDeque::from([found(3, 0), found(7, 60), found(9, 120)]);
        let mut now = found(12, 150);
        assert_eq!(keep_from(&mut samples.clone(), now, &RETENTION), 0, "young");
        now.at += Duration::from_secs(3600);
        assert_eq!(keep_from(&mut samples, now, &RETENTION), 3);
        now.bytes = 170;
        assert_eq!(keep_from(&mut samples, now, &RETENTION), 7);
    }

    #[test]
    fn young_entries_stay() {
        let start = Instant::now();
        assert_eq!(
            keep_from(&mut samples(9, start), sample(9, start), &RETENTION),
            0
        );
        assert_eq!(
            keep_from(&mut samples(30, start), sample(30, start), &RETENTION),
            20
        );
    }

    #[test]
    fn old_entries_stay_while_the_log_is_small() {
        let start = Instant::now();
        let mut idle = sample(5, start);
        idle.at += Duration::from_secs(3600);
        assert_eq!(keep_from(&mut samples(5, start), idle, &RETENTION), 0);
    }

    #[test]
    fn a_large_log_loses_young_entries_too() {
        let start = Instant::now();
        let mut grown = sample(5, start);
        grown.bytes += 1_000;
        grown.next = 500;
        assert_eq!(keep_from(&mut samples(5, start), grown, &RETENTION), 5);
    }

    #[test]
    fn samples_that_are_not_needed_any_more_go() {
        let start = Instant::now();
        let mut kept = samples(30, start);
        keep_from(&mut kept, sample(30, start), &RETENTION);
        assert_eq!(kept.len(), 11, "the border and what is younger");
        assert_eq!(
            keep_from(&mut kept, sample(30, start), &RETENTION),
            20,
            "still known"
        );
    }
}
