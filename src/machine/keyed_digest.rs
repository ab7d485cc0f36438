//! Keys of large hash tables: digests that nobody else can compute.
//!
//! So nobody can choose which of them fall together in a table, and the table's own hash need not be a strong one.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};

use rustc_hash::FxBuildHasher;

use crate::store::fingerprint::{STABLE_BYTES, digest};

/// Values by digest.
pub type DigestMap<V> = HashMap<KeyedDigest, V, FxBuildHasher>;

/// What is hashed before everything else: another secret for each that is made.
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
        // Half of it tells enough apart, and none of it is what the shard is chosen by.
        let [.., a, b, c, d, e, f, g, h] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
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

    #[test]
    fn keys_of_one_shard_are_spread_over_its_table() {
        let seed = Seed([1; 8]);
        let digests = (0..100_000_u32).map(|number| seed.digest(&[&number.to_be_bytes()]));
        let of_shard = digests.filter(|digest| digest.shard(256) == 7);
        let hashes = of_shard.map(|digest| FxBuildHasher.hash_one(digest));
        let buckets: std::collections::HashSet<u64> = hashes.map(|hash| hash % 128).collect();
        assert!(buckets.len() > 100, "{}", buckets.len());
    }
}
