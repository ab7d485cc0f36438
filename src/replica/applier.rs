//! Runs committed batches through the machine and hands its outputs to this node's connections.
//!
//! Invariant: outputs are performed in the order in which the machine made them, after their batch is committed to the
//! tables.
//! Invariant: no connection outlives a snapshot that is installed while it is there, or hears of anything behind it:
//! what the snapshot holds has told it nothing.
//! Invariant: what the rest of the node reads of the machine ([`View`], [`Due`], [`Clock`]) is brought up to date after
//! each batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::base::ids::{Incarnation, LogIndex, NodeId, SessionId};
use crate::base::pulse::beat;
use crate::events::{self, DisconnectionReason};
use crate::machine::Machine;
use crate::machine::effect::{ApplicationMessage, DropReason, EventDrop, Output, Reply, Skipped};
use crate::machine::state_hash::{HashRound, Verdict, verdict};
use crate::machine::tables::{Backing, Tables};
use crate::mailbox::{End, Item, WakeList};
use crate::raft::{Apply, Look};
use crate::replica::clock::Clock;
use crate::replica::pace::Pace;
use crate::replica::proposer::Proposer;
use crate::replica::sequencer::Due;
use crate::replica::state_hasher::StateHasher;
use crate::replica::view::View;
use crate::router::{Router, Throttled};
use crate::storage::fatal;
use crate::telemetry::labels;
use crate::telemetry::metrics::Metrics;

/// What the log says of this node's incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncarnationEvent {
    /// The incarnation was declared dead or refused, or its replies were lost with a snapshot: a new one must begin.
    Ended(Incarnation),
    /// The incarnation is registered.
    Registered(Incarnation),
}

/// The replicated machine of this node as Raft drives it.
pub struct Applier {
    local: NodeId,
    machine: Machine,
    proposer: Arc<Proposer>,
    router: Arc<Router>,
    due: Arc<Due>,
    clock: Arc<Clock>,
    view: Arc<View>,
    metrics: Arc<Metrics>,
    events: mpsc::UnboundedSender<IncarnationEvent>,
    /// Subscribers of this node that throttle the publisher of the PUBLISH whose outputs are being performed, with the
    /// publisher's session. If the publisher is a connection of this node, too, its acknowledgement is deferred.
    throttled: Option<(SessionId, Throttled)>,
    hashes: Arc<StateHasher>,
    pace: Pace,
    /// The batch that was applied last.
    last: LogIndex,
    /// What the answers of the last hash round come to.
    verdict: Verdict,
    /// Why this replica must not go on.
    diverged: Option<String>,
}

impl Applier {
    /// An applier of an empty machine, which Raft restores before the first batch. Events of the incarnation are rare
    /// (a handful per restart), so their channel needs no bound.
    pub fn new(
        local: NodeId,
        machine: Machine,
        proposer: Arc<Proposer>,
        router: Arc<Router>,
        due: Arc<Due>,
        clock: Arc<Clock>,
        metrics: Arc<Metrics>,
    ) -> (
        Applier,
        Arc<View>,
        mpsc::UnboundedReceiver<IncarnationEvent>,
    ) {
        let (events, receiver) = mpsc::unbounded_channel();
        let view = Arc::new(View {
            watch_counts: machine.watch_counts(),
            ..View::default()
        });
        let applier = Applier {
            local,
            machine,
            proposer: proposer.clone(),
            router,
            due,
            clock,
            view: view.clone(),
            events,
            throttled: None,
            pace: Pace::default(),
            hashes: StateHasher::new(proposer, metrics.clone()),
            metrics,
            last: LogIndex::default(),
            verdict: Verdict::default(),
            diverged: None,
        };
        (applier, view, receiver)
    }

    /// Has apply keep pace with the threads that serve clients.
    pub fn keep_pace_with(&mut self, clients: Handle) {
        self.pace.keep_with(clients);
    }

    fn update_view(&self) {
        let is_pressing = self.machine.has_work_due();
        self.due.set(self.machine.next_due(), is_pressing);
        self.clock.observe(self.machine.clock());
        *self.view.usage.lock() = self.machine.usage();
        *self.view.queues.lock() = self.machine.queue_usage();
        *self.view.fan_outs.lock() = self.machine.fan_outs();
        *self.view.identities.lock() = self.machine.identities();
        let twin_bytes = self.machine.twin_bytes();
        self.view.twin_bytes.store(twin_bytes, Ordering::Relaxed);
        *self.view.events.lock() = self.machine.event_usage();
        let watches = self.machine.watched_keys() as u64;
        self.view.watches.store(watches, Ordering::Relaxed);
        let replies = self.machine.remembered_replies() as u64;
        self.view
            .remembered_replies
            .store(replies, Ordering::Relaxed);
    }

