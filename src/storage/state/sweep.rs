//! Has tombstones compacted away that scans have to pass.
//!
//! Rows that come and go at one place leave tombstones there, up to hundreds of thousands in RocksDB's memtable and in
//! files of level 0, and every scan that begins before them passes them all. RocksDB compacts by size and does not see
//! that. So a scan that has passed many has its range compacted, on a thread of its own.
//!
//! Invariant: one range is compacted at a time, for a small part of the time: clients choose what is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rocksdb::{BottommostLevelCompaction, CompactOptions};

use super::generation::Generation;

/// Tombstones that scans may pass before their range is compacted: a millisecond of apply at most.
const MOST_TOMBSTONES: u64 = 4 << 10;

/// Fewer that one scan passes do not count.
pub const NOTEWORTHY: u64 = 256;

/// How long what waits in memory may take to come to RocksDB before a compaction goes without.
pub const PUSH_DOWN_WITHIN: Duration = Duration::from_secs(1);

/// How many times as long as a compaction took none begins: it rewrites all of level 0 and what is below that.
const REST: u32 = 10;

/// That time at least.
const LEAST_REST: Duration = Duration::from_secs(1);

/// A range of keys, without its end.
type KeyRange = (Vec<u8>, Vec<u8>);

#[derive(Default)]
enum Work {
    #[default]
    None,
    Compacting(Arc<Generation>),
    RestingUntil(Instant),
    Ended,
}

/// What scans of one table have passed since its last compaction began.
struct Noted {
    tombstones: u64,
    range: KeyRange,
}

#[derive(Default)]
struct State {
    work: Work,
    /// By the first byte of the keys. What lies between two tables has nothing to do with their tombstones.
    tables: BTreeMap<u8, Noted>,
}

/// Has ranges compacted.
#[derive(Default)]
pub struct Sweeper(Mutex<State>);

impl Sweeper {
    /// Notes how many tombstones a scan has passed. Returns the range of all that were noted in its table when they are
    /// too many and it is time.
    pub fn note(&self, passed: u64, from: &[u8], to: &[u8]) -> Option<KeyRange> {
        let mut state = self.0.lock();
        let State { work, tables } = &mut *state;
        let table = from.first().copied().unwrap_or_default();
        let noted = tables.entry(table).or_insert_with(|| Noted {
            tombstones: 0,
            range: (from.to_vec(), to.to_vec()),
        });
        noted.tombstones = noted.tombstones.saturating_add(passed);
        let (first, last) = &mut noted.range;
        if from < first.as_slice() {
            *first = from.to_vec();
        }
        if to > last.as_slice() {
            *last = to.to_vec();
        }
        let is_time = match work {
            Work::None => true,
            Work::RestingUntil(until) => Instant::now() >= *until,
            Work::Compacting(_) | Work::Ended => false,
        };
        if noted.tombstones < MOST_TOMBSTONES || !is_time {
            return None;
        }
        tables.remove(&table).map(|noted| noted.range)
    }

    /// Has a range compacted, once `push_down` has brought to RocksDB what waits in memory; unless one is already.
    pub fn sweep(
        self: &Arc<Self>,
        generation: Arc<Generation>,
        (from, to): KeyRange,
        push_down: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.0.lock();
        if matches!(state.work, Work::Compacting(_) | Work::Ended) {
            return;
        }
        let (sweeper, database) = (Arc::clone(self), Arc::clone(&generation));
        let work = move || {
            let started = Instant::now();
            push_down();
            compact(&database, &from, &to);
            sweeper.rest(&database, started.elapsed());
        };
        let thread = std::thread::Builder::new().name("state-sweep".into());
        // When no thread can be had, a later scan tries again.
        if thread.spawn(work).is_ok() {
            state.work = Work::Compacting(generation);
        }
    }

    fn rest(&self, generation: &Arc<Generation>, took: Duration) {
        tracing::debug!(?took, "tombstones that scans had to pass were compacted");
        let mut state = self.0.lock();
        // Its database may have been replaced meanwhile.
        if matches!(&state.work, Work::Compacting(now) if Arc::ptr_eq(now, generation)) {
            let rest = took.saturating_mul(REST).max(LEAST_REST);
            state.work = Work::RestingUntil(Instant::now() + rest);
        }
    }

    /// Ends the compaction of a database that was replaced.
    pub fn leave(&self, replaced: &Arc<Generation>) {
        let mut state = self.0.lock();
        if matches!(&state.work, Work::Compacting(now) if Arc::ptr_eq(now, replaced)) {
            state.work = Work::None;
            let replaced = Arc::clone(replaced);
            // RocksDB flushes before that what was not written yet. Without a thread the compaction goes on to its end.
            let cancel = move || replaced.db().cancel_all_background_work(false);
            let _ = std::thread::Builder::new()
                .name("state-leave".into())
                .spawn(cancel);
        }
    }

