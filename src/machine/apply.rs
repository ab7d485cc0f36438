//! Applying a batch: timers that are due fire, the commands of each proposal run in order, then queues are finished.
//!
//! Each command is handed to the part that owns what it changes; a command that takes several parts is routed by
//! [`super::lifecycle`] or [`super::messaging`].

use std::sync::Arc;

use super::batch::Batch;
use super::effect::{DropReason, EndReason, Output, RelayedBatch, Reply, Skipped};
use super::entry::{Commands, Decoded};
use super::events::{EVENT_COST, Events};
use super::lifecycle::Lifecycle;
use super::messaging::{Made, Messaging};
use super::node::{Admission, Nodes};
use super::queue::received;
use super::replies::Replies;
use super::schema::timer::Kind as TimerKind;
use super::session::{self, Sessions};
use super::state_hash::StateHashes;
use super::store::{self, Store, WriteKeys};
use super::subscriptions::SubscriptionIndex;
use super::tables::Backing;
use super::timers::Due;
use super::{directory, hub, retained, shared};
use crate::base::ids::{CLUSTER, Incarnation, LogIndex, NodeId, SessionId};
use crate::base::proto::command::{self, command::Kind};
use crate::base::time::Millis;

/// Row operations that a timer takes at least: it is looked at, its subject is read, both are written.
const TIMER_COST: usize = 4;

/// The log holds something this version cannot apply: the node must stop, skipping it would make replicas differ.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A command's number is not known here.
    #[error("log entry {0} holds a command that this version does not know; upgrade this node")]
    UnknownCommand(LogIndex),
}

/// Everything that is kept in memory, by owner.
pub(super) struct Parts {
    pub sessions: Sessions,
    pub messaging: Messaging,
    pub store: Store,
    pub nodes: Nodes,
    pub replies: Replies,
    pub hashes: StateHashes,
    pub events: Events,
}

impl Parts {
    pub fn new(index: Arc<SubscriptionIndex>, metadata_bytes: usize) -> Self {
        Parts {
            sessions: Sessions::default(),
            messaging: Messaging::new(index),
            store: Store::new(metadata_bytes),
            nodes: Nodes::default(),
            replies: Replies::default(),
            hashes: StateHashes::default(),
            events: Events::default(),
        }
    }

