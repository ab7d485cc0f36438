//! What is under way to the client: packet ids, the receive maximum, and what waits for room.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::mqtt::codec::{PacketId, QoS};
use crate::router::mailbox::Contents;

/// What a delivery waits for from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// PUBLISH of QoS 1 is sent.
    Acknowledgement,
    /// PUBLISH of QoS 2 is sent.
    Receipt,
    /// PUBREL is sent.
    Completion,
}

/// A packet that waits for room in the client's receive maximum.
#[derive(Debug)]
struct Held {
    packet: Box<[u8]>,
    packet_id_at: usize,
    qos: QoS,
}

/// What to answer to the client's PUBREC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPubRec {
    /// PUBREL, also for an id that is past its PUBREC already.
    Release,
    /// The id is not under way: PUBREL with reason 0x92.
    NotFound,
    /// The client refused the message; its id is free again `[MQTT-4.4.0-2]`.
    Ended,
}

/// Deliveries of QoS 1 and 2 on one connection.
#[derive(Debug)]
pub struct Outbound {
    receive_maximum: u16,
    last_id: u16,
    under_way: FxHashMap<u16, Awaited>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Bytes that may be held.
    bound: usize,
}

impl Outbound {
    /// Nothing under way to a client that takes `receive_maximum` messages at once `[MQTT-3.3.4-9]`.
    pub fn new(receive_maximum: u16, bound: usize) -> Outbound {
        Outbound {
            receive_maximum,
            last_id: 0,
            under_way: FxHashMap::default(),
            held: VecDeque::new(),
            held_bytes: 0,
            bound,
        }
    }

    fn has_room(&self) -> bool {
        self.under_way.len() < usize::from(self.receive_maximum)
    }

