//! The replicated state machine: commands in, replies and outputs out.
//!
//! Everything here is deterministic. It has no clock, randomness, disk or network: time rides in the log, and storage
//! is what [`tables::Tables`] shows. What is kept in memory is derived from the tables and rebuilt by
//! [`Machine::restore`].
//!
//! Every table and everything in memory has one owner, a module with private fields. A part may call the parts that it
//! is handed; these come lowest first:
//!
//! ```text
//! schema, tables, entry                 keys, rows and log entries as bytes
//! batch (meta, timers, effect)          what every command is carried out with
//! keyed_digest                          keys of large hash tables
//! subscriptions, match_set              which sessions match a topic
//! session, will, node, replies, store   each knows nothing of the others; `store` knows `replies`
//! state_hash                            whether the replicas have the same rows
//! directory                             what operators keep: users, bans, rules, tokens
//! queue                                 queues of sessions, messages, acknowledgements
//! fan_out                               messages that are still to go into queues
//! shared, retained                      groups, retained messages and their replays: put into queues
//! messaging                             routes between subscriptions, queues, groups and replays
//! hub::presence                         which identities are let in
//! events                                events of the life of clients: numbers, outbox, event subscriptions
//! lifecycle                             how sessions begin and end
//! hub                                   identities of devices and modules, and their twins
//! apply                                 hands each command and timer to its owner
//! ```

mod apply;
mod batch;
mod directory;
pub(crate) mod effect;
pub(crate) mod entry;
mod events;
mod fan_out;
pub(crate) mod hub;
mod keyed_digest;
mod lifecycle;
mod match_set;
mod messaging;
mod meta;
mod node;
mod queue;
pub(crate) mod read;
pub(crate) mod read_events;
mod replies;
mod resuming;
mod retained;
mod schema;
mod session;
mod shared;
pub(crate) mod state_hash;
pub(crate) mod store;
pub(crate) mod subscriptions;
pub mod tables;
#[cfg(test)]
mod tests;
mod timers;
mod will;

use std::sync::Arc;

use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::limits;
use crate::base::time::Millis;
use crate::store::Usage;
pub use apply::ApplyError;
use apply::Parts;
use batch::{Batch, Budget, Outputs, Shared};
use bytes::Bytes;
use effect::{Output, Skipped};
use entry::Entry;
pub use fan_out::FanOutUsage;
use meta::Meta;
pub use meta::{EventUsage, QueueUsage};
use state_hash::HashRound;
pub use store::WatchCounts;
use subscriptions::SubscriptionIndex;
use tables::{Backing, Tables};
use timers::Timers;

/// The version of what applying the log does.
///
/// It rises with every release in which the same entry could lead to other rows than before, or in which a command or a
/// field of one is new. Nodes of different versions refuse each other, because their replicas could differ; what to do
/// then is in docs/operations.md, Stopping, restarting, upgrading. Rows of the former version must stay readable.
pub const VERSION: u32 = 13;

/// The state machine of one replica.
pub struct Machine {
    shared: Shared,
    parts: Parts,
}

impl Machine {
    /// An empty machine of the node `local`; [`Machine::restore`] gives it its state. Its cache of keys' metadata takes
    /// `metadata_bytes` at most.
    pub fn new(
        local: NodeId,
        subscriptions: Arc<SubscriptionIndex>,
        metadata_bytes: usize,
    ) -> Self {
        Machine {
            shared: Shared {
                meta: Meta::default(),
                timers: Timers::default(),
                outputs: Outputs::new(local),
                budget: Budget::default(),
                hub_operations: limits::HUB_OPERATIONS_AT_ONCE,
            },
            parts: Parts::new(subscriptions, metadata_bytes),
        }
    }

