//! Messages from other nodes: which batches were handled, and which acknowledgements are deferred.
//!
//! A batch is confirmed when it is in the mailboxes of its subscribers. A message that a slow subscriber throttles is
//! named with the confirmation, and named again when its acknowledgement is released. Both travel on the stream that
//! the batch came on. After a broken stream the first answer on the next one names every deferred acknowledgement, so
//! it does not matter which answers were lost.
//!
//! Invariant: a batch is delivered once. Its number rises within an incarnation of the sending node, and only the next
//! one is delivered.
//! Invariant: a batch that is delivered in portions is confirmed after the last one; whichever way brings it next goes
//! on where the portions ended.
//! Invariant: only the newest stream of a node names acknowledgements.
//!
//! A message whose expiry interval is over is dropped and counted, and confirmed like the others. What it has waited is
//! what its node says, and the time here: a batch may have to wait until this node has applied enough of the log.
//!
//! A batch may come through the log instead of a stream ([`Inbox::deliver`]), under its number as well. Its node
//! numbers none behind it that may be delivered before it, see [`super::outbox`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::wire::{Forwarded, Malformed, Position};
use crate::base::ids::{Incarnation, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::{self, DeliverRequest, DeliverResponse};
use crate::base::pulse::beat;
use crate::codec::QoS;
use crate::mailbox::{self, DeferredAck, ReleaseAck, WakeList};
use crate::router::Throttled;
use crate::telemetry::labels::DropReason;
use crate::telemetry::metrics::Metrics;

/// The inboxes of all other nodes.
#[derive(Debug, Default)]
pub struct Inboxes {
    of_node: Mutex<FxHashMap<NodeId, Arc<Inbox>>>,
    metrics: Arc<Metrics>,
}

impl Inboxes {
    /// Nothing was received. `metrics` counts what is dropped.
    pub fn new(metrics: Arc<Metrics>) -> Inboxes {
        Inboxes {
            of_node: Mutex::default(),
            metrics,
        }
    }

    /// The inbox of `node`.
    pub fn inbox(&self, node: NodeId) -> Arc<Inbox> {
        let mut inboxes = self.of_node.lock();
        let inbox = inboxes.entry(node);
        let new = || Arc::new(Inbox::new(self.metrics.clone()));
        inbox.or_insert_with(new).clone()
    }
}

/// The newest incarnation of the other node, and the last of its batches that was delivered.
#[derive(Debug, Default)]
struct Progress {
    incarnation: Incarnation,
    sequence: u64,
    begun: Begun,
}

/// How far the batch is delivered that comes next, when a portion of it is.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    sequence: u64,
    /// Bytes of its messages, and their number.
    bytes: usize,
    place: u32,
    /// Those of them that do not have QoS 0. When the batch comes through the log, it has no others.
    waited_for: usize,
    /// Those of them that expire.
    expiring: usize,
}

/// How a batch comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// On a stream: in portions.
    Stream,
    /// Through the log: at once, and without messages with QoS 0.
    Log,
}

/// Deferred acknowledgements of messages of the other node's present incarnation.
#[derive(Debug, Default)]
struct DeferredAcks {
    incarnation: Incarnation,
    /// Number of the newest stream.
    stream: u64,
    /// All of them, each with whether the other node knows of it.
    all: BTreeMap<Position, bool>,
    /// Those that the next answer names. Some may be released since.
    unreported: Vec<Position>,
    /// Those that the other node knows of and that are released since.
    released: Vec<Position>,
}

impl DeferredAcks {
    fn begin(&mut self, incarnation: Incarnation) {
        *self = DeferredAcks {
            incarnation,
            stream: self.stream,
            ..DeferredAcks::default()
        };
    }
}

/// A batch of messages from another node.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'m> {
    /// The incarnation in which it was numbered.
    pub incarnation: Incarnation,
    /// Its number.
    pub sequence: u64,
    /// Its messages.
    pub messages: &'m [u8],
    /// How long each of those that expire has waited until the batch was sent, in order, milliseconds. What is missing
    /// counts as nothing: older nodes do not say it.
    pub waited_ms: &'m [u32],
}

impl Batch<'_> {
    /// Takes the time that a message has waited from its expiry interval; `waited` is what it has waited on this node.
    /// Returns whether the message is over. `expiring` of those before it expire as well.
    fn count_down(
        &self,
        forwarded: &mut Forwarded<'_>,
        expiring: &mut usize,
        waited: Duration,
    ) -> bool {
        let Some(interval_s) = forwarded.message.expiry else {
            return forwarded.is_for_nobody();
        };
        let before = self.waited_ms.get(*expiring).copied().unwrap_or_default();
        *expiring += 1;
        let waited = waited + Duration::from_millis(before.into());
        forwarded.message.expiry = mailbox::left(interval_s, waited);
        forwarded.message.expiry.is_none()
    }
}

