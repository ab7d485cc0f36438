//! Messages for the connections of other nodes: gathered per node, numbered per burst, confirmed in order.
//!
//! A burst keeps its number when it is sent again over a new stream, and the receiving node passes over numbers it has
//! handled, so nothing is lost or doubled by a broken stream. Only the end of the other node's life drops what is
//! waiting for it. The streams themselves are opened by the node layer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::forward::Message;
use super::mailbox::{Item, Mailbox, Ticket, WakeList};
use crate::ids::NodeId;
use crate::limits;
use crate::mqtt::codec::QoS;

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
    ticket: Ticket,
    missing: Mutex<usize>,
}

impl Countdown {
    fn one_less(&self, wake: &mut WakeList) {
        let mut missing = self.missing.lock();
        *missing -= 1;
        if *missing == 0
            && self
                .mailbox
                .push_item(Item::SubscriptionEverywhere(self.ticket))
        {
            wake.add(&self.mailbox);
        }
    }
}

/// A numbered burst of messages.
#[derive(Clone, Debug)]
pub struct Burst {
    /// Its number.
    pub sequence: u64,
    /// Messages, see [`super::forward`].
    pub messages: Bytes,
    /// The log index the other node is asked to report, 0 when none.
    pub applied: u64,
}

struct Sent {
    burst: Burst,
    confirm: Vec<(Arc<Mailbox>, Ticket)>,
}

#[derive(Default)]
struct Gathering {
    messages: BytesMut,
    confirm: Vec<(Arc<Mailbox>, Ticket)>,
    applied: u64,
    last_sequence: u64,
    sent: VecDeque<Sent>,
    barriers: Vec<Barrier>,
}

impl Gathering {
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
    /// Bursts that may wait for their confirmation at once; messages gather meanwhile.
    pub const BURSTS_IN_FLIGHT: usize = 8;

    /// The next burst after number `sent`, numbering what has gathered.
    pub fn next_after(&self, sent: u64) -> Option<Burst> {
        let mut gathering = self.gathering.lock();
        if let Some(found) = gathering
            .sent
            .iter()
            .find(|entry| entry.burst.sequence > sent)
        {
            return Some(found.burst.clone());
        }
        let nothing = gathering.messages.is_empty() && gathering.applied == 0;
        if nothing || gathering.sent.len() >= Self::BURSTS_IN_FLIGHT {
            return None;
        }
        gathering.last_sequence += 1;
        let burst = Burst {
            sequence: gathering.last_sequence,
            messages: gathering.messages.split().freeze(),
            applied: std::mem::take(&mut gathering.applied),
        };
        let confirm = std::mem::take(&mut gathering.confirm);
        gathering.sent.push_back(Sent {
            burst: burst.clone(),
            confirm,
        });
        Some(burst)
    }

    /// Waits until [`Outbox::next_after`] may have something new.
    pub async fn changed(&self) {
        self.ready.notified().await;
    }

    /// The other node has handed over every burst up to `sequence`, and applied the log up to `applied`.
    pub fn confirmed(&self, sequence: u64, applied: u64) {
        let mut wake = WakeList::default();
        let mut gathering = self.gathering.lock();
        while let Some(entry) = gathering.sent.front()
            && entry.burst.sequence <= sequence
        {
            let entry = gathering.sent.pop_front().expect("just seen");
            confirm(entry.confirm, &mut wake);
        }
        gathering.release_barriers(&mut wake, |barrier| barrier.index <= applied);
        drop(gathering);
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
        confirm(old.confirm, &mut wake);
        for entry in old.sent {
            confirm(entry.confirm, &mut wake);
        }
        for barrier in old.barriers {
            barrier.countdown.one_less(&mut wake);
        }
        self.ready.notify_one();
    }
}

fn confirm(waiting: Vec<(Arc<Mailbox>, Ticket)>, wake: &mut WakeList) {
    for (mailbox, ticket) in waiting {
        if mailbox.push_item(Item::Forwarded(ticket)) {
            wake.add(&mailbox);
        }
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
        message: &Message<'_>,
        publisher: Option<(&Arc<Mailbox>, Ticket)>,
    ) -> bool {
        let outbox = self.outbox(node);
        let mut gathering = outbox.gathering.lock();
        if message.qos == QoS::AtMostOnce && gathering.messages.len() >= limits::PEER_OUTBOX_BYTES {
            return false;
        }
        let first = gathering.messages.is_empty();
        message.encode(&mut gathering.messages);
        if let Some((mailbox, ticket)) = publisher {
            gathering.confirm.push((mailbox.clone(), ticket));
        }
        drop(gathering);
        if first {
            outbox.ready.notify_one();
        }
        true
    }

    /// Asks `nodes` to report when they have applied the log up to `index`; the mailbox gets
    /// [`Item::SubscriptionEverywhere`] once all have, have ended, or have been silent so long that they match nothing
    /// without the log.
    pub fn barrier(&self, nodes: &[NodeId], index: u64, mailbox: &Arc<Mailbox>, ticket: Ticket) {
        let countdown = Arc::new(Countdown {
            mailbox: mailbox.clone(),
            ticket,
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
            .map(|outbox| outbox.gathering.lock().messages.len())
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
