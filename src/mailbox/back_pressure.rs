//! Back-pressure: how a subscriber that reads slowly slows down its publishers, and for how long.
//!
//! A mailbox above its high-water mark still takes messages with QoS 1 and 2, but their acknowledgements are deferred.
//! A publisher gets its PUBACK or PUBREC when at most the mark is ahead of its message. Until then its receive maximum
//! closes, so it publishes at the pace of the subscriber. A subscriber that reads less than the minimum drain rate is
//! *stalled*: no acknowledgement waits for it until it has drained below the mark, and `mqtt.outbox_full` says what
//! happens to messages that do not fit.
//!
//! Sans-io: the mailbox reports its level; the task of the connection reports that the client has stalled.
//!
//! Invariant: deferred acknowledgements are kept in the order of the messages that they wait for, and each is handed
//! out exactly once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::memory::NodeMemory;
use crate::base::limits;
use crate::config::OutboxPolicy;
use crate::telemetry::metrics::Metrics;

/// How much may wait for one client, and what happens to the rest; the same for all connections of a node.
#[derive(Debug)]
pub struct OutboxLimits {
    /// Bytes that may wait for a client (`mqtt.outbox_max_bytes`).
    pub bytes: usize,
    /// How long a client may stay below the minimum drain rate before it is stalled (`mqtt.outbox_stall_s`). Zero: no
    /// acknowledgement is ever deferred.
    pub stall: Duration,
    /// What happens to messages with QoS 1 and 2 that do not fit (`mqtt.outbox_full`).
    pub full: OutboxPolicy,
    /// Bytes of everything that one connection may make the node keep (`mqtt.connection_memory_bytes`).
    pub connection_bytes: usize,
    /// The memory of the node for its clients.
    pub memory: Arc<NodeMemory>,
    /// Counts dropped messages and deferred acknowledgements.
    pub metrics: Arc<Metrics>,
}

impl OutboxLimits {
    /// Bytes above which acknowledgements are deferred.
    pub fn high_water_mark(&self) -> usize {
        self.bytes / 2
    }

    /// Bytes that no mailbox exceeds, not even by messages that were under way when their publishers were throttled.
    /// Only answers to its own client may.
    pub fn overrun(&self) -> usize {
        self.bytes.saturating_mul(limits::OUTBOX_OVERRUN)
    }

    /// Bytes of a connection below which its client is read once more when so many of them are messages that wait for
    /// it. As many as messages may have do not count. Those that are not there yet find room, however large the last
    /// one is, and so does what is read then.
    pub fn read_up_to(&self, messages: usize) -> usize {
        let for_messages = self.overrun().saturating_add(self.bytes);
        let reserved = for_messages.saturating_add(limits::READ_BUFFER_BYTES);
        let beside = self.connection_bytes.saturating_sub(reserved);
        beside + messages.min(for_messages)
    }

    /// Bytes that a client must read within [`OutboxLimits::stall`] while acknowledgements wait for it.
    pub fn minimum_drain_rate(&self) -> u64 {
        (self.bytes / 8) as u64
    }

    /// Bytes of messages that a mailbox takes as long as its client does not stall.
    pub(super) fn takes(&self) -> usize {
        match self.defers() {
            true => self.overrun(),
            false => self.bytes,
        }
    }

    fn defers(&self) -> bool {
        !self.stall.is_zero()
    }
}

/// What publishers must know of a mailbox before they put a message in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BackPressureState {
    /// No acknowledgement is deferred.
    Normal,
    /// Acknowledgements are deferred.
    Throttled,
    /// The mailbox has reached its limit, with what is remembered of its messages: further ones count towards the
    /// overrun.
    Full,
    /// The client hardly reads: no acknowledgement waits for it until it has drained.
    Stalled,
}

impl BackPressureState {
    /// The state with this number, which comes from a [`BackPressureState`].
    pub fn from_number(number: u8) -> BackPressureState {
        match number {
            0 => BackPressureState::Normal,
            1 => BackPressureState::Throttled,
            2 => BackPressureState::Full,
            _ => BackPressureState::Stalled,
        }
    }
}

/// What happens to a message with QoS 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is put in.
    Accept,
    /// It is dropped.
    Drop,
    /// It is dropped, and the connection ends.
    Disconnect,
}

/// The back-pressure of one mailbox, kept under its lock. `A` is a deferred acknowledgement.
///
/// A message is named by its *end*: the number of bytes that were put into the mailbox up to and including it.
#[derive(Debug)]
pub(super) struct BackPressure<A> {
    /// Bytes that were ever taken out.
    taken: u64,
    /// Deferred acknowledgements, each with the end of the message it waits for. In order.
    deferred: VecDeque<(u64, A)>,
    stalled: bool,
}

impl<A> Default for BackPressure<A> {
    fn default() -> Self {
        BackPressure {
            taken: 0,
            deferred: VecDeque::new(),
            stalled: false,
        }
    }
}

