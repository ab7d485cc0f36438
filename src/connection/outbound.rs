//! What is under way to the client: packet ids, the receive maximum, and what waits for room.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::codec::{PacketId, PropertyId, QoS};
use crate::mailbox::Contents;
use crate::session::sequence::PACKET_IDS;
use crate::session::{Acknowledged, Received, Sequence, Window};

/// Packet ids above this are the connection's own; those up to it follow from the numbers of the session's queue.
const QUEUE_IDS: u16 = PACKET_IDS as u16;

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
    sequence: Option<Sequence>,
    expiry: Option<Expiry>,
}

/// When a packet that waits is over, and where it says so.
#[derive(Debug)]
struct Expiry {
    deadline: Instant,
    /// Position of the interval in the packet; before MQTT 5 there is none.
    at: Option<usize>,
}

impl Expiry {
    fn new(expiry_s: u32, packet: &[u8], packet_id_at: usize) -> Expiry {
        // Before it there is only the length of the properties.
        let properties = packet_id_at + 2;
        let length = packet
            .iter()
            .skip(properties)
            .take_while(|byte| **byte & 0x80 != 0)
            .count();
        let at = properties + length + 1;
        let is_there = packet.get(at) == Some(&(PropertyId::MessageExpiryInterval as u8))
            && packet.get(at + 1..at + 5) == Some(&expiry_s.to_be_bytes());
        Expiry {
            deadline: Instant::now() + Duration::from_secs(expiry_s.into()),
            at: is_there.then_some(at + 1),
        }
    }

    /// Writes what is left of the interval `[MQTT-3.3.2-6]`; `false` when nothing is.
    fn count_down(&self, packet: &mut [u8]) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let seconds = left.as_millis().div_ceil(1000);
        if let Some(field) = self.at.and_then(|at| packet.get_mut(at..at + 4)) {
            field.copy_from_slice(&u32::try_from(seconds).unwrap_or(u32::MAX).to_be_bytes());
        }
        true
    }
}

/// Messages that expired while they waited for room in the client's receive maximum.
#[derive(Debug, Default)]
pub struct Expired {
    /// How many.
    pub count: u64,
    /// Those of them that are in the session's queue.
    pub sequences: Vec<Sequence>,
}

/// What follows from the client's PUBACK, PUBREC or PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing more.
    Nothing,
    /// PUBREL, also for an id that is past its PUBREC already.
    Release,
    /// The id is not under way: PUBREL with reason 0x92.
    NotFound,
    /// The delivery of this message of the queue is complete: the log must know.
    Completed(Sequence),
    /// This message of the queue was received: PUBREL follows when the log knows.
    Received(Sequence),
    /// The packet does not belong to the message's QoS.
    WrongQos,
}

/// Deliveries of QoS 1 and 2 on one connection.
#[derive(Debug)]
pub struct Outbound {
    receive_maximum: u16,
    last_id: u16,
    /// The connection's own.
    under_way: FxHashMap<u16, Awaited>,
    /// The session queue's.
    window: Window,
    /// The last message of the queue that was sent.
    sent_through: Sequence,
    held: VecDeque<Held>,
    expired: Expired,
    /// What is held counts as unsent in the mailbox, which bounds it.
    held_bytes: usize,
}

impl Outbound {
    /// Nothing under way to a client that takes `receive_maximum` messages at once `[MQTT-3.3.4-9]`.
    pub fn new(receive_maximum: u16) -> Outbound {
        Outbound {
            receive_maximum,
            last_id: QUEUE_IDS,
            under_way: FxHashMap::default(),
            window: Window::default(),
            sent_through: Sequence::NONE,
            held: VecDeque::new(),
            expired: Expired::default(),
            held_bytes: 0,
        }
    }

    /// Whether messages of the queue may be waiting until the log knows of `acknowledged` more: half of the messages it
    /// grants at once, at most `granted` of them, are in use.
    pub fn is_short_of_room(&self, acknowledged: usize, granted: u16) -> bool {
        let granted = self.receive_maximum.min(granted);
        2 * (self.window.len() + acknowledged) >= usize::from(granted)
    }

