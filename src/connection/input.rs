//! What has arrived from the client and is not handled: the beginning of a packet, packets that are left for the next
//! turn, and packets that are *held* because they can't be taken yet.
//!
//! While a PUBLISH is held, so are those that follow it; everything else is handled as it comes, so a publisher that is
//! slowed down is heard all the same: its PINGREQ, its PUBACK, its SUBSCRIBE unless that can't be taken either.
//!
//! Invariant: PUBLISH packets are handled in the order in which they came, and so are SUBSCRIBE and UNSUBSCRIBE. A
//! PUBLISH does not overtake a SUBSCRIBE, and a DISCONNECT overtakes nothing, unless the session is taken over before
//! what it waits for can be taken.
//! Invariant: a client of which [`limits::HELD_INPUT_BYTES`] are held is not read, unless somebody may wait for what is
//! behind them.
//! Invariant: the client's rate holds for what it has sent before it leaves, too. Who takes its session over does not
//! wait for that.

use std::time::Instant;

use super::context::Flow;
use super::coordinator::Connection;
use super::end::Ended;
use super::publish_rate::PublishRate;
use crate::base::limits;
use crate::codec::{PacketType, frame};
use crate::telemetry::labels::DropReason;
use crate::transport::StreamEnd;

/// Capacity for unfinished packets that an idle connection may keep, bytes.
const KEPT_BYTES: usize = 1024;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Everything was handled that can be.
    Done,
    /// It has done [`limits::TURN_WORK`]: the rest waits for the next turn.
    Over,
}

impl Turn {
    /// Two parts of a turn: it is over when one of them is.
    pub(super) fn or(self, other: Turn) -> Turn {
        match self {
            Turn::Over => Turn::Over,
            Turn::Done => other,
        }
    }
}

/// Packets in the order in which they came.
#[derive(Debug, Default)]
struct PacketQueue {
    bytes: Vec<u8>,
    /// Those up to here are handled.
    taken: usize,
}

impl PacketQueue {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
    }

    fn advance(&mut self, length: usize) {
        self.taken += length;
        // What is handled counts until it is dropped, and to drop it moves the others.
        if 4 * self.taken > self.bytes.len() {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            // What is kept counts by its length.
            if self.bytes.capacity() > 2 * self.bytes.len() + KEPT_BYTES {
                self.bytes.shrink_to(self.bytes.len() / 2 * 3);
            }
        }
    }

    /// Offers packets until one is not taken.
    fn offer(
        &mut self,
        connection: &mut Connection,
        mut rate: Option<&mut PublishRate>,
    ) -> Result<Turn, Ended> {
        let max_packet_size = connection.max_packet_size();
        while let Some(found) = frame::next(&self.bytes[self.taken..], max_packet_size)? {
            if connection.is_turn_over() {
                return Ok(Turn::Over);
            }
            if rate.as_mut().is_some_and(|rate| rate.is_exceeded())
                || connection.handle_frame(found)? == Flow::Retry
            {
                break;
            }
            if let Some(rate) = &mut rate {
                rate.count();
            }
            let length = found.length;
            self.advance(length);
        }
        Ok(Turn::Done)
    }
}

/// Packets that can't be taken yet.
#[derive(Debug, Default)]
struct Held {
    /// SUBSCRIBE and UNSUBSCRIBE.
    subscribes: PacketQueue,
    publishes: PacketQueue,
    disconnect: PacketQueue,
}

impl Held {
    fn bytes(&self) -> usize {
        self.subscribes.bytes.len() + self.publishes.bytes.len() + self.disconnect.bytes.len()
    }

    /// The queue that a packet of this type must wait in, if it must wait.
    fn queue_of(&mut self, packet_type: Option<PacketType>) -> Option<&mut PacketQueue> {
        match packet_type? {
            // What follows a DISCONNECT is not looked at.
            _ if !self.disconnect.is_empty() => Some(&mut self.disconnect),
            PacketType::Disconnect => Some(&mut self.disconnect),
            PacketType::Publish => Some(&mut self.publishes),
            PacketType::Subscribe | PacketType::Unsubscribe if !self.subscribes.is_empty() => {
                Some(&mut self.subscribes)
            }
            _ => None,
        }
    }

