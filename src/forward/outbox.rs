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
//! A node that answers nothing for [`limits::FORWARD_TIMEOUT`] is *silent*: it has died, or the way to it is broken. What
//! it has not confirmed goes through the log then ([`Outbox::begin_relay`]), which reaches it for sure unless its
//! incarnation ends. It goes under the same numbers, so the node delivers it once, whichever way is quicker. Messages
//! with QoS 0, for which nobody waits, are left out.
//!
//! Invariant: a batch is delivered after all before it. What is numbered after a relay waits on the other node until
//! that has applied the relay, and nothing is numbered while a relay is on its way into the log.
//! Invariant: a message that follows a logged one of its publisher waits on the other node until that has applied the
//! logged one (P5); so does what follows it in the outbox.
//! Invariant: each publisher that waits gets either [`Item::ForwardConfirmed`], or [`Item::AckDeferred`] and later
//! [`Item::AckReleased`]; each of them once.
//! Invariant: what waits for a node is bounded. Messages with QoS 0 are refused above [`limits::PEER_OUTBOX_BYTES`],
//! and the receive maximums of their publishers bound the others.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::inbox::{Batch, Inboxes};
use super::wire::{self, Position};
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::DeliverResponse;
use crate::base::proto::command;
use crate::codec::QoS;
use crate::machine::effect::RelayedBatch;
use crate::mailbox::{Item, Mailbox, RequestId, WakeList};
use crate::router::{Message, Origin, PeerNodes, Recipients, Router};

/// A connection, and its request id for the message.
type Publisher = (Arc<Mailbox>, RequestId);

/// The publishers of a batch that wait for confirmation, by the place of their messages in it. `None` marks one that
/// was told already.
type Publishers = Vec<(u32, Option<Publisher>)>;

/// A numbered batch of messages.
#[derive(Clone, Debug)]
pub struct MessageBatch {
    /// The incarnation of this node in which the batch was numbered. A batch that is sent again keeps it, or the other
    /// node might handle the batch twice.
    pub incarnation: Incarnation,
    /// Number of the batch.
    pub sequence: u64,
    /// Messages, see [`super::wire`].
    pub messages: Bytes,
    /// The log index that the other node is asked to report, 0 when none.
    pub applied: u64,
    /// The log index that the other node must have applied before it delivers the batch.
    pub after: u64,
}

/// A batch that is complete and has no number yet.
struct Unnumbered {
    messages: Bytes,
    publishers: Publishers,
    after: u64,
}

/// A batch that was sent and is not confirmed.
struct InFlight {
    batch: MessageBatch,
    publishers: Publishers,
    since: Instant,
}

/// Batches that are to go through the log.
pub struct Relay {
    /// The batches, without messages that nobody waits for.
    pub batches: Vec<command::Relay>,
    /// Number of the last one.
    pub through: u64,
    /// Messages that were left out.
    pub left_out: u64,
}

/// A connection that waits until several nodes have applied a subscription.
#[derive(Debug)]
struct Latch {
    mailbox: Arc<Mailbox>,
    request_id: RequestId,
    missing: Mutex<usize>,
}

impl Latch {
    fn count_down(&self, wake: &mut WakeList) {
        let mut missing = self.missing.lock();
        *missing -= 1;
        if *missing == 0
            && self
                .mailbox
                .push_item(Item::SubscriptionEffective(self.request_id))
        {
            wake.add(&self.mailbox);
        }
    }
}

/// Counts a latch down when the other node has applied the log up to `index`, or has not answered for long enough.
struct ApplyBarrier {
    index: u64,
    since: Instant,
    latch: Arc<Latch>,
}

#[derive(Default)]
struct OutboxState {
    /// Complete batches, which go before the open one.
    complete: VecDeque<Unnumbered>,
    complete_bytes: usize,
    /// The open batch: its messages, their number, and their publishers.
    messages: BytesMut,
    count: u32,
    publishers: Publishers,
    /// Publishers of confirmed messages whose acknowledgements are deferred.
    deferred: BTreeMap<Position, Publisher>,
    /// The log index that the next batch asks the other node to report, 0 when none.
    applied: u64,
    /// The log index that the other node must have applied before it delivers the open batch.
    after: u64,
    /// Since when messages wait for a number; `None` when there are none.
    unnumbered_since: Option<Instant>,
    last_sequence: u64,
    /// Every batch up to this one is confirmed, or was dropped with the other node's incarnation.
    confirmed: u64,
    in_flight: VecDeque<InFlight>,
    barriers: Vec<ApplyBarrier>,
    /// How far the other node has applied the log, as far as is known.
    peer_applied: u64,
    /// When the other node answered last.
    answered_at: Option<Instant>,
    /// It answers nothing: what is numbered goes through the log.
    is_silent: bool,
    /// What is in flight is on its way into the log.
    is_relaying: bool,
    /// Where in the log the last relay is.
    relayed_at: u64,
}

