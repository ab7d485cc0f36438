//! Rows that were applied lately and are not in RocksDB yet.
//!
//! Apply writes into the *active* memtable. When that is full it becomes the *immutable* one, which a thread of its own
//! writes to RocksDB in one batch.
//!
//! Invariant: a memtable holds whole applied batches with the log id they go up to, so RocksDB always has a prefix of
//! the applied batches.
//! Invariant: the immutable memtable stays readable until RocksDB shows its rows.
//!
//! The state has no write-ahead log: what RocksDB has not flushed is applied again from the log after a crash, so
//! nothing is lost when some more megabytes wait here. A row that changes again and again is then written once. A row
//! that is deleted before it was written (a message that was delivered at once) is never written. And what apply has
//! just written it reads without a search among hundreds of thousands of versions. See
//! `docs/adr/0005-recent-rows-above-rocksdb.md`.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::base::pulse::{Phase, busy};
use crate::machine::tables::{Change, Changes};

/// Bytes of keys and values with which the active memtable is full.
const MEMTABLE_BYTES: usize = 8 << 20;

/// Bytes that a row counts with beside its key and value.
const ROW_BYTES: usize = 64;

/// Rows of the active memtable that a view takes: its lock, which apply needs, is held meanwhile.
const VIEW_ROWS: usize = 256;

/// Bytes of their keys, likewise.
const VIEW_BYTES: usize = 64 << 10;

/// Changes of rows, by key.
#[derive(Default)]
pub struct Memtable {
    pub rows: BTreeMap<Vec<u8>, Change>,
    bytes: usize,
}

impl Memtable {
    fn add(&mut self, key: Vec<u8>, change: Change) {
        let size = |change: &Change| change.value().map_or(0, |value| value.len());
        match self.rows.entry(key) {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                self.bytes += ROW_BYTES + vacant.key().len() + size(&change);
                vacant.insert(change);
            }
            std::collections::btree_map::Entry::Occupied(mut known) => {
                self.bytes = self.bytes + size(&change) - size(known.get());
                match (known.get(), change) {
                    // What is nowhere below needs no trace here.
                    (Change::New(_), Change::Delete) => {
                        self.bytes -= ROW_BYTES + known.key().len();
                        known.remove();
                    }
                    (Change::New(_), Change::Put(value)) => *known.get_mut() = Change::New(value),
                    (Change::Put(_) | Change::Delete, Change::New(value)) => {
                        *known.get_mut() = Change::Put(value);
                    }
                    (_, change) => *known.get_mut() = change,
                }
            }
        }
    }
}

/// Both memtables.
#[derive(Default)]
struct Pair {
    active: Memtable,
    immutable: Option<Arc<Memtable>>,
    /// Rises with each memtable that is frozen, and when all rows are replaced.
    epoch: u64,
}

impl Pair {
    /// Makes the active memtable the immutable one, unless there is one already.
    fn freeze(&mut self) -> bool {
        let free = self.immutable.is_none();
        if free {
            self.immutable = Some(Arc::new(std::mem::take(&mut self.active)));
            self.epoch += 1;
        }
        free
    }
}

/// The active and the immutable memtable, shared by apply, readers, and the writing thread.
///
/// Locks are taken in this order: `ended`, then `pair`.
#[derive(Default)]
pub struct Memtables {
    pair: RwLock<Pair>,
    /// Whether the thread is to end. Both conditions wait with this lock.
    ended: Mutex<bool>,
    /// There is an immutable memtable to write.
    frozen: Condvar,
    /// The immutable memtable is written.
    written: Condvar,
}

impl Memtables {
    /// The newest change of `key`, when one waits here.
    pub fn get(&self, key: &[u8]) -> Option<Change> {
        let pair = self.pair.read();
        match pair.active.rows.get(key) {
            Some(change) => Some(change.clone()),
            None => pair.immutable.as_ref()?.rows.get(key).cloned(),
        }
    }

    /// Adds the changes of an applied batch; waits while both memtables are full.
    pub fn add(&self, changes: Changes, reserved: Vec<(Vec<u8>, Bytes)>) {
        let mut pair = self.pair.write();
        for (key, change) in changes {
            pair.active.add(key, change);
        }
        for (key, value) in reserved {
            pair.active.add(key, Change::Put(value));
        }
        while pair.active.bytes >= MEMTABLE_BYTES {
            if pair.freeze() {
                drop(pair);
                self.announce();
                return;
            }
            drop(pair);
            self.wait_written();
            pair = self.pair.write();
        }
    }

