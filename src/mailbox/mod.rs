//! The mailbox of a connection: encoded PUBLISH packets, replies and notices that other tasks leave for it.
//!
//! A publisher's task writes packets straight into the mailbox of each subscriber's connection: one lock, one copy, no
//! allocation once the buffer has grown. The connection's task takes everything at once, patches packet ids in place,
//! and hands the same buffer to its socket. Nothing here reads or writes a socket.
//!
//! Invariant: only the task of the connection takes contents out and reports progress. Invariant: no mailbox is locked
//! while a [`DeferredAck`] is released, because that locks the publisher's mailbox. Invariant: every waiting byte is
//! bounded, see [`back_pressure`], and every dropped message is counted. Invariant: what waits for a connection, here
//! and in its task, stays below [`OutboxLimits::connection_bytes`], see [`budget`].

mod answers;
pub mod back_pressure;
mod budget;
mod contents;
mod desired;
mod expiry;
mod hand_over;
mod item;
pub mod memory;
mod notifications;
mod packets;
mod progress;
mod topic_aliases;
pub mod wait_list;
mod wake_list;
mod withheld;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::acl::{Client, Share};
use crate::base::ids::{ConnectionId, SessionId};
use crate::codec::{TopicAlias, Version};
use crate::telemetry::labels::DropReason;
use back_pressure::{Admission, BackPressure, BackPressureState, OutboxLimits};
use memory::Charge;
use topic_aliases::TopicAliases;

pub use answers::Answers;
pub use contents::{Contents, Filling, NewPacket, Refused, Tracked, Withheld};
pub use expiry::{Expiry, left};
pub use item::{End, Item, RequestId};
pub use notifications::{Notification, Notifications};
pub use packets::{Body, Located, Packets, Unsent, WeakBody};
pub use wake_list::{WakeList, all_woken};

/// An acknowledgement (PUBACK or PUBREC) that waits until a subscriber has read enough.
#[derive(Clone)]
pub enum DeferredAck {
    /// The publisher is a connection of this node. It gets [`Item::AckReleased`].
    Local(Arc<Mailbox>, RequestId),
    /// The publisher is a connection of another node.
    Remote(Arc<dyn ReleaseAck>),
}

/// The acknowledgement of a message that came from another node; it may wait for several subscribers.
pub trait ReleaseAck: fmt::Debug + Send + Sync {
    /// The acknowledgement need not wait for one of its subscribers any more. Called once for each of them.
    fn release_one(&self);
}

impl DeferredAck {
    /// Releases the acknowledgement. The caller must not hold the lock of a mailbox.
    pub fn release(self, wake: &mut WakeList) {
        match self {
            DeferredAck::Local(mailbox, request_id) => {
                if mailbox.push_item(Item::AckReleased(request_id)) {
                    wake.add(&mailbox);
                }
            }
            DeferredAck::Remote(ack) => ack.release_one(),
        }
    }
}

impl fmt::Debug for DeferredAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The mailbox itself is not shown: mailboxes may wait for each other, or for themselves.
            DeferredAck::Local(mailbox, request_id) => {
                write!(f, "Local({:?}, {request_id})", mailbox.connection)
            }
            DeferredAck::Remote(ack) => write!(f, "Remote({ack:?})"),
        }
    }
}

/// Somebody who has asked for a hand-over.
#[derive(Debug)]
struct HandOver {
    done: oneshot::Sender<()>,
    /// The client was read since.
    is_begun: bool,
}

/// What the lock of a mailbox protects.
#[derive(Debug)]
struct Inner {
    contents: Contents,
    aliases: TopicAliases,
    back_pressure: BackPressure<DeferredAck>,
    /// In order. While there is one, every later message of the queue follows it. The client's receive maximum bounds
    /// them.
    withheld: VecDeque<Withheld>,
    /// Publishers whose next packet waits until this mailbox has room.
    publishers: FxHashMap<ConnectionId, Arc<Mailbox>>,
    charge: Charge,
    hand_overs: Vec<HandOver>,
    /// The connection takes nothing any more.
    closed: bool,
}

