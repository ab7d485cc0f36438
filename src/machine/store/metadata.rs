//! What a write needs to know of the row that it replaces, in memory: version, expiry, and how long the value is. Of a
//! large store most rows are in no cache, and to read each row that a SET replaces would be half of apply's work.
//!
//! Invariant: an entry says what the key's row says, as the next command of the batch must see it. What is not here is
//! read from the tables, so what is carried out is the same whether a key is here or not.

use std::mem;

use crate::base::hlc::Hlc;
use crate::base::time::Millis;
use crate::machine::keyed_digest::{DigestMap, KeyedDigest, Seed};
use crate::store::{KeyRecord, KeyRow, ValueLength};

/// Hash tables. One that grows moves what it holds; each of so many is small enough that no batch waits long for it.
const SHARDS: usize = 256;

/// A longer key is not kept: to hash it takes longer than most writes.
const MAX_KEY_BYTES: usize = 4 << 10;

/// Longer than any packet.
const UNKNOWN: u32 = u32::MAX;

/// What the entry of a key is found by. There is none for a key that is too long, or where nothing is kept.
pub(super) type CacheKey = Option<KeyedDigest>;

/// A row without fencing token. Every version is made by the store.
#[derive(Clone, Copy)]
struct Metadata {
    wall_ms: u64,
    counter: u32,
    /// [`UNKNOWN`] when the entry says nothing any more.
    value_bytes: u32,
    /// [`Millis::NEVER`] when it has none.
    expires_at: Millis,
}

/// Keys that were written lately. When `young` is full it becomes `old`, and what was `old` goes.
#[derive(Default)]
struct Shard {
    young: DigestMap<Metadata>,
    old: DigestMap<Metadata>,
    /// Whether no key that has a row was left out: what is not here is nowhere.
    is_complete: bool,
}

/// What the cache says of a key.
#[derive(Debug)]
pub(super) enum Cached {
    /// Its row but for the value.
    Row(KeyRow<ValueLength>),
    /// It has no row.
    Nothing,
    /// The row must be read.
    Unknown,
}

/// Metadata of keys that were written lately.
pub(super) struct MetadataCache {
    seed: Seed,
    shards: Box<[Shard]>,
    /// Entries of each `young` and `old`.
    most: usize,
}

impl MetadataCache {
    /// An empty cache, which will take so many bytes at most. Of very few it keeps nothing.
    pub fn new(bytes: usize) -> MetadataCache {
        // A hash table has a power of two of buckets, each of an entry and a byte, and fills seven of eight.
        let bucket = mem::size_of::<(KeyedDigest, Metadata)>() + 1;
        let buckets = bytes / (2 * SHARDS * bucket);
        let most = match buckets.checked_ilog2() {
            Some(power) => (1 << power) / 8 * 7,
            None => 0,
        };
        MetadataCache::with_shards(SHARDS, most)
    }

    /// So many shards, each with two tables of so many entries.
    fn with_shards(shards: usize, most: usize) -> MetadataCache {
        MetadataCache {
            seed: Seed::default(),
            shards: (0..shards).map(|_| Shard::default()).collect(),
            most,
        }
    }

    /// One that forgets soon.
    #[cfg(test)]
    pub fn small() -> MetadataCache {
        MetadataCache::with_shards(1, 1)
    }

    /// What a key's entry is found by.
    pub fn key(&self, store_key: &[u8]) -> CacheKey {
        let keeps = self.most > 0 && store_key.len() <= MAX_KEY_BYTES;
        keeps.then(|| self.seed.digest(&[store_key]))
    }

    /// Whether there is an entry of a key.
    pub fn contains(&self, key: CacheKey) -> bool {
        key.is_some_and(|key| self.find(&key).is_some())
    }

    fn find(&self, key: &KeyedDigest) -> Option<&Metadata> {
        let shard = &self.shards[key.shard(self.shards.len())];
        shard.young.get(key).or_else(|| shard.old.get(key))
    }

    /// What is known of a key. The row of one that has expired must be read.
    pub fn get(&self, key: CacheKey, now: Millis) -> Cached {
        let Some(key) = key else {
            return Cached::Unknown;
        };
        let Some(known) = self.find(&key) else {
            let shard = &self.shards[key.shard(self.shards.len())];
            return match shard.is_complete {
                true => Cached::Nothing,
                false => Cached::Unknown,
            };
        };
        let record = KeyRecord {
            value: ValueLength(known.value_bytes),
            version: Hlc::of_store(known.wall_ms, known.counter),
            fencing_token: None,
            expires_at: Some(known.expires_at).filter(|deadline| *deadline != Millis::NEVER),
        };
        match known.value_bytes == UNKNOWN || record.is_expired(now) {
            true => Cached::Unknown,
            false => Cached::Row(KeyRow::Value(record)),
        }
    }

    /// A row is written.
    pub fn set(&mut self, key: CacheKey, record: &KeyRecord<&[u8]>) {
        if record.fencing_token.is_some() || !record.version.node.is_store() {
            return self.forget(key);
        }
        let metadata = Metadata {
            wall_ms: record.version.wall_ms,
            counter: record.version.counter,
            value_bytes: u32::try_from(record.value.len()).unwrap_or(UNKNOWN),
            expires_at: record.expires_at.unwrap_or(Millis::NEVER),
        };
        self.insert(key, metadata);
    }