    /// Wakes the thread: there is an immutable memtable. Called without the lock of the pair; see [`Memtables`].
    fn announce(&self) {
        let _ended = self.ended.lock();
        self.frozen.notify_one();
    }

    /// Waits until there is no immutable memtable.
    fn wait_written(&self) {
        let mut ended = self.ended.lock();
        if self.pair.read().immutable.is_none() {
            return;
        }
        busy(Phase::StateWrite, || {
            while self.pair.read().immutable.is_some() {
                self.written.wait(&mut ended);
            }
        });
    }

    /// Waits until everything added before is in RocksDB.
    pub fn drain(&self) {
        loop {
            self.wait_written();
            let mut pair = self.pair.write();
            if pair.active.rows.is_empty() && pair.immutable.is_none() {
                return;
            }
            // It fails when another caller has frozen meanwhile.
            if pair.freeze() {
                drop(pair);
                self.announce();
                self.wait_written();
                return;
            }
        }
    }

    /// Has everything added before come to RocksDB, and waits for that for so long at most.
    pub fn push_down(&self, within: Duration) {
        let until = Instant::now() + within;
        self.freeze();
        let mut ended = self.ended.lock();
        while self.pair.read().immutable.is_some() {
            if self.written.wait_until(&mut ended, until).timed_out() {
                return;
            }
        }
    }

    /// The rows that RocksDB may not have yet, which change no more: what is added later goes elsewhere. Rows that are
    /// older are in RocksDB; newer ones are not as long as [`Memtables::epoch`] is the number that comes with them.
    /// Waits while older rows are being written.
    pub fn freeze(&self) -> (Option<Arc<Memtable>>, u64) {
        loop {
            let mut pair = self.pair.write();
            if pair.active.rows.is_empty() {
                return (pair.immutable.clone(), pair.epoch);
            }
            if pair.freeze() {
                let frozen = (pair.immutable.clone(), pair.epoch);
                drop(pair);
                self.announce();
                return frozen;
            }
            drop(pair);
            self.wait_written();
        }
    }

    /// Rises with each memtable that is frozen, and when all rows are replaced.
    pub fn epoch(&self) -> u64 {
        self.pair.read().epoch
    }

    /// Forgets the rows that wait, and has `switch` replace what they belong to.
    ///
    /// Both happen under the lock of the pair, while no memtable is being written. A flush that froze rows in between
    /// would have the thread write them into the new database.
    pub fn replace(&self, switch: impl FnOnce()) {
        loop {
            self.wait_written();
            let mut pair = self.pair.write();
            if pair.immutable.is_none() {
                pair.active = Memtable::default();
                pair.epoch += 1;
                switch();
                return;
            }
        }
    }

    /// The thread's loop: writes each immutable memtable, until [`Memtables::end`].
    pub fn run(&self, mut write: impl FnMut(&Memtable)) {
        loop {
            let immutable = {
                let mut ended = self.ended.lock();
                loop {
                    if let Some(immutable) = self.pair.read().immutable.clone() {
                        break immutable;
                    }
                    if *ended {
                        return;
                    }
                    self.frozen.wait(&mut ended);
                }
            };
            write(&immutable);
            let written = self.pair.write().immutable.take();
            {
                let _ended = self.ended.lock();
                self.written.notify_all();
            }
            drop(written);
        }
    }

    /// Lets the thread end once it has written what it has.
    pub fn end(&self) {
        *self.ended.lock() = true;
        self.frozen.notify_one();
    }

    /// The rows of a range as they are now, those of the active memtable only up to some number and size; and what
    /// `below` makes of the rows of RocksDB at this same moment, of which the view covers those before the key that it
    /// is given. No lock is held afterwards.
    pub fn view<T>(&self, from: &[u8], to: &[u8], below: impl FnOnce(&[u8]) -> T) -> (View, T) {
        let pair = self.pair.read();
        let mut active = Vec::new();
        let mut end = None;
        let mut bytes = 0;
        for (key, change) in pair
            .active
            .rows
            .range::<[u8], _>((Included(from), Excluded(to)))
        {
            if active.len() == VIEW_ROWS || bytes >= VIEW_BYTES {
                end = Some(key.clone());
                break;
            }
            bytes += key.len();
            active.push((key.clone(), change.clone()));
        }
        let immutable = pair.immutable.clone();
        let view = View {
            active,
            immutable,
            end,
        };
        let below = below(view.end(to));
        (view, below)
    }
}

