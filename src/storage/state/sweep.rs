//! Has tombstones compacted away that scans have to pass.
//!
//! Rows that come and go at one place leave tombstones there, up to hundreds of thousands in RocksDB's memtable and in
//! files of level 0, and every scan that begins before them passes them all. RocksDB compacts by size and does not see
//! that. So a scan that has passed many has its range compacted, on a thread of its own.
//!
//! Invariant: one range is compacted at a time, for a small part of the time: clients choose what is deleted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rocksdb::CompactOptions;
use rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};

use super::generation::Generation;

/// Tombstones that a scan may pass in one step, which takes it a millisecond at most.
pub const MOST_TOMBSTONES: u64 = 4 << 10;

/// How long what waits in memory may take to come to RocksDB before a compaction goes without.
pub const PUSH_DOWN_WITHIN: Duration = Duration::from_secs(1);

/// How many times as long as a compaction took none begins.
const REST: u32 = 10;

enum State {
    Idle,
    Compacting(Arc<Generation>),
    RestingUntil(Instant),
    Ended,
}

/// Has ranges compacted.
pub struct Sweeper(Mutex<State>);

impl Sweeper {
    pub fn new() -> Arc<Sweeper> {
        Arc::new(Sweeper(Mutex::new(State::Idle)))
    }

    /// Has a range compacted, once `push_down` has brought to RocksDB what waits in memory; unless one is, or was just
    /// now.
    pub fn sweep(
        self: &Arc<Self>,
        generation: Arc<Generation>,
        from: &[u8],
        to: &[u8],
        push_down: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.0.lock();
        match *state {
            State::RestingUntil(until) if Instant::now() < until => return,
            State::Compacting(_) | State::Ended => return,
            State::RestingUntil(_) | State::Idle => {}
        }
        let (sweeper, database) = (Arc::clone(self), Arc::clone(&generation));
        let (from, to) = (from.to_vec(), to.to_vec());
        let work = move || {
            let started = Instant::now();
            push_down();
            compact(&database, &from, &to);
            sweeper.rest(started.elapsed());
        };
        let thread = std::thread::Builder::new().name("state-sweep".into());
        // When no thread can be had, a later scan tries again.
        if thread.spawn(work).is_ok() {
            *state = State::Compacting(generation);
        }
    }

    fn rest(&self, took: Duration) {
        tracing::info!(?took, "tombstones that a scan had to pass were compacted");
        let mut state = self.0.lock();
        if !matches!(*state, State::Ended) {
            *state = State::RestingUntil(Instant::now() + took.saturating_mul(REST));
        }
    }

    /// Ends a compaction that is under way: its database is about to be closed.
    pub fn end(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Ended);
        if let State::Compacting(generation) = before {
            generation.db().cancel_all_background_work(false);
        }
    }
}

fn compact(generation: &Generation, from: &[u8], to: &[u8]) {
    let mut options = CompactOptions::default();
    // RocksDB's own compactions go on.
    options.set_exclusive_manual_compaction(false);
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
    use std::time::{Duration, Instant};

    use super::super::StateDb;
    use super::{MOST_TOMBSTONES, passed};
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
}