impl OutboxState {
    /// Bytes that wait to be sent.
    fn bytes(&self) -> usize {
        self.complete_bytes + self.messages.len()
    }

    /// Takes the open batch out.
    fn close_batch(&mut self) -> Unnumbered {
        self.count = 0;
        Unnumbered {
            messages: self.messages.split().freeze(),
            publishers: std::mem::take(&mut self.publishers),
            after: std::mem::take(&mut self.after),
        }
    }

    /// The number that the open batch will have.
    fn open_sequence(&self) -> u64 {
        self.last_sequence + self.complete.len() as u64 + 1
    }

    /// Whether the other node answers nothing, although it was sent something long enough ago.
    fn is_overdue(&self) -> bool {
        let is_over = |since: Instant| since.elapsed() >= limits::FORWARD_TIMEOUT;
        let in_flight = self.in_flight.front().map(|oldest| oldest.since);
        let waits = in_flight.or(self.unnumbered_since);
        self.is_silent || (waits.is_some_and(is_over) && self.answered_at.is_none_or(is_over))
    }

    /// Whether the acknowledgement of a message waits for the other node.
    fn is_waited_for(&self) -> bool {
        let in_flight = self.in_flight.iter().map(|entry| &entry.publishers);
        let complete = self.complete.iter().map(|batch| &batch.publishers);
        let mut all = in_flight.chain(complete).flatten().chain(&self.publishers);
        all.any(|(_, waits)| waits.is_some())
    }

    /// Numbers the next batch, unless there is none or too much is in flight.
    fn number_next(&mut self, incarnation: Incarnation) -> Option<MessageBatch> {
        let nothing = self.bytes() == 0 && self.applied == 0;
        if nothing || self.is_relaying || self.in_flight.len() >= Outbox::BATCHES_IN_FLIGHT {
            return None;
        }
        let Unnumbered {
            messages,
            publishers,
            after,
        } = self.next_unnumbered();
        self.last_sequence += 1;
        let now = Instant::now();
        self.unnumbered_since = (self.bytes() > 0).then_some(now);
        let after = after.max(self.relayed_at);
        let batch = MessageBatch {
            incarnation,
            sequence: self.last_sequence,
            messages,
            applied: std::mem::take(&mut self.applied),
            after: if after > self.peer_applied { after } else { 0 },
        };
        self.in_flight.push_back(InFlight {
            batch: batch.clone(),
            publishers,
            since: now,
        });
        Some(batch)
    }

    fn push(
        &mut self,
        message: &Message<'_>,
        recipients: Recipients<'_>,
        publisher: Option<Publisher>,
        after: LogIndex,
    ) {
        if after.0 > self.peer_applied {
            self.after = self.after.max(after.0);
        }
        wire::encode(message, recipients, &mut self.messages);
        if publisher.is_some() {
            self.publishers.push((self.count, publisher));
        }
        self.count += 1;
        if self.messages.len() >= limits::MESSAGE_BATCH_BYTES {
            let batch = self.close_batch();
            self.complete_bytes += batch.messages.len();
            self.complete.push_back(batch);
        }
    }

    fn next_unnumbered(&mut self) -> Unnumbered {
        match self.complete.pop_front() {
            Some(batch) => {
                self.complete_bytes -= batch.messages.len();
                batch
            }
            None => self.close_batch(),
        }
    }

    /// Notes that a message is with the other node's connections, but its acknowledgement is deferred.
    fn defer(&mut self, position: Position, wake: &mut WakeList) {
        let (sequence, message) = position;
        let mut in_flight = self.in_flight.iter_mut();
        let found = in_flight
            .find(|entry| entry.batch.sequence == sequence)
            .and_then(|entry| {
                let publishers = &mut entry.publishers;
                let at = publishers.binary_search_by_key(&message, |(at, _)| *at);
                publishers[at.ok()?].1.take()
            });
        if let Some(publisher) = found {
            tell(publisher.clone(), Item::AckDeferred, wake);
            self.deferred.insert(position, publisher);
        }
    }

