//! Messages with QoS 1 and 2 on their way to the client: packet ids, the client's receive maximum, and the packets that
//! wait for room in it.
//!
//! Invariant: at most `receive_maximum` messages are unacknowledged `[MQTT-3.3.4-9]`, those of the session's queue and
//! the connection's own together.
//! Invariant: at most [`OWN_UNACKNOWLEDGED`] packet ids of the connection's own are in use, so there is always a free
//! one, and finding it takes a bounded number of looks.
//! Invariant: packets that expire are handed to the output a little at a time, and whatever comes behind them waits
//! with them. So their interval goes on until the socket takes them, or a little before.
//!
//! An acknowledgement also tells how far the client has read: up to the message that it acknowledges, at least. The
//! socket does not tell it as well: the client's system may hold megabytes that the client has not read, and takes more
//! only when a sixteenth of them is gone. Then nothing moves for many seconds, although the client goes on reading.

use std::ops::Range;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::backlog::{Backlog, Expired, Waiting};
use crate::base::limits;
use crate::codec::{PacketId, QoS};
use crate::mailbox::{Contents, Packets, Tracked};
use crate::session::sequence::PACKET_IDS;
use crate::session::{Acknowledged, Received, Sequence, Window};

/// Packet ids above this are the connection's own; those up to it follow from the numbers of the session's queue.
const QUEUE_IDS: u16 = PACKET_IDS as u16;

/// Packet ids of the connection's own that may be in use at once, whatever the client's receive maximum (65,535 when it
/// names none): half of those there are. While the search for a free id goes once around, it finds at least as many
/// free ones as ones in use, so an id costs two looks on average, whichever the client acknowledges.
const OWN_UNACKNOWLEDGED: usize = (u16::MAX - QUEUE_IDS) as usize / 2;

/// What an entry of the map of packet ids takes, bytes: the map itself has a byte for each.
const AWAITED_BYTES: usize = size_of::<(u16, Delivery)>() + 1;

/// The packet of the client that a delivery waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "the packets are called so")]
enum Awaited {
    /// The PUBLISH of QoS 1 is sent.
    PubAck,
    /// The PUBLISH of QoS 2 is sent.
    PubRec,
    /// PUBREL is sent.
    PubComp,
}

/// A message that the client has not acknowledged. There may be many, so it is packed.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(2))]
struct Delivery {
    awaited: Awaited,
    /// Where it ends in the stream of messages, modulo 2^32.
    end: u32,
}

/// What follows from the client's PUBACK, PUBREC or PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing more.
    Nothing,
    /// PUBREL, also for an id that is past its PUBREC already.
    SendPubRel,
    /// The id is not in use: PUBREL with reason 0x92.
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
pub(super) struct Outbound {
    receive_maximum: u16,
    last_id: u16,
    /// What each of the connection's own packet ids waits for.
    awaited: FxHashMap<u16, Delivery>,
    /// Bytes of messages that were sent: how long the stream of messages is.
    sent_bytes: u64,
    /// Up to where in that stream the client has read, at least.
    read_bytes: u64,
    /// Messages of the session's queue.
    window: Window,
    /// The last message of the queue that was sent.
    sent_through: Sequence,
    /// The mailbox counts its bytes as unsent, which bounds it. Boxed, because most connections have none.
    backlog: Option<Box<Backlog>>,
    /// The rest of what was taken from the mailbox, if some of it expires. It waits until the output has little.
    rest: Option<Box<Backlog>>,
    /// Bytes of the backlog up to the last answer that the client itself has asked for, at most.
    answers_through: u32,
    /// Boxed, because there is seldom something.
    expired: Option<Box<Expired>>,
    /// Messages of each QoS that went to the output and are not counted yet.
    counts: [u32; 3],
}

impl Outbound {
    /// Nothing is on its way to a client that takes `receive_maximum` messages at once `[MQTT-3.3.4-9]`.
    pub(super) fn new(receive_maximum: u16) -> Outbound {
        Outbound {
            receive_maximum,
            last_id: QUEUE_IDS,
            awaited: FxHashMap::default(),
            sent_bytes: 0,
            read_bytes: 0,
            window: Window::default(),
            sent_through: Sequence::NONE,
            backlog: None,
            rest: None,
            answers_through: 0,
            expired: None,
            counts: [0; 3],
        }
    }

