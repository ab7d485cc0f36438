//! What a command is carried out with, whatever it does: tables, log time, who proposed it, and the places that every
//! command writes to.

use super::effect::{DropReason, Output};
use super::meta::Meta;
use super::schema::timer::Kind;
use super::tables::Tables;
use super::timers::Timers;
use crate::base::ids::{ConnectionId, Incarnation, LogIndex, NodeId, Owner};
use crate::base::time::Millis;

/// The outputs of this replica, in the order in which they happened.
pub(super) struct Outputs {
    /// The node this replica is on; decides which outputs are kept, never what is stored.
    local: NodeId,
    outputs: Vec<Output>,
}

impl Outputs {
    pub fn new(local: NodeId) -> Self {
        let outputs = Vec::new();
        Outputs { local, outputs }
    }

    /// Whether outputs for this node are kept here.
    pub fn is_local(&self, node: NodeId) -> bool {
        node == self.local
    }

    pub fn push(&mut self, output: Output) {
        self.outputs.push(output);
    }

    /// Counts dropped messages, on the one node that is to count them.
    pub fn dropped(&mut self, on: NodeId, reason: DropReason, count: u64) {
        if self.is_local(on) {
            self.push(Output::Dropped { reason, count });
        }
    }

    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }
}

/// What is shared by all batches.
pub(super) struct Shared {
    pub meta: Meta,
    pub timers: Timers,
    pub outputs: Outputs,
}

/// The batch under way, and the proposal of it that is being applied.
pub(super) struct Batch<'a, 't> {
    pub tables: &'a mut Tables<'t>,
    pub meta: &'a mut Meta,
    pub timers: &'a mut Timers,
    pub outputs: &'a mut Outputs,
    /// The log entry.
    pub index: LogIndex,
    /// Log time.
    pub now: Millis,
    /// The proposing node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

impl<'a, 't> Batch<'a, 't> {
    /// A batch that no proposal of is being applied yet.
    pub fn new(
        shared: &'a mut Shared,
        tables: &'a mut Tables<'t>,
        index: LogIndex,
        now: Millis,
    ) -> Self {
        Batch {
            tables,
            meta: &mut shared.meta,
            timers: &mut shared.timers,
            outputs: &mut shared.outputs,
            index,
            now,
            node: NodeId::default(),
            incarnation: Incarnation::default(),
        }
    }

    /// A connection of the proposing node.
    pub fn owner(&self, connection: u64) -> Owner {
        Owner {
            node: self.node,
            incarnation: self.incarnation,
            connection: ConnectionId(connection),
        }
    }

    pub fn set_timer(&mut self, deadline: Millis, kind: Kind, subject: &[u8]) {
        self.timers.set(self.tables, deadline, kind, subject);
    }

    pub fn clear_timer(&mut self, deadline: Millis, kind: Kind, subject: &[u8]) {
        self.timers.clear(self.tables, deadline, kind, subject);
    }

    /// Counts dropped messages, on the proposing node.
    pub fn count_dropped(&mut self, reason: DropReason, count: u64) {
        self.outputs.dropped(self.node, reason, count);
    }
}