    /// Tells the publishers of all batches up to `sequence` that their messages are handed over.
    fn confirm(&mut self, sequence: u64, wake: &mut WakeList) {
        self.confirmed = self.confirmed.max(sequence);
        while let Some(entry) = self.in_flight.front()
            && entry.batch.sequence <= sequence
        {
            let publishers = self.in_flight.pop_front().map(|entry| entry.publishers);
            for publisher in publishers
                .into_iter()
                .flatten()
                .filter_map(|(_, waits)| waits)
            {
                tell(publisher, Item::ForwardConfirmed, wake);
            }
        }
    }

    /// Releases what a complete list of deferred acknowledgements does not name. The other node may have named it as
    /// released on a stream that broke.
    fn release_unnamed(&mut self, answer: &DeliverResponse, wake: &mut WakeList) {
        let named: HashSet<Position> = answer
            .deferred
            .iter()
            .map(|position| (position.sequence, position.message))
            .collect();
        self.deferred.retain(|position, publisher| {
            let released = !named.contains(position)
                && (position.0 <= answer.sequence || publisher.0.is_closed());
            if released {
                tell(publisher.clone(), Item::AckReleased, wake);
            }
            !released
        });
    }

    fn release_barriers(&mut self, wake: &mut WakeList, is_over: impl Fn(&ApplyBarrier) -> bool) {
        self.barriers.retain(|barrier| {
            let is_over = is_over(barrier);
            if is_over {
                barrier.latch.count_down(wake);
            }
            !is_over
        });
    }

    /// Tells everybody who waits: the other node's incarnation has ended, and its connections with it.
    fn end(self, wake: &mut WakeList) {
        let in_flight = self.in_flight.into_iter().map(|entry| entry.publishers);
        let complete = self.complete.into_iter().map(|batch| batch.publishers);
        let publishers = in_flight.chain(complete).flatten().chain(self.publishers);
        for publisher in publishers.filter_map(|(_, waits)| waits) {
            tell(publisher, Item::ForwardConfirmed, wake);
        }
        for publisher in self.deferred.into_values() {
            tell(publisher, Item::AckReleased, wake);
        }
        for barrier in self.barriers {
            barrier.latch.count_down(wake);
        }
    }
}

fn tell((mailbox, request_id): Publisher, item: fn(RequestId) -> Item, wake: &mut WakeList) {
    if mailbox.push_item(item(request_id)) {
        wake.add(&mailbox);
    }
}

/// What waits for one node.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<OutboxState>,
    ready: Notify,
}

impl Outbox {
    /// Batches that may wait for their confirmation at once; further messages wait in the outbox.
    pub const BATCHES_IN_FLIGHT: usize = 8;

    /// The next batch after number `sent`. A new batch gets its number in `incarnation`.
    pub fn next_after(&self, sent: u64, incarnation: Incarnation) -> Option<MessageBatch> {
        let mut state = self.state.lock();
        let mut in_flight = state.in_flight.iter();
        if let Some(found) = in_flight.find(|entry| entry.batch.sequence > sent) {
            return Some(found.batch.clone());
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
            let (messages, dropped) = wire::without_qos_0(&entry.batch.messages);
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
        self.ready.notify_one();
    }
}

#[cfg(test)]
impl Outbox {
    /// The other node has not answered for long enough.
    pub fn set_silent(&self) {
        self.state.lock().is_silent = true;
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
        if message.qos == QoS::AtMostOnce && state.bytes() >= limits::PEER_OUTBOX_BYTES {
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

    fn take_relayed(&self, router: &Router, relayed: &RelayedBatch) {
        let batch = Batch {
            incarnation: relayed.incarnation,
            sequence: relayed.sequence,
            messages: &relayed.messages,
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
        let latch = Arc::new(Latch {
            mailbox: mailbox.clone(),
            request_id,
            missing: Mutex::new(nodes.len()),
        });
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

    fn node_ended(&self, node: NodeId) {
        let outbox = self.outboxes.read().get(&node).cloned();
        if let Some(outbox) = outbox {
            outbox.end();
        }
    }
}