    /// Ends the compaction that is under way, and begins no other: the database is about to be closed.
    pub fn end(&self) {
        let before = std::mem::replace(&mut self.0.lock().work, Work::Ended);
        if let Work::Compacting(generation) = before {
            generation.db().cancel_all_background_work(false);
        }
    }
}

fn compact(generation: &Generation, from: &[u8], to: &[u8]) {
    let mut options = CompactOptions::default();
    // RocksDB's own compactions go on.
    options.set_exclusive_manual_compaction(false);
    // What a snapshot has kept from going comes to the last level, too.
    options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
    let db = generation.db();
    db.compact_range_opt(Some(from), Some(to), &options);
}

thread_local! {
    static COUNTED: PerfContext = {
        set_perf_stats(PerfStatsLevel::EnableCount);
        PerfContext::default()
    };
}

/// Tombstones that scans of this thread have passed since it was asked for the first time.
pub fn passed() -> u64 {
    COUNTED.with(|counted| counted.metric(PerfMetric::InternalDeleteSkippedCount))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::{Duration, Instant};

    use super::super::StateDb;
    use super::{MOST_TOMBSTONES, NOTEWORTHY, Sweeper, passed};
    use crate::machine::tables::{Backing as _, Change, Changes};
    use crate::storage::Directory;

    /// Tombstones that a scan of all rows passes.
    fn passed_by_a_scan(state: &StateDb) -> u64 {
        let before = passed();
        let mut rows = 0;
        state.scan(&[1], &[2], &mut |_, _| {
            rows += 1;
            true
        });
        assert_eq!(rows, 1, "the last one stays");
        passed() - before
    }

    #[test]
    fn tombstones_that_a_scan_has_passed_are_compacted_away() {
        let dir = Directory::new();
        let state = StateDb::open(dir.path()).expect("an empty directory");
        let keys = || (0..2 * MOST_TOMBSTONES).map(|row| [&[1][..], &row.to_be_bytes()].concat());
        let put = |key| (key, Change::Put("row".into()));
        let mut changes: Changes = keys().map(put).collect();
        changes.insert([1, 255].to_vec(), Change::Put("last".into()));
        state.write(changes, &[]);
        state.flush();
        state.write(keys().map(|key| (key, Change::Delete)).collect(), &[]);
        state.flush();
        assert_eq!(passed_by_a_scan(&state), 2 * MOST_TOMBSTONES);
        let deadline = Instant::now() + Duration::from_secs(60);
        while passed_by_a_scan(&state) > 0 {
            assert!(Instant::now() < deadline, "the tombstones stay");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn many_scans_that_pass_some_tombstones_each_count_together() {
        let sweeper = Arc::new(Sweeper::default());
        let scans = MOST_TOMBSTONES.div_ceil(NOTEWORTHY);
        for scan in 1..scans {
            let key = [1, scan as u8];
            assert_eq!(sweeper.note(NOTEWORTHY, &key, &key), None, "{scan}");
        }
        let other_table = sweeper.note(NOTEWORTHY, &[2, 0], &[2, 200]);
        assert_eq!(other_table, None);
        let range = (vec![1, 0], vec![1, 200]);
        assert_eq!(sweeper.note(NOTEWORTHY, &[1, 0], &[1, 200]), Some(range));
        // They count anew from here on.
        assert_eq!(sweeper.note(NOTEWORTHY, &[1, 0], &[1, 200]), None);
        sweeper.end();
        let ended = sweeper.note(MOST_TOMBSTONES, &[1, 0], &[1, 200]);
        assert_eq!(ended, None);
    }

    #[test]
    fn a_state_whose_log_has_ended_is_written_no_more() {
        let dir = Directory::new();
        let row = |key: u8| Changes::from([(vec![1, key], Change::Put("row".into()))]);
        let goes_on = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&goes_on);
        let barrier = Box::new(move || asked.load(Relaxed));
        let state = StateDb::open_behind(dir.path(), barrier).expect("an empty directory");
        state.write(row(1), &[]);
        state.flush();
        goes_on.store(false, Relaxed);
        state.write(row(2), &[]);
        state.flush();
        let copy = state.checkpoint(&dir.path().join("copy"));
        assert!(copy.is_err(), "it would lack a row");
        drop(state);
        let state = StateDb::open(dir.path()).expect("it was closed");
        assert!(state.get(&[1, 1]).is_some());
        assert!(state.get(&[1, 2]).is_none());
    }
}