    fn has_room(&self) -> bool {
        self.under_way.len() + self.window.len() < usize::from(self.receive_maximum)
    }

    /// Whether nothing waits for room.
    pub fn is_free(&self) -> bool {
        self.held.is_empty()
    }

    /// Bytes that wait for room.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// What expired since the last call.
    pub fn take_expired(&mut self) -> Option<Expired> {
        (self.expired.count > 0).then(|| std::mem::take(&mut self.expired))
    }

    /// The last message of the session's queue that was sent on this connection.
    pub fn sent_through(&self) -> Sequence {
        self.sent_through
    }

    /// A free packet id `[MQTT-2.2.1-4]`, now in use. Only called with room, so there is one.
    fn number(&mut self, qos: QoS) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(QUEUE_IDS + 1);
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

    /// Fills in the packet id, unless it is there, and keeps account of it.
    fn send_one(&mut self, packet_id: &mut [u8], qos: QoS, sequence: Option<Sequence>) {
        match sequence {
            Some(sequence) => {
                self.window.publish(sequence, qos);
                self.sent_through = self.sent_through.max(sequence);
            }
            None => packet_id.copy_from_slice(&self.number(qos).to_be_bytes()),
        }
    }

    /// Numbers the packets taken from the mailbox and appends what may be sent now to `out`.
    pub fn send(&mut self, contents: &mut Contents, out: &mut Vec<u8>) {
        let mut sent_to = 0;
        let packets = &mut contents.packets;
        let mut kept_whole = true;
        for entry in contents.tracked.drain(..) {
            let (at, end) = (entry.at as usize, (entry.at + entry.length) as usize);
            let packet_id_at = entry.packet_id_at as usize;
            if self.held.is_empty() && self.has_room() {
                let packet_id = &mut packets[packet_id_at..packet_id_at + 2];
                self.send_one(packet_id, entry.qos, entry.sequence);
                continue;
            }
            kept_whole = false;
            out.extend_from_slice(&packets[sent_to..at]);
            sent_to = end;
            self.held_bytes += end - at;
            let packet: Box<[u8]> = packets[at..end].into();
            self.held.push_back(Held {
                expiry: entry
                    .expiry_s
                    .map(|seconds| Expiry::new(seconds, &packet, packet_id_at - at)),
                packet,
                packet_id_at: packet_id_at - at,
                qos: entry.qos,
                sequence: entry.sequence,
            });
        }
        if kept_whole && out.is_empty() {
            std::mem::swap(out, packets);
        } else {
            out.extend_from_slice(&packets[sent_to..]);
        }
        packets.clear();
    }

    /// Sends what is held while there is room.
    fn send_held(&mut self, out: &mut Vec<u8>) {
        while self.has_room()
            && let Some(mut held) = self.held.pop_front()
        {
            self.held_bytes -= held.packet.len();
            if let Some(expiry) = &held.expiry
                && !expiry.count_down(&mut held.packet)
            {
                // [MQTT-3.3.2-5]
                self.expired.count += 1;
                self.expired.sequences.extend(held.sequence);
                continue;
            }
            let packet_id = &mut held.packet[held.packet_id_at..held.packet_id_at + 2];
            self.send_one(packet_id, held.qos, held.sequence);
            out.extend_from_slice(&held.packet);
        }
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
    }

    /// PUBACK.
    pub fn acknowledged(&mut self, id: PacketId, out: &mut Vec<u8>) -> After {
        if id.get() > QUEUE_IDS {
            return self.ended(id, Awaited::Acknowledgement, out);
        }
        let found = self.window.handle_puback(id);
        self.completed_in_queue(found, out)
    }

    /// PUBCOMP.
    pub fn completed(&mut self, id: PacketId, out: &mut Vec<u8>) -> After {
        if id.get() > QUEUE_IDS {
            return self.ended(id, Awaited::Completion, out);
        }
        let found = self.window.handle_pubcomp(id);
        self.completed_in_queue(found, out)
    }