    fn update_nodes(&self) {
        *self.view.live.lock() = self.machine.live_nodes().collect();
        *self.view.low_disks.lock() = self.machine.low_disks().collect();
        self.view
            .known_incarnation
            .store(self.machine.incarnation(self.local).0, Ordering::Release);
    }

    fn tell(&self, event: IncarnationEvent) {
        // The receiver is gone only when the node stops.
        let _ = self.events.send(event);
    }

    fn handle_reply(&mut self, proposal: (Incarnation, u64), reply: Reply, wake: &mut WakeList) {
        self.metrics.raft_proposals.increment();
        if proposal.0 == self.proposer.incarnation() {
            let throttled = self.throttled.take();
            self.proposer.replied(proposal, reply, throttled, wake);
        }
    }

    fn handle_proposal_applied(&self, incarnation: Incarnation, sequence: u64) {
        if let Some(taken) = self.proposer.applied(incarnation, sequence) {
            self.metrics.raft_commit_seconds.observe(taken);
        }
        // The first proposal of an incarnation registers it.
        if sequence == 1 {
            self.update_nodes();
            self.tell(IncarnationEvent::Registered(incarnation));
        }
    }

    fn handle_node_ended(&self, node: NodeId, incarnation: Incarnation) {
        self.update_nodes();
        if node == self.local {
            self.tell(IncarnationEvent::Ended(incarnation));
        } else {
            self.router.peers().node_ended(node);
        }
    }

    fn deliver(
        &mut self,
        message: &ApplicationMessage,
        index: LogIndex,
        expiry_s: Option<u32>,
        wake: &mut WakeList,
    ) {
        let throttled = self.router.deliver_logged(message, index, expiry_s, wake);
        self.throttled = message
            .publisher
            .filter(|_| !throttled.is_empty())
            .map(|publisher| (publisher, throttled));
    }

    fn count_dropped(&self, reason: DropReason, count: u64) {
        let reason = match reason {
            DropReason::QueueFull => labels::DropReason::QueueFull,
            DropReason::Expired => labels::DropReason::Expired,
        };
        if count > 0 {
            self.metrics.messages_dropped.of(reason).add(count);
        }
    }

    fn count_event(&self, kind: events::Kind, reason: DisconnectionReason) {
        self.metrics.events.of(kind).increment();
        if kind == events::Kind::Disconnected {
            self.metrics.events_disconnected.of(reason).increment();
        }
    }

    fn count_events_dropped(&self, reason: EventDrop, count: u64) {
        let reason = match reason {
            EventDrop::OutboxFull => labels::EventDrop::OutboxFull,
            EventDrop::DeadLettersFull => labels::EventDrop::DeadLettersFull,
            EventDrop::TopicTooLong => labels::EventDrop::TopicTooLong,
            EventDrop::Crowded => labels::EventDrop::Crowded,
        };
        self.metrics.events_dropped.of(reason).add(count);
    }

    fn handle_skipped(&self, index: LogIndex, what: Skipped) {
        self.metrics.log_skipped.increment();
        tracing::error!(
            %index,
            ?what,
            "the log holds what no replica can decode: it is passed over"
        );
    }

    /// Says what is new of the comparison of the replicas' states; this one is to stop when it is the odd one.
    fn handle_hash_round(&mut self, round: HashRound) {
        let index = LogIndex(round.index);
        let former = std::mem::replace(&mut self.verdict, verdict(&round));
        *self.view.hash_round.lock() = Some((self.last, Arc::new(round)));
        let is_disputed = !self.verdict.disputed.is_empty();
        self.metrics.state_disputed.set(u64::from(is_disputed));
        if is_disputed && former.disputed != self.verdict.disputed {
            let tables = hexadecimal(&self.verdict.disputed);
            tracing::error!(
                %index,
                tables,
                "the nodes' states differ, and no majority has the same one"
            );
        }
        for odd in &self.verdict.odd {
            if former.odd.contains(odd) {
                continue;
            }
            self.metrics.state_differences.increment();
            let tables = hexadecimal(&odd.tables);
            tracing::error!(
                node = odd.node.0,
                %index,
                tables,
                "the state of a node is not what a majority has: it stops"
            );
            // What an earlier process of this node said is not about this state.
            if odd.node == self.local && odd.incarnation == self.proposer.incarnation() {
                self.diverged = Some(format!(
                    "after log entry {index} tables {tables} of this node are not what a majority of the nodes has"
                ));
            }
        }
    }

    fn handle_proposal_gap(&self, incarnation: Incarnation, expected: u64) {
        tracing::debug!(
            expected,
            "a proposal is missing in the log: proposing again"
        );
        if incarnation == self.proposer.incarnation() {
            self.proposer.resend();
        }
    }

