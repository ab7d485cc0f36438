//! What the rest of the node reads of the machine.
//!
//! Invariant: the thread that applies the log alone writes it: after each batch, and who watches a key within it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::directory::DirectoryObservers;
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::machine::state_hash::HashRound;
use crate::machine::{EventUsage, FanOutUsage, QueueUsage, WatchCounts};
use crate::store::Usage;

/// What the rest of the node needs to know of the machine.
#[derive(Default)]
pub struct View {
    pub(super) live: Mutex<Vec<(NodeId, Incarnation)>>,
    pub(super) low_disks: Mutex<Vec<NodeId>>,
    pub(super) applied: AtomicU64,
    pub(super) usage: Mutex<Usage>,
    pub(super) queues: Mutex<QueueUsage>,
    pub(super) fan_outs: Mutex<FanOutUsage>,
    pub(super) identities: Mutex<(u64, u64)>,
    pub(super) twin_bytes: AtomicU64,
    pub(super) events: Mutex<EventUsage>,
    pub(super) event_changes: watch::Sender<u64>,
    pub(super) watches: AtomicU64,
    pub(super) watch_counts: Arc<WatchCounts>,
    pub(super) remembered_replies: AtomicU64,
    pub(super) hash_round: Mutex<Option<(LogIndex, Arc<HashRound>)>>,
    /// The newest incarnation of this node that was ever registered.
    pub(super) known_incarnation: AtomicU64,
    pub(super) directory: DirectoryObservers,
}

impl View {
    /// Nodes whose incarnation is registered and has not ended.
    pub fn live_nodes(&self) -> Vec<(NodeId, Incarnation)> {
        self.live.lock().clone()
    }

    /// Live nodes that have said that their disks are nearly full.
    pub fn low_disks(&self) -> Vec<NodeId> {
        self.low_disks.lock().clone()
    }

    /// An applied log index. It covers every command that a connection has got the reply to.
    pub fn applied(&self) -> LogIndex {
        LogIndex(self.applied.load(Ordering::Acquire))
    }

    /// Keys of the state store and their bytes.
    pub fn store_usage(&self) -> Usage {
        *self.usage.lock()
    }

    /// What waits in the queues of sessions and groups.
    pub fn queue_usage(&self) -> QueueUsage {
        *self.queues.lock()
    }

    /// What was published and is still to go into queues.
    pub fn fan_outs(&self) -> FanOutUsage {
        *self.fan_outs.lock()
    }

    /// Devices and modules that have an identity.
    pub fn identities(&self) -> (u64, u64) {
        *self.identities.lock()
    }

    /// Bytes of all sections of twins.
    pub fn twin_bytes(&self) -> u64 {
        self.twin_bytes.load(Ordering::Relaxed)
    }

    /// Changes whenever rows of events have changed.
    pub fn event_changes(&self) -> watch::Receiver<u64> {
        self.event_changes.subscribe()
    }

    pub(super) fn events_have_changed(&self) {
        // Nearly always nobody waits.
        self.event_changes.send_modify(|changes| *changes += 1);
    }

    /// What is kept of events.
    pub fn event_usage(&self) -> EventUsage {
        *self.events.lock()
    }

    /// Watched keys of the whole cluster.
    pub fn watches(&self) -> u64 {
        self.watches.load(Ordering::Relaxed)
    }

    /// Replies to writes of the state store that are remembered.
    pub fn remembered_replies(&self) -> u64 {
        self.remembered_replies.load(Ordering::Relaxed)
    }

    /// Connections that watch a key of the state store, if they are many.
    pub fn watchers_of(&self, store_key: &[u8]) -> usize {
        self.watch_counts.of(store_key)
    }

    #[cfg(test)]
    pub fn set_watchers(&self, store_key: &'static [u8], watchers: usize) {
        let store_key = bytes::Bytes::from_static(store_key);
        self.watch_counts.set(&store_key, watchers);
    }

    /// What the replicas have found when they hashed their states the last time, and the log entry with its latest
    /// change, as far as it is known.
    pub fn hash_round(&self) -> Option<(LogIndex, Arc<HashRound>)> {
        self.hash_round.lock().clone()
    }

    /// The newest incarnation of this node that was ever registered.
    pub fn known_incarnation(&self) -> Incarnation {
        Incarnation(self.known_incarnation.load(Ordering::Acquire))
    }

    /// Who is told of changes of the directory.
    pub fn directory(&self) -> &DirectoryObservers {
        &self.directory
    }
}