    /// Rebuilds everything from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.nodes.restore(backing);
        let messaging = &mut self.messaging;
        messaging.restore(backing);
        self.sessions.restore_incarnations(backing);
        for (node, incarnation) in self.sessions.ended_incarnations() {
            messaging.end_incarnation(node, incarnation);
        }
        self.sessions.restore(backing, |client_id, row| {
            messaging.restore_session(client_id, row);
        });
        messaging.restore_subscriptions(backing);
        self.store.restore(backing);
        self.replies.restore(backing);
        self.hashes.restore(backing);
        self.events.restore(backing);
    }

    /// Applies the proposals of a batch.
    pub fn apply(
        &mut self,
        batch: &mut Batch<'_, '_>,
        proposals: Vec<command::Proposal>,
    ) -> Result<(), ApplyError> {
        self.messaging.begin_batch();
        if let Some((first, _)) = self.nodes.live().next() {
            batch.counts_for_all = first;
        }
        self.fire_timers(batch);
        for proposal in proposals {
            batch.node.0 = proposal.node;
            batch.incarnation.0 = proposal.incarnation;
            self.apply_proposal(batch, proposal)?;
        }
        self.finish_batch(batch);
        Ok(())
    }

    fn lifecycle(&mut self) -> Lifecycle<'_> {
        Lifecycle {
            sessions: &mut self.sessions,
            messaging: &mut self.messaging,
            store: &mut self.store,
            events: &mut self.events,
        }
    }

    /// Fires what is due at the batch's log time, the earliest first, until half of the batch's budget is spent: the
    /// other half is left to the commands, which can't take the timers' half from the next batch. What is left stays
    /// due, so the leader proposes another batch soon. Those that [go first](TimerKind::goes_first) have all of what
    /// timers may spend, or half of it where others are due, too. Those that messages wait for come next, until
    /// half of what is left then is spent; retained replays likewise after them.
    fn fire_timers(&mut self, batch: &mut Batch<'_, '_>) {
        let reserved = batch.budget_left() / 2;
        batch.set_aside(reserved);
        let most = batch.budget_left().div_ceil(TIMER_COST).max(1);
        let mut all_due = batch.timers.due(batch.tables, batch.now, most);
        let first = batch.timers.first_due(batch.now);
        all_due.retain(|due| !first.contains(due));
        let work = batch.timers.work_due(batch.now, most);
        let has_replays = batch.timers.replay_due(batch.now).is_some();
        let of_others = half_of(
            batch,
            has_replays || !work.is_empty() || !all_due.is_empty(),
        );
        self.fire_all(batch, first);
        batch.give_back(of_others);
        let of_others = half_of(batch, has_replays || !all_due.is_empty());
        self.fire_all(batch, work);
        batch.give_back(of_others);
        let of_others = half_of(batch, !all_due.is_empty());
        self.fire_replays(batch);
        batch.give_back(of_others);
        self.fire_all(batch, all_due);
        batch.give_back(reserved);
    }

    /// Fires timers that are due until the batch's budget is spent.
    fn fire_all(&mut self, batch: &mut Batch<'_, '_>, all_due: impl IntoIterator<Item = Due>) {
        let mut all_due = all_due.into_iter();
        for due in all_due.by_ref() {
            batch.spend(TIMER_COST);
            batch.clear_timer(due.deadline, due.kind, &due.subject);
            self.fire(batch, &due);
            if batch.budget_left() == 0 {
                break;
            }
        }
        if let Some(next) = all_due.next() {
            batch.timers.put_off(&next);
        }
    }

    /// Goes on with retained replays until the batch's budget, or what it may do for replays, is spent.
    fn fire_replays(&mut self, batch: &mut Batch<'_, '_>) {
        while batch.budget_left() > 0 && self.messaging.may_replay() {
            let Some(due) = batch.timers.replay_due(batch.now) else {
                return;
            };
            batch.spend(TIMER_COST);
            batch.clear_timer(due.deadline, due.kind, &due.subject);
            self.fire(batch, &due);
        }
    }

    fn fire(&mut self, batch: &mut Batch<'_, '_>, due: &Due) {
        let (subject, deadline) = (due.subject.as_slice(), due.deadline);
        match due.kind {
            TimerKind::KeyExpiry => self.store.expire(batch, subject),
            TimerKind::Tombstone => store::drop_tombstone(batch, subject, deadline),
            TimerKind::Replies => self.replies.forget(batch, subject),
            TimerKind::WillDelay => self.lifecycle().will_due(batch, subject, deadline),
            TimerKind::SessionExpiry => self.lifecycle().expire(batch, subject, deadline),
            TimerKind::RetainedExpiry => retained::expire(batch, subject, deadline),
            TimerKind::PurgeRetained => retained::purge::go_on(batch, subject),
            TimerKind::PurgeSession => self.messaging.go_on_ending(batch, subject),
            TimerKind::PurgeGroup => shared::go_on_purging(batch, subject),
            TimerKind::Grant => self.messaging.go_on_granting(subject),
            TimerKind::RetainedReplay => self.messaging.go_on_replaying(batch, subject),
            TimerKind::ReleaseIncarnation => self.lifecycle().go_on_releasing(batch, subject),
            TimerKind::EndWatches => self.store.go_on_ending(batch, subject),
            TimerKind::GiveBack => self.messaging.go_on_giving_back(batch, subject),
            TimerKind::FanOut => self.messaging.go_on_fanning_out(batch, subject),
            TimerKind::QueueFull => self.lifecycle().queue_full(batch, subject),
            TimerKind::DirectoryExpiry => directory::expire(batch, subject, deadline),
            TimerKind::EventSequences => self.events.end_numbers(batch),
            TimerKind::TrimEvents => self.events.trim(batch),
            TimerKind::ClientChanged => self.client_due(batch, subject, deadline),
            TimerKind::EventLetters => self.go_on_with_letters(batch, subject),
        }
    }

    fn apply_proposal(
        &mut self,
        batch: &mut Batch<'_, '_>,
        proposal: command::Proposal,
    ) -> Result<(), ApplyError> {
        // What a leader proposes on its own account is lost with its leadership and does nothing when it comes twice.
        if batch.node != CLUSTER && !self.admit(batch, proposal.sequence) {
            return Ok(());
        }
        let is_local = batch.outputs.is_local(batch.node);
        let incarnation = batch.incarnation;
        let mut is_refused = proposal.refused;
        let mut commands = Commands(proposal.commands);
        loop {
            let group = commands.group();
            if group.is_empty() {
                break;
            }
            let keys = self.store.look_ahead(&self.replies, &group);
            for (command, keys) in group.into_iter().zip(keys) {
                let reply = match command {
                    Decoded::Known(kind) => self.run(batch, kind, keys),
                    Decoded::Newer => return Err(ApplyError::UnknownCommand(batch.index)),
                    Decoded::Garbage => {
                        is_refused = true;
                        skip(batch);
                        Reply::Undecodable
                    }
                };
                if is_local {
                    batch.outputs.push(Output::Reply {
                        incarnation,
                        sequence: proposal.sequence,
                        reply,
                    });
                }
            }
        }
        if is_local && is_refused {
            batch.outputs.push(Output::ProposalRefused {
                incarnation,
                sequence: proposal.sequence,
            });
        }
        if is_local {
            batch.outputs.push(Output::ProposalApplied {
                incarnation,
                sequence: proposal.sequence,
            });
        }
        Ok(())
    }

    /// Whether the proposal of a node is to be applied; it is counted as applied then.
    fn admit(&mut self, batch: &mut Batch<'_, '_>, sequence: u64) -> bool {
        match self.nodes.admit(batch, sequence) {
            Admission::Refused => return false,
            Admission::Next => self.nodes.count(batch, sequence),
            Admission::Registers { former } => {
                if let Some(former) = former {
                    let node = batch.node;
                    self.lifecycle().end_incarnation(batch, node, former);
                }
                self.nodes.register(batch, sequence);
                batch.outputs.registered(batch.node, batch.incarnation);
            }
        }
        true
    }

    /// Carries a command out. A write has `keys`.
    fn run(&mut self, batch: &mut Batch<'_, '_>, kind: Kind, keys: Option<WriteKeys>) -> Reply {
        match kind {
            Kind::Nothing(_) => Reply::Done,
            Kind::NodeDown(command) => {
                if let Some((node, incarnation)) = self.nodes.declare_down(batch, command) {
                    self.lifecycle().end_incarnation(batch, node, incarnation);
                }
                Reply::Done
            }
            Kind::NodeDisk(command) => {
                self.nodes.set_disk(batch, command.low);
                Reply::Done
            }
            Kind::HashState(command) => self.hashes.begin(batch, command),
            Kind::StateHash(command) => {
                self.hashes.note(batch, command);
                Reply::Done
            }
            Kind::OpenSession(command) => self.lifecycle().open(batch, command),
            Kind::CloseSession(command) => self.lifecycle().close(batch, command),
            Kind::DeleteSession(command) => {
                let reason = EndReason::Administrative;
                self.lifecycle()
                    .end_session(batch, &command.client_id, reason)
            }
            Kind::Disconnect(command) => {
                let reason = EndReason::Administrative;
                self.lifecycle()
                    .disconnect(batch, &command.client_id, reason)
            }
            Kind::Subscribe(command) => self.subscribe(batch, command),
            Kind::Unsubscribe(command) => self.unsubscribe(batch, command),
            Kind::StoreWrite(command) => {
                let replies = &mut self.replies;
                Reply::Store(self.store.write(batch, replies, command, keys))
            }
            Kind::KeyNotify(command) => {
                match session::owned(batch, &command.client_id, command.connection) {
                    Some((_, owner)) => Reply::Store(self.store.key_notify(batch, owner, command)),
                    None => Reply::NotOwner,
                }
            }
            Kind::Publish(command) => self.publish(batch, command),
            Kind::Acknowledge(command) => self.acknowledge(batch, command),
            Kind::Relay(command) => relay(batch, command),
            Kind::WriteDirectory(command) => Reply::Directory(directory::write(batch, command)),
            Kind::PutIdentity(command) => {
                Reply::Hub(hub::registry::put(batch, &mut self.lifecycle(), command))
            }
            Kind::DeleteIdentity(command) => {
                Reply::Hub(hub::registry::delete(batch, &mut self.lifecycle(), command))
            }
            Kind::UpdateTwin(command) => {
                Reply::Hub(hub::twins::update(batch, &mut self.lifecycle(), command))
            }
            Kind::PatchReported(command) => {
                hub::twins::patch_reported(batch, &mut self.lifecycle(), command)
            }
            Kind::SetEvents(command) => {
                self.events.set(batch, command);
                Reply::Done
            }
            Kind::PutEventSubscription(command) => Reply::Events(self.events.put(batch, command)),
            Kind::DeleteEventSubscription(command) => {
                Reply::Events(self.events.delete(batch, command))
            }
            Kind::EventProgress(command) => Reply::Events(self.events.progress(batch, command)),
            Kind::ReplayDeadLetters(command) => Reply::Events(self.events.replay(batch, command)),
        }
    }

    /// A timer says that the event of a client that has changed is due.
    fn client_due(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8], deadline: Millis) {
        let Ok(client) = std::str::from_utf8(subject) else {
            return;
        };
        let found = hub::registry::client(batch.tables, client);
        let message = self.events.client_due(batch, client, deadline, found);
        self.publish_event(batch, message);
    }

    /// A timer asks to go on with what is parked or was given up for an event subscription.
    fn go_on_with_letters(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        if let Ok(name) = std::str::from_utf8(subject) {
            self.events.go_on_with_letters(batch, name);
        }
    }

    /// Publishes what an event has become.
    fn publish_event(
        &mut self,
        batch: &mut Batch<'_, '_>,
        message: Option<command::PublishedMessage>,
    ) {
        if message.is_some() {
            batch.spend(EVENT_COST);
            self.lifecycle().publish_event(batch, message);
        }
    }

    fn subscribe(&mut self, batch: &mut Batch<'_, '_>, command: command::Subscribe) -> Reply {
        let Some((row, _)) = session::owned(batch, &command.client_id, command.connection) else {
            return Reply::NotOwner;
        };
        let (session, index) = (SessionId(row.session_id), batch.index);
        match self.messaging.subscribe(batch, session, command) {
            Some(Made { new, refused }) => Reply::Subscribed {
                index,
                new,
                refused,
            },
            None => Reply::NotOwner,
        }
    }

    fn unsubscribe(&mut self, batch: &mut Batch<'_, '_>, command: command::Unsubscribe) -> Reply {
        let Some((row, _)) = session::owned(batch, &command.client_id, command.connection) else {
            return Reply::NotOwner;
        };
        let session = SessionId(row.session_id);
        Reply::Unsubscribed(self.messaging.unsubscribe(batch, session, command.filters))
    }

    fn publish(&mut self, batch: &mut Batch<'_, '_>, command: command::Publish) -> Reply {
        let Some(mut message) = command.message else {
            return Reply::Done;
        };
        let mut publisher = None;
        let mut receives = None;
        if command.connection != 0 {
            let owner = batch.owner(command.connection);
            let Some(connected) = self.sessions.connected(owner) else {
                return Reply::NotOwner;
            };
            let session = connected.session;
            publisher = Some(session);
            if command.packet_id != 0 && connected.durable {
                // A packet id is two bytes.
                let packet_id = command.packet_id as u16;
                if received::contains(batch, session, packet_id) {
                    // [MQTT-4.3.3-10]
                    return Reply::Published { matched: true };
                }
                receives = Some((session, packet_id));
            }
        }
        let own = command.max_retained_of_identity;
        let exceeds = retained::exceeds(batch, &message, command.max_retained);
        if exceeds && own.is_some() || retained::exceeds_share(batch, &message, own) {
            // It could not be told: most of them speak MQTT 3, and would send the same message again for ever.
            message.retain = false;
            batch.count_dropped(DropReason::QueueFull, 1);
        } else if exceeds {
            // [MQTT-4.3.3-9]: the packet id of what is refused is free again.
            return Reply::QuotaExceeded;
        }
        let max_queued_bytes = command.max_queued_bytes;
        if self.messaging.exceeds(batch, &message, max_queued_bytes)
            || self.messaging.is_crowded(batch, &message)
        {
            if message.qos == 0 {
                batch.count_dropped(DropReason::QueueFull, 1);
            }
            return Reply::QuotaExceeded;
        }
        if let Some((session, packet_id)) = receives {
            received::add(batch, session, packet_id);
        }
        let matched = self.messaging.publish(batch, publisher, message);
        Reply::Published { matched }
    }

    fn acknowledge(&mut self, batch: &mut Batch<'_, '_>, command: command::Acknowledge) -> Reply {
        let owner = batch.owner(command.connection);
        let Some(connected) = self.sessions.connected(owner) else {
            return Reply::NotOwner;
        };
        let (session, client_id) = (connected.session, &connected.client_id);
        self.messaging
            .acknowledge(batch, session, client_id, command);
        Reply::Done
    }

    /// What is done once per batch, after its commands.
    fn finish_batch(&mut self, batch: &mut Batch<'_, '_>) {
        self.messaging.finish_queues(batch);
        self.replies.store(batch);
        self.events.finish_batch(batch);
    }
}

/// Sets aside half of what timers may still spend, if there is somebody for it.
fn half_of(batch: &mut Batch<'_, '_>, is_needed: bool) -> usize {
    let half = match is_needed {
        true => batch.budget_left() / 2,
        false => 0,
    };
    batch.set_aside(half);
    half
}

/// A command of the proposal that is being applied can't be decoded: says so on every node.
fn skip(batch: &mut Batch<'_, '_>) {
    batch.outputs.push(Output::Skipped {
        index: batch.index,
        what: Skipped::Command { node: batch.node },
    });
}

/// Hands messages to the node that they are for, whose connections alone they concern.
fn relay(batch: &mut Batch<'_, '_>, command: command::Relay) -> Reply {
    if batch.outputs.is_local(NodeId(command.to)) {
        batch.outputs.push(Output::Relayed(RelayedBatch {
            from: batch.node,
            incarnation: Incarnation(command.incarnation),
            sequence: command.sequence,
            messages: command.messages,
        }));
    }
    Reply::Relayed(batch.index)
}
