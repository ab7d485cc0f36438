//! Messages for the connections of other nodes: batched per node, numbered, and confirmed in order.
//!
//! A batch keeps its number when it is sent again over a new stream, and the receiving node skips numbers that it has
//! handled. So a broken stream neither loses nor doubles a message. What waits for a node is dropped only when the
//! node's incarnation ends. The streams themselves are in [`super::stream`].
//!
//! A confirmation may name messages whose acknowledgements are deferred: the messages are with the other node's
//! connections, but their publishers must wait until the messages are named as released, or until the incarnation of
//! the other node ends.
//!
//! A node that answers nothing for [`limits::FORWARD_TIMEOUT`] is *silent*: it has died, or the way to it is broken.
//! What it has not confirmed goes through the log then ([`Outbox::begin_relay`]), which reaches it for sure unless its
//! incarnation ends. It goes under the same numbers, so the node delivers it once, whichever way is quicker. Messages
//! with QoS 0, for which nobody waits, are left out.
//!
//! Invariant: a batch is delivered after all before it. What is numbered after a relay waits on the other node until
//! that has applied the relay, and nothing is numbered while a relay is on its way into the log.
//! Invariant: a message that follows a logged one of its publisher waits on the other node until that has applied the
//! logged one (P5); so does what follows it in the outbox.
//! Invariant: each publisher that waits gets either [`Item::ForwardConfirmed`], or [`Item::AckDeferred`] and later
//! [`Item::AckReleased`]; each of them once.
//! Invariant: a message's expiry interval goes on while it waits here. The other node is told how long that was
//! whenever a batch is sent; it drops and counts what is over, and confirms it: such a message is done
//! `[MQTT-3.3.2-5]`.
//! Invariant: what waits for a node is bounded. Messages that nobody waits for (those with QoS 0, and the node's own)
//! are refused above [`limits::PEER_OUTBOX_BYTES`], and the receive maximums of their publishers bound the others.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, oneshot};

use super::inbox::{Batch, Inboxes};
use super::outbox_state::{
    self, ApplyBarrier, Latch, MessageBatch, OutboxState, Relay, Waiter, tell,
};
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::DeliverResponse;
use crate::base::proto::command;
use crate::codec::QoS;
use crate::machine::effect::RelayedBatch;
use crate::mailbox::wait_list::WaitList;
use crate::mailbox::{Item, Mailbox, RequestId, WakeList};
use crate::router::{Message, Origin, PeerNodes, Recipients, Router};
use crate::telemetry::metrics::Metrics;

/// What waits for one node.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<OutboxState>,
    ready: Notify,
    /// Connections whose next message waits for a confirmation.
    waiting: WaitList,
}

impl Outbox {
    /// Batches that may wait for their confirmation at once; further messages wait in the outbox.
    pub const BATCHES_IN_FLIGHT: usize = outbox_state::BATCHES_IN_FLIGHT;

    /// The next batch after number `sent`. A new batch gets its number in `incarnation`.
    pub fn next_after(&self, sent: u64, incarnation: Incarnation) -> Option<MessageBatch> {
        let mut state = self.state.lock();
        let mut in_flight = state.in_flight.iter();
        if let Some(found) = in_flight.find(|entry| entry.batch.sequence > sent) {
            return Some(found.to_send());
        }
        state.number_next(incarnation)
    }

    /// What is to go through the log to `node`, because it answers nothing and somebody waits. Until
    /// [`Outbox::end_relay`] nothing more is numbered.
    pub fn begin_relay(&self, node: NodeId, incarnation: Incarnation) -> Option<Relay> {
        let mut state = self.state.lock();
        if state.is_relaying || !state.is_overdue() || !state.is_waited_for() {
            return None;
        }
        // There may be no stream that has them numbered.
        while state.number_next(incarnation).is_some() {}
        state.is_silent = true;
        state.is_relaying = true;
        let mut left_out = 0;
        let batches = state.in_flight.iter().map(|entry| {
            let (messages, dropped) = entry.for_log();
            left_out += dropped;
            command::Relay {
                to: node.0,
                incarnation: entry.batch.incarnation.0,
                sequence: entry.batch.sequence,
                messages,
            }
        });
        let batches = batches.collect();
        Some(Relay {
            batches,
            through: state.last_sequence,
            left_out,
        })
    }