impl<A> BackPressure<A> {
    /// Notes that bytes were taken out, which does not mean that the client has them.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken += bytes as u64;
    }

    /// What the deferred acknowledgements take in memory.
    pub(super) fn bytes(&self) -> usize {
        self.deferred.len() * size_of::<(u64, A)>()
    }

    /// Bytes the client has got, when `unsent` of those that were taken out are not sent.
    pub(super) fn drained(&self, unsent: usize) -> u64 {
        self.taken.saturating_sub(unsent as u64)
    }

    /// Decides about a message with QoS 1 or 2, when `level` bytes wait already, `answers` of them to the client. What
    /// the client has asked for takes no room that others could count on: it is above the limit, up to the overrun.
    pub(super) fn admit(
        &self,
        level: usize,
        answers: usize,
        is_asked_for: bool,
        limits: &OutboxLimits,
    ) -> Admission {
        let defers = !self.stalled && limits.defers();
        let most = match defers || is_asked_for {
            true => limits.overrun(),
            false => limits.overrun().min(limits.bytes.saturating_add(answers)),
        };
        if level < most {
            Admission::Accept
        } else if limits.full == OutboxPolicy::Drop {
            Admission::Drop
        } else {
            Admission::Disconnect
        }
    }

    /// The end of the message that was put in last, if its acknowledgement is to be deferred: `buffered` bytes are in
    /// the mailbox, and `unsent` were taken out before them and are not sent.
    pub(super) fn throttle(
        &self,
        buffered: usize,
        unsent: usize,
        limits: &OutboxLimits,
    ) -> Option<u64> {
        let defers =
            buffered + unsent > limits.high_water_mark() && !self.stalled && limits.defers();
        defers.then_some(self.taken + buffered as u64)
    }

    /// Defers `ack` until at most the mark is ahead of the message that ends at `end`.
    pub(super) fn defer(&mut self, end: u64, ack: A) {
        // Two publishers that put messages in at the same time may come here in the other order.
        let at = self.deferred.partition_point(|(known, _)| *known <= end);
        self.deferred.insert(at, (end, ack));
    }

    /// Whether the acknowledgement of the message that ends at `end` need not wait, when `unsent` of the bytes that
    /// were taken out are not sent.
    pub(super) fn is_released(&self, end: u64, unsent: usize, limits: &OutboxLimits) -> bool {
        self.stalled || end + unsent as u64 <= self.taken + limits.high_water_mark() as u64
    }

    /// Moves the acknowledgements that need not wait any more to `released`.
    pub(super) fn release(&mut self, unsent: usize, limits: &OutboxLimits, released: &mut Vec<A>) {
        while let Some((end, _)) = self.deferred.front()
            && self.is_released(*end, unsent, limits)
        {
            released.extend(self.deferred.pop_front().map(|(_, ack)| ack));
        }
    }

    /// The state when `level` bytes wait for the client, and `tracked` bytes are remembered of them. A stalled client
    /// that has drained is not stalled any more.
    pub(super) fn state(
        &mut self,
        level: usize,
        tracked: usize,
        limits: &OutboxLimits,
    ) -> BackPressureState {
        // Small messages count as much memory as they take.
        let waiting = level + tracked;
        self.stalled &= waiting > limits.high_water_mark();
        let taken = waiting + self.bytes();
        if self.stalled {
            BackPressureState::Stalled
        } else if taken >= limits.bytes && limits.defers() {
            BackPressureState::Full
        } else if self.deferred.is_empty() {
            BackPressureState::Normal
        } else {
            BackPressureState::Throttled
        }
    }

    /// The client hardly reads: nothing waits for it until it has drained.
    pub(super) fn stall(&mut self) {
        self.stalled = true;
    }

    /// The connection has ended: takes out all deferred acknowledgements.
    pub(super) fn close(&mut self) -> impl Iterator<Item = A> {
        std::mem::take(&mut self.deferred)
            .into_iter()
            .map(|(_, ack)| ack)
    }
}

#[cfg(test)]
impl OutboxLimits {
    /// For tests: connections end when they are full.
    pub fn of(bytes: usize) -> Arc<OutboxLimits> {
        Arc::new(OutboxLimits {
            bytes,
            stall: Duration::from_secs(5),
            full: OutboxPolicy::Disconnect,
            connection_bytes: 1 << 20,
            memory: NodeMemory::new(1 << 30),
            metrics: Arc::default(),
        })
    }

    /// The same, but what does not fit is dropped.
    pub fn dropping(bytes: usize) -> Arc<OutboxLimits> {
        Arc::new(OutboxLimits {
            full: OutboxPolicy::Drop,
            ..Arc::into_inner(OutboxLimits::of(bytes)).expect("just made")
        })
    }
}