    /// A packet was offered and not taken.
    fn hold(&mut self, packet_type: Option<PacketType>, packet: &[u8]) {
        match packet_type {
            Some(PacketType::Subscribe | PacketType::Unsubscribe) => self.subscribes.push(packet),
            _ => self.publishes.push(packet),
        }
    }
}

/// What of the client's bytes is not handled.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// The beginning of a packet, or packets that are left for the next turn.
    unhandled: Vec<u8>,
    /// There are packets in `unhandled`.
    has_more: bool,
    held: Option<Box<Held>>,
    /// Packets that arrived whole.
    packets: u64,
    /// Boxed, because most clients have none.
    rate: Option<Box<PublishRate>>,
    /// A packet has ended the connection. What is behind it does not count.
    is_refused: bool,
    /// The client will send nothing more.
    closed: Option<StreamEnd>,
}

impl Input {
    /// `unhandled` came with the CONNECT. The client may publish so many messages a second; 0 is no bound.
    pub(super) fn new(unhandled: Vec<u8>, messages_per_s: u32) -> Input {
        Input {
            has_more: !unhandled.is_empty(),
            unhandled,
            rate: PublishRate::new(messages_per_s),
            ..Input::default()
        }
    }

    /// Packets that arrived whole since the beginning.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// What the client has sent beside this does not count: a packet has ended the connection, or a DISCONNECT is held.
    pub(super) fn is_settled(&self) -> bool {
        let has_disconnect = |held: &Held| !held.disconnect.is_empty();
        self.is_refused || self.held.as_deref().is_some_and(has_disconnect)
    }

    /// The client has closed its half of the stream. What it has sent before is read yet.
    pub(super) fn leave(&mut self) {
        if let Some(rate) = &mut self.rate {
            rate.leave();
        }
    }

    /// Drops the PUBLISH packets of a client that leaves, if they are above its rate and have waited long enough.
    fn drop_late_publishes(&mut self, connection: &Connection) {
        if self.closed.is_some()
            || self
                .held
                .as_ref()
                .is_some_and(|held| !held.disconnect.is_empty())
        {
            self.leave();
        }
        if let Some(held) = &mut self.held
            && held.subscribes.is_empty()
            && !held.publishes.is_empty()
            && let Some(rate) = &mut self.rate
            && rate.has_waited()
        {
            let publishes = std::mem::take(&mut held.publishes);
            count_lost(connection, &publishes.bytes[publishes.taken..]);
        }
    }

    /// When the first PUBLISH packet that is held may be taken as far as the client's rate is concerned.
    pub(super) fn paused_until(&mut self) -> Option<Instant> {
        let held = self.held.as_deref()?;
        let rate = self.rate.as_mut()?;
        match held.publishes.is_empty() {
            true => None,
            false => rate.paused_until(),
        }
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.unhandled.len() + self.held.as_ref().map_or(0, |held| held.bytes())
    }

    /// Bytes of the packet that has not arrived whole.
    pub(super) fn incomplete_bytes(&self) -> usize {
        match self.has_more {
            true => 0,
            false => self.unhandled.len(),
        }
    }

    /// Whether packets wait to be offered.
    pub(super) fn is_waiting(&self) -> bool {
        self.has_more || self.held.is_some()
    }

    /// Drops everything: the connection has ended.
    pub(super) fn clear(&mut self, connection: &Connection) {
        let Input {
            unhandled, held, ..
        } = std::mem::take(self);
        if let Some(held) = held {
            count_lost(connection, &held.publishes.bytes[held.publishes.taken..]);
        }
        count_lost(connection, &unhandled);
    }

    /// Whether there may be more to read, and all of the last turn is handled.
    pub(super) fn takes_more(&self) -> bool {
        !self.has_more && !self.is_closed()
    }

