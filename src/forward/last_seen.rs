//! When each node was last heard from. The leader keeps it to end the leases of silent nodes.
//!
//! Invariant: once a node's lease is found to be over, no sign of life of that incarnation counts until the decision is
//! known to be without effect. A node serves only for a time after a question that the leader has confirmed, and a
//! confirmed question counts here; so a node that may serve is never declared down.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::base::ids::{Incarnation, NodeId};

/// When the newest incarnation of each node was last heard from.
#[derive(Default)]
pub struct LastSeen(Mutex<State>);

#[derive(Default)]
struct State {
    seen: FxHashMap<NodeId, (Incarnation, Instant)>,
    /// Incarnations that are being declared down.
    condemned: FxHashSet<(NodeId, Incarnation)>,
}

impl LastSeen {
    /// Notes a sign of life that arrives at `now`. `false`: it does not count, because the incarnation is being
    /// declared down.
    pub fn note(&self, node: NodeId, incarnation: Incarnation, now: Instant) -> bool {
        let mut state = self.0.lock();
        if state.condemned.contains(&(node, incarnation)) {
            return false;
        }
        state.seen.insert(node, (incarnation, now));
        true
    }

    /// Whether `incarnation` of `node` has been silent for longer than `lease`. Its signs of life do not count any more
    /// then. A node that is asked about for the first time has its full lease.
    pub fn condemn_if_silent(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        lease: Duration,
        now: Instant,
    ) -> bool {
        let mut state = self.0.lock();
        let last = match state.seen.entry(node) {
            Entry::Vacant(entry) => entry.insert((incarnation, now)),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if last.0 < incarnation {
            *last = (incarnation, now);
        }
        let is_over = now.saturating_duration_since(last.1) > lease;
        if is_over {
            state.condemned.insert((node, incarnation));
        }
        is_over
    }

    /// The decision to declare the incarnation down has no effect, or had it: signs of life count again.
    pub fn pardon(&self, node: NodeId, incarnation: Incarnation) {
        self.0.lock().condemned.remove(&(node, incarnation));
    }

    /// Starts all leases anew: under a new leader, and after this node was stopped for a while, every node has its full
    /// lease.
    pub fn forget(&self) {
        self.0.lock().seen.clear();
    }
}