/// Rows of a range at one moment.
pub struct View {
    /// Keys are copied, values are shared.
    active: Vec<(Vec<u8>, Change)>,
    immutable: Option<Arc<Memtable>>,
    /// The first key that the view does not cover.
    end: Option<Vec<u8>>,
}

impl View {
    /// Rows that change no more, and no others.
    pub fn of(frozen: Option<Arc<Memtable>>) -> View {
        View {
            active: Vec::new(),
            immutable: frozen,
            end: None,
        }
    }

    /// Rows of the active memtable that are deletions.
    pub fn deletions(&self) -> u64 {
        let deletions = self
            .active
            .iter()
            .filter(|(_, change)| change.value().is_none());
        deletions.count() as u64
    }

    /// Where the view ends within a range that ends at `to`.
    pub fn end<'a>(&'a self, to: &'a [u8]) -> &'a [u8] {
        self.end.as_deref().unwrap_or(to)
    }

    /// Visits rows with `from <= key < to` in key order until `visit` returns `false`: rows that wait here, and those
    /// that `below` shows unless they are hidden by a newer change. When `below` stops by itself, it returns the key of
    /// the first row that it has not shown, and the scan ends before that.
    pub fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        below: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> bool) -> Option<Vec<u8>>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> ScanEnd {
        let active = self.active.iter().map(|(key, change)| (key, change));
        let empty = BTreeMap::new();
        let immutable = self
            .immutable
            .as_ref()
            .map_or(&empty, |immutable| &immutable.rows)
            .range::<[u8], _>((Included(from), Excluded(to)));
        let mut merged = Merged {
            active: active.peekable(),
            immutable: immutable.peekable(),
        };
        let mut going = true;
        let stopped_at = below(&mut |key, value| {
            going = merged.visit_below(key, visit)
                && match merged.take(key) {
                    Some(Some(newer)) => visit(key, newer),
                    Some(None) => true,
                    None => visit(key, value),
                };
            going
        });
        match stopped_at {
            _ if !going => ScanEnd::Left,
            Some(key) if merged.visit_below(&key, visit) => ScanEnd::Before(key),
            None if merged.visit_below(to, visit) => ScanEnd::Before(to.to_vec()),
            _ => ScanEnd::Left,
        }
    }
}

/// How far a scan has come.
pub enum ScanEnd {
    /// The visitor wants no more.
    Left,
    /// Every row before this key was visited.
    Before(Vec<u8>),
}

/// Rows of both memtables in key order; the active one hides the immutable one.
struct Merged<A: Iterator, I: Iterator> {
    active: Peekable<A>,
    immutable: Peekable<I>,
}

impl<'a, A, I> Merged<A, I>
where
    A: Iterator<Item = (&'a Vec<u8>, &'a Change)>,
    I: Iterator<Item = (&'a Vec<u8>, &'a Change)>,
{
    /// Takes the next row of both, if its key passes `wanted`.
    fn next_if(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Option<(&'a [u8], &'a Change)> {
        let active = self.active.peek().map(|(key, _)| key.as_slice());
        let immutable = self.immutable.peek().map(|(key, _)| key.as_slice());
        let takes_active = match (active, immutable) {
            (None, None) => return None,
            (Some(active), Some(immutable)) => {
                if active == immutable {
                    self.immutable.next();
                }
                active <= immutable
            }
            (active, _) => active.is_some(),
        };
        let wanted = |(key, _): &(&'a Vec<u8>, &'a Change)| wanted(key);
        let found = if takes_active {
            self.active.next_if(wanted)
        } else {
            self.immutable.next_if(wanted)
        };
        found.map(|(key, change)| (key.as_slice(), change))
    }

    /// Visits the rows before `key`; `false` when the visitor wants no more.
    fn visit_below(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        while let Some((known, change)) = self.next_if(|known| known < key) {
            if let Some(value) = change.value()
                && !visit(known, value)
            {
                return false;
            }
        }
        true
    }

    /// What is known here of `key`: its value, or that it is deleted. To be asked in key order.
    fn take(&mut self, key: &[u8]) -> Option<Option<&'a [u8]>> {
        let (_, change) = self.next_if(|known| known == key)?;
        Some(change.value().map(|value| &value[..]))
    }
}

#[cfg(test)]
#[path = "memtable_tests.rs"]
mod tests;
