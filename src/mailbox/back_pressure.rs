//! How a subscriber that reads slowly slows down those who publish to it, and how long it may.
//!
//! A mailbox that holds more than its *mark* takes further messages with QoS 1 and 2, but whoever sent them waits: the
//! publisher gets its PUBACK or PUBREC when no more than the mark is ahead of its message, so its receive maximum closes,
//! and the publisher is slowed to the subscriber's pace. A subscriber that keeps no pace is *stalled*: nobody waits for it
//! until it has drained, and what does not fit is handled by policy.
//!
//! Sans-io: the mailbox says how much waits, its connection when time is up.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Item, Mailbox, RequestId, WakeList};
use crate::base::limits;
use crate::config::OutboxPolicy;
use crate::forward::inbox::RemoteDeferredAck;
use crate::telemetry::metrics::Metrics;

/// What may wait for one client, and what happens to the rest; the same for all connections of a node.
#[derive(Debug)]
pub struct OutboxLimits {
    /// Bytes that may wait for a client.
    pub bytes: usize,
    /// How long a client may keep no pace before nobody waits for it any more. Zero: nobody ever waits.
    pub stall: Duration,
    /// What happens to messages with QoS 1 and 2 that do not fit.
    pub full: OutboxPolicy,
    /// Counts what is dropped and what has to wait.
    pub metrics: Arc<Metrics>,
}

impl OutboxLimits {
    /// Bytes above which publishers wait.
    pub fn high_water_mark(&self) -> usize {
        self.bytes / 2
    }

    /// Bytes that even messages under way must not pass.
    pub fn overrun(&self) -> usize {
        self.bytes.saturating_mul(limits::OUTBOX_OVERRUN)
    }

    /// Bytes that a client has to take within `stall` while publishers wait for it.
    pub fn minimum_drain_rate(&self) -> u64 {
        (self.bytes / 8) as u64
    }
}

/// Who waits until a message is near enough to its subscriber.
#[derive(Clone)]
pub enum DeferredAck {
    /// A connection of this node; it gets [`Item::AckReleased`].
    Publisher(Arc<Mailbox>, RequestId),
    /// Another node, for a connection of its own.
    Node(Arc<RemoteDeferredAck>),
}

impl DeferredAck {
    /// Tells it. No lock of a mailbox may be held.
    pub fn release(self, wake: &mut WakeList) {
        match self {
            DeferredAck::Publisher(mailbox, request_id) => {
                if mailbox.push_item(Item::AckReleased(request_id)) {
                    wake.add(&mailbox);
                }
            }
            DeferredAck::Node(hold) => hold.one_less(),
        }
    }
}

impl fmt::Debug for DeferredAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Mailboxes may wait for each other, or for themselves.
            DeferredAck::Publisher(mailbox, request_id) => {
                write!(f, "Publisher({:?}, {request_id})", mailbox.connection)
            }
            DeferredAck::Node(hold) => write!(f, "Node({hold:?})"),
        }
    }
}

/// What others have to know of a mailbox before they put something in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BackPressureState {
    /// Nobody waits.
    Normal,
    /// Somebody waits.
    Throttled,
    /// Somebody waits, and what is put in now passes the bound.
    Full,
    /// Nobody waits until it has drained.
    Stalled,
}

impl BackPressureState {
    /// The state with this number, which [`BackPressureState`] has made.
    pub fn from_number(number: u8) -> BackPressureState {
        match number {
            0 => BackPressureState::Normal,
            1 => BackPressureState::Throttled,
            2 => BackPressureState::Full,
            _ => BackPressureState::Stalled,
        }
    }
}

/// Whether a message with QoS 1 or 2 may be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Take,
    /// It is dropped.
    Drop,
    /// It is not, and the connection ends.
    End,
}

/// The account of one mailbox, kept under its lock.
#[derive(Debug, Default)]
pub struct BackPressure {
    /// Bytes that were ever taken out.
    taken: u64,
    /// Who waits, and for which message: its end, counted in bytes that were ever put in. In order.
    waiting: VecDeque<(u64, DeferredAck)>,
    stalled: bool,
}

impl BackPressure {
    /// Bytes were taken out, which does not mean that the client has them.
    pub fn took(&mut self, bytes: usize) {
        self.taken += bytes as u64;
    }

    /// Bytes the client has got, when `unsent` of those that were taken are not sent.
    pub fn drained(&self, unsent: usize) -> u64 {
        self.taken.saturating_sub(unsent as u64)
    }

    /// Whether a message with QoS 1 or 2 may be put in on top of `level` bytes that wait.
    pub fn judge(&self, level: usize, bounds: &OutboxLimits) -> Verdict {
        let waits = !self.stalled && !bounds.stall.is_zero();
        if level < bounds.bytes || (waits && level < bounds.overrun()) {
            Verdict::Take
        } else if bounds.full == OutboxPolicy::Drop {
            Verdict::Drop
        } else {
            Verdict::End
        }
    }

    /// The end of the message that was put in last, if its sender is to wait: `inside` bytes are in the mailbox, and
    /// `unsent` were taken out before them and are not sent.
    pub fn behind(&self, inside: usize, unsent: usize, bounds: &OutboxLimits) -> Option<u64> {
        let waits =
            inside + unsent > bounds.high_water_mark() && !self.stalled && !bounds.stall.is_zero();
        waits.then_some(self.taken + inside as u64)
    }

    /// Lets `waiter` wait for the message that ends at `end`.
    pub fn wait(&mut self, end: u64, waiter: DeferredAck) {
        // Two that put messages in at the same time may come here in the other order.
        let at = self.waiting.partition_point(|(known, _)| *known <= end);
        self.waiting.insert(at, (end, waiter));
    }

    /// Whether the message that ends at `end` need not be waited for, when `unsent` of the bytes that were taken out are
    /// not sent.
    pub fn is_near(&self, end: u64, unsent: usize, bounds: &OutboxLimits) -> bool {
        self.stalled || end + unsent as u64 <= self.taken + bounds.high_water_mark() as u64
    }

    /// Takes out those whose wait is over.
    pub fn release(
        &mut self,
        unsent: usize,
        bounds: &OutboxLimits,
        released: &mut Vec<DeferredAck>,
    ) {
        while let Some((end, _)) = self.waiting.front()
            && self.is_near(*end, unsent, bounds)
        {
            released.extend(self.waiting.pop_front().map(|(_, waiter)| waiter));
        }
    }

    /// The state, when `level` bytes wait for the client.
    pub fn state(&mut self, level: usize, bounds: &OutboxLimits) -> BackPressureState {
        self.stalled &= level > bounds.high_water_mark();
        if self.stalled {
            BackPressureState::Stalled
        } else if level >= bounds.bytes && !bounds.stall.is_zero() {
            BackPressureState::Full
        } else if self.waiting.is_empty() {
            BackPressureState::Normal
        } else {
            BackPressureState::Throttled
        }
    }

    /// Nobody waits until it has drained.
    pub fn stall(&mut self) {
        self.stalled = true;
    }

    /// The connection has ended: takes out everybody who waits.
    pub fn end(&mut self) -> impl Iterator<Item = DeferredAck> {
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|(_, waiter)| waiter)
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