    fn completed_in_queue(&mut self, found: Acknowledged, out: &mut Vec<u8>) -> After {
        match found {
            Acknowledged::Finished(sequence) => {
                self.room_made(out);
                After::Completed(sequence)
            }
            Acknowledged::Unknown => After::Nothing,
            Acknowledged::WrongQos => After::WrongQos,
        }
    }

    fn ended(&mut self, id: PacketId, stage: Awaited, out: &mut Vec<u8>) -> After {
        match self.under_way.get(&id.get()) {
            Some(found) if *found == stage => {
                self.under_way.remove(&id.get());
                self.room_made(out);
                After::Nothing
            }
            Some(Awaited::Acknowledgement) => After::WrongQos,
            Some(_) if stage == Awaited::Acknowledgement => After::WrongQos,
            _ => After::Nothing,
        }
    }

    fn room_made(&mut self, out: &mut Vec<u8>) {
        if !self.held.is_empty() {
            self.send_held(out);
        }
    }

    /// PUBREC.
    pub fn received(&mut self, id: PacketId, refused: bool, out: &mut Vec<u8>) -> After {
        if id.get() <= QUEUE_IDS {
            return match self.window.handle_pubrec(id, refused) {
                Received::Propose(sequence) => After::Received(sequence),
                Received::UnderWay => After::Nothing,
                Received::Again => After::Release,
                Received::Refused(sequence) => {
                    self.room_made(out);
                    After::Completed(sequence)
                }
                Received::Unknown if refused => After::Nothing,
                Received::Unknown => After::NotFound,
                Received::WrongQos => After::WrongQos,
            };
        }
        match self.under_way.get_mut(&id.get()) {
            Some(Awaited::Acknowledgement) => After::WrongQos,
            Some(Awaited::Receipt) if refused => self.ended(id, Awaited::Receipt, out),
            Some(stage) => {
                *stage = Awaited::Completion;
                After::Release
            }
            None if refused => After::Nothing,
            None => After::NotFound,
        }
    }