    /// A relay is in the log, at this index; or it is lost with this node's incarnation.
    pub fn end_relay(&self, through: u64, index: Option<LogIndex>) {
        let mut wake = WakeList::default();
        let mut state = self.state.lock();
        state.is_relaying = false;
        if let Some(index) = index {
            state.relayed_at = state.relayed_at.max(index.0);
            state.confirm(through, &mut wake);
        }
        drop(state);
        self.waiting.wake();
        self.ready.notify_one();
    }

    /// Waits until [`Outbox::next_after`] may return something new.
    pub async fn changed(&self) {
        self.ready.notified().await;
    }

    /// The log index that a new stream asks the other node to report, 0 when none. It may have been asked before, and
    /// the answer lost.
    pub fn awaited_index(&self) -> u64 {
        let state = self.state.lock();
        let awaited = state.barriers.iter().map(|barrier| barrier.index);
        awaited.max().unwrap_or_default()
    }

    /// Handles an answer of the other node.
    pub fn handle_answer(&self, answer: &DeliverResponse) {
        let mut wake = WakeList::default();
        let mut state = self.state.lock();
        state.peer_applied = state.peer_applied.max(answer.applied);
        state.answered_at = Some(Instant::now());
        state.is_silent = false;
        for position in &answer.deferred {
            state.defer((position.sequence, position.message), &mut wake);
        }
        state.confirm(answer.sequence, &mut wake);
        if answer.all_deferred {
            state.release_unnamed(answer, &mut wake);
        }
        for position in &answer.released {
            let position = (position.sequence, position.message);
            if let Some(publisher) = state.deferred.remove(&position) {
                tell(publisher, Item::AckReleased, &mut wake);
            }
        }
        state.release_barriers(&mut wake, |barrier| barrier.index <= answer.applied);
        drop(state);
        self.waiting.wake();
        self.ready.notify_one();
    }

    fn release_overdue(&self, wake: &mut WakeList) {
        self.state.lock().release_barriers(wake, |barrier| {
            barrier.since.elapsed() >= limits::SUBSCRIPTION_TIMEOUT
        });
    }

    /// The other node's incarnation has ended.
    fn end(&self) {
        let mut wake = WakeList::default();
        let mut state = self.state.lock();
        // What is dropped keeps its numbers, so that nobody takes a later batch for it.
        let last_sequence = state.open_sequence();
        let fresh = OutboxState {
            last_sequence,
            confirmed: last_sequence,
            is_relaying: state.is_relaying,
            relayed_at: state.relayed_at,
            ..OutboxState::default()
        };
        let old = std::mem::replace(&mut *state, fresh);
        drop(state);
        old.end(&mut wake);
        self.waiting.wake();
        self.ready.notify_one();
    }
}

#[cfg(test)]
impl Outbox {
    /// The other node has not answered for long enough.
    pub fn set_silent(&self) {
        self.state.lock().is_silent = true;
    }

    /// What waits was put in so much earlier.
    pub fn age(&self, by: std::time::Duration) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let complete = state.complete.iter_mut().map(|batch| &mut batch.expiring);
        let in_flight = state.in_flight.iter_mut().map(|batch| &mut batch.expiring);
        for since in complete
            .chain(in_flight)
            .chain([&mut state.expiring])
            .flatten()
        {
            *since = since.checked_sub(by).expect("the machine runs for longer");
        }
    }

    /// What waits has waited for as long as the other node may take.
    pub fn set_overdue(&self) {
        let mut state = self.state.lock();
        let long_ago = Instant::now().checked_sub(limits::FORWARD_TIMEOUT);
        state.unnumbered_since = long_ago;
        state.answered_at = long_ago;
    }
}

/// The outboxes of all other nodes.
#[derive(Default)]
pub struct Outboxes {
    outboxes: RwLock<FxHashMap<NodeId, Arc<Outbox>>>,
    /// Where messages go that come through the log.
    inboxes: Arc<Inboxes>,
}

impl Outboxes {
    /// No messages wait. `metrics` counts those from other nodes that are dropped.
    pub fn new(metrics: Arc<Metrics>) -> Outboxes {
        Outboxes {
            outboxes: RwLock::default(),
            inboxes: Arc::new(Inboxes::new(metrics)),
        }
    }

    /// The outbox of `node`.
    pub fn outbox(&self, node: NodeId) -> Arc<Outbox> {
        if let Some(outbox) = self.outboxes.read().get(&node) {
            return outbox.clone();
        }
        self.outboxes.write().entry(node).or_default().clone()
    }

    /// What the other nodes have sent.
    pub fn inboxes(&self) -> &Arc<Inboxes> {
        &self.inboxes
    }