/// The mailbox of one connection.
#[derive(Debug)]
pub struct Mailbox {
    /// The connection that takes the contents out.
    pub connection: ConnectionId,
    /// The version its packets are encoded for.
    pub version: Version,
    /// Larger packets are not sent to this client `[MQTT-3.1.2-24]`.
    pub max_packet_size: u32,
    limits: Arc<OutboxLimits>,
    inner: Mutex<Inner>,
    /// Something was put in since the connection took the contents out.
    filled: AtomicBool,
    /// Bytes that were taken out and are not sent: they wait for the socket, or for room in the client's receive
    /// maximum.
    unsent: AtomicUsize,
    /// Bytes that the connection's task keeps, those in `unsent` among them.
    kept: AtomicUsize,
    /// A packet of the client that had to wait is to be offered again.
    offer: AtomicBool,
    /// A hand-over is asked for.
    is_asked: AtomicBool,
    /// Those to the client's own requests.
    pub answers: Answers,
    /// A [`BackPressureState`].
    state: AtomicU8,
    /// An [`Item::End`] was put in.
    ending: AtomicBool,
    /// Id of the session, 0 until it is open.
    session: AtomicU64,
    /// Who takes the contents out; nobody is judged before it is known.
    client: OnceLock<Arc<Client>>,
    waker: AtomicWaker,
}