    /// The log knows that a message of the queue was received, or the session was resumed after that: the packet id to
    /// send PUBREL with.
    pub fn release(&mut self, sequence: Sequence) -> PacketId {
        self.window.release(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Tracked;

    fn contents(packets: &[(&[u8], Option<usize>)]) -> Contents {
        let mut contents = Contents::default();
        for (packet, id_at) in packets {
            let at = contents.packets.len();
            contents.packets.extend_from_slice(packet);
            if let Some(id_at) = id_at {
                contents.tracked.push(Tracked {
                    at: at as u32,
                    length: packet.len() as u32,
                    packet_id_at: (at + id_at) as u32,
                    qos: QoS::AtLeastOnce,
                    sequence: None,
                    expiry_s: None,
                });
            }
        }
        contents
    }

    /// One of the connection's own ids, which begin above those of the queue.
    fn id(id: u16) -> PacketId {
        PacketId::new(QUEUE_IDS + id).expect("not zero")
    }

    #[test]
    fn room_is_short_when_half_of_what_is_granted_is_in_use() {
        let outbound = Outbound::new(10);
        assert!(!outbound.is_short_of_room(4, 256));
        assert!(outbound.is_short_of_room(5, 256));
        assert!(outbound.is_short_of_room(2, 4));
        assert!(Outbound::new(1).is_short_of_room(1, 256));
    }

    #[test]
    fn the_receive_maximum_is_honoured_and_what_waits_goes_out_in_order() {
        let mut outbound = Outbound::new(2);
        let mut out = Vec::new();
        let mut four = contents(&[
            (b"a__", Some(1)),
            (b"zero", None),
            (b"b__", Some(1)),
            (b"c__", Some(1)),
            (b"0", None),
            (b"d__", Some(1)),
        ]);
        outbound.send(&mut four, &mut out);
        assert_eq!(out, b"a\x80\0zerob\x80\x010");
        out.clear();
        assert_eq!(outbound.acknowledged(id(2), &mut out), After::Nothing);
        assert_eq!(out, b"c\x80\x02");
        outbound.acknowledged(id(2), &mut out);
        assert_eq!(out, b"c\x80\x02", "acknowledged twice");
        outbound.acknowledged(id(1), &mut out);
        assert_eq!(out, b"c\x80\x02d\x80\x03");
    }

    #[test]
    fn what_is_held_is_counted() {
        let mut outbound = Outbound::new(1);
        let mut out = Vec::new();
        let mut three = contents(&[(b"a__", Some(1)), (b"bb__", Some(2)), (b"c__", Some(1))]);
        outbound.send(&mut three, &mut out);
        assert_eq!(outbound.held_bytes(), 7);
        outbound.acknowledged(id(1), &mut out);
        assert_eq!(outbound.held_bytes(), 3);
        outbound.acknowledged(id(2), &mut out);
        assert_eq!(outbound.held_bytes(), 0);
        assert_eq!(out, b"a\x80\0bb\x80\x01c\x80\x02");
    }

    #[test]
    fn packet_ids_in_use_are_passed_over() {
        let mut outbound = Outbound::new(u16::MAX);
        outbound.last_id = u16::MAX - 1;
        outbound
            .under_way
            .insert(id(1).get(), Awaited::Acknowledgement);
        assert_eq!(outbound.number(QoS::AtLeastOnce), u16::MAX);
        assert_eq!(outbound.number(QoS::AtLeastOnce), id(2).get());
    }

    #[test]
    fn qos_2_goes_from_pubrec_to_pubcomp() {
        let mut outbound = Outbound::new(1);
        let mut out = Vec::new();
        outbound.number(QoS::ExactlyOnce);
        assert_eq!(outbound.received(id(1), false, &mut out), After::Release);
        assert_eq!(outbound.received(id(1), false, &mut out), After::Release);
        assert_eq!(outbound.received(id(9), false, &mut out), After::NotFound);
        assert_eq!(outbound.acknowledged(id(1), &mut out), After::WrongQos);
        assert_eq!(outbound.completed(id(1), &mut out), After::Nothing);
        outbound.number(QoS::ExactlyOnce);
        assert_eq!(outbound.received(id(2), true, &mut out), After::Nothing);
        assert!(outbound.has_room());
    }

    #[test]
    fn messages_of_the_queue_keep_their_ids_and_count_against_the_same_maximum() {
        let mut outbound = Outbound::new(2);
        let mut out = Vec::new();
        let mut three = contents(&[
            (b"q\0\x07", Some(1)),
            (b"a__", Some(1)),
            (b"r\0\x08", Some(1)),
        ]);
        three.tracked[0].sequence = Some(Sequence(7));
        three.tracked[2].sequence = Some(Sequence(8));
        outbound.send(&mut three, &mut out);
        assert_eq!(out, b"q\0\x07a\x80\0");
        assert_eq!(outbound.sent_through(), Sequence(7));
        out.clear();
        let seven = PacketId::new(7).expect("not zero");
        assert_eq!(
            outbound.acknowledged(seven, &mut out),
            After::Completed(Sequence(7))
        );
        assert_eq!(out, b"r\0\x08");
        assert_eq!(outbound.acknowledged(seven, &mut out), After::Nothing);
    }

    #[test]
    fn what_waits_for_room_counts_down_and_expires() {
        let mut outbound = Outbound::new(1);
        let mut out = Vec::new();
        let packet = b"a__\x05\x02\0\0\0\x09m";
        let mut three = contents(&[(b"q__", Some(1)), (b"0__\0", Some(1)), (packet, Some(1))]);
        three.tracked[1].expiry_s = Some(0);
        three.tracked[2].expiry_s = Some(9);
        outbound.send(&mut three, &mut out);
        assert!(outbound.take_expired().is_none());
        outbound.held[1]
            .expiry
            .as_mut()
            .expect("it expires")
            .deadline -= Duration::from_secs(5);
        out.clear();
        outbound.acknowledged(id(1), &mut out);
        assert_eq!(out, b"a\x80\x01\x05\x02\0\0\0\x04m");
        assert_eq!(
            outbound.take_expired().map(|expired| expired.count),
            Some(1)
        );
    }
}