    /// Whether PUBLISH packets are held, and not because of the client's own rate.
    pub(super) fn holds_messages(&mut self) -> bool {
        let holds = |held: &Held| !held.publishes.is_empty();
        self.held.as_deref().is_some_and(holds) && self.paused_until().is_none()
    }

    /// Whether less is held than may be.
    pub(super) fn has_room(&self) -> bool {
        let is_full = |held: &Held| held.bytes() >= limits::HELD_INPUT_BYTES;
        !self.held.as_deref().is_some_and(is_full)
    }

    /// Whether the client has closed its side, or has sent a DISCONNECT.
    pub(super) fn is_closed(&self) -> bool {
        let leaves = |held: &Held| !held.disconnect.is_empty();
        self.closed.is_some() || self.held.as_deref().is_some_and(leaves)
    }

    /// The client has closed its side. What it sent before is handled first.
    ///
    /// # Errors
    /// When nothing is left.
    pub(super) fn close(&mut self, end: StreamEnd) -> Result<(), Ended> {
        self.closed = Some(end);
        match self.is_waiting() {
            true => Ok(()),
            false => Err(Ended::of_stream(end)),
        }
    }

    /// Handles what was read.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn receive(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
    ) -> Result<(), Ended> {
        connection.begin_turn().inspect_err(|_| self.keep(bytes))?;
        let handled = if self.unhandled.is_empty() {
            let (taken, handled) = self.handle(connection, bytes);
            self.unhandled.extend_from_slice(&bytes[taken..]);
            handled
        } else {
            self.unhandled.extend_from_slice(bytes);
            self.handle_unhandled(connection)
        };
        self.is_refused = handled.is_err();
        connection.end_turn();
        self.has_more = handled? == Turn::Over;
        Ok(())
    }

    /// Keeps what was read and can't be handled any more.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.unhandled.extend_from_slice(bytes);
        self.has_more = !self.unhandled.is_empty();
    }

    /// Offers what waits: packets that are held, and those that are left of the last turn.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn offer_again(&mut self, connection: &mut Connection) -> Result<Turn, Ended> {
        connection.begin_turn()?;
        let offered = self.offer_in_turn(connection);
        self.is_refused = offered.is_err();
        connection.end_turn();
        let turn = offered?;
        if turn == Turn::Done
            && !self.is_waiting()
            && let Some(end) = self.closed
        {
            return Err(Ended::of_stream(end));
        }
        Ok(turn)
    }

    /// Handles a DISCONNECT that has arrived although packets before it were not taken: another connection is about to
    /// take the session over, and those packets come to nothing. Without it the will would be published
    /// `[MQTT-3.14.4-3]`.
    ///
    /// # Errors
    /// There is one, or the node does not serve any more.
    pub(super) fn disconnect_first(&mut self, connection: &mut Connection) -> Result<(), Ended> {
        connection.begin_turn()?;
        self.disconnected(connection).map_or(Ok(()), Err)
    }

    /// How the connection ends if its client has sent a DISCONNECT: it counts whatever ends the connection before the
    /// packets ahead of it are taken, such as the socket that the client closes right behind it `[MQTT-3.14.4-3]`. It
    /// does not count behind a packet that has ended the connection, or if it is malformed itself.
    pub(super) fn disconnected(&mut self, connection: &mut Connection) -> Option<Ended> {
        if self.is_refused {
            return None;
        }
        connection.context_mut().work = 0;
        self.offer_disconnect(connection)
            .filter(|ended| ended.reason.is_none())
    }

    fn offer_disconnect(&mut self, connection: &mut Connection) -> Option<Ended> {
        if let Some(held) = &mut self.held
            && !held.disconnect.is_empty()
        {
            return held.disconnect.offer(connection, None).err();
        }
        let mut rest = match self.has_more {
            true => &self.unhandled[..],
            false => &[],
        };
        let max_packet_size = connection.max_packet_size();
        while let Ok(Some(found)) = frame::next(rest, max_packet_size) {
            if found.packet_type() == Some(PacketType::Disconnect) {
                return connection.handle_frame(found).err();
            }
            rest = &rest[found.length..];
        }
        None
    }

    fn offer_in_turn(&mut self, connection: &mut Connection) -> Result<Turn, Ended> {
        self.drop_late_publishes(connection);
        if let Some(held) = &mut self.held {
            let Held {
                subscribes,
                publishes,
                disconnect,
            } = &mut **held;
            let rate = self.rate.as_deref_mut();
            for (queue, rate) in [(subscribes, None), (publishes, rate), (disconnect, None)] {
                if queue.offer(connection, rate)? == Turn::Over {
                    return Ok(Turn::Over);
                }
                if !queue.is_empty() {
                    break;
                }
            }
            if held.bytes() == 0 {
                self.held = None;
            }
        }
        if self.has_more {
            let turn = self.handle_unhandled(connection)?;
            self.has_more = turn == Turn::Over;
            return Ok(turn);
        }
        Ok(Turn::Done)
    }

    fn handle_unhandled(&mut self, connection: &mut Connection) -> Result<Turn, Ended> {
        let bytes = std::mem::take(&mut self.unhandled);
        let (taken, handled) = self.handle(connection, &bytes);
        self.unhandled = match taken {
            0 => bytes,
            _ => bytes[taken..].to_vec(),
        };
        handled
    }

    /// Handles the packets at the start of `bytes` and returns how many bytes they took.
    fn handle(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
    ) -> (usize, Result<Turn, Ended>) {
        let max_packet_size = connection.max_packet_size();
        let mut taken = 0;
        loop {
            let found = match frame::next(&bytes[taken..], max_packet_size) {
                Ok(Some(found)) => found,
                Ok(None) => return (taken, Ok(Turn::Done)),
                Err(error) => return (taken, Err(error.into())),
            };
            if connection.is_turn_over() {
                return (taken, Ok(Turn::Over));
            }
            let packet = &bytes[taken..taken + found.length];
            if let Err(ended) = self.handle_packet(connection, found, packet) {
                return (taken, Err(ended));
            }
            self.packets += 1;
            taken += packet.len();
        }
    }

    fn handle_packet(
        &mut self,
        connection: &mut Connection,
        found: frame::Frame<'_>,
        packet: &[u8],
    ) -> Result<(), Ended> {
        let packet_type = found.packet_type();
        if let Some(held) = &mut self.held
            && let Some(queue) = held.queue_of(packet_type)
        {
            queue.push(packet);
            connection.context_mut().is_leaving |= !held.disconnect.is_empty();
            return Ok(());
        }
        let is_publish = packet_type == Some(PacketType::Publish);
        let mut rate = self.rate.as_mut().filter(|_| is_publish);
        let is_exceeded = rate.as_mut().is_some_and(|rate| rate.is_exceeded());
        if is_exceeded || connection.handle_frame(found)? == Flow::Retry {
            let held = self.held.get_or_insert_default();
            held.hold(packet_type, packet);
        } else if let Some(rate) = rate {
            rate.count();
        }
        Ok(())
    }

    /// An idle connection keeps a small buffer only.
    pub(super) fn shrink(&mut self) {
        if self.unhandled.is_empty() && self.unhandled.capacity() > KEPT_BYTES {
            self.unhandled = Vec::new();
        }
    }
}

/// Counts the messages with QoS 0 among packets that are dropped; others are not acknowledged, so the client knows.
fn count_lost(connection: &Connection, mut packets: &[u8]) {
    let max_packet_size = connection.max_packet_size();
    let mut lost = 0;
    while let Ok(Some(found)) = frame::next(packets, max_packet_size) {
        match found.packet_type() {
            // What follows is not looked at.
            Some(PacketType::Disconnect) => break,
            Some(PacketType::Publish) if found.first & 0b110 == 0 => lost += 1,
            _ => {}
        }
        packets = &packets[found.length..];
    }
    let mailbox = &connection.context().mailbox;
    mailbox.count(DropReason::Unhandled, lost);
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
