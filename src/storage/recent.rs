//! Rows that were applied lately and are not in RocksDB yet.
//!
//! The state has no write-ahead log: whatever RocksDB has not flushed is applied again from the log after a crash. So
//! nothing is lost when rows wait here for some megabytes more, and much is gained: a row that is changed again and
//! again is written once, one that is deleted before it was written (a message that was delivered at once) never, and
//! what apply has just written it reads without a search on a skip list of hundreds of thousands of versions.
//!
//! Two layers: apply writes into the upper one; when that is full it becomes the lower one, which a thread of its own
//! writes to RocksDB in one batch. A layer holds whole applied batches with their marks, so RocksDB always has a
//! prefix of them.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::machine::tables::{Change, Changes};

/// The upper layer is full with this many bytes of keys and values.
const LAYER_BYTES: usize = 8 << 20;

/// What a row costs beside its key and value, in this count.
const ROW_BYTES: usize = 64;

/// Changes by key.
#[derive(Default)]
pub(super) struct Layer {
    pub rows: BTreeMap<Vec<u8>, Change>,
    bytes: usize,
}

impl Layer {
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

#[derive(Default)]
struct Layers {
    upper: Layer,
    lower: Option<Arc<Layer>>,
}

impl Layers {
    /// Makes the upper layer the lower one, if that place is free.
    fn freeze(&mut self) -> bool {
        let free = self.lower.is_none();
        if free {
            self.lower = Some(Arc::new(std::mem::take(&mut self.upper)));
        }
        free
    }
}

/// The rows that wait.
#[derive(Default)]
pub(super) struct Recent {
    layers: RwLock<Layers>,
    /// Whether the thread is to end; goes with the two conditions.
    ended: Mutex<bool>,
    /// There is a lower layer to write.
    full: Condvar,
    /// It is written.
    written: Condvar,
}

impl Recent {
    /// The newest change of `key`, if it waits here.
    pub fn get(&self, key: &[u8]) -> Option<Change> {
        let layers = self.layers.read();
        match layers.upper.rows.get(key) {
            Some(change) => Some(change.clone()),
            None => layers.lower.as_ref()?.rows.get(key).cloned(),
        }
    }

    /// Adds the changes of an applied batch; waits while both layers are full.
    pub fn add(&self, changes: Changes, marks: Vec<(Vec<u8>, Bytes)>) {
        let mut layers = self.layers.write();
        for (key, change) in changes {
            layers.upper.add(key, change);
        }
        for (key, value) in marks {
            layers.upper.add(key, Change::Put(value));
        }
        while layers.upper.bytes >= LAYER_BYTES {
            if layers.freeze() {
                drop(layers);
                self.announce();
                return;
            }
            drop(layers);
            self.wait_written();
            layers = self.layers.write();
        }
    }

    /// There is something to write. Called without the lock of the layers: the thread takes both, that one last.
    fn announce(&self) {
        let _ended = self.ended.lock();
        self.full.notify_one();
    }

    fn wait_written(&self) {
        let mut ended = self.ended.lock();
        while self.layers.read().lower.is_some() {
            self.written.wait(&mut ended);
        }
    }

    /// Waits until everything added before is in RocksDB.
    pub fn settle(&self) {
        loop {
            self.wait_written();
            let mut layers = self.layers.write();
            if layers.upper.rows.is_empty() && layers.lower.is_none() {
                return;
            }
            // Unless somebody else was faster.
            if layers.freeze() {
                drop(layers);
                self.announce();
                self.wait_written();
                return;
            }
        }
    }

    /// Throws away what waits: the state it belongs to was replaced.
    pub fn clear(&self) {
        self.wait_written();
        self.layers.write().upper = Layer::default();
    }

    /// The thread's loop: writes each lower layer, until [`Recent::end`].
    pub fn run(&self, mut write: impl FnMut(&Layer)) {
        loop {
            let lower = {
                let mut ended = self.ended.lock();
                loop {
                    if let Some(lower) = self.layers.read().lower.clone() {
                        break lower;
                    }
                    if *ended {
                        return;
                    }
                    self.full.wait(&mut ended);
                }
            };
            write(&lower);
            let written = self.layers.write().lower.take();
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
        self.full.notify_one();
    }

    /// Visits rows with `from <= key < to` in key order until `visit` returns `false`: those that wait here over those that
    /// `below` shows.
    pub fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        below: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> bool),
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) {
        let layers = self.layers.read();
        let range = || (Included(from), Excluded(to));
        let upper = layers.upper.rows.range::<[u8], _>(range());
        let empty = BTreeMap::new();
        let lower = layers
            .lower
            .as_ref()
            .map_or(&empty, |lower| &lower.rows)
            .range::<[u8], _>(range());
        let mut over = Over {
            upper: upper.peekable(),
            lower: lower.peekable(),
        };
        let mut going = true;
        below(&mut |key, value| {
            going = over.visit_below(key, visit)
                && match over.take(key) {
                    Some(Some(newer)) => visit(key, newer),
                    Some(None) => true,
                    None => visit(key, value),
                };
            going
        });
        if going {
            over.visit_rest(visit);
        }
    }
}