    /// Whether messages of the session's queue may be waiting until the log knows of `acknowledged` more. They may when
    /// half of the messages that the machine grants at once are in use; it grants `granted` at most.
    pub(super) fn is_short_of_room(&self, acknowledged: usize, granted: u16) -> bool {
        let granted = self.receive_maximum.min(granted);
        2 * (self.window.len() + acknowledged) >= usize::from(granted)
    }

    /// Whether the client takes one more message, and a packet id for it is free. A message of the session's queue
    /// (`sequence`) has its id already.
    fn has_room(&self, sequence: Option<Sequence>) -> bool {
        let has_id = sequence.is_some() || self.awaited.len() < OWN_UNACKNOWLEDGED;
        has_id && self.awaited.len() + self.window.len() < usize::from(self.receive_maximum)
    }

    /// Whether packets wait, for room or for the output.
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog.is_some() || self.rest.is_some()
    }

    /// Whether packets wait for room in the client's receive maximum.
    pub(super) fn awaits_client(&self) -> bool {
        self.backlog.is_some()
    }

    /// Whether packets wait for the output.
    pub(super) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Whether answers that the client itself has asked for wait for room.
    pub(super) fn has_answers(&self) -> bool {
        self.answers_through > 0
    }

    /// The backlog may have such answers now.
    fn note_answers(&mut self) {
        let bytes = self.backlog.as_ref().map_or(0, |backlog| backlog.bytes());
        self.answers_through = u32::try_from(bytes).unwrap_or(u32::MAX);
    }

    fn waiting(&self) -> impl Iterator<Item = &Backlog> {
        self.backlog
            .as_deref()
            .into_iter()
            .chain(self.rest.as_deref())
    }

    /// Bytes of the packets that wait.
    pub(super) fn backlog_bytes(&self) -> usize {
        self.waiting().map(Backlog::bytes).sum()
    }

    /// Bytes of what is remembered of these packets.
    pub(super) fn tracked_bytes(&self) -> usize {
        self.waiting().map(Backlog::tracked_bytes).sum()
    }

    /// The packets without bodies that other subscribers may have, too; what is remembered of unacknowledged messages
    /// added.
    pub(super) fn owned_bytes(&self) -> usize {
        let waiting: usize = self.waiting().map(Backlog::owned_bytes).sum();
        waiting + self.awaited.capacity() * AWAITED_BYTES
    }

    /// How many messages of each QoS went to the output since the last call.
    pub(super) fn take_counts(&mut self) -> [u32; 3] {
        std::mem::take(&mut self.counts)
    }

    /// What expired since the last call.
    pub(super) fn take_expired(&mut self) -> Option<Expired> {
        self.expired.take().map(|expired| *expired)
    }

    /// The last message of the session's queue that was sent on this connection.
    pub(super) fn sent_through(&self) -> Sequence {
        self.sent_through
    }

    /// A free packet id `[MQTT-2.2.1-4]`, now in use. Only called with room, so half of the ids are free.
    fn assign_packet_id(&mut self, qos: QoS) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(QUEUE_IDS + 1);
            if !self.awaited.contains_key(&self.last_id) {
                break;
            }
        }
        let awaited = match qos {
            QoS::ExactlyOnce => Awaited::PubRec,
            _ => Awaited::PubAck,
        };
        let end = self.sent_bytes as u32;
        self.awaited.insert(self.last_id, Delivery { awaited, end });
        self.last_id
    }

    /// Notes that a packet with QoS 1 or 2 is sent, with which [`Outbound::sent_bytes`] ends. A packet of the queue has
    /// its packet id already; another one gets it here.
    fn send_one(&mut self, packet_id: &mut [u8], qos: QoS, sequence: Option<Sequence>) {
        match sequence {
            Some(sequence) => {
                self.window.publish(sequence, qos);
                self.sent_through = self.sent_through.max(sequence);
            }
            None => packet_id.copy_from_slice(&self.assign_packet_id(qos).to_be_bytes()),
        }
    }

    /// Numbers the packets taken from the mailbox and appends what may be sent now to `out`.
    pub(super) fn send(&mut self, contents: &mut Contents, out: &mut Packets) {
        let counts = std::mem::take(&mut contents.counts);
        if self.must_wait(contents, out) {
            self.rest.get_or_insert_default().push_all(contents);
            return self.send_rest(out, limits::EXPIRING_OUTPUT_BYTES);
        }
        self.counts = std::array::from_fn(|qos| self.counts[qos] + counts[qos]);
        let packets = &mut contents.packets;
        let mut tracked = contents.tracked.drain(..).peekable();
        // Where the next packet begins, up to where they are moved, and bodies between the two.
        let (mut at, mut moved_to, mut bodies) = (0, 0, 0);
        let (all, mut walked) = (packets.len(), 0);
        let mut special = std::mem::take(&mut contents.special);
        let mut kept_whole = true;
        // The clock is read once for all of them, if one of them expires.
        let mut now = None;
        while special > 0
            && let Some(found) = packets.locate(at, bodies)
        {
            let (start, end) = (at, found.end);
            at = end;
            walked += found.whole;
            let entry = tracked.next_if(|entry| entry.at as usize == start);
            let is_special = found.qos != QoS::AtMostOnce || entry.is_some();
            special -= usize::from(is_special);
            let sequence = entry.and_then(|entry| entry.sequence);
            let waits = found.qos != QoS::AtMostOnce
                && !(self.backlog.is_none() && self.has_room(sequence));
            let is_over = !waits
                && entry.and_then(|entry| entry.expiry).is_some_and(|expiry| {
                    let now = *now.get_or_insert_with(Instant::now);
                    !expiry.count_down(&mut packets.bytes[start..end], now)
                });
            if !waits && !is_over {
                self.sent_bytes += found.whole as u64;
                if found.qos != QoS::AtMostOnce {
                    let packet_id = &mut packets.bytes[found.packet_id_at..found.packet_id_at + 2];
                    self.send_one(packet_id, found.qos, sequence);
                }
                bodies += usize::from(found.has_body);
                continue;
            }
            kept_whole = false;
            self.counts[found.qos as usize] -= 1;
            packets.move_range(moved_to..start, out);
            (moved_to, bodies) = (end, 0);
            if waits {
                let backlog = self.backlog.get_or_insert_default();
                backlog.push(packets, start..end, found.whole, entry);
            } else {
                // [MQTT-3.3.2-5]
                packets.take_body(end);
                self.expired.get_or_insert_default().add(sequence);
            }
        }
        debug_assert_eq!(special, 0, "a packet was not found");
        // Behind the last special packet.
        self.sent_bytes += (all - walked) as u64;
        if kept_whole && out.is_empty() {
            std::mem::swap(out, packets);
        } else {
            packets.move_range(moved_to..packets.bytes.len(), out);
        }
        packets.clear();
        if std::mem::take(&mut contents.has_answers) {
            self.note_answers();
        }
    }

    /// Whether packets taken from the mailbox wait for the output: behind others that do, or because they expire and
    /// are more than the output holds of such.
    fn must_wait(&self, contents: &Contents, out: &Packets) -> bool {
        let is_long = || out.len() + contents.packets.len() > limits::EXPIRING_OUTPUT_BYTES;
        let expires = |tracked: &Tracked| tracked.expiry.is_some();
        self.rest.is_some() || (is_long() && contents.tracked.iter().any(expires))
    }

    /// Sends what waits for the output, until that has `most` bytes.
    pub(super) fn send_rest(&mut self, out: &mut Packets, most: usize) {
        let Some(mut rest) = self.rest.take() else {
            return;
        };
        while out.len() < most
            && let Some(first) = rest.first()
        {
            let waits = first.qos() != QoS::AtMostOnce
                && !(self.backlog.is_none() && self.has_room(first.sequence));
            rest.take_first(&first, |packets, range, tracked| match waits {
                true => {
                    let backlog = self.backlog.get_or_insert_default();
                    backlog.push(packets, range, first.len(), tracked);
                }
                false => self.send_first(&first, packets, range, out),
            });
        }
        if rest.is_empty() && rest.has_answers {
            self.note_answers();
        }
        self.rest = Some(rest).filter(|rest| !rest.is_empty());
    }

    /// Sends packets of the backlog while there is room.
    fn send_backlog(&mut self, out: &mut Packets) {
        let Some(mut backlog) = self.backlog.take() else {
            return;
        };
        while let Some(first) = backlog.first()
            && self.has_room(first.sequence)
        {
            let taken = u32::try_from(first.len()).unwrap_or(u32::MAX);
            self.answers_through = self.answers_through.saturating_sub(taken);
            backlog.take_first(&first, |packets, range, _| {
                self.send_first(&first, packets, range, out);
            });
        }
        self.backlog = Some(backlog).filter(|backlog| !backlog.is_empty());
    }

    /// Sends a packet that has waited, unless it is over.
    fn send_first(
        &mut self,
        first: &Waiting,
        packets: &mut Packets,
        range: Range<usize>,
        out: &mut Packets,
    ) {
        if let Some(expiry) = &first.expiry
            && !expiry.count_down(&mut packets.bytes[range.clone()], Instant::now())
        {
            // [MQTT-3.3.2-5]
            packets.take_body(range.end);
            return self.expired.get_or_insert_default().add(first.sequence);
        }
        self.sent_bytes += first.len() as u64;
        self.counts[first.qos() as usize] += 1;
        if first.qos() != QoS::AtMostOnce {
            let packet_id = &mut packets.bytes[first.packet_id()];
            self.send_one(packet_id, first.qos(), first.sequence);
        }
        packets.move_range(range, out);
    }

    /// Up to where in the stream of messages the client has read, at least: bytes.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The client has acknowledged a message that ends there, perhaps before others that it has acknowledged.
    fn note_read(&mut self, end: u32) {
        let ahead = end.wrapping_sub(self.read_bytes as u32);
        let read_bytes = self.read_bytes + u64::from(ahead);
        if read_bytes <= self.sent_bytes {
            self.read_bytes = read_bytes;
        }
    }

    /// PUBACK.
    pub(super) fn handle_puback(&mut self, id: PacketId, out: &mut Packets) -> After {
        if id.get() > QUEUE_IDS {
            return self.finish(id, Awaited::PubAck, out);
        }
        let found = self.window.handle_puback(id);
        self.completed_in_queue(found, out)
    }

    /// PUBCOMP.
    pub(super) fn handle_pubcomp(&mut self, id: PacketId, out: &mut Packets) -> After {
        if id.get() > QUEUE_IDS {
            return self.finish(id, Awaited::PubComp, out);
        }
        let found = self.window.handle_pubcomp(id);
        self.completed_in_queue(found, out)
    }

    fn completed_in_queue(&mut self, found: Acknowledged, out: &mut Packets) -> After {
        match found {
            Acknowledged::Finished(sequence) => {
                self.use_room(out);
                After::Completed(sequence)
            }
            Acknowledged::Unknown => After::Nothing,
            Acknowledged::WrongQos => After::WrongQos,
        }
    }

    fn finish(&mut self, id: PacketId, stage: Awaited, out: &mut Packets) -> After {
        let Some(Delivery { awaited, end }) = self.awaited.get(&id.get()).copied() else {
            return After::Nothing;
        };
        if awaited == stage {
            self.note_read(end);
            self.awaited.remove(&id.get());
            self.use_room(out);
            return After::Nothing;
        }
        match awaited == Awaited::PubAck || stage == Awaited::PubAck {
            true => After::WrongQos,
            false => After::Nothing,
        }
    }

    fn use_room(&mut self, out: &mut Packets) {
        if self.backlog.is_some() {
            self.send_backlog(out);
        }
    }

    /// PUBREC.
    pub(super) fn handle_pubrec(
        &mut self,
        id: PacketId,
        refused: bool,
        out: &mut Packets,
    ) -> After {
        if id.get() <= QUEUE_IDS {
            return match self.window.handle_pubrec(id, refused) {
                Received::Propose(sequence) => After::Received(sequence),
                Received::UnderWay => After::Nothing,
                Received::Again => After::SendPubRel,
                Received::Refused(sequence) => {
                    self.use_room(out);
                    After::Completed(sequence)
                }
                Received::Unknown if refused => After::Nothing,
                Received::Unknown => After::NotFound,
                Received::WrongQos => After::WrongQos,
            };
        }
        let Some(delivery) = self.awaited.get_mut(&id.get()) else {
            return match refused {
                true => After::Nothing,
                false => After::NotFound,
            };
        };
        let awaited = delivery.awaited;
        match awaited {
            Awaited::PubAck => After::WrongQos,
            Awaited::PubRec if refused => self.finish(id, Awaited::PubRec, out),
            _ => {
                delivery.awaited = Awaited::PubComp;
                let end = delivery.end;
                self.note_read(end);
                After::SendPubRel
            }
        }
    }

    /// PUBREL of a message of the queue is due, because the log knows of its PUBREC; returns its packet id.
    pub(super) fn handle_pubrel_due(&mut self, sequence: Sequence) -> PacketId {
        self.window.release(sequence)
    }
}

#[cfg(test)]
#[path = "outbound_rest_tests.rs"]
mod rest_tests;
#[cfg(test)]
#[path = "outbound_tests.rs"]
mod tests;
