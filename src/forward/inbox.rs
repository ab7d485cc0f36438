//! Messages from other nodes: which batches were handled, and which acknowledgements are deferred.
//!
//! A batch is confirmed when it is in the mailboxes of its subscribers. A message that a slow subscriber throttles is
//! named with the confirmation, and named again when its acknowledgement is released. Both travel on the stream that
//! the batch came on. After a broken stream the first answer on the next one names every deferred acknowledgement, so
//! it does not matter which answers were lost.
//!
//! Invariant: a batch is delivered once. Its number rises within an incarnation of the sending node, and only the next
//! one is delivered.
//! Invariant: only the newest stream of a node names acknowledgements.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::outbox::Position;
use super::wire::{Forwarded, Malformed};
use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::cluster::{self, DeliverRequest, DeliverResponse};
use crate::mailbox::{DeferredAck, ReleaseAck, WakeList};
use crate::router::Throttled;

/// The inboxes of all other nodes.
#[derive(Debug, Default)]
pub struct Inboxes(Mutex<FxHashMap<NodeId, Arc<Inbox>>>);

impl Inboxes {
    /// The inbox of `node`.
    pub fn inbox(&self, node: NodeId) -> Arc<Inbox> {
        self.0.lock().entry(node).or_default().clone()
    }
}

/// The newest incarnation of the other node, and the last of its batches that was delivered.
#[derive(Debug, Default)]
struct Progress {
    incarnation: Incarnation,
    sequence: u64,
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

/// What was received from one node.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Locked while a batch is delivered, so that the batch is not confirmed before.
    progress: Mutex<Progress>,
    deferred: Mutex<DeferredAcks>,
    /// An acknowledgement was released.
    changed: watch::Sender<()>,
}

impl Inbox {
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

    /// Has each message of a batch delivered, unless that was done before. `deliver` returns the mailboxes that
    /// throttle the publisher of the message.
    ///
    /// # Errors
    /// When a message can't be read. Those before it are delivered; the batch counts as handled, because sending it
    /// again would not help.
    pub fn handle<'m>(
        &mut self,
        request: &'m DeliverRequest,
        mut deliver: impl FnMut(&Forwarded<'m>, &mut WakeList) -> Throttled,
    ) -> Result<(), Malformed> {
        let incarnation = Incarnation(request.incarnation);
        let inbox = self.inbox.clone();
        let mut progress = inbox.progress.lock();
        if progress.incarnation < incarnation {
            *progress = Progress {
                incarnation,
                sequence: 0,
            };
            inbox.deferred.lock().begin(incarnation);
        }
        if self.incarnation != progress.incarnation {
            self.incarnation = progress.incarnation;
            self.is_new = true;
        }
        if progress.incarnation != incarnation {
            // The batch was numbered in an incarnation that has ended: nobody waits for its messages.
            self.sequence = self.sequence.max(request.sequence);
            return Ok(());
        }
        if request.sequence <= progress.sequence {
            self.sequence = progress.sequence;
            return Ok(());
        }
        let mut wake = WakeList::default();
        let mut messages = &request.messages[..];
        let mut place = 0;
        let mut handled = Ok(());
        while !messages.is_empty() {
            match Forwarded::decode(&mut messages) {
                Ok(forwarded) => {
                    let throttled = deliver(&forwarded, &mut wake);
                    if !throttled.is_empty() {
                        let position = (request.sequence, place);
                        inbox.defer(incarnation, position, throttled, &mut wake);
                    }
                    place += 1;
                }
                Err(malformed) => {
                    handled = Err(malformed);
                    break;
                }
            }
        }
        progress.sequence = request.sequence;
        self.sequence = request.sequence;
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