/// Both layers in key order, the upper one hiding the lower.
struct Over<U: Iterator, L: Iterator> {
    upper: Peekable<U>,
    lower: Peekable<L>,
}

impl<'a, U, L> Over<U, L>
where
    U: Iterator<Item = (&'a Vec<u8>, &'a Change)>,
    L: Iterator<Item = (&'a Vec<u8>, &'a Change)>,
{
    /// The next row of both, if its key passes `wanted`.
    fn next_if(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Option<(&'a [u8], &'a Change)> {
        let upper = self.upper.peek().map(|(key, _)| key.as_slice());
        let lower = self.lower.peek().map(|(key, _)| key.as_slice());
        let takes_upper = match (upper, lower) {
            (None, None) => return None,
            (Some(upper), Some(lower)) => {
                if upper == lower {
                    self.lower.next();
                }
                upper <= lower
            }
            (upper, _) => upper.is_some(),
        };
        let wanted = |(key, _): &(&'a Vec<u8>, &'a Change)| wanted(key);
        let found = if takes_upper {
            self.upper.next_if(wanted)
        } else {
            self.lower.next_if(wanted)
        };
        found.map(|(key, change)| (key.as_slice(), change))
    }

    /// Visits what comes before `key`.
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

    /// What is known here of `key`: a value, or that it is deleted.
    fn take(&mut self, key: &[u8]) -> Option<Option<&'a [u8]>> {
        let (_, change) = self.next_if(|known| known == key)?;
        Some(change.value().map(|value| &value[..]))
    }

    fn visit_rest(&mut self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        while let Some((key, change)) = self.next_if(|_| true) {
            if let Some(value) = change.value()
                && !visit(key, value)
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

    fn scan(recent: &Recent, below: &Rows, from: &[u8], to: &[u8], most: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        recent.scan(
            from,
            to,
            |show| {
                for (key, value) in below.range::<[u8], _>((Included(from), Excluded(to))) {
                    if !show(key, value) {
                        return;
                    }
                }
            },
            &mut |key, value| {
                found.push([key, b"=", value].concat());
                found.len() < most
            },
        );
        found
    }

    fn write(layer: &Layer, below: &mut Rows) {
        for (key, change) in &layer.rows {
            match change.value() {
                Some(value) => below.insert(key.clone(), value.to_vec()),
                None => below.remove(key),
            };
        }
    }

    #[test]
    fn a_new_row_that_is_deleted_before_it_was_written_leaves_nothing() {
        let recent = Recent::default();
        let value = || Bytes::from_static(b"v");
        let changes = |change| Changes::from([(b"k".to_vec(), change)]);
        recent.add(changes(Change::New(value())), Vec::new());
        recent.add(changes(Change::Put(value())), Vec::new());
        recent.add(changes(Change::Delete), Vec::new());
        assert!(recent.layers.read().upper.rows.is_empty());
        assert_eq!(recent.layers.read().upper.bytes, 0);
        recent.add(changes(Change::Put(value())), Vec::new());
        recent.add(changes(Change::Delete), Vec::new());
        assert!(
            matches!(recent.get(b"k"), Some(Change::Delete)),
            "it may be below"
        );
    }

    proptest! {
        #[test]
        fn layers_over_rows_read_as_one_map(
            steps in prop::collection::vec((0u8..4, prop::collection::vec(b'a'..b'd', 1..3), any::<u8>()), 0..80),
            from in prop::collection::vec(b'a'..b'd', 0..3), to in prop::collection::vec(b'a'..b'e', 0..3), most in 1usize..6,
        ) {
            let recent = Recent::default();
            let (mut model, mut below) = (Rows::new(), Rows::new());
            for (kind, key, value) in steps {
                let bytes = Bytes::copy_from_slice(&[value]);
                let change = match kind {
                    0 => Change::Delete,
                    1 if !model.contains_key(&key) => Change::New(bytes),
                    1 | 2 => Change::Put(bytes),
                    _ => {
                        // The thread's two steps, with reads in between.
                        if recent.layers.read().lower.is_none() {
                            recent.layers.write().freeze();
                        } else if value % 2 == 0 {
                            let lower = recent.layers.read().lower.clone();
                            write(&lower.expect("just seen"), &mut below);
                            recent.layers.write().lower = None;
                        }
                        continue;
                    }
                };
                match change.value() {
                    Some(value) => model.insert(key.clone(), value.to_vec()),
                    None => model.remove(&key),
                };
                recent.add(Changes::from([(key.clone(), change)]), Vec::new());
                let found = match recent.get(&key) {
                    Some(change) => change.value().map(|value| value.to_vec()),
                    None => below.get(&key).cloned(),
                };
                prop_assert_eq!(found.as_ref(), model.get(&key));
            }
            if from < to {
                let expected: Vec<_> = model
                    .range::<[u8], _>((Included(&from[..]), Excluded(&to[..])))
                    .map(|(key, value)| [key, &b"="[..], value].concat())
                    .take(most)
                    .collect();
                prop_assert_eq!(scan(&recent, &below, &from, &to, most), expected);
            }
        }
    }
}
