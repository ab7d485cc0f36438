//! About how many connections watch a key, for those who propose writes: each of them is told while the log is applied.
//!
//! Invariant: it is what the rows of [`Watch`](crate::machine::schema::Watch) say, as far as this replica has applied
//! the log; keys that share a slot count together, so nothing is reckoned too low.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

/// A power of two, so that few keys share a slot; they take 64 KiB.
const SLOTS: usize = 1 << 14;

/// Watches by the hashes of their keys.
#[derive(Debug)]
pub struct WatchCounts {
    hasher: RandomState,
    slots: Box<[AtomicU32]>,
}

impl Default for WatchCounts {
    fn default() -> Self {
        WatchCounts {
            hasher: RandomState::new(),
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl WatchCounts {
    fn slot(&self, store_key: &[u8]) -> &AtomicU32 {
        &self.slots[self.hasher.hash_one(store_key) as usize % SLOTS]
    }

    /// Connections that watch a key, and those that watch keys of the same slot.
    pub fn of(&self, store_key: &[u8]) -> usize {
        self.slot(store_key).load(Ordering::Relaxed) as usize
    }

    /// A connection watches a key. Only the thread that applies the log writes.
    pub(super) fn add(&self, store_key: &[u8]) {
        self.slot(store_key).fetch_add(1, Ordering::Relaxed);
    }

    /// A connection that watched a key does so no more.
    pub(super) fn remove(&self, store_key: &[u8]) {
        self.slot(store_key).fetch_sub(1, Ordering::Relaxed);
    }

    /// Nobody watches anything.
    pub(super) fn clear(&self) {
        for slot in &self.slots {
            slot.store(0, Ordering::Relaxed);
        }
    }
}
