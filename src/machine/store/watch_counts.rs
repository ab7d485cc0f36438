//! How many connections watch a key, for those who propose writes of it: each of them is told while the log is applied.
//!
//! Invariant: it is what the rows of [`Watch`](crate::machine::schema::Watch) say, as far as this replica has applied
//! the log. Keys with [`FEW`] watchers are not in it: nearly all have none or one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

/// So many watchers count as none.
const FEW: usize = 1;

/// Watchers of the keys that have many.
#[derive(Debug, Default)]
pub struct WatchCounts {
    /// Clients choose keys, so they are hashed with a random seed.
    crowded: RwLock<HashMap<Bytes, usize>>,
    /// Whether it has any: mostly not, and then a write takes no lock.
    has_any: AtomicBool,
}

impl WatchCounts {
    /// Connections that watch a key; 0 where they are [`FEW`].
    pub fn of(&self, store_key: &[u8]) -> usize {
        if !self.has_any.load(Ordering::Relaxed) {
            return 0;
        }
        self.crowded.read().get(store_key).copied().unwrap_or(0)
    }

    /// So many connections watch a key: one more or one less than before. Only the thread that applies the log writes.
    pub(crate) fn set(&self, store_key: &Bytes, watchers: usize) {
        if watchers < FEW {
            return;
        }
        let crowded = &mut *self.crowded.write();
        match watchers > FEW {
            true => crowded.insert(store_key.clone(), watchers),
            false => crowded.remove(store_key),
        };
        self.has_any.store(!crowded.is_empty(), Ordering::Relaxed);
    }

    /// Nobody watches anything.
    pub(super) fn clear(&self) {
        self.crowded.write().clear();
        self.has_any.store(false, Ordering::Relaxed);
    }
}
