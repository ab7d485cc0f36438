//! Where each remembered reply is, in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::ids::LogIndex;
use crate::machine::keyed_digest::{DigestMap, KeyedDigest};

/// Hash tables. One that grows moves what it holds; each of so many is small enough that no batch waits long for it.
const SHARDS: usize = 256;

/// Where a reply is. Later replies have greater places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The log entry that it belongs to.
    pub index: LogIndex,
    /// Which of the entry's rows holds it.
    pub part: u32,
    /// Where in the row.
    pub position: u32,
}

impl Place {
    pub fn new(index: LogIndex, part: u32, position: u32) -> Place {
        Place {
            index,
            part,
            position,
        }
    }

    const FIRST: Place = Place {
        index: LogIndex(0),
        part: 0,
        position: 0,
    };
}

/// What was known of a log entry's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Replies.
    pub replies: usize,
    /// Rows, whose parts are numbered from 0.
    pub parts: u32,
}

/// Places by key, and keys by log entry.
pub struct Index {
    /// Of each key, the last place.
    last: Box<[DigestMap<Place>]>,
    /// The other places of keys that have several: replies to different requests with the same 64 bits. There are some
    /// only if somebody constructed them.
    earlier: BTreeSet<(KeyedDigest, Place)>,
    /// How many places there are.
    len: usize,
    /// The keys of each log entry's replies, by part, in the order of their positions.
    entries: BTreeMap<LogIndex, Vec<Vec<KeyedDigest>>>,
}

impl Default for Index {
    fn default() -> Self {
        Index {
            last: (0..SHARDS).map(|_| DigestMap::default()).collect(),
            earlier: BTreeSet::new(),
            len: 0,
            entries: BTreeMap::new(),
        }
    }
}

impl Index {
    /// Adds a reply, whose place is greater than those that are there and follows on the last one of its log entry.
    pub fn insert(&mut self, key: KeyedDigest, place: Place) {
        let parts = self.entries.entry(place.index).or_default();
        while parts.len() <= place.part as usize {
            parts.push(Vec::new());
        }
        if let Some(keys) = parts.last_mut() {
            keys.push(key);
        }
        self.len += 1;
        if let Some(earlier) = self.shard(&key).insert(key, place) {
            self.earlier.insert((key, earlier));
        }
    }

    /// The places of a key, the last one first.
    pub fn find(&self, key: &KeyedDigest) -> impl Iterator<Item = Place> {
        let last = self.last[key.shard(SHARDS)].get(key);
        let before = last.map(|last| self.earlier.range((*key, Place::FIRST)..(*key, *last)));
        let before = before.into_iter().flat_map(|range| range.rev());
        last.copied()
            .into_iter()
            .chain(before.map(|(_, place)| *place))
    }

    /// Removes a log entry's replies.
    pub fn remove_entry(&mut self, index: LogIndex) -> Removed {
        let parts = self.entries.remove(&index).unwrap_or_default();
        let mut removed = Removed {
            replies: 0,
            parts: parts.len() as u32,
        };
        for (part, keys) in (0..).zip(parts) {
            for (position, key) in (0..).zip(keys) {
                self.remove(key, Place::new(index, part, position));
                removed.replies += 1;
            }
        }
        self.len -= removed.replies;
        removed
    }

    fn remove(&mut self, key: KeyedDigest, place: Place) {
        if self.earlier.remove(&(key, place)) {
            return;
        }
        let before = (key, Place::FIRST)..(key, place);
        let next = self.earlier.range(before).next_back().copied();
        match next {
            Some(next) => {
                self.earlier.remove(&next);
                self.shard(&key).insert(key, next.1);
            }
            None => {
                self.shard(&key).remove(&key);
            }
        }
    }

    fn shard(&mut self, key: &KeyedDigest) -> &mut DigestMap<Place> {
        &mut self.last[key.shard(SHARDS)]
    }

    /// Whether there is a reply of this key.
    pub fn contains(&self, key: &KeyedDigest) -> bool {
        self.last[key.shard(SHARDS)].contains_key(key)
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a set of pairs of key and place does, which is slow and plain.
        #[test]
        fn it_finds_what_a_plain_set_finds(
            entries in prop::collection::vec(prop::collection::vec(0u8..6, 1..40), 1..12),
            removed in prop::collection::vec(0u64..12, 0..12),
            in_row in 1u32..8,
        ) {
            let (mut index, mut plain) = (Index::default(), BTreeSet::new());
            for (entry, keys) in (0..).zip(&entries) {
                for (number, at) in keys.iter().zip(0..) {
                    let place = Place::new(LogIndex(entry), at / in_row, at % in_row);
                    index.insert(KeyedDigest::of_number(*number), place);
                    plain.insert((KeyedDigest::of_number(*number), place));
                }
            }
            for entry in removed {
                let of_entry = |(_, place): &&(KeyedDigest, Place)| place.index == LogIndex(entry);
                let replies = plain.iter().filter(of_entry).count();
                let parts = plain.iter().filter(of_entry).map(|(_, place)| place.part + 1).max();
                let expected = Removed { replies, parts: parts.unwrap_or(0) };
                prop_assert_eq!(index.remove_entry(LogIndex(entry)), expected);
                plain.retain(|(_, place)| place.index != LogIndex(entry));
                prop_assert_eq!(index.len(), plain.len());
                let last: usize = index.last.iter().map(DigestMap::len).sum();
                prop_assert_eq!(last + index.earlier.len(), plain.len());
                for key in (0..6).map(KeyedDigest::of_number) {
                    let found: Vec<Place> = index.find(&key).collect();
                    let of_key = plain.iter().rev().filter(|(known, _)| *known == key);
                    let expected: Vec<Place> = of_key.map(|(_, place)| *place).collect();
                    prop_assert_eq!(index.contains(&key), !expected.is_empty());
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
