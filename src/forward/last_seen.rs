//! When each node was last heard from. The leader keeps it to end the leases of silent nodes.

use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::base::ids::{Incarnation, NodeId};

/// When the newest incarnation of each node was last heard from.
#[derive(Default)]
pub struct LastSeen(Mutex<FxHashMap<NodeId, (Incarnation, Instant)>>);

impl LastSeen {
    /// Notes a sign of life.
    pub fn note(&self, node: NodeId, incarnation: Incarnation) {
        self.0.lock().insert(node, (incarnation, Instant::now()));
    }

    /// When `incarnation` of `node` was last heard from; now, if it is asked for the first time.
    pub fn last(&self, node: NodeId, incarnation: Incarnation) -> Instant {
        let mut seen = self.0.lock();
        let entry = seen.entry(node).or_insert((incarnation, Instant::now()));
        if entry.0 < incarnation {
            *entry = (incarnation, Instant::now());
        }
        entry.1
    }

    /// Starts all leases anew: under a new leader every node has its full lease.
    pub fn forget(&self) {
        self.0.lock().clear();
    }
}
