//! What all tables have in common: keys that begin with the table's ordinal, rows that are bytes, ranges of keys.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;

/// A table: the first byte of its keys, what else they are made of, and what its rows hold.
pub trait Table {
    /// The first byte of every key.
    const ORDINAL: u8;
    /// What a key is made of.
    type Key<'a>;
    /// What a row holds.
    type Row: Row;

    /// The bytes of a key.
    fn encode(key: Self::Key<'_>) -> Vec<u8>;

    /// The inverse of [`Table::encode`]; `None` for bytes that it never gives.
    fn decode(key: &[u8]) -> Option<Self::Key<'_>>;
}

/// What a row holds, and its bytes.
pub trait Row: Sized {
    /// Why bytes are no such row.
    type Error: fmt::Display;

    /// The bytes of a row.
    fn to_bytes(&self) -> Vec<u8>;

    /// Reads a row; large fields are slices of its bytes.
    ///
    /// # Errors
    /// A newer version wrote the row, or it is damaged.
    fn from_bytes(row: Bytes) -> Result<Self, Self::Error>;

    /// Reads a row whose bytes are only lent.
    ///
    /// # Errors
    /// As [`Row::from_bytes`].
    fn from_slice(row: &[u8]) -> Result<Self, Self::Error> {
        Self::from_bytes(Bytes::copy_from_slice(row))
    }
}

impl<M: prost::Message + Default> Row for M {
    type Error = prost::DecodeError;

    fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn from_bytes(row: Bytes) -> Result<Self, Self::Error> {
        M::decode(row)
    }

    fn from_slice(row: &[u8]) -> Result<Self, Self::Error> {
        M::decode(row)
    }
}

/// A row as a scan shows it; it is decoded only when asked for.
pub struct StoredRow<'a, T> {
    bytes: &'a [u8],
    table: PhantomData<fn() -> T>,
}

impl<'a, T: Table> StoredRow<'a, T> {
    /// A row whose bytes a scan has shown.
    pub fn new(bytes: &'a [u8]) -> Self {
        let table = PhantomData;
        StoredRow { bytes, table }
    }

    /// The row.
    pub fn decode(&self) -> T::Row {
        decoded::<T>(T::Row::from_slice(self.bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// A row that was read.
///
/// # Panics
/// When it can't be decoded. A newer version wrote it, or it is damaged: a replica that can't read its state must stop.
pub(in crate::machine) fn decoded<T: Table>(row: Result<T::Row, <T::Row as Row>::Error>) -> T::Row {
    match row {
        Ok(row) => row,
        Err(error) => panic!(
            "a row of table {:#04x} is not what this version writes: {error}",
            T::ORDINAL
        ),
    }
}

/// A key that was read.
///
/// # Panics
/// As [`decoded`].
pub(in crate::machine) fn decoded_key<T: Table>(key: &[u8]) -> T::Key<'_> {
    match T::decode(key) {
        Some(key) => key,
        None => panic!(
            "a key of table {:#04x} is not what this version writes: {key:02x?}",
            T::ORDINAL
        ),
    }
}

/// The rows of one table with `from <= key < to`.
pub struct Range<T> {
    pub(in crate::machine) from: Vec<u8>,
    pub(in crate::machine) to: Vec<u8>,
    table: PhantomData<fn() -> T>,
}

impl<T: Table> Range<T> {
    pub(super) fn new(from: Vec<u8>, to: Vec<u8>) -> Self {
        let table = PhantomData;
        Range { from, to, table }
    }

    /// All rows.
    pub fn all() -> Self {
        Range::new(vec![T::ORDINAL], vec![T::ORDINAL + 1])
    }

    /// The rows of one number, which comes first in the key.
    pub(super) fn of_number(number: u64) -> Self {
        let to = match number.checked_add(1) {
            Some(next) => key::<T>(&[&next.to_be_bytes()]),
            None => Self::all().to,
        };
        Range::new(key::<T>(&[&number.to_be_bytes()]), to)
    }

    /// The rows from a key on.
    pub fn starting_at(self, key: T::Key<'_>) -> Self {
        Range::new(T::encode(key), self.to)
    }

    /// The rows after a key.
    pub fn after(self, key: T::Key<'_>) -> Self {
        let mut range = self.starting_at(key);
        range.from.push(0);
        range
    }

    /// The rows before a key.
    pub fn before(self, key: T::Key<'_>) -> Self {
        Range::new(self.from, T::encode(key))
    }
}

/// Builds a key: the table's ordinal, then `parts`.
pub(super) fn key<T: Table>(parts: &[&[u8]]) -> Vec<u8> {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut key = Vec::with_capacity(length);
    key.push(T::ORDINAL);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// What follows the ordinal in a key.
pub(super) fn rest<T: Table>(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[T::ORDINAL])
}

/// Splits eight bytes off the front as a number.
pub(super) fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*head), rest))
}

/// Eight bytes as a number, and nothing after them.
pub(super) fn only_u64(bytes: &[u8]) -> Option<u64> {
    match take_u64(bytes)? {
        (number, []) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
pub(super) fn has<T: Table>(range: &Range<T>, key: &[u8]) -> bool {
    range.from.as_slice() <= key && key < range.to.as_slice()
}