/// A packet was put into a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The connection must be woken with [`Mailbox::wake`].
    pub wake: bool,
    /// The end of the message, when its acknowledgement is to be deferred with [`Mailbox::defer_ack`].
    pub throttled: Option<u64>,
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new(
        connection: ConnectionId,
        version: Version,
        max_packet_size: u32,
        topic_alias_maximum: u16,
        limits: Arc<OutboxLimits>,
    ) -> Arc<Mailbox> {
        let inner = Inner {
            contents: Contents::default(),
            aliases: TopicAliases::new(topic_alias_maximum),
            back_pressure: BackPressure::default(),
            withheld: VecDeque::new(),
            publishers: FxHashMap::default(),
            charge: Charge::new(&limits.memory, 0),
            hand_overs: Vec::new(),
            closed: false,
        };
        Arc::new(Mailbox {
            connection,
            version,
            max_packet_size,
            answers: Answers::new(limits.bytes),
            limits,
            inner: Mutex::new(inner),
            filled: AtomicBool::new(false),
            unsent: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            offer: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            state: AtomicU8::new(BackPressureState::Normal as u8),
            ending: AtomicBool::new(false),
            session: AtomicU64::new(0),
            client: OnceLock::new(),
            waker: AtomicWaker::new(),
        })
    }

    /// Tells whose mailbox it is; only the first one counts.
    pub fn belongs_to(&self, client: Arc<Client>) {
        let _ = self.client.set(client);
    }

    /// Whether the rules let the client get the messages of a topic, now.
    pub fn may_receive(&self, topic: &str, share: Share<'_>) -> bool {
        let client = self.client.get();
        client.is_none_or(|client| client.may_receive(topic, share))
    }

    /// Puts one packet with QoS 1 or 2 in: `encode` appends it to the buffer.
    ///
    /// # Errors
    /// When the packet was refused. A dropped message is counted.
    pub fn push_packet(
        &self,
        packet: NewPacket<'_>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) -> Result<Put, Refused> {
        let inner = &mut *self.inner.lock();
        let unsent = self.unsent.load(Ordering::SeqCst);
        let level = inner.contents.packets.len() + unsent;
        if inner.closed || self.is_ending() {
            return Err(Refused::Ended);
        }
        if level >= self.limits.bytes {
            self.admit(inner, level, &packet)?;
        }
        inner
            .contents
            .append(packet, None, self.version, encode)
            .inspect_err(|refused| self.count_refused(*refused))?;
        inner.account();
        let wake = !self.filled.swap(true, Ordering::AcqRel);
        let buffered = inner.contents.packets.len();
        let throttled = inner.back_pressure.throttle(buffered, unsent, &self.limits);
        if buffered + unsent + inner.contents.tracked_bytes() >= self.limits.bytes {
            let left_normal = self.update_state(inner, None);
            return Ok(Put {
                wake: wake || left_normal,
                throttled,
            });
        }
        Ok(Put { wake, throttled })
    }

    /// Decides about a message that does not fit below the limit. What is above it belongs to publishers that can be
    /// slowed down, and to what the client has asked to be told: the answers to others must not fill it up. Answers to
    /// the client are bounded by its requests, and by the memory of its connection.
    #[cold]
    fn admit(
        &self,
        inner: &mut Inner,
        level: usize,
        packet: &NewPacket<'_>,
    ) -> Result<(), Refused> {
        let is_direct = packet.is_direct;
        let is_others = is_direct && !packet.is_asked_for;
        let exceeds_memory = self.exceeds_memory(inner);
        if packet.is_answer && !exceeds_memory {
            return Ok(());
        }
        let level = match is_others || exceeds_memory {
            true => usize::MAX,
            false => level,
        };
        let answers = self.answers.published();
        let admission =
            inner
                .back_pressure
                .admit(level, answers, packet.is_asked_for, &self.limits);
        match admission {
            Admission::Accept => Ok(()),
            Admission::Disconnect if !is_direct => {
                if !self.ending.swap(true, Ordering::AcqRel) {
                    inner.contents.push_item(Item::End(End::OutboxFull));
                    self.filled.store(true, Ordering::Release);
                }
                Err(Refused::Ended)
            }
            Admission::Drop | Admission::Disconnect => {
                self.count(DropReason::OutboxFull, 1);
                Err(Refused::Full)
            }
        }
    }

    /// Puts one packet with QoS 0 in, which may name its topic by an alias. Returns whether the connection must be
    /// woken.
    ///
    /// # Errors
    /// When the packet was refused. The caller counts it with [`Mailbox::count_refused`], unless another subscriber
    /// gets the message instead.
    pub fn push_qos_0(
        &self,
        topic: &str,
        packet: NewPacket<'_>,
        encode: impl FnOnce(&mut Vec<u8>, Option<TopicAlias>) -> Result<(), Refused>,
    ) -> Result<bool, Refused> {
        let inner = &mut *self.inner.lock();
        if inner.closed || self.is_ending() {
            return Err(Refused::Ended);
        }
        let level = inner.contents.packets.len() + self.unsent.load(Ordering::SeqCst);
        let is_full = level >= self.limits.bytes;
        if is_full && (!packet.is_answer || self.exceeds_memory(inner)) {
            return Err(Refused::Full);
        }
        let alias = inner.aliases.get(topic).filter(|alias| {
            // A packet that may expire may never tell the client what a new alias stands for.
            !alias.send_topic || packet.expiry_s.is_none()
        });
        let encode = |out: &mut Vec<u8>| encode(out, alias);
        inner.contents.append(packet, None, self.version, encode)?;
        inner.account();
        inner.aliases.confirm(topic, alias);
        let wake = !self.filled.swap(true, Ordering::AcqRel);
        Ok(wake || (is_full && self.update_state(inner, None)))
    }

    /// Copies a large body, for several packets to share.
    pub fn copy_body(&self, payload: &[u8]) -> Body {
        Body::new(payload, &self.limits.memory)
    }

    /// Lets the connection itself make packets, into buffers that are empty, and counts them as taken out. The mailbox
    /// is not locked meanwhile, so `fill` may read for as long as it bounds itself. What was delivered into the mailbox
    /// before is taken out afterwards: no change of the state that `fill` reads comes before the packets that it has
    /// made from the older state.
    pub fn fill(&self, contents: &mut Contents, fill: impl FnOnce(&mut Filling<'_>)) {
        debug_assert!(contents.is_empty(), "another connection's packets");
        let mut filling = Filling::new(contents, self.version);
        fill(&mut filling);
        self.count(DropReason::TooLarge, filling.too_large());
        self.took(&mut self.inner.lock(), contents.packets.len());
    }

    /// Puts an item in. Returns whether the connection must be woken. An item can't be held back: one that exceeds the
    /// memory of the connection ends it.
    pub fn push_item(&self, item: Item) -> bool {
        let ends = matches!(item, Item::End(_));
        let mut inner = self.inner.lock();
        // Nobody looks at what comes behind an end.
        if inner.closed || (self.is_ending() && !ends) {
            return false;
        }
        inner.contents.push_item(item);
        if !ends && self.exceeds_memory(&inner) {
            drop(inner);
            return self.end(End::ConnectionMemory);
        }
        inner.account();
        // Whoever sees that it ends sees that there is something, too.
        let was_empty = !self.filled.swap(true, Ordering::AcqRel);
        if ends {
            self.ending.store(true, Ordering::Release);
        }
        was_empty || ends
    }

    /// Ends the connection and drops at once what waits for it. Returns whether the connection must be woken.
    pub fn end(&self, end: End) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed || self.ending.swap(true, Ordering::AcqRel) {
            return false;
        }
        inner.contents = Contents::default();
        inner.contents.push_item(Item::End(end));
        inner.account();
        self.filled.store(true, Ordering::Release);
        true
    }

    /// Whether an [`Item::End`] was put in.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// The session, if it is open.
    pub fn session(&self) -> Option<SessionId> {
        let session = self.session.load(Ordering::Relaxed);
        (session != 0).then_some(SessionId(session))
    }

    /// Notes that the session is open.
    pub fn opened(&self, session: SessionId) {
        self.session.store(session.0, Ordering::Relaxed);
    }

    /// Counts a message that is dropped because its packet was refused.
    pub fn count_refused(&self, refused: Refused) {
        match refused {
            Refused::Full => self.count(DropReason::OutboxFull, 1),
            Refused::TooLarge => self.count(DropReason::TooLarge, 1),
            Refused::Ended => {}
        }
    }

    /// Counts messages that were not delivered here.
    pub fn count(&self, reason: DropReason, count: u64) {
        let dropped = &self.limits.metrics.messages_dropped;
        dropped.of(reason).add(count);
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Registers the task to wake when something is put in. A task that sleeps registers first and then looks at
    /// [`Mailbox::is_filled`] once more.
    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    /// Whether something may be there to take.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Exchanges the contents for the empty buffers in `into`. Returns whether messages of the session's queue are
    /// withheld.
    pub fn take(&self, into: &mut Contents) -> bool {
        debug_assert!(into.is_empty(), "another connection's packets");
        if !into.is_empty() {
            *into = Contents::default();
        }
        into.shrink();
        self.filled.store(false, Ordering::Release);
        let mut inner = self.inner.lock();
        std::mem::swap(&mut inner.contents, into);
        inner.account();
        self.took(&mut inner, into.packets.len());
        !inner.withheld.is_empty()
    }

    /// The connection has so many bytes of packets more to send.
    fn took(&self, inner: &mut Inner, taken: usize) {
        if taken > 0 {
            inner.back_pressure.took(taken);
            // No other task writes `unsent`, so this is no race.
            let unsent = self.unsent() + taken;
            self.unsent.store(unsent, Ordering::Relaxed);
        }
    }

    /// Waits for the first reply, or the end of the connection, and takes it alone. Packets that came before stay.
    pub fn poll_first_reply(&self, context: &mut Context<'_>) -> Poll<Item> {
        self.register(context.waker());
        // Whoever puts something in from here on wakes this task.
        self.filled.store(false, Ordering::SeqCst);
        let mut inner = self.inner.lock();
        let mut items = inner.contents.items.iter();
        let first = items.position(|item| matches!(item, Item::Reply(..) | Item::End(_)));
        let Some(first) = first else {
            return Poll::Pending;
        };
        let item = inner.contents.take_item(first);
        self.filled.store(true, Ordering::Release);
        Poll::Ready(item)
    }

    /// A packet that had to wait may be taken now: wakes the connection's task, which offers it again.
    pub fn offer_again(&self) {
        self.offer.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether a packet that had to wait is to be offered again.
    pub fn take_offer(&self) -> bool {
        self.offer.load(Ordering::Relaxed) && self.offer.swap(false, Ordering::Acquire)
    }
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
