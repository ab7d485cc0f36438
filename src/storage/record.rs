//! One entry of the log as it lies on disk.
//!
//! Key: `group u32 BE | index u64 BE`. Value: `kind u8 | term u64 BE | payload`. What kinds mean is the Raft
//! layer's business; their numbers are for ever.

use bytes::Bytes;

use crate::base::ids::GroupId;

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
const HEADER: usize = 9;

impl Record {
    /// Bytes this record is counted with in memory and per-read limits.
    pub fn weight(&self) -> usize {
        self.payload.len() + OVERHEAD
    }

    pub(super) fn encode_into(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.reserve(HEADER + self.payload.len());
        buffer.push(self.kind);
        buffer.extend_from_slice(&self.term.to_be_bytes());
        buffer.extend_from_slice(&self.payload);
    }

    pub(super) fn decode(index: u64, value: &[u8]) -> Option<Record> {
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

pub(super) fn key(group: GroupId, index: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&group.0.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

pub(super) fn index_of(group: GroupId, key: &[u8]) -> Option<u64> {
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
