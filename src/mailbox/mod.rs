//! What others leave for a connection: encoded PUBLISH packets and replies.
//!
//! A publisher's task writes packets straight into the mailbox of each subscriber's connection: one lock, one copy,
//! no allocation once the buffer has grown. The connection's task takes everything at once, patches packet ids in
//! place, and hands the same buffer to the socket. Nothing here reads or writes a socket.

pub mod back_pressure;

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::base::ids::{ConnectionId, SessionId};
use crate::base::limits;
use crate::codec::{QoS, TopicAlias, Version};
use crate::machine::effect::{Change, EndReason, Reply};
use crate::session::Sequence;
use crate::store::Reply as StoreReply;
use crate::telemetry::labels::DropReason;
use back_pressure::{BackPressure, BackPressureState, DeferredAck, OutboxLimits, Verdict};

/// Identifies a connection's own outstanding request.
pub type RequestId = u32;

/// Something other than a packet.
#[derive(Debug)]
pub enum Item {
    /// A proposed command was applied.
    Reply(RequestId, Reply),
    /// A linearizable read was carried out.
    Read(RequestId, StoreReply),
    /// Another node has handed a forwarded message to its connections.
    ForwardConfirmed(RequestId),
    /// The message has reached its subscribers, but one of them reads slowly: [`Item::AckReleased`] follows.
    AckDeferred(RequestId),
    /// A subscriber that reads slowly has read enough, or is not waited for any more.
    AckReleased(RequestId),
    /// Every live node has applied a subscription.
    SubscriptionEffective(RequestId),
    /// A watched key changed.
    Notify {
        /// The state store's key.
        key: Bytes,
        /// What happened to it.
        change: Change,
    },
    /// A message of the session's queue is larger than the client accepts: it counts as delivered `[MQTT-3.1.2-25]`.
    Undeliverable(Sequence),
    /// PUBREL for a message of the session's queue is owed.
    SendPubRel(Sequence),
    /// End the connection.
    End(End),
}

/// Why the node ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The replicated state says so.
    Machine(EndReason),
    /// The node has lost touch with the cluster.
    Unavailable,
    /// The node is shutting down.
    ShuttingDown,
    /// The client reads too slowly for what it has subscribed to.
    OutboxFull,
}

/// A packet that the client acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// Where the packet begins in the buffer.
    pub at: u32,
    /// Its length.
    pub length: u32,
    /// Where its packet id is, from the beginning of the buffer.
    pub packet_id_at: u32,
    /// 1 or 2.
    pub qos: QoS,
    /// Its number in the session's queue, and its packet id is there already; `None`: it is to be filled in.
    pub sequence: Option<Sequence>,
    /// Message expiry interval left when it was put in, seconds.
    pub expiry_s: Option<u32>,
}

/// What a connection takes out of its mailbox.
#[derive(Debug, Default)]
pub struct Contents {
    /// Encoded PUBLISH packets.
    pub packets: Vec<u8>,
    /// Those of them that are acknowledged, in order.
    pub tracked: Vec<Tracked>,
    /// How many packets of each QoS there are.
    pub counts: [u32; 3],
    /// Everything else, in order.
    pub items: Vec<Item>,
}

impl Contents {
    /// Nothing is there.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.items.is_empty()
    }
}

/// Topics that the client knows by a number. Only messages with QoS 0 use them: what is in the mailbox is sent in this
/// order, while others may wait, expire, or come again on another connection.
#[derive(Debug, Default)]
struct Aliases {
    /// The client's Topic Alias Maximum `[MQTT-3.1.2-26]`.
    maximum: u16,
    known: FxHashMap<Box<str>, NonZeroU16>,
}

impl Aliases {
    fn of(&self, topic: &str) -> Option<TopicAlias> {
        if self.maximum == 0 {
            return None;
        }
        if let Some(alias) = self.known.get(topic) {
            return Some(TopicAlias {
                alias: *alias,
                send_topic: false,
            });
        }
        // There are fewer than the maximum, which is two bytes.
        let next = self.known.len() as u16 + 1;
        let alias = NonZeroU16::new(next).filter(|_| next <= self.maximum)?;
        Some(TopicAlias {
            alias,
            send_topic: true,
        })
    }

