//! What a command is carried out with, whatever it does: tables, log time, who proposed it, and the places that every
//! command writes to.

use super::effect::{DropReason, EventDrop, Output};
use super::meta::Meta;
use super::schema::timer::Kind;
use super::tables::Tables;
use super::timers::Timers;
use crate::base::ids::{CLUSTER, ConnectionId, Incarnation, LogIndex, NodeId, Owner};
use crate::base::limits;
use crate::base::time::Millis;

/// The outputs of this replica, in the order in which they happened.
pub(super) struct Outputs {
    /// The node this replica is on; decides which outputs are kept, never what is stored.
    local: NodeId,
    /// Its incarnation; connections of former ones are gone.
    incarnation: Incarnation,
    outputs: Vec<Output>,
}

impl Outputs {
    pub fn new(local: NodeId) -> Self {
        Outputs {
            local,
            incarnation: Incarnation::default(),
            outputs: Vec::new(),
        }
    }

    /// The node this replica is on.
    pub fn local(&self) -> NodeId {
        self.local
    }

    /// An incarnation of a node is registered.
    pub fn registered(&mut self, node: NodeId, incarnation: Incarnation) {
        if node == self.local {
            self.incarnation = incarnation;
        }
    }

    /// Whether outputs for this node are kept here.
    pub fn is_local(&self, node: NodeId) -> bool {
        node == self.local
    }

    /// Whether outputs for this connection are kept here. Connections are numbered anew in each incarnation, so what is
    /// for one of a former incarnation must not reach its namesake.
    pub fn has_connection(&self, owner: Owner) -> bool {
        owner.node == self.local && owner.incarnation == self.incarnation
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

/// How much work one batch may do.
///
/// Invariant: work is reckoned by what the tables hold, never by what happens to be in memory or by what storage took
/// for it: all replicas stop at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Row operations, beyond what each command does in any case.
    pub row_operations: usize,
    /// Items that each command takes care of although nothing is left of them.
    pub items_at_least: usize,
    /// Row operations that all commands together may do so; then each takes care of one item.
    pub overdraft: usize,
    /// Queues that each publication goes into in any case.
    pub queues_at_least: usize,
    /// What may be looked at because topics have to be looked up anew, after the batch has changed subscriptions.
    pub looked_up_anew: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            row_operations: limits::ROW_OPERATIONS_AT_ONCE,
            items_at_least: limits::ITEMS_AT_LEAST,
            overdraft: limits::ROW_OPERATIONS_AT_ONCE,
            queues_at_least: limits::QUEUES_AT_LEAST,
            looked_up_anew: limits::LOOKED_UP_ANEW_AT_ONCE,
        }
    }
}