/// What was received from one node.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Locked while a batch is delivered, so that the batch is not confirmed before.
    progress: Mutex<Progress>,
    deferred: Mutex<DeferredAcks>,
    /// An acknowledgement was released.
    changed: watch::Sender<()>,
    metrics: Arc<Metrics>,
}

impl Inbox {
    fn new(metrics: Arc<Metrics>) -> Inbox {
        Inbox {
            progress: Mutex::default(),
            deferred: Mutex::default(),
            changed: watch::Sender::default(),
            metrics,
        }
    }

    /// Has each message of a batch delivered that came through the log, unless that was done before.
    ///
    /// # Errors
    /// When a message can't be read. Those before it are delivered.
    pub fn deliver<'m>(
        self: &Arc<Self>,
        batch: Batch<'m>,
        mut deliver: impl FnMut(&Forwarded<'m>, &mut WakeList) -> Throttled,
    ) -> Result<(), Malformed> {
        let mut deliver = |forwarded: &Forwarded<'m>, wake: &mut WakeList| {
            // Each is a sign of life of the thread that applies the log.
            beat();
            (deliver(forwarded, wake), 0)
        };
        let progress = &mut self.progress.lock();
        self.deliver_next(progress, batch, Way::Log, Duration::ZERO, &mut deliver)
            .map(|_| ())
    }

    /// Has messages of a batch delivered that has waited here for so long, from where it was left. Returns whether that
    /// was the last portion.
    fn deliver_next<'m>(
        self: &Arc<Self>,
        progress: &mut Progress,
        batch: Batch<'m>,
        way: Way,
        waited: Duration,
        deliver: &mut impl FnMut(&Forwarded<'m>, &mut WakeList) -> (Throttled, usize),
    ) -> Result<bool, Malformed> {
        let Batch {
            incarnation,
            sequence,
            messages,
            ..
        } = batch;
        if progress.incarnation < incarnation {
            *progress = Progress {
                incarnation,
                ..Progress::default()
            };
            self.deferred.lock().begin(incarnation);
        }
        if progress.incarnation != incarnation || sequence <= progress.sequence {
            return Ok(true);
        }
        let mut begun = std::mem::take(&mut progress.begun);
        if begun.sequence != sequence {
            begun = Begun {
                sequence,
                ..Begun::default()
            };
        }
        let (start, mut known) = match way {
            Way::Stream => (begun.bytes, 0),
            Way::Log => (0, begun.waited_for),
        };
        let before = std::mem::replace(&mut progress.sequence, sequence);
        let mut rest = messages.get(start..).unwrap_or_default();
        let mut wake = WakeList::default();
        let mut work = 0;
        while !rest.is_empty() {
            if way == Way::Stream && work >= limits::TURN_WORK {
                begun.bytes = messages.len() - rest.len();
                progress.sequence = before;
                progress.begun = begun;
                return Ok(false);
            }
            let mut forwarded = Forwarded::decode(&mut rest)?;
            if known > 0 {
                known -= 1;
                continue;
            }
            if batch.count_down(&mut forwarded, &mut begun.expiring, waited) {
                let dropped = &self.metrics.messages_dropped;
                dropped.of(DropReason::Expired).increment();
                work += 1;
            } else {
                let (throttled, done) = deliver(&forwarded, &mut wake);
                work += done;
                if !throttled.is_empty() {
                    self.defer(incarnation, (sequence, begun.place), throttled, &mut wake);
                }
            }
            begun.place += 1;
            begun.waited_for += usize::from(forwarded.message.qos != QoS::AtMostOnce);
        }
        Ok(true)
    }

    /// Defers the acknowledgement of a message until no subscriber in `throttled` has to read more.
    fn defer(
        self: &Arc<Self>,
        incarnation: Incarnation,
        position: Position,
        throttled: Throttled,
        wake: &mut WakeList,
    ) {
        let mut deferred = self.deferred.lock();
        deferred.all.insert(position, false);
        deferred.unreported.push(position);
        drop(deferred);
        let ack = Arc::new(RemoteDeferredAck {
            inbox: self.clone(),
            incarnation,
            position,
            missing: AtomicUsize::new(throttled.len() + 1),
        });
        for (mailbox, end) in throttled {
            if !mailbox.defer_ack(end, DeferredAck::Remote(ack.clone()), wake) {
                ack.release_one();
            }
        }
        ack.release_one();
    }

    fn release(&self, incarnation: Incarnation, position: Position) {
        let mut deferred = self.deferred.lock();
        if deferred.incarnation == incarnation && deferred.all.remove(&position) == Some(true) {
            deferred.released.push(position);
            drop(deferred);
            self.changed.send_replace(());
        }
    }
}

