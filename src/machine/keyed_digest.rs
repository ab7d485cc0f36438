//! Keys of large hash tables: digests that nobody else can compute.
//!
//! They are hashes already, so a table takes them as they are ([`DigestMap`]).

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher, RandomState};

use crate::store::fingerprint::{STABLE_BYTES, digest};

/// Values by digest.
pub type DigestMap<V> = HashMap<KeyedDigest, V, BuildHasherDefault<AsItIs>>;

/// What digests begin with in this process. Whoever does not know it can't choose which keys fall together in a table.
pub struct Seed([u8; 8]);

impl Default for Seed {
    fn default() -> Self {
        Seed(RandomState::new().hash_one(()).to_be_bytes())
    }
}

impl Seed {
    /// Of these fields, each after its length. Nobody can construct two that have the same.
    pub fn digest(&self, fields: &[&[u8]]) -> KeyedDigest {
        let seed: &[u8] = &self.0;
        KeyedDigest(digest([seed].into_iter().chain(fields.iter().copied())))
    }
}

/// The first 128 bits of SHA-256 of a [`Seed`] and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyedDigest([u8; STABLE_BYTES]);

impl KeyedDigest {
    /// Which of so many tables, 256 at most, the key belongs to. It tells nothing of its place there.
    pub fn shard(&self, shards: usize) -> usize {
        usize::from(self.0[0]) % shards
    }

    /// Few of them, for tests.
    #[cfg(test)]
    pub fn of_number(number: u8) -> KeyedDigest {
        KeyedDigest([number; STABLE_BYTES])
    }
}

impl Hash for KeyedDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// The hash of a number is the number.
#[derive(Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        // A digest is one number; anything else would do as well, only worse.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_where_they_end_tell_digests_of_a_seed_apart() {
        let (seed, other) = (Seed([1; 8]), Seed([2; 8]));
        let digest = seed.digest(&[b"ab", b""]);
        assert_eq!(seed.digest(&[b"ab", b""]), digest);
        assert_ne!(seed.digest(&[b"a", b"b"]), digest);
        assert_ne!(other.digest(&[b"ab", b""]), digest);
        assert_ne!(Seed::default().0, Seed::default().0);
    }

    /// Among the keys of one shard, buckets and tags (hashbrown takes the lowest bits and the highest) are as many as
    /// among any others.
    #[test]
    fn a_shard_says_nothing_of_the_hash() {
        let seed = Seed([1; 8]);
        let digests = (0..100_000_u32).map(|number| seed.digest(&[&number.to_be_bytes()]));
        let hashes = digests.filter(|digest| digest.shard(256) == 7);
        let hashes = hashes.map(|digest| BuildHasherDefault::<AsItIs>::default().hash_one(digest));
        let hashes: Vec<u64> = hashes.collect();
        let distinct = |part: fn(u64) -> u64| {
            let parts = hashes.iter().map(|hash| part(*hash));
            parts.collect::<std::collections::HashSet<u64>>().len()
        };
        assert!(hashes.len() > 300, "{}", hashes.len());
        assert!(distinct(|hash| hash & 0x7f) > 100);
        assert!(distinct(|hash| hash >> 57) > 100);
    }
}