    /// A free packet id `[MQTT-2.2.1-4]`, now in use. Only called with room, so there is one.
    fn number(&mut self, qos: QoS) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.under_way.contains_key(&self.last_id) {
                break;
            }
        }
        let stage = if qos == QoS::ExactlyOnce {
            Awaited::Receipt
        } else {
            Awaited::Acknowledgement
        };
        self.under_way.insert(self.last_id, stage);
        self.last_id
    }

    /// Numbers the packets taken from the mailbox and appends what may be sent now to `out`. Returns how many had to be
    /// dropped because too much is held already.
    pub fn send(&mut self, contents: &mut Contents, out: &mut Vec<u8>) -> u32 {
        let mut sent_to = 0;
        let mut dropped = 0;
        let packets = &mut contents.packets;
        let mut kept_whole = true;
        for entry in contents.unnumbered.drain(..) {
            let (at, end) = (entry.at as usize, (entry.at + entry.length) as usize);
            let packet_id_at = entry.packet_id_at as usize;
            if self.held.is_empty() && self.has_room() {
                let id = self.number(entry.qos);
                packets[packet_id_at..packet_id_at + 2].copy_from_slice(&id.to_be_bytes());
                continue;
            }
            kept_whole = false;
            out.extend_from_slice(&packets[sent_to..at]);
            sent_to = end;
            if self.held_bytes + (end - at) > self.bound {
                dropped += 1;
                continue;
            }
            self.held_bytes += end - at;
            let packet = packets[at..end].into();
            self.held.push_back(Held {
                packet,
                packet_id_at: packet_id_at - at,
                qos: entry.qos,
            });
        }
        if kept_whole && out.is_empty() {
            std::mem::swap(out, packets);
        } else {
            out.extend_from_slice(&packets[sent_to..]);
        }
        packets.clear();
        dropped
    }

    /// Sends what is held while there is room.
    fn send_held(&mut self, out: &mut Vec<u8>) {
        while self.has_room()
            && let Some(mut held) = self.held.pop_front()
        {
            let id = self.number(held.qos);
            self.held_bytes -= held.packet.len();
            held.packet[held.packet_id_at..held.packet_id_at + 2]
                .copy_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&held.packet);
        }
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
    }

    /// PUBACK; tells whether the id was under way.
    pub fn acknowledged(&mut self, id: PacketId, out: &mut Vec<u8>) -> bool {
        self.ended(id, Awaited::Acknowledgement, out)
    }

    /// PUBCOMP; tells whether the id was under way.
    pub fn completed(&mut self, id: PacketId, out: &mut Vec<u8>) -> bool {
        self.ended(id, Awaited::Completion, out)
    }

    fn ended(&mut self, id: PacketId, stage: Awaited, out: &mut Vec<u8>) -> bool {
        match self.under_way.get(&id.get()) {
            Some(found) if *found == stage => {
                self.under_way.remove(&id.get());
                if !self.held.is_empty() {
                    self.send_held(out);
                }
                true
            }
            _ => false,
        }
    }

    /// PUBREC.
    pub fn received(&mut self, id: PacketId, refused: bool, out: &mut Vec<u8>) -> AfterPubRec {
        match self.under_way.get_mut(&id.get()) {
            Some(Awaited::Receipt) if refused => {
                self.ended(id, Awaited::Receipt, out);
                AfterPubRec::Ended
            }
            Some(stage @ (Awaited::Receipt | Awaited::Completion)) => {
                *stage = Awaited::Completion;
                AfterPubRec::Release
            }
            _ if refused => AfterPubRec::Ended,
            _ => AfterPubRec::NotFound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::mailbox::Unnumbered;

    fn contents(packets: &[(&[u8], Option<usize>)]) -> Contents {
        let mut contents = Contents::default();
        for (packet, id_at) in packets {
            let at = contents.packets.len();
            contents.packets.extend_from_slice(packet);
            if let Some(id_at) = id_at {
                contents.unnumbered.push(Unnumbered {
                    at: at as u32,
                    length: packet.len() as u32,
                    packet_id_at: (at + id_at) as u32,
                    qos: QoS::AtLeastOnce,
                });
            }
        }
        contents
    }

    fn id(id: u16) -> PacketId {
        PacketId::new(id).expect("not zero")
    }

    #[test]
    fn the_receive_maximum_is_honoured_and_what_waits_goes_out_in_order() {
        let mut outbound = Outbound::new(2, 100);
        let mut out = Vec::new();
        let mut four = contents(&[
            (b"a__", Some(1)),
            (b"zero", None),
            (b"b__", Some(1)),
            (b"c__", Some(1)),
            (b"0", None),
            (b"d__", Some(1)),
        ]);
        assert_eq!(outbound.send(&mut four, &mut out), 0);
        assert_eq!(out, b"a\0\x01zerob\0\x020");
        out.clear();
        assert!(outbound.acknowledged(id(2), &mut out));
        assert_eq!(out, b"c\0\x03");
        assert!(
            !outbound.acknowledged(id(2), &mut out),
            "acknowledged twice"
        );
        assert!(outbound.acknowledged(id(1), &mut out));
        assert_eq!(out, b"c\0\x03d\0\x04");
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut outbound = Outbound::new(1, 4);
        let mut out = Vec::new();
        let mut three = contents(&[(b"a__", Some(1)), (b"b__", Some(1)), (b"c__", Some(1))]);
        assert_eq!(outbound.send(&mut three, &mut out), 1);
        outbound.acknowledged(id(1), &mut out);
        outbound.acknowledged(id(2), &mut out);
        assert_eq!(out, b"a\0\x01b\0\x02");
    }

    #[test]
    fn packet_ids_in_use_are_passed_over() {
        let mut outbound = Outbound::new(u16::MAX, 100);
        outbound.last_id = u16::MAX - 1;
        outbound.under_way.insert(1, Awaited::Acknowledgement);
        assert_eq!(outbound.number(QoS::AtLeastOnce), u16::MAX);
        assert_eq!(outbound.number(QoS::AtLeastOnce), 2);
    }

    #[test]
    fn qos_2_goes_from_pubrec_to_pubcomp() {
        let mut outbound = Outbound::new(1, 100);
        let mut out = Vec::new();
        outbound.number(QoS::ExactlyOnce);
        assert_eq!(
            outbound.received(id(1), false, &mut out),
            AfterPubRec::Release
        );
        assert_eq!(
            outbound.received(id(1), false, &mut out),
            AfterPubRec::Release
        );
        assert_eq!(
            outbound.received(id(9), false, &mut out),
            AfterPubRec::NotFound
        );
        assert!(!outbound.acknowledged(id(1), &mut out));
        assert!(outbound.completed(id(1), &mut out));
        outbound.number(QoS::ExactlyOnce);
        assert_eq!(outbound.received(id(2), true, &mut out), AfterPubRec::Ended);
        assert!(outbound.has_room());
    }
}
