//! What others leave for a connection: encoded PUBLISH packets and replies.
//!
//! A publisher's task writes packets straight into the mailbox of each subscriber's connection: one lock, one copy,
//! no allocation once the buffer has grown. The connection's task takes everything at once, patches packet ids in
//! place, and hands the same buffer to the socket. Nothing here reads or writes a socket.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::ids::ConnectionId;
use crate::limits;
use crate::machine::effect::{Change, EndReason, Reply};
use crate::mqtt::codec::{QoS, TopicAlias, Version};
use crate::session::Sequence;
use crate::store::Reply as StoreReply;

/// Identifies a connection's own outstanding request.
pub type Ticket = u32;

/// Something other than a packet.
#[derive(Debug)]
pub enum Item {
    /// A proposed command was applied.
    Reply(Ticket, Reply),
    /// A linearizable read was carried out.
    Read(Ticket, StoreReply),
    /// Another node has handed a forwarded message to its connections.
    Forwarded(Ticket),
    /// Every live node has applied a subscription.
    SubscriptionEverywhere(Ticket),
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
    Release(Sequence),
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
    /// Bytes of packets it holds before further ones are dropped.
    bound: usize,
    inside: Mutex<Inside>,
    filled: AtomicBool,
    dropped: AtomicU64,
    waker: AtomicWaker,
}

/// A mailbox that is being filled by one alone.
pub struct Filling<'a> {
    contents: &'a mut Contents,
    dropped: u64,
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
            self.dropped += 1;
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
}

impl Mailbox {
    /// An empty mailbox that holds at most `bound` bytes of packets.
    pub fn new(
        connection: ConnectionId,
        version: Version,
        max_packet_size: u32,
        topic_alias_maximum: u16,
        bound: usize,
    ) -> Arc<Mailbox> {
        let aliases = Aliases {
            maximum: topic_alias_maximum.min(limits::CLIENT_TOPIC_ALIASES),
            ..Aliases::default()
        };
        Arc::new(Mailbox {
            connection,
            version,
            max_packet_size,
            bound,
            inside: Mutex::new(Inside {
                contents: Contents::default(),
                aliases,
            }),
            filled: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        })
    }

    /// Puts one packet in: `encode` appends it to the buffer and returns where its packet id is, if it has one.
    ///
    /// Tells whether the connection must be woken with [`Mailbox::wake`].
    ///
    /// # Errors
    /// When the packet was dropped; it is counted.
    pub fn push_packet(
        &self,
        qos: QoS,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) -> Result<bool, Refused> {
        let mut inside = self.inside.lock();
        if inside.contents.packets.len() >= self.bound {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Err(Refused::Full);
        }
        if let Err(refused) = append(&mut inside.contents, qos, None, expiry_s, encode) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Err(refused);
        }
        drop(inside);
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// The same for a packet with QoS 0, which may name its topic by an alias.
    ///
    /// # Errors
    /// When the packet was dropped; it is counted.
    pub fn push_qos_0(
        &self,
        topic: &str,
        encode: impl FnOnce(&mut Vec<u8>, Option<TopicAlias>) -> Result<Option<usize>, Refused>,
    ) -> Result<bool, Refused> {
        let inside = &mut *self.inside.lock();
        let alias = inside.aliases.of(topic);
        let pushed = if inside.contents.packets.len() >= self.bound {
            Err(Refused::Full)
        } else {
            let encode = |out: &mut Vec<u8>| encode(out, alias);
            append(&mut inside.contents, QoS::AtMostOnce, None, None, encode)
        };
        if let Err(refused) = pushed {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Err(refused);
        }
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
        let contents = &mut self.inside.lock().contents;
        append(contents, qos, Some(sequence), expiry_s, encode)?;
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// Puts packets in while nobody else can: `fill` may look at something that others put into the mailbox when it changes,
    /// and what it puts in is as new as what it saw.
    pub fn fill(&self, fill: impl FnOnce(&mut Filling<'_>)) {
        let mut inside = self.inside.lock();
        let mut filling = Filling {
            contents: &mut inside.contents,
            dropped: 0,
        };
        fill(&mut filling);
        self.dropped.fetch_add(filling.dropped, Ordering::Relaxed);
        drop(inside);
        self.filled.store(true, Ordering::Release);
    }

    /// Puts an item in; tells whether the connection must be woken. Items answer the connection's own requests, which
    /// are bounded, or end it, so there is no bound here.
    pub fn push_item(&self, item: Item) -> bool {
        self.inside.lock().contents.items.push(item);
        !self.filled.swap(true, Ordering::AcqRel)
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
        std::mem::swap(&mut self.inside.lock().contents, into);
    }

    /// Takes the first item alone.
    pub fn take_first_item(&self) -> Option<Item> {
        let contents = &mut self.inside.lock().contents;
        (!contents.items.is_empty()).then(|| contents.items.remove(0))
    }

    /// Packets dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        if self.dropped.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.dropped.swap(0, Ordering::Relaxed)
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
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_named_by_its_alias_once_the_client_has_seen_both() {
        let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 1, 100);
        let push = |topic: &str, refuse: bool| {
            let mut seen = None;
            let pushed = mailbox.push_qos_0(topic, |out, alias| {
                seen = alias.map(|alias| (alias.alias.get(), alias.send_topic));
                out.push(0);
                if refuse {
                    Err(Refused::TooLarge)
                } else {
                    Ok(None)
                }
            });
            assert_eq!(pushed.is_err(), refuse);
            seen
        };
        assert_eq!(push("a", true), Some((1, true)));
        assert_eq!(
            push("a", false),
            Some((1, true)),
            "the first was never sent"
        );
        assert_eq!(push("a", false), Some((1, false)));
        assert_eq!(push("b", false), None, "[MQTT-3.1.2-26]");
        mailbox.take(&mut Contents::default());
        assert_eq!(push("a", false), Some((1, false)));
        let without = Mailbox::new(ConnectionId(2), Version::V5, u32::MAX, 0, 100);
        let pushed = without.push_qos_0("a", |_, alias| {
            assert_eq!(alias, None);
            Ok(None)
        });
        assert!(pushed.is_ok());
    }
}
