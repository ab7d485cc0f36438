//! What happens to connections between nodes, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one node.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections of others that were closed before anything was proved: too many at once.
    pub turned_away: AtomicU64,
    /// Handshakes, of both directions, that proved nothing.
    pub handshakes_failed: AtomicU64,
    /// Connections that were ended because a newer one of the same node came, or trust was withdrawn.
    pub ended: AtomicU64,
    /// Files that were read again and could not be used.
    pub reloads_failed: AtomicU64,
    /// Files that were read again and are used.
    pub reloads: AtomicU64,
}

impl Counters {
    /// Counts one.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
