//! What waits for one other node: messages, those whose confirmation is awaited, and connections that wait for the node
//! to apply something. The rules are those of [`super::outbox`], which locks it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::wire::{self, Position};
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::{DeliverRequest, DeliverResponse};
use crate::base::proto::command;
use crate::mailbox::{self, Item, Mailbox, RequestId, WakeList};
use crate::router::{Message, Recipients};

/// Batches that may wait for their confirmation at once; further messages wait in the outbox.
pub(super) const BATCHES_IN_FLIGHT: usize = 8;

/// A connection, and its request id for the message.
pub(super) type Publisher = (Arc<Mailbox>, RequestId);

/// The publishers of a batch that wait for confirmation, by the place of their messages in it. `None` marks one that
/// was told already.
pub(super) type Publishers = Vec<(u32, Option<Publisher>)>;

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
    /// How long each message that expires has waited until the batch was asked for, in order, milliseconds.
    pub waited_ms: Vec<u32>,
}

impl MessageBatch {
    /// The batch as node `from` sends it.
    pub fn into_request(self, from: NodeId) -> DeliverRequest {
        DeliverRequest {
            node: from.0,
            incarnation: self.incarnation.0,
            sequence: self.sequence,
            messages: self.messages,
            applied: self.applied,
            after: self.after,
            waited_ms: self.waited_ms,
        }
    }
}

/// When each of the messages of a batch was put in that expire, in order.
pub(super) type ExpiringSince = Vec<Instant>;

/// A batch that is complete and has no number yet.
pub(super) struct Unnumbered {
    pub(super) messages: Bytes,
    pub(super) publishers: Publishers,
    pub(super) after: u64,
    pub(super) expiring: ExpiringSince,
}

impl Unnumbered {
    fn bytes(&self) -> usize {
        self.messages.len() + size_of_val(&*self.expiring)
    }
}

/// A batch that was sent and is not confirmed.
pub(super) struct InFlight {
    /// Its waiting times are those of each time that it is sent, see [`InFlight::to_send`].
    pub(super) batch: MessageBatch,
    pub(super) publishers: Publishers,
    pub(super) since: Instant,
    pub(super) expiring: ExpiringSince,
}

impl InFlight {
    /// How long each message that expires has waited, in order.
    fn waited(&self) -> impl Iterator<Item = Duration> {
        let now = Instant::now();
        let waited = move |since: &Instant| now.saturating_duration_since(*since);
        self.expiring.iter().map(waited)
    }

    /// The batch as it is to be sent now.
    pub(super) fn to_send(&self) -> MessageBatch {
        let waited = self.waited().map(|waited| waited.as_millis());
        let waited_ms = waited.map(|waited| u32::try_from(waited).unwrap_or(u32::MAX));
        MessageBatch {
            waited_ms: waited_ms.collect(),
            ..self.batch.clone()
        }
    }

    /// The messages as they are to go through the log now, see [`wire::for_log`].
    pub(super) fn for_log(&self) -> (Bytes, u64) {
        let mut waited = self.waited();
        wire::for_log(&self.batch.messages, |interval_s| {
            mailbox::left(interval_s, waited.next().unwrap_or_default())
        })
    }
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

/// Who waits until several nodes have applied something.
#[derive(Debug)]
pub(super) enum Waiter {
    /// The connection of a subscriber.
    Connection(Arc<Mailbox>, RequestId),
    /// Another task of this node.
    Task(oneshot::Sender<()>),
}

impl Waiter {
    fn tell(self, wake: &mut WakeList) {
        match self {
            Waiter::Connection(mailbox, request_id) => {
                if mailbox.push_item(Item::SubscriptionEffective(request_id)) {
                    wake.add(&mailbox);
                }
            }
            // It may have given up waiting.
            Waiter::Task(sender) => drop(sender.send(())),
        }
    }
}

/// Tells who waits when as many nodes as are missing have applied something.
#[derive(Debug)]
pub(super) struct Latch(Mutex<(usize, Option<Waiter>)>);

impl Latch {
    pub(super) fn new(missing: usize, waiter: Waiter) -> Arc<Latch> {
        Arc::new(Latch(Mutex::new((missing, Some(waiter)))))
    }