/// What is shared by all batches.
pub(super) struct Shared {
    pub meta: Meta,
    pub timers: Timers,
    pub outputs: Outputs,
    pub budget: Budget,
    /// Row operations that commands of the hub may do in one batch, which nothing else spends.
    pub hub_operations: usize,
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
    /// The proposing node; [`CLUSTER`] while timers fire.
    pub node: NodeId,
    /// The node that counts what no node has proposed.
    pub counts_for_all: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// What is left of the batch's budget.
    budget: Budget,
    /// The same for commands of the hub.
    hub_operations: usize,
    /// Bytes of dead letters that it may still look at.
    letter_bytes: u64,
    /// Bytes of retained messages of ended identities that it may still look at.
    purged_bytes: u64,
    /// Packet ids that sessions which are resumed may still have read.
    resumed_ids: usize,
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
            node: CLUSTER,
            counts_for_all: CLUSTER,
            incarnation: Incarnation::default(),
            budget: shared.budget,
            hub_operations: shared.hub_operations,
            letter_bytes: limits::EVENTS_TRIMMED_BYTES,
            purged_bytes: limits::RETAINED_PURGED_BYTES,
            resumed_ids: limits::RESUMED_IDS_AT_ONCE,
        }
    }

    /// Row operations that are left of the batch's budget.
    pub fn budget_left(&self) -> usize {
        self.budget.row_operations
    }

    /// How many items that cost so many row operations each may be taken care of now. Whoever does so spends what it
    /// cost.
    pub fn allowance(&self, cost: usize) -> usize {
        let affordable = self.budget.row_operations / cost;
        let at_least = match self.budget.overdraft {
            0 => 1,
            _ => self.budget.items_at_least,
        };
        affordable.max(at_least)
    }

    /// The same for a request that its connection sends in one command because it has no more than
    /// [`limits::ITEMS_AT_LEAST`] items: they are taken care of together, whatever others have done. What such commands
    /// weigh in a proposal bounds them.
    pub fn allowance_of_request(&self, cost: usize) -> usize {
        let affordable = self.budget.row_operations / cost;
        affordable.max(self.budget.items_at_least)
    }

    /// Whether everything is spent, what commands may do beyond the budget included. What timers have done beyond their
    /// half takes nothing of the other.
    pub fn is_overdrawn(&self) -> bool {
        self.budget.overdraft == 0 && self.budget.row_operations == 0
    }

    /// Queues that a publication may go into now, at so many row operations each. Those that it goes into in any case
    /// are not counted against the budget, see [`Batch::spend_queues`].
    pub fn queues(&self, cost: usize) -> usize {
        self.budget.queues_at_least + self.budget.row_operations / cost
    }

    /// A publication has gone into so many queues.
    pub fn spend_queues(&mut self, queues: usize, cost: usize) {
        let beyond = queues.saturating_sub(self.budget.queues_at_least);
        self.spend(beyond * cost);
    }

    /// Does something of which a publication is a part, which goes into no more queues, at so many row operations each,
    /// than every publication may in any case; and all of them are counted against the batch's budget.
    pub fn with_few_queues(&mut self, cost: usize, act: impl FnOnce(&mut Self)) {
        let most = self.budget.queues_at_least * cost;
        let before = self.budget;
        self.budget.row_operations = most;
        self.budget.queues_at_least = 0;
        act(self);
        let beyond = before.overdraft - self.budget.overdraft;
        let spent = most.saturating_sub(self.budget.row_operations) + beyond;
        let looked_up_anew = self.budget.looked_up_anew;
        self.budget = Budget {
            looked_up_anew,
            ..before
        };
        self.spend(spent);
    }

    /// Counts row operations against the batch's budget.
    pub fn spend(&mut self, row_operations: usize) {
        let Budget {
            row_operations: left,
            overdraft,
            ..
        } = &mut self.budget;
        *overdraft = overdraft.saturating_sub(row_operations.saturating_sub(*left));
        *left = left.saturating_sub(row_operations);
    }

    /// Row operations that are left of what the batch may do for commands of the hub.
    pub fn hub_budget_left(&self) -> usize {
        self.hub_operations
    }

    /// Counts row operations of a command of the hub. What else can wait does so.
    pub fn spend_for_hub(&mut self, row_operations: usize) {
        self.hub_operations = self.hub_operations.saturating_sub(row_operations);
        self.spend(row_operations);
    }

    /// Bytes of dead letters that the batch may still look at, of whatever event subscription they are.
    pub fn letter_bytes_left(&self) -> u64 {
        self.letter_bytes
    }

    /// So many bytes of dead letters were looked at.
    pub fn spend_letter_bytes(&mut self, bytes: u64) {
        self.letter_bytes = self.letter_bytes.saturating_sub(bytes);
    }

    /// Bytes of retained messages that the batch may still look at because identities have ended, of all of them.
    pub fn purged_bytes_left(&self) -> u64 {
        self.purged_bytes
    }

    /// So many bytes of them were looked at.
    pub fn spend_purged_bytes(&mut self, bytes: u64) {
        self.purged_bytes = self.purged_bytes.saturating_sub(bytes);
    }

    /// Whether a session may still be resumed whose unreleased packet ids are to be read.
    pub fn may_resume(&self) -> bool {
        self.resumed_ids > 0
    }

    /// So many of them were read.
    pub fn spend_resumed_ids(&mut self, ids: usize) {
        self.resumed_ids = self.resumed_ids.saturating_sub(ids);
    }

    /// Whether a topic may still be looked up anew because the batch has changed subscriptions.
    pub fn may_look_up_anew(&self) -> bool {
        self.budget.looked_up_anew > 0
    }

    /// So much was looked at for it.
    pub fn spend_look_up(&mut self, looked_at: usize) {
        let left = &mut self.budget.looked_up_anew;
        *left = left.saturating_sub(looked_at.max(1));
    }

    /// Keeps row operations of the budget from whoever spends it now, until they are [given back](Batch::give_back).
    pub fn set_aside(&mut self, row_operations: usize) {
        let left = &mut self.budget.row_operations;
        *left = left.saturating_sub(row_operations);
    }

    /// What was set aside may be spent again.
    pub fn give_back(&mut self, row_operations: usize) {
        self.budget.row_operations += row_operations;
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

    /// The node that counts what happens: the proposing one, and one of the cluster where that is a timer's work.
    fn counts_on(&self) -> NodeId {
        match self.node {
            CLUSTER => self.counts_for_all,
            node => node,
        }
    }

    /// Whether this node counts what happens.
    pub fn counts_here(&self) -> bool {
        self.outputs.is_local(self.counts_on())
    }

    /// Counts dropped messages.
    pub fn count_dropped(&mut self, reason: DropReason, count: u64) {
        self.outputs.dropped(self.counts_on(), reason, count);
    }

    /// Counts events that somebody may have wanted and nobody gets.
    pub fn count_events_dropped(&mut self, reason: EventDrop, count: u64) {
        if count > 0 && self.counts_here() {
            let dropped = Output::EventsDropped { reason, count };
            self.outputs.push(dropped);
        }
    }
}
