//! What a connection takes out of its mailbox: encoded packets, and the items.

use super::expiry::Expiry;
use super::item::Item;
use super::notifications::Notifications;
use super::packets::{Body, Packets};
use crate::codec::{QoS, Version};
use crate::session::Sequence;

/// Larger buffers are given back when they are empty.
const KEPT_BYTES: usize = 256 << 10;

/// What is remembered of a packet in the buffer that is of the session's queue, or expires. Of others nothing is
/// remembered: there may be many small ones, and what is in the packet itself is read from there.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// Where the packet begins in the buffer.
    pub at: u32,
    /// Number in the session's queue; the packet carries the packet id that follows from it. `None`: with QoS 1 and 2
    /// the packet id is still to be filled in.
    pub sequence: Option<Sequence>,
    /// When it expires.
    pub expiry: Option<Expiry>,
}

/// A packet that is put in.
#[derive(Clone, Copy, Debug)]
pub struct NewPacket<'a> {
    /// Its QoS.
    pub qos: QoS,
    /// Message expiry interval that is left, seconds.
    pub expiry_s: Option<u32>,
    /// The body, if it is not encoded with the rest of the packet.
    pub body: Option<&'a Body>,
    /// Nobody slows down who sends it, so the connection never ends because it does not fit: it is dropped.
    pub is_direct: bool,
    /// The client itself has asked for it.
    pub is_asked_for: bool,
    /// It answers a request of the client's.
    pub is_answer: bool,
}

impl NewPacket<'_> {
    /// A packet that is encoded whole and does not expire.
    pub fn of(qos: QoS) -> NewPacket<'static> {
        NewPacket {
            qos,
            expiry_s: None,
            body: None,
            is_direct: false,
            is_asked_for: false,
            is_answer: false,
        }
    }
}

/// The contents of a mailbox.
#[derive(Debug, Default)]
pub struct Contents {
    /// Encoded PUBLISH packets.
    pub packets: Packets,
    /// How many of them are not sent as they are: they have QoS 1 or 2, or expire.
    pub special: usize,
    /// What is remembered of them, in order.
    pub tracked: Vec<Tracked>,
    /// Some of them are answers with QoS 1 or 2 that the client itself has asked for.
    pub has_answers: bool,
    /// Number of packets of each QoS.
    pub counts: [u32; 3],
    /// Everything else, in order.
    pub items: Vec<Item>,
    /// Changes of desired properties.
    pub desired: Notifications,
    /// Bytes of the items.
    item_bytes: usize,
}

/// A message of the session's queue that was granted while the connection was behind. It is still in the queue, from
/// where it is read when there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Its number in the queue.
    pub sequence: Sequence,
    /// It may have been sent before.
    pub dup: bool,
}

/// Why a packet was not put into a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The connection does not read fast enough.
    Full,
    /// The packet is larger than the client accepts `[MQTT-3.1.2-25]`.
    TooLarge,
    /// The connection has ended, or ends because of this packet and must be woken.
    Ended,
}

impl Contents {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.items.is_empty() && self.desired.is_empty()
    }

    /// Bytes of everything.
    pub(super) fn len(&self) -> usize {
        self.packets.len() + self.tracked_bytes() + self.item_bytes + self.desired.bytes()
    }

    /// Bytes of what is remembered of packets.
    pub(super) fn tracked_bytes(&self) -> usize {
        self.tracked.len() * size_of::<Tracked>()
    }

    /// Bytes of everything that nobody else holds.
    pub(super) fn owned_len(&self) -> usize {
        let shared = self.packets.len() - self.packets.bytes.len();
        self.len() - shared
    }

    /// Gives large empty buffers back: they go to a mailbox that may need little for long.
    pub(super) fn shrink(&mut self) {
        if self.packets.bytes.capacity() > KEPT_BYTES {
            self.packets = Packets::default();
        }
        if self.tracked.capacity() * size_of::<Tracked>() > KEPT_BYTES {
            self.tracked = Vec::new();
        }
    }

    /// Adds an item.
    pub(super) fn push_item(&mut self, item: Item) {
        self.item_bytes += item.bytes();
        self.items.push(item);
    }

    /// Takes the items out.
    pub fn take_items(&mut self) -> Vec<Item> {
        self.item_bytes = 0;
        std::mem::take(&mut self.items)
    }

    /// Takes one item out.
    pub(super) fn take_item(&mut self, at: usize) -> Item {
        let item = self.items.remove(at);
        self.item_bytes -= item.bytes();
        item
    }

    /// Appends one packet, which `encode` writes. A refused packet leaves nothing behind.
    #[inline]
    pub(super) fn append(
        &mut self,
        packet: NewPacket<'_>,
        sequence: Option<Sequence>,
        version: Version,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let qos = packet.qos;
        let bytes = &mut self.packets.bytes;
        let at = bytes.len();
        if let Err(refused) = encode(bytes) {
            bytes.truncate(at);
            return Err(refused);
        }
        let expiry = packet
            .expiry_s
            .map(|expiry_s| Expiry::new(expiry_s, &bytes[at..], qos, version));
        // The queue has no entry any more of a message with QoS 0.
        let sequence = sequence.filter(|_| qos != QoS::AtMostOnce);
        let is_tracked = sequence.is_some() || expiry.is_some();
        self.special += usize::from(qos != QoS::AtMostOnce || is_tracked);
        if is_tracked {
            self.tracked.push(Tracked {
                at: at as u32,
                sequence,
                expiry,
            });
        }
        if let Some(body) = packet.body {
            self.packets.push_body(body.clone());
        }
        self.has_answers |= packet.is_answer && qos != QoS::AtMostOnce;
        self.counts[qos as usize] += 1;
        Ok(())
    }
}

/// Contents that the connection itself makes, see [`super::Mailbox::fill`].
pub struct Filling<'a> {
    contents: &'a mut Contents,
    version: Version,
    too_large: u64,
}

impl<'a> Filling<'a> {
    pub(super) fn new(contents: &'a mut Contents, version: Version) -> Filling<'a> {
        Filling {
            contents,
            version,
            too_large: 0,
        }
    }

    /// Puts one packet in. The caller bounds how many it puts in before the mailbox is emptied.
    pub fn push(
        &mut self,
        qos: QoS,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) {
        let packet = NewPacket {
            expiry_s,
            ..NewPacket::of(qos)
        };
        let appended = self.contents.append(packet, None, self.version, encode);
        if appended.is_err() {
            self.too_large += 1;
        }
    }

    /// Packets that were refused because they are larger than the client accepts.
    pub(super) fn too_large(&self) -> u64 {
        self.too_large
    }
}
