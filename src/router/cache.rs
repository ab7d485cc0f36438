//! What was looked up lately, shared by all publishers of the node.
//!
//! Invariant: all of it together takes at most [`SHARDS`] times [`SHARD_BYTES`], or one route per shard where that is
//! larger. Who publishes often keeps small routes besides, see `connection::route_cache`; large ones are only here, so
//! nobody holds outdated ones.

use std::collections::HashMap;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHasher;

use super::counted::Counted;
use super::route::Found;

/// Parts with locks of their own.
const SHARDS: usize = 16;

/// Bytes of routes in one shard.
const SHARD_BYTES: usize = 4 << 20;

/// What a topic costs besides its name and its route.
const ENTRY_BYTES: usize = 64;

/// Looked up topics.
#[derive(Debug, Default)]
pub(super) struct SharedRoutes {
    shards: [Mutex<Shard>; SHARDS],
    /// Where those of all topics begin.
    counted: Counted,
}

#[derive(Debug, Default)]
struct Shard {
    /// Clients choose topics, so they are hashed with a random seed.
    by_topic: HashMap<Box<str>, Arc<Found>>,
    bytes: usize,
}

impl SharedRoutes {
    fn shard(&self, topic: &str) -> &Mutex<Shard> {
        let mut hasher = FxHasher::default();
        topic.hash(&mut hasher);
        // Topics that all fall into one shard drop each other sooner, and no more.
        &self.shards[(hasher.finish() >> 32) as usize % SHARDS]
    }

    /// What was found last for a topic; it may be outdated.
    pub(super) fn get(&self, topic: &str) -> Option<Arc<Found>> {
        self.shard(topic).lock().by_topic.get(topic).cloned()
    }

    /// Keeps what was found for a topic.
    pub(super) fn put(&self, topic: &str, mut found: Found) -> Arc<Found> {
        found.counted = self.counted.of_another();
        let found = Arc::new(found);
        let added = found.bytes + topic.len() + ENTRY_BYTES;
        let mut shard = self.shard(topic).lock();
        let former = shard.by_topic.insert(topic.into(), found.clone());
        let freed = former
            .as_ref()
            .map(|former| former.bytes + topic.len() + ENTRY_BYTES);
        shard.bytes = shard.bytes + added - freed.unwrap_or(0);
        let dropped = if shard.bytes > SHARD_BYTES {
            let only = HashMap::from_iter([(topic.into(), found.clone())]);
            shard.bytes = added;
            Some(std::mem::replace(&mut shard.by_topic, only))
        } else {
            None
        };
        // What may be much is freed without the lock.
        drop(shard);
        drop((dropped, former));
        found
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_bounded_by_their_size() {
        let routes = SharedRoutes::default();
        let found = |bytes| Found {
            bytes,
            ..Found::default()
        };
        for topic in 0..10_000 {
            routes.put(&topic.to_string(), found(100_000));
            assert!(
                routes.get(&topic.to_string()).is_some(),
                "the newest is there"
            );
            assert!(routes.bytes() <= SHARDS * SHARD_BYTES);
        }
        // One that is larger than its shard is kept, alone.
        routes.put("large", found(2 * SHARD_BYTES));
        assert!(routes.get("large").is_some());
        routes.put("large", found(1));
        assert!(routes.bytes() <= SHARDS * SHARD_BYTES);
    }
}
