//! The mailbox of a connection: encoded PUBLISH packets, replies and notices that other tasks leave for it.
//!
//! A publisher's task writes packets straight into the mailbox of each subscriber's connection: one lock, one copy, no
//! allocation once the buffer has grown. The connection's task takes everything at once, patches packet ids in place,
//! and hands the same buffer to its socket. Nothing here reads or writes a socket.
//!
//! Invariant: only the task of the connection takes contents out and reports progress.
//! Invariant: no mailbox is locked while a [`DeferredAck`] is released, because that locks the publisher's mailbox.
//! Invariant: every waiting byte is bounded, see [`back_pressure`], and every dropped message is counted.

pub mod back_pressure;
mod contents;
mod item;
mod topic_aliases;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};

use crate::base::ids::{ConnectionId, SessionId};
use crate::codec::{QoS, TopicAlias, Version};
use crate::session::Sequence;
use crate::telemetry::labels::DropReason;
use back_pressure::{Admission, BackPressure, BackPressureState, OutboxLimits};
use topic_aliases::TopicAliases;

#[cfg(test)]
pub use contents::Tracked;
pub use contents::{Contents, Filling, Refused};
pub use item::{End, Item, RequestId};

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

/// What the lock of a mailbox protects.
#[derive(Debug, Default)]
struct Inner {
    contents: Contents,
    aliases: TopicAliases,
    back_pressure: BackPressure<DeferredAck>,
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
    /// A [`BackPressureState`].
    state: AtomicU8,
    /// An [`Item::End`] was put in.
    ending: AtomicBool,
    /// Id of the session, 0 until it is open.
    session: AtomicU64,
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
        Arc::new(Mailbox {
            connection,
            version,
            max_packet_size,
            limits,
            inner: Mutex::new(Inner {
                aliases: TopicAliases::new(topic_alias_maximum),
                ..Inner::default()
            }),
            filled: AtomicBool::new(false),
            unsent: AtomicUsize::new(0),
            state: AtomicU8::new(BackPressureState::Normal as u8),
            ending: AtomicBool::new(false),
            session: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        })
    }

    /// Puts one packet with QoS 1 or 2 in: `encode` appends it to the buffer and returns where its packet id is.
    ///
    /// # Errors
    /// When the packet was refused. A dropped message is counted.
    pub fn push_packet(
        &self,
        qos: QoS,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) -> Result<Put, Refused> {
        let inner = &mut *self.inner.lock();
        let unsent = self.unsent.load(Ordering::SeqCst);
        let level = inner.contents.packets.len() + unsent;
        if inner.closed {
            return Err(Refused::Ended);
        }
        if level >= self.limits.bytes {
            self.admit(inner, level)?;
        }
        inner
            .contents
            .append(qos, None, expiry_s, encode)
            .inspect_err(|refused| self.count_refused(*refused))?;
        let wake = !self.filled.swap(true, Ordering::AcqRel);
        let buffered = inner.contents.packets.len();
        let throttled = inner.back_pressure.throttle(buffered, unsent, &self.limits);
        if buffered + unsent >= self.limits.bytes {
            let left_normal = self.update_state(inner, None);
            return Ok(Put {
                wake: wake || left_normal,
                throttled,
            });
        }
        Ok(Put { wake, throttled })
    }

    /// Decides about a message that does not fit below the limit.
    #[cold]
    fn admit(&self, inner: &mut Inner, level: usize) -> Result<(), Refused> {
        match inner.back_pressure.admit(level, &self.limits) {
            Admission::Accept => Ok(()),
            Admission::Drop => {
                self.count(DropReason::OutboxFull, 1);
                Err(Refused::Full)
            }
            Admission::Disconnect => {
                if !self.ending.swap(true, Ordering::AcqRel) {
                    inner.contents.items.push(Item::End(End::OutboxFull));
                    self.filled.store(true, Ordering::Release);
                }
                Err(Refused::Ended)
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
        encode: impl FnOnce(&mut Vec<u8>, Option<TopicAlias>) -> Result<Option<usize>, Refused>,
    ) -> Result<bool, Refused> {
        let inner = &mut *self.inner.lock();
        if inner.closed {
            return Err(Refused::Ended);
        }
        let unsent = self.unsent.load(Ordering::Relaxed);
        if inner.contents.packets.len() + unsent >= self.limits.bytes {
            return Err(Refused::Full);
        }
        let alias = inner.aliases.get(topic);
        let encode = |out: &mut Vec<u8>| encode(out, alias);
        inner.contents.append(QoS::AtMostOnce, None, None, encode)?;
        inner.aliases.confirm(topic, alias);
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// Puts a packet of the session's queue in. Returns whether the connection must be woken. The client's receive
    /// maximum is the only bound: the queue grants no more packets.
    ///
    /// # Errors
    /// When the packet is larger than the client accepts.
    pub fn push_granted(
        &self,
        qos: QoS,
        expiry_s: Option<u32>,
        sequence: Sequence,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) -> Result<bool, Refused> {
        let inner = &mut *self.inner.lock();
        if inner.closed {
            return Ok(false);
        }
        inner
            .contents
            .append(qos, Some(sequence), expiry_s, encode)?;
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// Lets the connection itself make packets, into buffers that are empty, and counts them as taken out. The mailbox
    /// is not locked meanwhile, so `fill` may read for as long as it bounds itself. What was delivered into the mailbox
    /// before is taken out afterwards: no change of the state that `fill` reads comes before the packets that it has
    /// made from the older state.
    pub fn fill(&self, contents: &mut Contents, fill: impl FnOnce(&mut Filling<'_>)) {
        debug_assert!(contents.is_empty(), "another connection's packets");
        let mut filling = Filling::new(contents);
        fill(&mut filling);
        self.count(DropReason::TooLarge, filling.too_large());
        self.took(&mut self.inner.lock(), contents.packets.len());
    }

    /// Puts an item in. Returns whether the connection must be woken. Items need no bound: they answer the connection's
    /// own requests, which are bounded, or end it.
    pub fn push_item(&self, item: Item) -> bool {
        let ends = matches!(item, Item::End(_));
        let mut inner = self.inner.lock();
        if inner.closed {
            return false;
        }
        inner.contents.items.push(item);
        drop(inner);
        if ends {
            self.ending.store(true, Ordering::Release);
        }
        !self.filled.swap(true, Ordering::AcqRel) || ends
    }

    /// Defers `ack` until at most the high-water mark is ahead of the message that ends at `end`. Returns whether it
    /// was deferred. It is not when the client has read that far already, or has stalled, or is gone; then `ack` is
    /// dropped.
    pub fn defer_ack(&self, end: u64, ack: DeferredAck, wake: &mut WakeList) -> bool {
        let mut inner = self.inner.lock();
        let unsent = self.unsent.load(Ordering::SeqCst);
        if inner.closed || inner.back_pressure.is_released(end, unsent, &self.limits) {
            return false;
        }
        inner.back_pressure.defer(end, ack);
        self.limits.metrics.acknowledgements_deferred.increment();
        if self.release(inner, wake) {
            self.wake();
        }
        true
    }

    /// Brings the state up to date, and moves the acknowledgements that need not wait any more to `released`. Returns
    /// whether the state was Normal and is not any more: then the connection's task must watch the drain rate.
    fn update_state(&self, inner: &mut Inner, mut released: Option<&mut Vec<DeferredAck>>) -> bool {
        let before = self.state();
        loop {
            let unsent = self.unsent.load(Ordering::SeqCst);
            if let Some(released) = &mut released {
                inner.back_pressure.release(unsent, &self.limits, released);
            }
            let level = inner.contents.packets.len() + unsent;
            let state = inner.back_pressure.state(level, &self.limits);
            self.state.store(state as u8, Ordering::SeqCst);
            // The connection's task writes `unsent` without the lock, and reads the state afterwards. Either it sees
            // this state, or this loop sees its `unsent`.
            if self.unsent.load(Ordering::SeqCst) == unsent {
                return before == BackPressureState::Normal && state != BackPressureState::Normal;
            }
        }
    }

    /// Brings the state up to date, unlocks the mailbox and releases acknowledgements. Returns what
    /// [`Mailbox::update_state`] does.
    fn release(&self, mut inner: MutexGuard<'_, Inner>, wake: &mut WakeList) -> bool {
        let mut released = Vec::new();
        let left_normal = self.update_state(&mut inner, Some(&mut released));
        drop(inner);
        for ack in released {
            ack.release(wake);
        }
        left_normal
    }

    /// The present state.
    pub fn state(&self) -> BackPressureState {
        BackPressureState::from_number(self.state.load(Ordering::SeqCst))
    }

    /// Bytes that were taken out and are not sent.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Notes that `unsent` of the bytes that were taken out are not sent. Called by the connection's task.
    pub fn progress(&self, unsent: usize, wake: &mut WakeList) {
        if self.unsent() == unsent {
            return;
        }
        self.unsent.store(unsent, Ordering::SeqCst);
        if self.state() != BackPressureState::Normal {
            self.release(self.inner.lock(), wake);
        }
    }

    /// Bytes that were sent to the client so far.
    pub fn drained(&self) -> u64 {
        self.inner.lock().back_pressure.drained(self.unsent())
    }

    /// The client hardly reads: no acknowledgement waits for it until it has drained.
    pub fn stall(&self, wake: &mut WakeList) {
        let mut inner = self.inner.lock();
        inner.back_pressure.stall();
        self.release(inner, wake);
    }

    /// The connection takes nothing any more: contents are dropped and acknowledgements released.
    pub fn close(&self, wake: &mut WakeList) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.contents = Contents::default();
        inner.aliases = TopicAliases::default();
        let released: Vec<DeferredAck> = inner.back_pressure.close().collect();
        self.state
            .store(BackPressureState::Normal as u8, Ordering::SeqCst);
        drop(inner);
        for ack in released {
            ack.release(wake);
        }
    }

    /// Whether [`Mailbox::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
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

    fn count(&self, reason: DropReason, count: u64) {
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

    /// Exchanges the contents for the empty buffers in `into`.
    pub fn take(&self, into: &mut Contents) {
        debug_assert!(into.is_empty(), "another connection's packets");
        if !into.is_empty() {
            *into = Contents::default();
        }
        self.filled.store(false, Ordering::Release);
        let mut inner = self.inner.lock();
        std::mem::swap(&mut inner.contents, into);
        self.took(&mut inner, into.packets.len());
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

    /// Takes the first item alone.
    pub fn take_first_item(&self) -> Option<Item> {
        let contents = &mut self.inner.lock().contents;
        (!contents.items.is_empty()).then(|| contents.items.remove(0))
    }
}

/// Mailboxes whose connections are woken together when a batch of work is done.
#[derive(Default)]
pub struct WakeList(Vec<Arc<Mailbox>>);

impl WakeList {
    /// Adds a mailbox.
    pub fn add(&mut self, mailbox: &Arc<Mailbox>) {
        self.0.push(mailbox.clone());
    }

    /// Wakes them all.
    pub fn wake(&mut self) {
        for mailbox in self.0.drain(..) {
            mailbox.wake();
        }
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
