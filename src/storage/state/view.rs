//! The state as it was at one moment, for work that takes long: rows that are written later are not seen.
//!
//! A view is a snapshot of RocksDB and the rows above it, which were frozen. RocksDB keeps what the snapshot needs
//! until it goes, and the snapshot belongs to the stack of a thread, so there is one thread per view. It holds no
//! iterator for long, because that would keep memory and files besides.
//!
//! Invariant: whoever works with a view asks now and then whether it is needed ([`StateView::is_needed`]), and ends
//! soon when it is not. An open view keeps its database open.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use bytes::Bytes;
use rocksdb::{DB, DBRawIterator, ReadOptions, SnapshotWithThreadMode};

use super::generation::Generation;
use super::memtable::{Memtable, ScanEnd, View};
use crate::base::pulse::{Phase, wait};
use crate::machine::tables::Backing;
use crate::storage::fatal::fatal;

/// Rows of RocksDB that a scan looks at before it begins anew where it is: an iterator keeps files and memory from
/// being freed.
const STEP_ROWS: usize = 4096;

/// The same in bytes of their values.
const STEP_BYTES: usize = 16 << 20;

/// The state at one moment.
pub struct StateView<'a> {
    snapshot: SnapshotWithThreadMode<'a, DB>,
    recent: Option<Arc<Memtable>>,
    generation: &'a Arc<Generation>,
    is_current: &'a IsCurrent,
}

/// Whether a database is still the one in use.
pub type IsCurrent = dyn Fn(&Arc<Generation>) -> bool + Send + Sync;

/// What a view begins with: a database, and the rows above it, which change no more.
pub struct Moment {
    /// The database.
    pub generation: Arc<Generation>,
    /// The rows above it.
    pub recent: Option<Arc<Memtable>>,
    /// Whether the database still has nothing that is newer than those rows.
    pub is_whole: Box<dyn Fn() -> bool>,
}

/// Has `work` look at the rows of a database as they are at a moment. Returns when the snapshot is taken, and `work`
/// goes on.
///
/// Whoever does not write himself takes the moment again when newer rows came into the database before its snapshot was
/// taken: together with the older ones above it they would be a state that never was.
pub fn look(
    moment: impl Fn() -> Moment + Send + 'static,
    is_current: Box<IsCurrent>,
    work: impl FnOnce(&StateView<'_>) + Send + 'static,
) -> io::Result<()> {
    let (taken, is_taken) = mpsc::channel();
    let look = move || {
        loop {
            let Moment {
                generation,
                recent,
                is_whole,
            } = moment();
            let view = StateView {
                snapshot: generation.db().snapshot(),
                recent,
                generation: &generation,
                is_current: &*is_current,
            };
            if !is_whole() {
                continue;
            }
            // They hold the state, which the view is not to.
            drop((is_whole, moment));
            // Whoever asked waits for this.
            let _ = taken.send(());
            return work(&view);
        }
    };
    std::thread::Builder::new()
        .name("state-view".into())
        .spawn(look)?;
    is_taken
        .recv()
        .map_err(|_| io::Error::other("the thread has ended"))
}

impl StateView<'_> {
    /// Whether the state that the view is of is still in use. It is not when the node stops, or has installed a
    /// snapshot.
    pub fn is_needed(&self) -> bool {
        (self.is_current)(self.generation)
    }

    fn step(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> ScanEnd {
        let mut read = ReadOptions::default();
        read.set_iterate_upper_bound(to);
        // What is read once must not displace what is read often.
        read.fill_cache(false);
        let mut rows = self.snapshot.raw_iterator_opt(read);
        let stored = |show: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
            let stopped_at = show_rows(&mut rows, from, to, show);
            if let Err(error) = rows.status() {
                fatal("reading the state", &error);
            }
            stopped_at
        };
        View::of(self.recent.clone()).scan(from, to, stored, visit)
    }
}

impl Backing for StateView<'_> {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        let recent = self.recent.as_ref();
        if let Some(change) = recent.and_then(|recent| recent.rows.get(key)) {
            return change.value().cloned();
        }
        match self.snapshot.get_pinned(key) {
            Ok(value) => value.map(|value| Bytes::copy_from_slice(&value)),
            Err(error) => fatal("reading the state", &error),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let mut from = from.to_vec();
        while from.as_slice() < to {
            match self.step(&from, to, visit) {
                ScanEnd::Before(key) => from = key,
                ScanEnd::Left => return,
            }
        }
    }
}

/// Shows the rows of a range until `show` returns `false`, or until one step is done: returns the key that is next.
pub fn show_rows(
    rows: &mut DBRawIterator<'_>,
    from: &[u8],
    end: &[u8],
    show: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Option<Vec<u8>> {
    let (mut looked_at, mut bytes) = (0, 0);
    wait(Phase::StateRead, || rows.seek(from));
    while let Some((key, value)) = rows.item()
        && key < end
    {
        if looked_at == STEP_ROWS || bytes >= STEP_BYTES {
            return Some(key.to_vec());
        }
        looked_at += 1;
        bytes += value.len();
        if !show(key, value) {
            return None;
        }
        wait(Phase::StateRead, || rows.next());
    }
    None
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
