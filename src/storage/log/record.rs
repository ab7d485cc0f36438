//! The format of the log on disk: keys and values of entries, and keys of a group's metadata.
//!
//! | family | key | value |
//! |---|---|---|
//! | `default` | `group u32 BE \| index u64 BE` | `kind u8 \| term u64 BE \| payload` |
//! | `meta` | `group u32 BE \| number u8` ([`Meta`]) | opaque, given by `raft` |
//!
//! Invariant: formats and numbers are for ever. What kinds mean is the business of `raft`.

use bytes::Bytes;

use crate::base::ids::GroupId;

/// The family of a group's metadata.
pub const META_FAMILY: &str = "meta";

/// A value that is kept once per group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Meta {
    /// The vote.
    Vote = 1,
    /// Index of the last purged entry (u64 BE), then its log id.
    Purged = 2,
    /// The log id of the last entry known to be committed.
    Committed = 3,
}

impl Meta {
    /// The key of this value for `group`.
    pub fn key(self, group: GroupId) -> [u8; 5] {
        let mut key = [self as u8; 5];
        key[..4].copy_from_slice(&group.0.to_be_bytes());
        key
    }
}

/// One entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position in the group's log.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// What the payload is.
    pub kind: u8,
    /// Opaque content.
    pub payload: Bytes,
}

/// Bytes of bookkeeping counted per record on top of its payload.
const OVERHEAD: usize = 64;
/// Bytes before the payload: kind and term.
const HEADER: usize = 9;

impl Record {
    /// Bytes that this record counts with against limits of memory and of reads.
    pub fn weight(&self) -> usize {
        self.payload.len() + OVERHEAD
    }

    /// Replaces the content of `buffer` by the value to store.
    pub fn encode_into(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.reserve(HEADER + self.payload.len());
        buffer.push(self.kind);
        buffer.extend_from_slice(&self.term.to_be_bytes());
        buffer.extend_from_slice(&self.payload);
    }

    /// Reads a stored value; `None` when it is too short.
    pub fn decode(index: u64, value: &[u8]) -> Option<Record> {
        let (header, payload) = value.split_at_checked(HEADER)?;
        let (kind, term) = header.split_first()?;
        Some(Record {
            index,
            term: u64::from_be_bytes(term.try_into().ok()?),
            kind: *kind,
            payload: Bytes::copy_from_slice(payload),
        })
    }
}

/// The key of the entry at `index` in the log of `group`.
pub fn key(group: GroupId, index: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&group.0.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

/// The index in a key, when it is one of `group`.
pub fn index_of(group: GroupId, key: &[u8]) -> Option<u64> {
    let (prefix, index) = key.split_at_checked(4)?;
    if prefix != group.0.to_be_bytes() {
        return None;
    }
    Some(u64::from_be_bytes(index.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_went(index: u64, term: u64, kind: u8, payload: Vec<u8>) {
            let record = Record { index, term, kind, payload: payload.into() };
            let mut buffer = Vec::new();
            record.encode_into(&mut buffer);
            prop_assert_eq!(Record::decode(index, &buffer), Some(record));
        }

        #[test]
        fn keys_sort_by_group_then_index(a: (u32, u64), b: (u32, u64)) {
            let (left, right) = (key(GroupId(a.0), a.1), key(GroupId(b.0), b.1));
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
            prop_assert_eq!(index_of(GroupId(a.0), &left), Some(a.1));
        }

        #[test]
        fn short_values_are_refused(value in proptest::collection::vec(any::<u8>(), 0..9)) {
            prop_assert_eq!(Record::decode(1, &value), None);
        }
    }
}
