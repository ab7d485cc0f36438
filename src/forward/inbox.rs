//! What other nodes hand over: batches handled already, and the messages in them whose publishers must wait.
//!
//! A batch is confirmed when it is in the mailboxes of its subscribers. Messages that a slow subscriber holds up are
//! named with the confirmation and released later, one by one. Both travel on the stream the batch came on; after a
//! broken stream the first answer on the next one names everything that is still held, so whatever was said in between
//! and lost need not be known.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::outbox::Position;
use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::cluster::{DeliverRequest, DeliverResponse};
use crate::mailbox::WakeList;
use crate::mailbox::back_pressure::DeferredAck;
use crate::router::Pressed;

/// What was received from all other nodes.
#[derive(Debug, Default)]
pub struct Received(Mutex<FxHashMap<NodeId, Arc<Peer>>>);

impl Received {
    /// What was received from `node`.
    pub fn peer(&self, node: NodeId) -> Arc<Peer> {
        self.0.lock().entry(node).or_default().clone()
    }
}

/// The life of another node, and the last of its batches that was handed over.
#[derive(Debug, Default)]
struct Progress {
    incarnation: Incarnation,
    sequence: u64,
}

/// Messages of the other node's present life whose publishers wait.
#[derive(Debug, Default)]
struct Held {
    incarnation: Incarnation,
    /// The newest stream: it alone tells what changes.
    stream: u64,
    /// With each, whether the other node knows.
    messages: BTreeMap<Position, bool>,
    /// Those it does not know of, or some that are released since.
    untold: Vec<Position>,
    /// Those it takes for held and that are not any more.
    released: Vec<Position>,
}

/// What was received from one node.
#[derive(Debug, Default)]
pub struct Peer {
    /// Locked while a batch is handed over, so that none is confirmed before.
    progress: Mutex<Progress>,
    held: Mutex<Held>,
    changed: watch::Sender<()>,
}

/// A message of another node that waits for slow subscribers.
pub struct RemoteDeferredAck {
    peer: Arc<Peer>,
    incarnation: Incarnation,
    position: Position,
    /// Subscribers, and one while they are counted.
    missing: AtomicUsize,
}

impl RemoteDeferredAck {
    /// One subscriber is not waited for any more.
    pub fn one_less(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.peer.release(self.incarnation, self.position);
        }
    }
}

impl fmt::Debug for RemoteDeferredAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteDeferredAck({:?})", self.position)
    }
}

/// Gets the place of a message in its batch, and whom its publisher is to wait for.
pub type DeferAcks<'a> = dyn FnMut(u32, Throttled, &mut WakeList) + 'a;

/// One stream on which another node's batches come, as its answers are made.
#[derive(Debug)]
pub struct Incoming {
    peer: Arc<Peer>,
    changed: watch::Receiver<()>,
    incarnation: Incarnation,
    stream: u64,
    sequence: u64,
    /// The next answer names everything that is held.
    is_new: bool,
}

impl Incoming {
    /// A stream of `peer`, which replaces the one before.
    pub fn new(peer: Arc<Peer>) -> Incoming {
        let mut held = peer.held.lock();
        held.stream += 1;
        let stream = held.stream;
        drop(held);
        Incoming {
            changed: peer.changed.subscribe(),
            peer,
            incarnation: Incarnation::default(),
            stream,
            sequence: 0,
            is_new: true,
        }
    }

    /// Has a batch handed to the connections of this node, unless that was done before. `deliver` does it; it is given
    /// what to do with messages whose publishers are to wait, and returns `None` when it can't read the batch.
    pub fn handle(
        &mut self,
        request: &DeliverRequest,
        deliver: impl FnOnce(&mut DeferAcks<'_>, &mut WakeList) -> Option<()>,
    ) -> Option<()> {
        let incarnation = Incarnation(request.incarnation);
        let peer = self.peer.clone();
        let mut progress = peer.progress.lock();
        if progress.incarnation < incarnation {
            *progress = Progress {
                incarnation,
                sequence: 0,
            };
            peer.held.lock().begin(incarnation);
        }
        if self.incarnation != progress.incarnation {
            self.incarnation = progress.incarnation;
            self.is_new = true;
        }
        if progress.incarnation != incarnation {
            // Numbered in an life that is over: nobody waits for these messages.
            self.sequence = self.sequence.max(request.sequence);
            return Some(());
        }
        if request.sequence <= progress.sequence {
            self.sequence = progress.sequence;
            return Some(());
        }
        let mut wake = WakeList::default();
        let mut hold = |message, throttled: Throttled, wake: &mut WakeList| {
            let position = (request.sequence, message);
            peer.hold(incarnation, position, throttled, wake);
        };
        let handled = deliver(&mut hold, &mut wake);
        progress.sequence = request.sequence;
        self.sequence = request.sequence;
        handled
    }

    /// Waits until [`Incoming::has_news`] may hold.
    pub async fn changed(&mut self) {
        // Its sender is in the peer, which is there as long as this.
        let _ = self.changed.changed().await;
    }

    /// What the other node is to be told now; `applied` is how far this node has applied the log.
    pub fn answer(&mut self, applied: u64) -> DeliverResponse {
        let mut answer = DeliverResponse {
            sequence: self.sequence,
            applied,
            ..DeliverResponse::default()
        };
        let held = &mut *self.peer.held.lock();
        if held.stream != self.stream || held.incarnation != self.incarnation {
            return answer;
        }
        if std::mem::take(&mut self.is_new) {
            answer.all_held = true;
            held.untold.clear();
            held.released.clear();
            for (position, told) in &mut held.messages {
                *told = true;
                answer.held.push(named(*position));
            }
            return answer;
        }
        for position in held.untold.drain(..) {
            if let Some(told) = held.messages.get_mut(&position) {
                *told = true;
                answer.held.push(named(position));
            }
        }
        answer.released = held.released.drain(..).map(named).collect();
        answer
    }

    /// Whether an answer would name messages.
    pub fn has_news(&self) -> bool {
        let held = self.peer.held.lock();
        held.stream == self.stream && !(held.released.is_empty() && held.untold.is_empty())
    }
}

fn named((sequence, message): Position) -> crate::base::proto::cluster::Position {
    crate::base::proto::cluster::Position { sequence, message }
}

impl Held {
    fn begin(&mut self, incarnation: Incarnation) {
        *self = Held {
            incarnation,
            stream: self.stream,
            ..Held::default()
        };
    }
}

impl Peer {
    fn hold(
        self: &Arc<Self>,
        incarnation: Incarnation,
        position: Position,
        throttled: Throttled,
        wake: &mut WakeList,
    ) {
        let mut held = self.held.lock();
        held.messages.insert(position, false);
        held.untold.push(position);
        drop(held);
        let hold = Arc::new(RemoteDeferredAck {
            peer: self.clone(),
            incarnation,
            position,
            missing: AtomicUsize::new(throttled.len() + 1),
        });
        for (mailbox, end) in throttled {
            if !mailbox.defer_ack(end, DeferredAck::Node(hold.clone()), wake) {
                hold.one_less();
            }
        }
        hold.one_less();
    }

    fn release(&self, incarnation: Incarnation, position: Position) {
        let mut held = self.held.lock();
        if held.incarnation == incarnation && held.messages.remove(&position) == Some(true) {
            held.released.push(position);
            drop(held);
            self.changed.send_replace(());
        }
    }
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