    fn sent(&mut self, topic: &str, alias: Option<TopicAlias>) {
        if let Some(TopicAlias {
            alias,
            send_topic: true,
        }) = alias
        {
            self.known.insert(topic.into(), alias);
        }
    }
}

#[derive(Debug, Default)]
struct Inside {
    contents: Contents,
    aliases: Aliases,
    pressure: BackPressure,
    /// The connection takes nothing any more.
    closed: bool,
}

/// A connection's mailbox.
#[derive(Debug)]
pub struct Mailbox {
    /// The connection.
    pub connection: ConnectionId,
    /// The version its packets are encoded for.
    pub version: Version,
    /// Larger packets are not sent to this client `[MQTT-3.1.2-24]`.
    pub max_packet_size: u32,
    bounds: Arc<OutboxLimits>,
    inside: Mutex<Inside>,
    filled: AtomicBool,
    /// Bytes that were taken out and are not sent: they wait for the socket, or for room in the client's receive maximum.
    /// Written by the connection's task alone.
    unsent: AtomicUsize,
    /// A [`BackPressureState`].
    state: AtomicU8,
    /// An [`Item::End`] is there.
    ending: AtomicBool,
    /// The session, once it is open.
    session: AtomicU64,
    waker: AtomicWaker,
}

/// A packet was put into a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The connection must be woken with [`Mailbox::wake`].
    pub wake: bool,
    /// Whoever sent it is to wait until the client is near this byte, see [`Mailbox::defer_ack`].
    pub behind: Option<u64>,
}

/// A mailbox that is being filled by one alone.
pub struct Filling<'a> {
    contents: &'a mut Contents,
    too_large: u64,
}

impl Filling<'_> {
    /// Puts one packet in. The caller bounds how many it puts in before the mailbox is emptied.
    pub fn push(
        &mut self,
        qos: QoS,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) {
        if append(self.contents, qos, None, expiry_s, encode).is_err() {
            self.too_large += 1;
        }
    }
}