    pub(super) fn count_down(&self, wake: &mut WakeList) {
        let mut state = self.0.lock();
        state.0 = state.0.saturating_sub(1);
        let waiter = match state.0 {
            0 => state.1.take(),
            _ => None,
        };
        drop(state);
        if let Some(waiter) = waiter {
            waiter.tell(wake);
        }
    }
}

/// Counts a latch down when the other node has applied the log up to `index`, or has not answered for long enough.
pub(super) struct ApplyBarrier {
    pub(super) index: u64,
    pub(super) since: Instant,
    pub(super) latch: Arc<Latch>,
}

#[derive(Default)]
pub(super) struct OutboxState {
    /// Complete batches, which go before the open one.
    pub(super) complete: VecDeque<Unnumbered>,
    pub(super) complete_bytes: usize,
    /// The open batch: its messages, their number, and their publishers.
    pub(super) messages: BytesMut,
    pub(super) count: u32,
    pub(super) publishers: Publishers,
    pub(super) expiring: ExpiringSince,
    /// Publishers of confirmed messages whose acknowledgements are deferred.
    pub(super) deferred: BTreeMap<Position, Publisher>,
    /// The log index that the next batch asks the other node to report, 0 when none.
    pub(super) applied: u64,
    /// The log index that the other node must have applied before it delivers the open batch.
    pub(super) after: u64,
    /// Since when messages wait for a number; `None` when there are none.
    pub(super) unnumbered_since: Option<Instant>,
    pub(super) last_sequence: u64,
    /// Every batch up to this one is confirmed, or was dropped with the other node's incarnation.
    pub(super) confirmed: u64,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) barriers: Vec<ApplyBarrier>,
    /// How far the other node has applied the log, as far as is known.
    pub(super) peer_applied: u64,
    /// When the other node answered last.
    pub(super) answered_at: Option<Instant>,
    /// It answers nothing: what is numbered goes through the log.
    pub(super) is_silent: bool,
    /// What is in flight is on its way into the log.
    pub(super) is_relaying: bool,
    /// Where in the log the last relay is.
    pub(super) relayed_at: u64,
}

impl OutboxState {
    /// Bytes that wait to be sent, and what is remembered of them.
    pub(super) fn bytes(&self) -> usize {
        self.complete_bytes + self.messages.len() + size_of_val(&*self.expiring)
    }

    /// Takes the open batch out.
    pub(super) fn close_batch(&mut self) -> Unnumbered {
        self.count = 0;
        Unnumbered {
            messages: self.messages.split().freeze(),
            publishers: std::mem::take(&mut self.publishers),
            after: std::mem::take(&mut self.after),
            expiring: std::mem::take(&mut self.expiring),
        }
    }

    /// The number that the open batch will have.
    pub(super) fn open_sequence(&self) -> u64 {
        self.last_sequence + self.complete.len() as u64 + 1
    }

    /// Whether the other node answers nothing, although it was sent something long enough ago.
    pub(super) fn is_overdue(&self) -> bool {
        let is_over = |since: Instant| since.elapsed() >= limits::FORWARD_TIMEOUT;
        let in_flight = self.in_flight.front().map(|oldest| oldest.since);
        let waits = in_flight.or(self.unnumbered_since);
        self.is_silent || (waits.is_some_and(is_over) && self.answered_at.is_none_or(is_over))
    }

    /// Whether the acknowledgement of a message waits for the other node.
    pub(super) fn is_waited_for(&self) -> bool {
        let in_flight = self.in_flight.iter().map(|entry| &entry.publishers);
        let complete = self.complete.iter().map(|batch| &batch.publishers);
        let mut all = in_flight.chain(complete).flatten().chain(&self.publishers);
        all.any(|(_, waits)| waits.is_some())
    }

    /// Numbers the next batch, unless there is none or too much is in flight.
    pub(super) fn number_next(&mut self, incarnation: Incarnation) -> Option<MessageBatch> {
        let nothing = self.bytes() == 0 && self.applied == 0;
        if nothing || self.is_relaying || self.in_flight.len() >= BATCHES_IN_FLIGHT {
            return None;
        }
        let Unnumbered {
            messages,
            publishers,
            after,
            expiring,
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
            waited_ms: Vec::new(),
        };
        self.in_flight.push_back(InFlight {
            batch,
            publishers,
            since: now,
            expiring,
        });
        self.in_flight.back().map(InFlight::to_send)
    }

    pub(super) fn push(
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
        if message.expiry.is_some() {
            self.expiring.push(Instant::now());
        }
        self.count += 1;
        if self.messages.len() >= limits::MESSAGE_BATCH_BYTES {
            let batch = self.close_batch();
            self.complete_bytes += batch.bytes();
            self.complete.push_back(batch);
        }
    }

    pub(super) fn next_unnumbered(&mut self) -> Unnumbered {
        match self.complete.pop_front() {
            Some(batch) => {
                self.complete_bytes -= batch.bytes();
                batch
            }
            None => self.close_batch(),
        }
    }

    /// Notes that a message is with the other node's connections, but its acknowledgement is deferred.
    pub(super) fn defer(&mut self, position: Position, wake: &mut WakeList) {
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
    pub(super) fn confirm(&mut self, sequence: u64, wake: &mut WakeList) {
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
    pub(super) fn release_unnamed(&mut self, answer: &DeliverResponse, wake: &mut WakeList) {
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

    pub(super) fn release_barriers(
        &mut self,
        wake: &mut WakeList,
        is_over: impl Fn(&ApplyBarrier) -> bool,
    ) {
        self.barriers.retain(|barrier| {
            let is_over = is_over(barrier);
            if is_over {
                barrier.latch.count_down(wake);
            }
            !is_over
        });
    }

    /// Tells everybody who waits: the other node's incarnation has ended, and its connections with it.
    pub(super) fn end(self, wake: &mut WakeList) {
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

pub(super) fn tell(
    (mailbox, request_id): Publisher,
    item: fn(RequestId) -> Item,
    wake: &mut WakeList,
) {
    if mailbox.push_item(item(request_id)) {
        wake.add(&mailbox);
    }
}