    fn perform(&mut self, output: Output, wake: &mut WakeList) {
        let router = &self.router;
        match output {
            Output::Reply {
                incarnation,
                sequence,
                reply,
            } => self.handle_reply((incarnation, sequence), reply, wake),
            Output::ProposalApplied {
                incarnation,
                sequence,
            } => self.handle_proposal_applied(incarnation, sequence),
            Output::ProposalGap {
                incarnation,
                expected,
            } => self.handle_proposal_gap(incarnation, expected),
            Output::ProposalRefused {
                incarnation,
                sequence,
            } => self.proposer.refused(incarnation, sequence, wake),
            Output::Skipped { index, what } => self.handle_skipped(index, what),
            Output::IncarnationRefused { refused, known } => {
                tracing::debug!(refused = refused.0, known = known.0, "incarnation refused");
                self.update_nodes();
                self.tell(IncarnationEvent::Ended(refused));
            }
            Output::Publish {
                message,
                expiry_s,
                index,
            } => self.deliver(&message, index, expiry_s, wake),
            Output::Send {
                connection,
                retain,
                expiry_s,
                identifiers,
                message,
            } => router.deliver_assigned(connection, &message, retain, expiry_s, identifiers, wake),
            Output::Deliver(granted) => router.deliver_granted(&granted, wake),
            Output::Relayed(batch) => router.deliver_relayed(&batch),
            Output::SendPubRel {
                connection,
                sequence,
            } => router.post(connection, Item::SendPubRel(sequence), wake),
            Output::Dropped { reason, count } => self.count_dropped(reason, count),
            Output::NodesChanged => self.update_nodes(),
            // The first two are told before everything else.
            Output::DirectoryChanged(_) | Output::EventsChanged => {}
            Output::Desired(change) => router.notify_desired(*change, wake),
            Output::EventRecorded { kind, reason } => self.count_event(kind, reason),
            Output::EventsDropped { reason, count } => self.count_events_dropped(reason, count),
            Output::HashRoundChanged(round) => self.handle_hash_round(*round),
            Output::NodeEnded { node, incarnation } => self.handle_node_ended(node, incarnation),
            Output::End { connection, reason } => {
                router.post(connection, Item::End(End::Machine(reason)), wake);
            }
            Output::Notify {
                connection,
                key,
                change,
            } => router.post(connection, Item::Notify { key, change }, wake),
        }
    }
}

/// Ordinals of tables as they stand in `machine::schema`.
fn hexadecimal(tables: &[u8]) -> String {
    let tables: Vec<String> = tables.iter().map(|table| format!("{table:#04x}")).collect();
    tables.join(", ")
}

impl Apply for Applier {
    fn apply(&mut self, index: LogIndex, batch: Bytes, tables: &mut Tables<'_>) {
        self.last = index;
        if let Err(error) = self.machine.apply(index, batch, tables) {
            fatal("applying the log", &error);
        }
    }

    fn look(&mut self) -> Option<Look> {
        let round = self.machine.hash_round()?;
        (round.index == self.last.0).then(|| self.hashes.request(self.last))
    }

    fn diverged(&mut self) -> Option<String> {
        self.diverged.take()
    }

    fn committed(&mut self, last: LogIndex) {
        let outputs = self.machine.take_outputs();
        // Who hears that this node has applied the entry may count on it that the node goes by what it has changed.
        for output in &outputs {
            match output {
                Output::DirectoryChanged(changed) => {
                    let observers = &self.view.directory;
                    observers.changed(changed.kind, &changed.name, changed.entry.as_ref());
                }
                Output::EventsChanged => self.view.events_have_changed(),
                _ => {}
            }
        }
        self.view.applied.store(last.0, Ordering::Release);
        self.pace.begin(outputs.len());
        let mut wake = WakeList::default();
        for output in outputs {
            // There may be many, and each may be for many connections.
            beat();
            self.perform(output, &mut wake);
        }
        let woken = wake.len();
        self.pace.wake(wake);
        self.update_view();
        self.pace.end(woken);
    }

    fn restored(&mut self, backing: &dyn Backing, last: LogIndex) {
        // Outputs of what the snapshot holds are lost: connections hear nothing more than that they end.
        let incarnation = self.proposer.incarnation();
        if incarnation != Incarnation::default() {
            self.router.post_to_all(|| Item::End(End::Unavailable));
        }
        self.view.directory.reset(backing);
        self.view.applied.store(last.0, Ordering::Release);
        self.machine.restore(backing);
        self.last = last;
        let round = self.machine.hash_round().cloned();
        self.verdict = round.as_ref().map(verdict).unwrap_or_default();
        *self.view.hash_round.lock() = round.map(|round| (last, Arc::new(round)));
        self.update_nodes();
        self.update_view();
        self.view.events_have_changed();
        // Proposals that were on their way may be applied inside the snapshot. Their replies are lost, so this
        // incarnation ends.
        if incarnation != Incarnation::default() {
            self.tell(IncarnationEvent::Ended(incarnation));
        }
    }
}

#[cfg(test)]
#[path = "applier_tests.rs"]
mod tests;
