//! The replicated state machine: commands in, replies and effects out.
//!
//! Everything here is deterministic. It has no clock, randomness, disk or network: time rides in the
//! log, and storage is what [`tables::Tables`] shows. What is kept in memory is derived from the tables
//! and rebuilt by [`Machine::restore`].
//!
//! A batch is applied in this order: the log time moves on, timers due at it fire, then the commands of
//! each proposal run. One file per family of commands.

mod acknowledge;
#[cfg(test)]
mod agreement_tests;
pub mod effect;
mod groups;
mod messages;
mod nodes;
mod publish;
mod purge;
#[cfg(test)]
mod queue_tests;
mod queues;
pub mod read;
mod replies;
mod retained;
mod retained_replay;
#[cfg(test)]
mod retained_replay_tests;
pub mod schema;
mod sessions;
pub mod store;
pub mod subscriptions;
pub mod tables;
#[cfg(test)]
mod tests;
mod timers;
mod wills;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use prost::Message as _;
use rustc_hash::FxHashMap;

use crate::base::ids::{CLUSTER, ConnectionId, Incarnation, LogIndex, NodeId, Owner, SessionId};
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use effect::{Output, Reply};
use subscriptions::SubscriptionIndex;
use tables::{Backing, Tables};

/// The log holds something this version cannot apply: the node must stop, skipping it would make
/// replicas differ.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The entry is not a batch.
    #[error("log entry {0} is not a batch of commands: {1}")]
    Malformed(LogIndex, prost::DecodeError),
    /// A command's number is not known here.
    #[error("log entry {0} holds a command that this version does not know; upgrade this node")]
    UnknownCommand(LogIndex),
}

/// What a command is carried out with.
pub(crate) struct Context<'a, 't> {
    tables: &'a mut Tables<'t>,
    index: LogIndex,
    now: Millis,
    node: NodeId,
    incarnation: Incarnation,
}

impl Context<'_, '_> {
    /// A connection of the proposing node.
    fn owner(&self, connection: u64) -> Owner {
        Owner {
            node: self.node,
            incarnation: self.incarnation,
            connection: ConnectionId(connection),
        }
    }
}

/// What waits for clients in the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    /// Messages in all queues and groups; one that waits in two counts twice.
    pub messages: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// Retained messages.
    pub retained: u64,
}

/// The session that a connection owns.
#[derive(Clone)]
struct Connected {
    client_id: Arc<str>,
    session: SessionId,
    durable: bool,
}

/// The state machine of one replica.
pub struct Machine {
    /// The node this replica is on; decides which outputs are kept, never what is stored.
    local: NodeId,
    meta: state::Meta,
    nodes: BTreeMap<NodeId, state::Node>,
    connections: BTreeMap<Owner, Connected>,
    subscriptions: Arc<SubscriptionIndex>,
    match_sets: publish::MatchSets,
    queues: FxHashMap<SessionId, queues::SessionQueue>,
    groups: groups::Groups,
    feeds: retained_replay::Feeds,
    /// Queues that the batch under way has changed, or that may have room for more.
    touched: BTreeSet<SessionId>,
    /// Clients whose session ends with the batch, because its queue was full.
    doomed: Vec<Arc<str>>,
    watchers: store::Watchers,
    replies: replies::Memory,
    next_due: Millis,
    outputs: Vec<Output>,
}

impl Machine {
    /// An empty machine; [`Machine::restore`] gives it its state.
    pub fn new(local: NodeId, subscriptions: Arc<SubscriptionIndex>) -> Self {
        Machine {
            local,
            meta: state::Meta::default(),
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            subscriptions,
            match_sets: publish::MatchSets::default(),
            queues: FxHashMap::default(),
            groups: groups::Groups::default(),
            feeds: retained_replay::Feeds::default(),
            touched: BTreeSet::new(),
            doomed: Vec::new(),
            watchers: store::Watchers::default(),
            replies: replies::Memory::default(),
            next_due: Millis::NEVER,
            outputs: Vec::new(),
        }
    }