    /// The outboxes of all nodes that anything was sent to.
    pub fn all(&self) -> Vec<(NodeId, Arc<Outbox>)> {
        let outboxes = self.outboxes.read();
        let all = outboxes.iter();
        all.map(|(node, outbox)| (*node, outbox.clone())).collect()
    }

    /// Gives up waiting for nodes that do not answer. To be called every
    /// [`limits::PEER_CHECK_INTERVAL`].
    pub fn release_overdue(&self) {
        let mut wake = WakeList::default();
        for outbox in self.outboxes.read().values() {
            outbox.release_overdue(&mut wake);
        }
    }

    /// Waits as [`PeerNodes::await_applied`] does.
    pub async fn applied_by(&self, nodes: &[NodeId], index: LogIndex) {
        if nodes.is_empty() {
            return;
        }
        let (sender, applied) = oneshot::channel();
        self.set_barriers(nodes, index, Latch::new(nodes.len(), Waiter::Task(sender)));
        // Every barrier is released at some time, if only because its node is silent.
        let _ = applied.await;
    }

    fn set_barriers(&self, nodes: &[NodeId], index: LogIndex, latch: Arc<Latch>) {
        for node in nodes {
            let outbox = self.outbox(*node);
            let mut state = outbox.state.lock();
            state.applied = state.applied.max(index.0);
            state.barriers.push(ApplyBarrier {
                index: index.0,
                since: Instant::now(),
                latch: latch.clone(),
            });
            drop(state);
            outbox.ready.notify_one();
        }
    }

    /// Bytes that wait to be sent to other nodes.
    pub fn depth_bytes(&self) -> usize {
        let outboxes = self.outboxes.read();
        outboxes
            .values()
            .map(|outbox| outbox.state.lock().bytes())
            .sum()
    }
}

impl PeerNodes for Outboxes {
    fn forward(
        &self,
        node: NodeId,
        message: &Message<'_>,
        recipients: Recipients<'_>,
        origin: Origin<'_>,
    ) -> Option<u64> {
        let outbox = self.outbox(node);
        let mut state = outbox.state.lock();
        let was_empty = state.bytes() == 0;
        let is_waited_for = message.qos != QoS::AtMostOnce && origin.confirm_to.is_some();
        if !is_waited_for && state.bytes() >= limits::PEER_OUTBOX_BYTES {
            return None;
        }
        if was_empty {
            state.unnumbered_since = Some(Instant::now());
        }
        let sequence = state.open_sequence();
        let confirm_to = origin.confirm_to;
        let publisher = confirm_to.map(|(mailbox, request_id)| (mailbox.clone(), request_id));
        state.push(message, recipients, publisher, origin.after);
        drop(state);
        if was_empty {
            outbox.ready.notify_one();
        }
        Some(sequence)
    }

    fn is_confirmed(&self, node: NodeId, sequence: u64) -> bool {
        let outbox = self.outboxes.read().get(&node).cloned();
        outbox.is_none_or(|outbox| outbox.state.lock().confirmed >= sequence)
    }

    fn await_confirmed(&self, node: NodeId, mailbox: &Arc<Mailbox>) {
        self.outbox(node).waiting.add(mailbox);
    }

    fn take_relayed(&self, router: &Router, relayed: &RelayedBatch) {
        let batch = Batch {
            incarnation: relayed.incarnation,
            sequence: relayed.sequence,
            messages: &relayed.messages,
            waited_ms: &[],
        };
        let mut delivery = router.batch();
        let inbox = self.inboxes.inbox(relayed.from);
        let delivered = inbox.deliver(batch, |forwarded, wake| {
            let groups = forwarded.groups.iter();
            delivery.deliver(&forwarded.message, groups, forwarded.only_groups, wake)
        });
        if let Err(error) = delivered {
            tracing::error!(from = relayed.from.0, %error, "a batch of messages can't be read");
        }
    }

    fn await_applied(
        &self,
        nodes: &[NodeId],
        index: LogIndex,
        mailbox: &Arc<Mailbox>,
        request_id: RequestId,
    ) {
        let waiter = Waiter::Connection(mailbox.clone(), request_id);
        self.set_barriers(nodes, index, Latch::new(nodes.len(), waiter));
    }

    fn node_ended(&self, node: NodeId) {
        let outbox = self.outboxes.read().get(&node).cloned();
        if let Some(outbox) = outbox {
            outbox.end();
        }
    }
}