    /// A row goes, or says more than is kept here.
    pub fn forget(&mut self, key: CacheKey) {
        let metadata = Metadata {
            wall_ms: 0,
            counter: 0,
            value_bytes: UNKNOWN,
            expires_at: Millis::NEVER,
        };
        self.insert(key, metadata);
    }

    /// Nothing is known any more, but whether there are rows at all.
    pub fn clear(&mut self, has_rows: bool) {
        self.shards.fill_with(|| Shard {
            is_complete: !has_rows,
            ..Shard::default()
        });
    }

    /// A full table would grow if an entry were removed, or inserted again: so an entry is never removed, and one that
    /// is there is overwritten.
    fn insert(&mut self, key: CacheKey, metadata: Metadata) {
        let Some(key) = key else {
            return;
        };
        let (most, shard) = (self.most, key.shard(self.shards.len()));
        let shard = &mut self.shards[shard];
        if let Some(known) = shard.young.get_mut(&key) {
            *known = metadata;
            return;
        }
        if shard.young.len() >= most {
            let left_out = mem::replace(&mut shard.old, mem::take(&mut shard.young));
            shard.is_complete &= left_out.is_empty();
        }
        shard.young.insert(key, metadata);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NOW: Millis = Millis(100);

    fn record(value: &[u8], wall_ms: u64) -> KeyRecord<&[u8]> {
        KeyRecord {
            value,
            version: Hlc::of_store(wall_ms, 7),
            fencing_token: None,
            expires_at: None,
        }
    }

    /// What is written last, or nothing: also when there are far more keys than the cache has room for.
    #[test]
    fn an_entry_is_never_an_older_one() {
        let mut cache = MetadataCache::new(1 << 20);
        cache.clear(false);
        let mut newest = BTreeMap::new();
        let (mut found, mut absent) = (0, 0);
        for number in 0..200_000_u64 {
            // Half of the writes are of some keys that fill the cache by a fifth.
            let key = match number % 2 {
                0 => number * 7_919 % 60_000,
                _ => 60_000 + number * 7_919 % 3_000,
            };
            match number % 7 {
                0 => {
                    cache.forget(cache.key(&key.to_be_bytes()));
                    newest.remove(&key);
                }
                _ => {
                    cache.set(cache.key(&key.to_be_bytes()), &record(b"value", number));
                    newest.insert(key, number);
                }
            }
            // Written right now, lately, long ago, or never.
            for key in [key, number * 31 % 65_000] {
                match cache.get(cache.key(&key.to_be_bytes()), NOW) {
                    Cached::Row(row) => {
                        assert_eq!(Some(&row.version().wall_ms), newest.get(&key));
                        found += 1;
                    }
                    Cached::Nothing => {
                        assert_eq!(newest.get(&key), None);
                        absent += 1;
                    }
                    Cached::Unknown => {}
                }
            }
        }
        assert!(found > 100_000 && absent > 1_000, "{found}, {absent}");
        assert!(cache.shards.iter().all(|shard| !shard.is_complete));
        let most = cache.most;
        let held = |table: &DigestMap<Metadata>| table.len() <= most && table.capacity() <= most;
        assert!(
            cache
                .shards
                .iter()
                .all(|shard| held(&shard.young) && held(&shard.old)),
            "tables are no larger than was reckoned"
        );
    }

    #[test]
    fn a_long_key_is_not_hashed() {
        let mut cache = MetadataCache::new(1 << 20);
        cache.clear(false);
        let long = [b'k'; MAX_KEY_BYTES + 1];
        cache.set(cache.key(&long), &record(b"value", 1));
        assert!(matches!(cache.get(cache.key(&long), NOW), Cached::Unknown));
        assert!(cache.shards.iter().all(|shard| shard.young.is_empty()));
        cache.set(cache.key(&long[1..]), &record(b"value", 1));
        assert!(matches!(
            cache.get(cache.key(&long[1..]), NOW),
            Cached::Row(_)
        ));
    }

    #[test]
    fn what_says_more_than_is_kept_is_not_here() {
        let mut cache = MetadataCache::new(1 << 20);
        let plain = record(b"value", 1);
        let token = KeyRecord {
            fencing_token: Some(Hlc::of_store(1, 1)),
            ..plain.clone()
        };
        let expires = KeyRecord {
            expires_at: Some(Millis(101)),
            ..plain.clone()
        };
        let is_known = |cache: &MetadataCache, now| match cache.get(cache.key(b"k"), now) {
            Cached::Row(_) => true,
            Cached::Nothing => panic!("nobody knows that"),
            Cached::Unknown => false,
        };
        assert!(!is_known(&cache, NOW));
        cache.set(cache.key(b"k"), &plain);
        assert!(is_known(&cache, NOW));
        cache.set(cache.key(b"k"), &token);
        assert!(!is_known(&cache, NOW));
        cache.set(cache.key(b"k"), &expires);
        assert!(is_known(&cache, NOW));
        assert!(!is_known(&cache, Millis(101)), "it has expired");
        cache.clear(true);
        assert!(!is_known(&cache, NOW));
        let mut without = MetadataCache::new(0);
        without.clear(false);
        without.set(without.key(b"k"), &plain);
        assert!(!is_known(&without, NOW));
    }
}