    /// Rebuilds everything that is kept in memory from the stored tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.outputs.clear();
        self.meta = match backing.get(&schema::meta::encode()) {
            Some(row) => state::Meta::decode(row).expect("this machine wrote the row"),
            None => state::Meta::default(),
        };
        self.nodes.clear();
        let (from, to) = schema::node::all();
        backing.scan(&from, &to, &mut |row_key, row| {
            let node = schema::node::decode(row_key).expect("this machine wrote the key");
            self.nodes.insert(
                node,
                state::Node::decode(row).expect("this machine wrote the row"),
            );
            true
        });
        self.restore_sessions(backing);
        self.watchers.restore(backing);
        self.replies.restore(backing);
        self.find_next_due(backing);
    }

    fn restore_sessions(&mut self, backing: &dyn Backing) {
        self.connections.clear();
        self.subscriptions.clear();
        self.match_sets = publish::MatchSets::default();
        self.queues.clear();
        self.groups.restore(backing);
        self.feeds.restore(backing);
        let (from, to) = schema::session::all();
        backing.scan(&from, &to, &mut |row_key, row| {
            let client_id = schema::session::decode(row_key).expect("this machine wrote the key");
            let row = state::Session::decode(row).expect("this machine wrote the row");
            let owner = sessions::owner_of(&row);
            if let Some(owner) = owner {
                let connected = Connected {
                    client_id: client_id.into(),
                    session: SessionId(row.session_id),
                    durable: row.durable,
                };
                self.connections.insert(owner, connected);
            }
            let queueing = sessions::queueing_of(&row);
            self.subscriptions
                .open(SessionId(row.session_id), client_id, owner, queueing);
            true
        });
        let (from, to) = schema::subscription::all();
        backing.scan(&from, &to, &mut |row_key, row| {
            let (session, filter) =
                schema::subscription::decode(row_key).expect("this machine wrote the key");
            let row = state::Subscription::decode(row).expect("this machine wrote the row");
            self.subscriptions.subscribe(session, filter, &row);
            if let Some(subscriber) = self.subscriptions.subscriber(session) {
                self.groups.restore_member(filter, subscriber, &row);
            }
            true
        });
    }

    /// Applies one log entry.
    ///
    /// # Errors
    /// When the entry cannot be understood; the replica must stop.
    pub fn apply(
        &mut self,
        index: LogIndex,
        entry: Bytes,
        tables: &mut Tables<'_>,
    ) -> Result<(), ApplyError> {
        let batch =
            command::Batch::decode(entry).map_err(|error| ApplyError::Malformed(index, error))?;
        self.meta.clock_ms = self.meta.clock_ms.max(batch.stamp_ms);
        let now = Millis(self.meta.clock_ms);
        let mut context = Context {
            tables,
            index,
            now,
            node: NodeId::default(),
            incarnation: Incarnation::default(),
        };
        self.feeds.begin_batch();
        self.fire_timers(&mut context);
        for proposal in batch.proposals {
            context.node = NodeId(proposal.node);
            context.incarnation = Incarnation(proposal.incarnation);
            self.apply_proposal(&mut context, proposal)?;
        }
        self.settle(&mut context);
        self.store_replies(&mut context);
        context
            .tables
            .put(schema::meta::encode(), self.meta.encode_to_vec());
        Ok(())
    }

    fn apply_proposal(
        &mut self,
        context: &mut Context<'_, '_>,
        proposal: command::Proposal,
    ) -> Result<(), ApplyError> {
        // What a leader proposes on its own account is lost with its leadership and does nothing when it comes twice.
        let own_account = context.node == CLUSTER;
        if !own_account
            && !self.admit(
                context,
                context.node,
                context.incarnation,
                proposal.sequence,
            )
        {
            return Ok(());
        }
        let mut commands = proposal.commands;
        while commands.has_remaining() {
            let command = command::Command::decode_length_delimited(&mut commands)
                .map_err(|error| ApplyError::Malformed(context.index, error))?;
            let kind = command
                .kind
                .ok_or(ApplyError::UnknownCommand(context.index))?;
            let reply = self.run(context, kind)?;
            if context.node == self.local {
                let incarnation = context.incarnation;
                self.outputs.push(Output::Reply { incarnation, reply });
            }
        }
        if context.node == self.local {
            let (incarnation, sequence) = (context.incarnation, proposal.sequence);
            self.outputs.push(Output::ProposalApplied {
                incarnation,
                sequence,
            });
        }
        Ok(())
    }

    fn run(
        &mut self,
        context: &mut Context<'_, '_>,
        kind: command::command::Kind,
    ) -> Result<Reply, ApplyError> {
        use command::command::Kind;
        Ok(match kind {
            Kind::Nothing(_) => Reply::Done,
            Kind::NodeDown(command) => self.node_down(context, command),
            Kind::OpenSession(command) => self.open_session(context, command),
            Kind::CloseSession(command) => self.close_session(context, command),
            Kind::DeleteSession(command) => self.delete_session_command(context, command),
            Kind::Disconnect(command) => self.disconnect(context, command),
            Kind::Subscribe(command) => self.subscribe(context, command),
            Kind::Unsubscribe(command) => self.unsubscribe(context, command),
            Kind::StoreWrite(command) => Reply::Store(self.store_write(context, command)),
            Kind::KeyNotify(command) => self.key_notify(context, command),
            Kind::Publish(command) => self.publish(context, command),
            Kind::Acknowledge(command) => self.acknowledge(context, command),
        })
    }

    /// What is done once per batch, after its commands.
    fn settle(&mut self, context: &mut Context<'_, '_>) {
        for client_id in std::mem::take(&mut self.doomed) {
            self.end_session(context, &client_id, effect::EndReason::QueueFull);
        }
        self.settle_queues(context);
    }

    /// Outputs since the last call, in the order in which they happened.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Log time.
    pub fn clock(&self) -> Millis {
        Millis(self.meta.clock_ms)
    }

    /// When the earliest timer is due; the leader proposes an empty batch then.
    pub fn next_due(&self) -> Millis {
        self.next_due
    }

    /// The newest life of `node` that was registered.
    pub fn incarnation(&self, node: NodeId) -> Incarnation {
        Incarnation(self.nodes.get(&node).map_or(0, |row| row.incarnation))
    }

    /// Number of keys that are watched in the whole cluster.
    pub fn watched_keys(&self) -> usize {
        self.watchers.len()
    }

    /// What waits for clients.
    pub fn queue_usage(&self) -> QueueUsage {
        QueueUsage {
            messages: self.meta.queued_messages,
            bytes: self.meta.queued_bytes,
            retained: self.meta.retained,
        }
    }

    /// Number of remembered replies.
    pub fn remembered_replies(&self) -> usize {
        self.replies.len()
    }
}
