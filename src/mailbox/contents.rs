//! What a connection takes out of its mailbox: one buffer of encoded packets, and the items.

use super::item::Item;
use crate::codec::QoS;
use crate::session::Sequence;

/// A packet with QoS 1 or 2 in the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// Where the packet begins in the buffer.
    pub at: u32,
    /// Length of the packet, bytes.
    pub length: u32,
    /// Where its packet id is, from the beginning of the buffer.
    pub packet_id_at: u32,
    /// 1 or 2.
    pub qos: QoS,
    /// Number in the session's queue; the packet carries the packet id that follows from it. `None`: the packet id is
    /// still to be filled in.
    pub sequence: Option<Sequence>,
    /// Message expiry interval that was left when the packet was put in, seconds.
    pub expiry_s: Option<u32>,
}

/// The contents of a mailbox.
#[derive(Debug, Default)]
pub struct Contents {
    /// Encoded PUBLISH packets.
    pub packets: Vec<u8>,
    /// Those of them that the client acknowledges, in order.
    pub tracked: Vec<Tracked>,
    /// Number of packets of each QoS.
    pub counts: [u32; 3],
    /// Everything else, in order.
    pub items: Vec<Item>,
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
    /// Whether there is neither a packet nor an item.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.items.is_empty()
    }

    /// Appends one packet: `encode` writes it and returns where its packet id is, if it has one. A refused packet
    /// leaves nothing behind.
    pub(super) fn append(
        &mut self,
        qos: QoS,
        sequence: Option<Sequence>,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) -> Result<(), Refused> {
        let at = self.packets.len();
        match encode(&mut self.packets) {
            Ok(Some(packet_id_at)) if qos != QoS::AtMostOnce => {
                let length = (self.packets.len() - at) as u32;
                let (at, packet_id_at) = (at as u32, packet_id_at as u32);
                self.tracked.push(Tracked {
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
                self.packets.truncate(at);
                return Err(refused);
            }
        }
        self.counts[qos as usize] += 1;
        Ok(())
    }
}

/// Contents that the connection itself makes, see [`super::Mailbox::fill`].
pub struct Filling<'a> {
    contents: &'a mut Contents,
    too_large: u64,
}

impl<'a> Filling<'a> {
    pub(super) fn new(contents: &'a mut Contents) -> Filling<'a> {
        Filling {
            contents,
            too_large: 0,
        }
    }

    /// Puts one packet in. The caller bounds how many it puts in before the mailbox is emptied.
    pub fn push(
        &mut self,
        qos: QoS,
        expiry_s: Option<u32>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Refused>,
    ) {
        if self.contents.append(qos, None, expiry_s, encode).is_err() {
            self.too_large += 1;
        }
    }

    /// Packets that were refused because they are larger than the client accepts.
    pub(super) fn too_large(&self) -> u64 {
        self.too_large
    }
}
