//! What `apply` reads and writes: tables over an ordered map of bytes, with the changes of the batch under way laid
//! over what is stored.
//!
//! There are two layers. Bytes: a [`Backing`] is the stored state (RocksDB in the product, a map in tests); [`Tables`]
//! never writes to it, the storage layer takes [`Tables::into_changes`] and writes them in one atomic batch. Rows: the
//! generic methods of both know keys and rows by their [`Table`].
//!
//! Invariant: a row is decoded here and nowhere else. A row that can't be decoded ends the replica, see
//! [`schema::decoded`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;

use super::schema::{self, Range, Row as _, StoredRow, Table};

/// The stored state below a batch that is being applied.
///
/// Reads cannot fail: a replica that can't read its own state must stop rather than guess, so the
/// implementation ends the process on a read error.
pub trait Backing: Send + Sync {
    /// The value stored under `key`.
    fn get(&self, key: &[u8]) -> Option<Bytes>;

    /// Rows with `from <= key < to`, in key order, until `visit` returns `false`.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool);
}

impl dyn Backing + '_ {
    /// The row of a key.
    pub fn row<T: Table>(&self, key: T::Key<'_>) -> Option<T::Row> {
        let row = self.get(&T::encode(key))?;
        Some(schema::decoded::<T>(T::Row::from_bytes(row)))
    }

    /// The rows of a range in key order, until `visit` returns `false`.
    pub fn rows<T: Table>(
        &self,
        range: &Range<T>,
        mut visit: impl FnMut(T::Key<'_>, StoredRow<'_, T>) -> bool,
    ) {
        self.scan(&range.from, &range.to, &mut |key, row| {
            visit(schema::decoded_key::<T>(key), StoredRow::new(row))
        });
    }
}

impl Backing for BTreeMap<Vec<u8>, Vec<u8>> {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        BTreeMap::get(self, key).map(|value| Bytes::copy_from_slice(value))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        if from >= to {
            return;
        }
        for (key, value) in self.range::<[u8], _>((
            std::ops::Bound::Included(from),
            std::ops::Bound::Excluded(to),
        )) {
            if !visit(key, value) {
                return;
            }
        }
    }
}

/// What a batch does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It gets a value.
    Put(Bytes),
    /// It gets a value and has none in the stored state: when it is deleted before it was stored, nothing remains to be
    /// done.
    New(Bytes),
    /// It is removed.
    Delete,
}

impl Change {
    /// The key's value after the change.
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Change::Put(value) | Change::New(value) => Some(value),
            Change::Delete => None,
        }
    }
}

/// The changes of a batch.
pub type Changes = BTreeMap<Vec<u8>, Change>;

/// Stored state plus the changes of the batch under way.
pub struct Tables<'a> {
    backing: &'a dyn Backing,
    changes: Changes,
    operations: Cell<u64>,
}

impl<'a> Tables<'a> {
    /// An empty batch over `backing`.
    pub fn new(backing: &'a dyn Backing) -> Self {
        Tables {
            backing,
            changes: Changes::new(),
            operations: Cell::new(0),
        }
    }

    /// Row operations so far: rows read, looked at by scans, and written.
    pub fn operations(&self) -> u64 {
        self.operations.get()
    }

    fn count_operation(&self) {
        self.operations.set(self.operations.get() + 1);
    }

    /// The value under `key` as the next command of the batch must see it.
    pub fn get_bytes(&self, key: &[u8]) -> Option<Bytes> {
        self.count_operation();
        match self.changes.get(key) {
            Some(change) => change.value().cloned(),
            None => self.backing.get(key),
        }
    }

    /// Writes `value` under `key`.
    pub fn put_bytes(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.count_operation();
        self.changes.insert(key, Change::Put(value.into()));
    }

    /// Writes `value` under a `key` that never had one before.
    fn put_new_bytes(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.count_operation();
        self.changes.insert(key, Change::New(value.into()));
    }

    /// Removes `key`; nothing happens when it is absent.
    pub fn delete_bytes(&mut self, key: Vec<u8>) {
        self.count_operation();
        match self.changes.entry(key) {
            Entry::Occupied(known) if matches!(known.get(), Change::New(_)) => {
                known.remove();
            }
            Entry::Occupied(mut known) => *known.get_mut() = Change::Delete,
            Entry::Vacant(vacant) => {
                vacant.insert(Change::Delete);
            }
        }
    }

    /// Rows with `from <= key < to` in key order, until `visit` returns `false`.
    fn scan_bytes(&self, from: &[u8], to: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) {
        if from >= to {
            return;
        }
        let mut over = self
            .changes
            .range::<[u8], _>((
                std::ops::Bound::Included(from),
                std::ops::Bound::Excluded(to),
            ))
            .peekable();
        let mut going = true;
        self.backing.scan(from, to, &mut |key, value| {
            while let Some((changed, change)) =
                over.next_if(|(changed, _)| changed.as_slice() < key)
            {
                self.count_operation();
                if let Some(new) = change.value() {
                    going = visit(changed, new);
                    if !going {
                        return false;
                    }
                }
            }
            self.count_operation();
            going = match over.next_if(|(changed, _)| changed.as_slice() == key) {
                Some((_, change)) => change.value().is_none_or(|new| visit(key, new)),
                None => visit(key, value),
            };
            going
        });
        if !going {
            return;
        }
        for (changed, change) in over {
            self.count_operation();
            if let Some(new) = change.value()
                && !visit(changed, new)
            {
                return;
            }
        }
    }

    /// The row of a key.
    pub fn get<T: Table>(&self, key: T::Key<'_>) -> Option<T::Row> {
        let row = self.get_bytes(&T::encode(key))?;
        Some(schema::decoded::<T>(T::Row::from_bytes(row)))
    }

    /// Whether a key has a row.
    pub fn contains<T: Table>(&self, key: T::Key<'_>) -> bool {
        self.get_bytes(&T::encode(key)).is_some()
    }

    /// Writes the row of a key.
    pub fn put<T: Table>(&mut self, key: T::Key<'_>, row: &T::Row) {
        self.put_bytes(T::encode(key), row.to_bytes());
    }

    /// Writes the row of a key that never had one before.
    pub fn put_new<T: Table>(&mut self, key: T::Key<'_>, row: &T::Row) {
        self.put_new_bytes(T::encode(key), row.to_bytes());
    }

    /// Writes the row of a key from bytes that the caller has made, where a row would own what the caller only has on
    /// loan.
    pub fn put_encoded<T: Table>(&mut self, key: T::Key<'_>, row: Vec<u8>) {
        self.put_bytes(T::encode(key), row);
    }

    /// Removes the row of a key, if it has one.
    pub fn delete<T: Table>(&mut self, key: T::Key<'_>) {
        self.delete_bytes(T::encode(key));
    }

    /// The rows of a range in key order, until `visit` returns `false`.
    pub fn scan<T: Table>(
        &self,
        range: &Range<T>,
        mut visit: impl FnMut(T::Key<'_>, StoredRow<'_, T>) -> bool,
    ) {
        self.scan_bytes(&range.from, &range.to, |key, row| {
            visit(schema::decoded_key::<T>(key), StoredRow::new(row))
        });
    }

    /// The batch's changes, to be written atomically.
    pub fn into_changes(self) -> Changes {
        self.changes
    }
}
