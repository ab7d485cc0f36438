//! Messages for the connections of other nodes: gathered per node, numbered per batch, confirmed in order.
//!
//! A batch keeps its number when it is sent again over a new stream, and the receiving node passes over numbers it has
//! handled, so nothing is lost or doubled by a broken stream. Only the end of the other node's life drops what is
//! waiting for it. The streams themselves are opened by the node layer.
//!
//! A confirmation may name messages as held: they are with the other node's connections, but their publishers are to
//! wait until they are named as released, or the other node's life ends.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::wire::Forwarded;
use crate::base::ids::{Incarnation, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::DeliverResponse;
use crate::codec::QoS;
use crate::mailbox::{Item, Mailbox, RequestId, WakeList};

/// A message: the batch it is in, and how many are before it in there.
pub type Position = (u64, u32);

/// Who is told when the other node has applied the log up to an index, or has not answered for long enough.
struct Barrier {
    index: u64,
    since: Instant,
    countdown: Arc<Countdown>,
}

/// Tells a connection once several nodes have answered.
#[derive(Debug)]
pub struct Countdown {
    mailbox: Arc<Mailbox>,
    request_id: RequestId,
    missing: Mutex<usize>,
}

impl Countdown {
    fn one_less(&self, wake: &mut WakeList) {
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

/// A numbered batch of messages.
#[derive(Clone, Debug)]
pub struct MessageBatch {
    /// The life of this node in which it was numbered. It keeps that too, or it might be handled twice.
    pub incarnation: Incarnation,
    /// Its number.
    pub sequence: u64,
    /// Messages, see [`super::wire`].
    pub messages: Bytes,
    /// The log index the other node is asked to report, 0 when none.
    pub applied: u64,
}

/// A connection, and what it calls its message.
type Publisher = (Arc<Mailbox>, RequestId);

/// Publishers of a batch, by their messages' places in it.
type Confirm = Vec<(u32, Option<Publisher>)>;

struct Sent {
    batch: MessageBatch,
    confirm: Confirm,
}

#[derive(Default)]
struct Gathering {
    /// What fills a batch and waits for its turn, before what gathers.
    full: VecDeque<(Bytes, Confirm)>,
    full_bytes: usize,
    messages: BytesMut,
    /// Number of messages.
    count: u32,
    confirm: Confirm,
    /// Confirmed messages whose publishers wait.
    held: BTreeMap<Position, Publisher>,
    applied: u64,
    last_sequence: u64,
    sent: VecDeque<Sent>,
    barriers: Vec<Barrier>,
}

impl Gathering {
    /// Bytes that wait to be sent.
    fn bytes(&self) -> usize {
        self.full_bytes + self.messages.len()
    }

    fn split(&mut self) -> (Bytes, Confirm) {
        self.count = 0;
        let messages = self.messages.split().freeze();
        (messages, std::mem::take(&mut self.confirm))
    }

    fn release_barriers(&mut self, wake: &mut WakeList, is_over: impl Fn(&Barrier) -> bool) {
        self.barriers.retain(|barrier| {
            let is_over = is_over(barrier);
            if is_over {
                barrier.countdown.one_less(wake);
            }
            !is_over
        });
    }
}

/// What waits for one node.
#[derive(Default)]
pub struct Outbox {
    gathering: Mutex<Gathering>,
    ready: Notify,
}

impl Outbox {
    /// Batches that may wait for their confirmation at once; messages gather meanwhile.
    pub const BATCHES_IN_FLIGHT: usize = 8;

    /// The next batch after number `sent`, numbering what has gathered in the life `incarnation`.
    pub fn next_after(&self, sent: u64, incarnation: Incarnation) -> Option<MessageBatch> {
        let mut gathering = self.gathering.lock();
        if let Some(found) = gathering
            .sent
            .iter()
            .find(|entry| entry.batch.sequence > sent)
        {
            return Some(found.batch.clone());
        }
        let nothing = gathering.bytes() == 0 && gathering.applied == 0;
        if nothing || gathering.sent.len() >= Self::BATCHES_IN_FLIGHT {
            return None;
        }
        gathering.last_sequence += 1;
        let (messages, confirm) = match gathering.full.pop_front() {
            Some(full) => {
                gathering.full_bytes -= full.0.len();
                full
            }
            None => gathering.split(),
        };
        let batch = MessageBatch {
            incarnation,
            sequence: gathering.last_sequence,
            messages,
            applied: std::mem::take(&mut gathering.applied),
        };
        gathering.sent.push_back(Sent {
            batch: batch.clone(),
            confirm,
        });
        Some(batch)
    }

    /// Waits until [`Outbox::next_after`] may have something new.
    pub async fn changed(&self) {
        self.ready.notified().await;
    }

    /// The log index the other node is to be asked for on a new stream, 0 when none: it may have been asked, and the
    /// answer lost.
    pub fn wanted(&self) -> u64 {
        let gathering = self.gathering.lock();
        let wanted = gathering.barriers.iter().map(|barrier| barrier.index);
        wanted.max().unwrap_or_default()
    }

    /// The other node's answer.
    pub fn answered(&self, answer: &DeliverResponse) {
        let mut wake = WakeList::default();
        let mut gathering = self.gathering.lock();
        let gathering = &mut *gathering;
        for position in &answer.held {
            gathering.hold((position.sequence, position.message), &mut wake);
        }
        while let Some(entry) = gathering.sent.front()
            && entry.batch.sequence <= answer.sequence
        {
            let entry = gathering.sent.pop_front().expect("just seen");
            for publisher in entry.confirm.into_iter().filter_map(|(_, waits)| waits) {
                tell(publisher, Item::ForwardConfirmed, &mut wake);
            }
        }
        if answer.all_held {
            gathering.keep_held(answer, &mut wake);
        }
        for position in &answer.released {
            let position = (position.sequence, position.message);
            if let Some(publisher) = gathering.held.remove(&position) {
                tell(publisher, Item::AckReleased, &mut wake);
            }
        }
        gathering.release_barriers(&mut wake, |barrier| barrier.index <= answer.applied);
        self.ready.notify_one();
    }

    fn release_overdue(&self, wake: &mut WakeList) {
        self.gathering.lock().release_barriers(wake, |barrier| {
            barrier.since.elapsed() >= limits::SUBSCRIBED_EVERYWHERE
        });
    }

    /// The other node's life has ended, and with it its connections: nothing waits for it any more.
    fn ended(&self) {
        let mut wake = WakeList::default();
        let mut gathering = self.gathering.lock();
        let last_sequence = gathering.last_sequence;
        let old = std::mem::replace(
            &mut *gathering,
            Gathering {
                last_sequence,
                ..Gathering::default()
            },
        );
        drop(gathering);
        let sent = old.sent.into_iter().flat_map(|entry| entry.confirm);
        let full = old.full.into_iter().flat_map(|(_, confirm)| confirm);
        let waiting = full.chain(old.confirm);
        for publisher in sent.chain(waiting).filter_map(|(_, waits)| waits) {
            tell(publisher, Item::ForwardConfirmed, &mut wake);
        }
        for publisher in old.held.into_values() {
            tell(publisher, Item::AckReleased, &mut wake);
        }
        for barrier in old.barriers {
            barrier.countdown.one_less(&mut wake);
        }
        self.ready.notify_one();
    }
}

impl Gathering {
    /// The publisher of a message that is being confirmed is to wait.
    fn hold(&mut self, position: Position, wake: &mut WakeList) {
        let (sequence, message) = position;
        let entry = self
            .sent
            .iter_mut()
            .find(|entry| entry.batch.sequence == sequence);
        let found = entry.and_then(|entry| {
            let at = entry.confirm.binary_search_by_key(&message, |(at, _)| *at);
            entry.confirm[at.ok()?].1.take()
        });
        if let Some(publisher) = found {
            tell(publisher.clone(), Item::AckDeferred, wake);
            self.held.insert(position, publisher);
        }
    }

    /// Releases what the other node does not name as held; it may have said so before, on a stream that broke.
    fn keep_held(&mut self, answer: &DeliverResponse, wake: &mut WakeList) {
        let named: HashSet<Position> = answer
            .held
            .iter()
            .map(|position| (position.sequence, position.message))
            .collect();
        self.held.retain(|position, publisher| {
            let gone = !named.contains(position)
                && (position.0 <= answer.sequence || publisher.0.is_closed());
            if gone {
                tell(publisher.clone(), Item::AckReleased, wake);
            }
            !gone
        });
    }
}

fn tell((mailbox, request_id): Publisher, item: fn(RequestId) -> Item, wake: &mut WakeList) {
    if mailbox.push_item(item(request_id)) {
        wake.add(&mailbox);
    }
}

/// The outboxes of all other nodes.
#[derive(Default)]
pub struct Remote {
    outboxes: RwLock<FxHashMap<NodeId, Arc<Outbox>>>,
}

impl Remote {
    /// The outbox of `node`.
    pub fn outbox(&self, node: NodeId) -> Arc<Outbox> {
        if let Some(outbox) = self.outboxes.read().get(&node) {
            return outbox.clone();
        }
        self.outboxes.write().entry(node).or_default().clone()
    }

    /// Adds a message; tells whether it was taken. QoS 0 is dropped when too much is waiting; what is confirmed to its
    /// publisher is not, because publishers stop at their receive maximum.
    pub(super) fn send(
        &self,
        node: NodeId,
        forwarded: &Forwarded<'_>,
        publisher: Option<(&Arc<Mailbox>, RequestId)>,
    ) -> bool {
        let outbox = self.outbox(node);
        let mut gathering = outbox.gathering.lock();
        let qos = forwarded.message.qos;
        if qos == QoS::AtMostOnce && gathering.bytes() >= limits::PEER_OUTBOX_BYTES {
            return false;
        }
        let first = gathering.bytes() == 0;
        forwarded.encode(&mut gathering.messages);
        let place = gathering.count;
        gathering.count += 1;
        if let Some((mailbox, request_id)) = publisher {
            let publisher = Some((mailbox.clone(), request_id));
            gathering.confirm.push((place, publisher));
        }
        if gathering.messages.len() >= limits::MESSAGE_BATCH_BYTES {
            let full = gathering.split();
            gathering.full_bytes += full.0.len();
            gathering.full.push_back(full);
        }
        drop(gathering);
        if first {
            outbox.ready.notify_one();
        }
        true
    }

    /// Asks `nodes` to report when they have applied the log up to `index`; the mailbox gets
    /// [`Item::SubscriptionEffective`] once all have, have ended, or have been silent so long that they match nothing
    /// without the log.
    pub fn barrier(
        &self,
        nodes: &[NodeId],
        index: u64,
        mailbox: &Arc<Mailbox>,
        request_id: RequestId,
    ) {
        let countdown = Arc::new(Countdown {
            mailbox: mailbox.clone(),
            request_id,
            missing: Mutex::new(nodes.len()),
        });
        for node in nodes {
            let outbox = self.outbox(*node);
            let mut gathering = outbox.gathering.lock();
            gathering.applied = gathering.applied.max(index);
            gathering.barriers.push(Barrier {
                index,
                since: Instant::now(),
                countdown: countdown.clone(),
            });
            drop(gathering);
            outbox.ready.notify_one();
        }
    }

    /// Waits no longer for nodes that do not answer. To be called a few times a second.
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
            .map(|outbox| outbox.gathering.lock().bytes())
            .sum()
    }

    /// The life of `node` has ended.
    pub fn node_ended(&self, node: NodeId) {
        let outbox = self.outboxes.read().get(&node).cloned();
        if let Some(outbox) = outbox {
            outbox.ended();
        }
    }
}