    /// Rebuilds everything that is kept in memory from the stored tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.shared.outputs.take();
        self.shared.meta.restore(backing);
        let clock = self.shared.meta.clock();
        self.shared.timers.restore(backing, clock);
        self.parts.restore(backing);
        let local = self.shared.outputs.local();
        let incarnation = self.parts.nodes.incarnation(local);
        self.shared.outputs.registered(local, incarnation);
    }

    /// Applies one log entry. One that no replica can decode does nothing, and is an output.
    ///
    /// # Errors
    /// When the entry holds what only a newer version can apply; the replica must stop.
    pub fn apply(
        &mut self,
        index: LogIndex,
        entry: Bytes,
        tables: &mut Tables<'_>,
    ) -> Result<(), ApplyError> {
        let Some(entry) = Entry::decode(&entry) else {
            let what = Skipped::Entry;
            self.shared.outputs.push(Output::Skipped { index, what });
            return Ok(());
        };
        let now = self.shared.meta.advance_clock(entry.stamp_ms, entry.term);
        let mut batch = Batch::new(&mut self.shared, tables, index, now);
        self.parts.apply(&mut batch, entry.proposals)?;
        self.shared.meta.store(tables);
        Ok(())
    }

    /// Outputs since the last call, in the order in which they happened.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        self.shared.outputs.take()
    }

    /// Log time.
    pub fn clock(&self) -> Millis {
        self.shared.meta.clock()
    }

    /// When the earliest timer is due; the leader proposes an empty batch then.
    pub fn next_due(&self) -> Millis {
        self.shared.timers.next_due()
    }

    /// Whether something is due, or has work left, that messages or the end of a node's connections wait for.
    pub fn has_work_due(&self) -> bool {
        // What goes on in a later batch is due right after the present one.
        self.shared.timers.has_work_due(self.clock().plus(1))
    }

    /// The newest incarnation of `node` that was registered.
    pub fn incarnation(&self, node: NodeId) -> Incarnation {
        self.parts.nodes.incarnation(node)
    }

    /// Nodes whose connections may be live, with their incarnation.
    pub fn live_nodes(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.parts.nodes.live()
    }

    /// Live nodes whose disks are nearly full, as they have said.
    pub fn low_disks(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.parts.nodes.low_disks()
    }

    /// What the replicas have found when they hashed their states the last time.
    pub fn hash_round(&self) -> Option<&HashRound> {
        self.parts.hashes.last()
    }

    /// Number of keys that are watched in the whole cluster.
    pub fn watched_keys(&self) -> usize {
        self.parts.store.watched_keys()
    }

    /// How many connections watch a key of the state store, for other threads.
    pub fn watch_counts(&self) -> Arc<WatchCounts> {
        self.parts.store.watch_counts()
    }

    /// Replies to writes that are remembered, see docs/spec/state-store.md, Retries.
    pub fn remembered_replies(&self) -> usize {
        self.parts.replies.len()
    }

    /// What waits for clients.
    pub fn queue_usage(&self) -> QueueUsage {
        self.shared.meta.queue_usage()
    }

    /// What was published and is still to go into queues.
    pub fn fan_outs(&self) -> FanOutUsage {
        self.parts.messaging.fan_outs()
    }

    /// What is kept of events.
    pub fn event_usage(&self) -> EventUsage {
        let mut usage = self.shared.meta.outbox();
        for row in self.parts.events.subscriptions() {
            usage.parked += row.parked;
            usage.dead_letters += row.dead;
        }
        usage
    }

    /// Entries of the directory, and their bytes.
    #[cfg(test)]
    pub fn directory_usage(&self) -> (u64, u64) {
        self.shared.meta.directory_usage()
    }

    /// Devices and modules that have an identity.
    pub fn identities(&self) -> (u64, u64) {
        self.shared.meta.identities()
    }

    /// Bytes of all sections of twins.
    pub fn twin_bytes(&self) -> u64 {
        self.shared.meta.twin_bytes()
    }

    /// Keys of the state store that hold a value, and their bytes.
    pub fn usage(&self) -> Usage {
        self.shared.meta.store_usage()
    }
}