/// A packet was not put into a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The connection does not read fast enough.
    Full,
    /// The packet is larger than the client accepts `[MQTT-3.1.2-25]`.
    TooLarge,
    /// The connection has ended, or ends because of this packet: it must be woken.
    Ended,
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new(
        connection: ConnectionId,
        version: Version,
        max_packet_size: u32,
        topic_alias_maximum: u16,
        bounds: Arc<OutboxLimits>,
    ) -> Arc<Mailbox> {
        let aliases = Aliases {
            maximum: topic_alias_maximum.min(limits::CLIENT_TOPIC_ALIASES),
            ..Aliases::default()
        };
        Arc::new(Mailbox {
            connection,
            version,
            max_packet_size,
            bounds,
            inside: Mutex::new(Inside {
                aliases,
                ..Inside::default()
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
    /// When the packet was not put in; what is dropped is counted.
    pub fn push_packet(
        &self,
        qos: QoS,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) -> Result<Put, Refused> {
        let inside = &mut *self.inside.lock();
        let unsent = self.unsent.load(Ordering::SeqCst);
        let level = inside.contents.packets.len() + unsent;
        if inside.closed {
            return Err(Refused::Ended);
        }
        if level >= self.bounds.bytes {
            self.judge(inside, level)?;
        }
        append(&mut inside.contents, qos, None, expiry_s, encode)
            .inspect_err(|refused| self.count_refused(*refused))?;
        let wake = !self.filled.swap(true, Ordering::AcqRel);
        let there = inside.contents.packets.len();
        let behind = inside.pressure.behind(there, unsent, &self.bounds);
        if there + unsent >= self.bounds.bytes {
            let throttled = self.settle(inside, None);
            return Ok(Put {
                wake: wake || throttled,
                behind,
            });
        }
        Ok(Put { wake, behind })
    }

    #[cold]
    fn judge(&self, inside: &mut Inside, level: usize) -> Result<(), Refused> {
        match inside.pressure.judge(level, &self.bounds) {
            Verdict::Take => Ok(()),
            Verdict::Drop => {
                self.count(DropReason::OutboxFull, 1);
                Err(Refused::Full)
            }
            Verdict::End => {
                if !self.ending.swap(true, Ordering::AcqRel) {
                    inside.contents.items.push(Item::End(End::OutboxFull));
                    self.filled.store(true, Ordering::Release);
                }
                Err(Refused::Ended)
            }
        }
    }

    /// Puts one packet with QoS 0 in, which may name its topic by an alias; tells whether the connection must be woken.
    ///
    /// # Errors
    /// When the packet was not put in. If it is dropped then, [`Mailbox::count_refused`] counts it.
    pub fn push_qos_0(
        &self,
        topic: &str,
        encode: impl FnOnce(&mut Vec<u8>, Option<TopicAlias>) -> Result<Option<usize>, Refused>,
    ) -> Result<bool, Refused> {
        let inside = &mut *self.inside.lock();
        if inside.closed {
            return Err(Refused::Ended);
        }
        let unsent = self.unsent.load(Ordering::Relaxed);
        if inside.contents.packets.len() + unsent >= self.bounds.bytes {
            return Err(Refused::Full);
        }
        let alias = inside.aliases.of(topic);
        let encode = |out: &mut Vec<u8>| encode(out, alias);
        append(&mut inside.contents, QoS::AtMostOnce, None, None, encode)?;
        inside.aliases.sent(topic, alias);
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// Puts a packet of the session's queue in; there are at most as many as the client's receive maximum allows, so they
    /// have no other bound.
    ///
    /// # Errors
    /// When it is larger than the client accepts.
    pub fn push_granted(
        &self,
        qos: QoS,
        expiry_s: Option<u32>,
        sequence: Sequence,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) -> Result<bool, Refused> {
        let inside = &mut *self.inside.lock();
        if inside.closed {
            return Ok(false);
        }
        append(&mut inside.contents, qos, Some(sequence), expiry_s, encode)?;
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// Puts packets in while nobody else can: `fill` may look at something that others put into the mailbox when it changes,
    /// and what it puts in is as new as what it saw.
    pub fn fill(&self, fill: impl FnOnce(&mut Filling<'_>)) {
        let mut inside = self.inside.lock();
        let mut filling = Filling {
            contents: &mut inside.contents,
            too_large: 0,
        };
        fill(&mut filling);
        self.count(DropReason::TooLarge, filling.too_large);
        drop(inside);
        self.filled.store(true, Ordering::Release);
    }

    /// Puts an item in; tells whether the connection must be woken. Items answer the connection's own requests, which
    /// are bounded, or end it, so there is no bound here.
    pub fn push_item(&self, item: Item) -> bool {
        let ends = matches!(item, Item::End(_));
        let mut inside = self.inside.lock();
        if inside.closed {
            return false;
        }
        inside.contents.items.push(item);
        drop(inside);
        if ends {
            self.ending.store(true, Ordering::Release);
        }
        !self.filled.swap(true, Ordering::AcqRel) || ends
    }

    /// Lets `waiter` wait until no more than the mark is ahead of the message that ends at `end`; tells whether it is
    /// going to be released. It is not when the client has read that far already, or is not waited for.
    pub fn defer_ack(&self, end: u64, waiter: DeferredAck, wake: &mut WakeList) -> bool {
        let mut inside = self.inside.lock();
        let unsent = self.unsent.load(Ordering::SeqCst);
        if inside.closed || inside.pressure.is_near(end, unsent, &self.bounds) {
            return false;
        }
        inside.pressure.wait(end, waiter);
        self.bounds.metrics.acknowledgements_held.increment();
        if self.release(inside, wake) {
            self.wake();
        }
        true
    }

    /// Looks at the state, and who need not wait any more; tells whether the connection's task must look at it, too.
    fn settle(&self, inside: &mut Inside, mut released: Option<&mut Vec<DeferredAck>>) -> bool {
        let before = self.state();
        loop {
            let unsent = self.unsent.load(Ordering::SeqCst);
            if let Some(released) = &mut released {
                inside.pressure.release(unsent, &self.bounds, released);
            }
            let level = inside.contents.packets.len() + unsent;
            let state = inside.pressure.state(level, &self.bounds);
            self.state.store(state as u8, Ordering::SeqCst);
            // The task looks at the state after it has written this.
            if self.unsent.load(Ordering::SeqCst) == unsent {
                return before == BackPressureState::Normal && state != BackPressureState::Normal;
            }
        }
    }

    fn release(&self, mut inside: MutexGuard<'_, Inside>, wake: &mut WakeList) -> bool {
        let mut released = Vec::new();
        let throttled = self.settle(&mut inside, Some(&mut released));
        drop(inside);
        for waiter in released {
            waiter.release(wake);
        }
        throttled
    }

    /// What others have to know before they put something in.
    pub fn state(&self) -> BackPressureState {
        BackPressureState::from_number(self.state.load(Ordering::SeqCst))
    }

    /// Bytes that were taken out and are not sent.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Of what was taken out, `unsent` bytes are not sent. Called by the connection's task.
    pub fn progress(&self, unsent: usize, wake: &mut WakeList) {
        if self.unsent() == unsent {
            return;
        }
        self.unsent.store(unsent, Ordering::SeqCst);
        if self.state() != BackPressureState::Normal {
            self.release(self.inside.lock(), wake);
        }
    }

    /// Bytes that the client has got.
    pub fn drained(&self) -> u64 {
        self.inside.lock().pressure.drained(self.unsent())
    }

    /// Nobody waits for this client until it has drained.
    pub fn stall(&self, wake: &mut WakeList) {
        let mut inside = self.inside.lock();
        inside.pressure.stall();
        self.release(inside, wake);
    }

    /// The connection takes nothing any more: nobody waits for it.
    pub fn close(&self, wake: &mut WakeList) {
        let mut inside = self.inside.lock();
        inside.closed = true;
        inside.contents = Contents::default();
        let released: Vec<DeferredAck> = inside.pressure.end().collect();
        self.state
            .store(BackPressureState::Normal as u8, Ordering::SeqCst);
        drop(inside);
        for waiter in released {
            waiter.release(wake);
        }
    }

    /// The connection takes nothing any more.
    pub fn is_closed(&self) -> bool {
        self.inside.lock().closed
    }

    /// Whether the connection is to be ended.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// The session, if it is open.
    pub fn session(&self) -> Option<SessionId> {
        let session = self.session.load(Ordering::Relaxed);
        (session != 0).then_some(SessionId(session))
    }

    /// The session is open.
    pub fn opened(&self, session: SessionId) {
        self.session.store(session.0, Ordering::Relaxed);
    }

    /// Counts a packet that was dropped because it was not put in.
    pub fn count_refused(&self, refused: Refused) {
        match refused {
            Refused::Full => self.count(DropReason::OutboxFull, 1),
            Refused::TooLarge => self.count(DropReason::TooLarge, 1),
            Refused::Ended => {}
        }
    }

    fn count(&self, reason: DropReason, count: u64) {
        let dropped = &self.bounds.metrics.messages_dropped;
        dropped.of(reason).add(count);
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// The task to wake when something arrives. Called before [`Mailbox::take`] finds nothing.
    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    /// Something may be there.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Exchanges what is there for the empty buffers in `into`.
    pub fn take(&self, into: &mut Contents) {
        debug_assert!(into.is_empty(), "another connection's packets");
        if !into.is_empty() {
            *into = Contents::default();
        }
        self.filled.store(false, Ordering::Release);
        let mut inside = self.inside.lock();
        std::mem::swap(&mut inside.contents, into);
        let taken = into.packets.len();
        if taken > 0 {
            inside.pressure.took(taken);
            // Nobody else writes it.
            let unsent = self.unsent() + taken;
            self.unsent.store(unsent, Ordering::Relaxed);
        }
    }

    /// Takes the first item alone.
    pub fn take_first_item(&self) -> Option<Item> {
        let contents = &mut self.inside.lock().contents;
        (!contents.items.is_empty()).then(|| contents.items.remove(0))
    }
}

fn append(
    contents: &mut Contents,
    qos: QoS,
    sequence: Option<Sequence>,
    expiry_s: Option<u32>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
) -> Result<(), Refused> {
    let at = contents.packets.len();
    match encode(&mut contents.packets) {
        Ok(Some(packet_id_at)) if qos != QoS::AtMostOnce => {
            let length = (contents.packets.len() - at) as u32;
            let (at, packet_id_at) = (at as u32, packet_id_at as u32);
            contents.tracked.push(Tracked {
                at,
                length,
                packet_id_at,
                qos,
                sequence,
                expiry_s,
            });
        }
        Ok(_) => {}
        Err(refused) => {
            contents.packets.truncate(at);
            return Err(refused);
        }
    }
    contents.counts[qos as usize] += 1;
    Ok(())
}

/// Mailboxes to wake once a burst of work is done, each once.
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