/// The acknowledgement of a message from another node that waits for slow subscribers.
struct RemoteDeferredAck {
    inbox: Arc<Inbox>,
    incarnation: Incarnation,
    position: Position,
    /// Subscribers that it waits for, plus one until all of them are known.
    missing: AtomicUsize,
}

impl ReleaseAck for RemoteDeferredAck {
    fn release_one(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inbox.release(self.incarnation, self.position);
        }
    }
}

impl fmt::Debug for RemoteDeferredAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteDeferredAck({:?})", self.position)
    }
}

/// One stream of batches from another node, and the answers on it.
#[derive(Debug)]
pub struct InboundStream {
    inbox: Arc<Inbox>,
    changed: watch::Receiver<()>,
    incarnation: Incarnation,
    stream: u64,
    sequence: u64,
    /// The next answer names every deferred acknowledgement.
    is_new: bool,
}

impl InboundStream {
    /// A stream into `inbox`, which replaces the one before.
    pub fn new(inbox: Arc<Inbox>) -> InboundStream {
        let mut deferred = inbox.deferred.lock();
        deferred.stream += 1;
        let stream = deferred.stream;
        drop(deferred);
        InboundStream {
            changed: inbox.changed.subscribe(),
            inbox,
            incarnation: Incarnation::default(),
            stream,
            sequence: 0,
            is_new: true,
        }
    }

    /// Has the next portion of a batch delivered that has come at `arrived`, unless that was done before: about
    /// [`limits::TURN_WORK`]. `deliver` returns the mailboxes that throttle the publisher of the message, and the work
    /// that it was. Returns whether the whole batch is delivered; otherwise it must be given again, to this or to a
    /// later stream.
    ///
    /// # Errors
    /// When a message can't be read. Those before it are delivered; the batch counts as handled, because sending it
    /// again would not help.
    pub fn handle<'m>(
        &mut self,
        request: &'m DeliverRequest,
        arrived: Instant,
        mut deliver: impl FnMut(&Forwarded<'m>, &mut WakeList) -> (Throttled, usize),
    ) -> Result<bool, Malformed> {
        let batch = Batch {
            incarnation: Incarnation(request.incarnation),
            sequence: request.sequence,
            messages: &request.messages,
            waited_ms: &request.waited_ms,
        };
        let inbox = self.inbox.clone();
        let mut progress = inbox.progress.lock();
        let waited = arrived.elapsed();
        let handled = inbox.deliver_next(&mut progress, batch, Way::Stream, waited, &mut deliver);
        if self.incarnation != progress.incarnation {
            self.incarnation = progress.incarnation;
            self.is_new = true;
        }
        // A batch that was numbered in an incarnation that has ended counts as handled: nobody waits for its messages.
        self.sequence = match progress.incarnation == batch.incarnation {
            true => progress.sequence,
            false => self.sequence.max(batch.sequence),
        };
        handled
    }

    /// Waits until [`InboundStream::has_news`] may hold.
    pub async fn changed(&mut self) {
        // The sender is in the inbox, which this stream keeps alive, so this never fails.
        let _ = self.changed.changed().await;
    }

    /// The answer that the other node is to get now. `applied` is how far this node has applied the log.
    pub fn answer(&mut self, applied: u64) -> DeliverResponse {
        let mut answer = DeliverResponse {
            sequence: self.sequence,
            applied,
            ..DeliverResponse::default()
        };
        let deferred = &mut *self.inbox.deferred.lock();
        if deferred.stream != self.stream || deferred.incarnation != self.incarnation {
            return answer;
        }
        if std::mem::take(&mut self.is_new) {
            answer.all_deferred = true;
            deferred.unreported.clear();
            deferred.released.clear();
            for (position, reported) in &mut deferred.all {
                *reported = true;
                answer.deferred.push(to_proto(*position));
            }
            return answer;
        }
        for position in deferred.unreported.drain(..) {
            if let Some(reported) = deferred.all.get_mut(&position) {
                *reported = true;
                answer.deferred.push(to_proto(position));
            }
        }
        answer.released = deferred.released.drain(..).map(to_proto).collect();
        answer
    }

    /// Whether an answer would name acknowledgements.
    pub fn has_news(&self) -> bool {
        let deferred = self.inbox.deferred.lock();
        deferred.stream == self.stream
            && !(deferred.released.is_empty() && deferred.unreported.is_empty())
    }
}

fn to_proto((sequence, message): Position) -> cluster::Position {
    cluster::Position { sequence, message }
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
