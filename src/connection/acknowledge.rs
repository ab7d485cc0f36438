//! PUBACK, PUBREC, PUBREL and PUBCOMP from the client.
//!
//! What the log must know of them is gathered over a burst of packets and proposed as one command. PUBREL and PUBCOMP
//! that follow from it are sent when it is committed, so that whichever node the client connects to next knows as much
//! as the client.

use super::Connection;
use super::end::Ended;
use super::outbound::After;
use super::requests::Request;
use crate::base::proto::command;
use crate::codec::{Ack, PacketId, ReasonCode, encode};
use crate::replica::proposer::ReplyTo;
use crate::session::{Sequence, inbound};
use crate::telemetry::labels::DropReason;

impl Connection {
    pub(super) fn handle_puback(&mut self, ack: &Ack<'_>) -> Result<(), Ended> {
        let after = self.outbound.acknowledged(ack.packet_id, &mut self.out);
        self.follow_up(ack.packet_id, after)
    }

    pub(super) fn handle_pubcomp(&mut self, ack: &Ack<'_>) -> Result<(), Ended> {
        let after = self.outbound.completed(ack.packet_id, &mut self.out);
        self.follow_up(ack.packet_id, after)
    }

    pub(super) fn handle_pubrec(&mut self, ack: &Ack<'_>) -> Result<(), Ended> {
        let refused = ack.reason as u8 >= 0x80;
        let after = self
            .outbound
            .received(ack.packet_id, refused, &mut self.out);
        self.follow_up(ack.packet_id, after)
    }

    fn follow_up(&mut self, packet_id: PacketId, after: After) -> Result<(), Ended> {
        match after {
            After::Nothing => {}
            After::Release => self.send_pubrel(packet_id, ReasonCode::Success),
            After::NotFound => self.send_pubrel(packet_id, ReasonCode::PacketIdentifierNotFound),
            After::Completed(sequence) => self.acknowledged.completed.push(sequence.0),
            After::Received(sequence) => self.acknowledged.received.push(sequence.0),
            After::WrongQos => {
                return Err(Ended::protocol(
                    "an acknowledgement does not belong to the QoS of its message",
                ));
            }
        }
        Ok(())
    }

    fn send_pubrel(&mut self, packet_id: PacketId, reason: ReasonCode) {
        let ack = Ack::with_reason(packet_id, reason);
        // An acknowledgement without extras always fits.
        let _ = encode::pubrel(&mut self.acks, self.terms.version, &ack, self.terms.limits);
    }

    fn send_pubcomp(&mut self, packet_id: PacketId, reason: ReasonCode) {
        let ack = Ack::with_reason(packet_id, reason);
        let _ = encode::pubcomp(&mut self.acks, self.terms.version, &ack, self.terms.limits);
    }

    pub(super) fn handle_pubrel(&mut self, ack: &Ack<'_>) {
        let packet_id = ack.packet_id;
        match self.inbound.handle_pubrel(packet_id) {
            inbound::Release::Propose if self.durable => {
                self.acknowledged.released.push(packet_id.get().into());
            }
            inbound::Release::Propose => {
                // The session ends with the connection: nothing of it is remembered elsewhere.
                self.inbound.completed_qos_2(packet_id);
                self.send_pubcomp(packet_id, ReasonCode::Success);
            }
            inbound::Release::UnderWay => {}
            inbound::Release::Unknown => {
                self.send_pubcomp(packet_id, ReasonCode::PacketIdentifierNotFound);
            }
        }
    }

    /// A message of the queue is not sent, and counts as delivered: it is too large for the client `[MQTT-3.1.2-25]`, or its
    /// time is over.
    pub(super) fn give_up(&mut self, sequence: Sequence) {
        self.acknowledged.completed.push(sequence.0);
    }

    /// Proposes what was gathered.
    pub(super) fn propose_acknowledged(&mut self) {
        if let Some(expired) = self.outbound.take_expired() {
            let dropped = &self.broker.metrics.messages_dropped;
            dropped.of(DropReason::Expired).add(expired.count);
            for sequence in expired.sequences {
                self.give_up(sequence);
            }
        }
        let gathered = &self.acknowledged;
        if gathered.completed.is_empty()
            && gathered.received.is_empty()
            && gathered.released.is_empty()
        {
            return;
        }
        let mut command = std::mem::take(&mut self.acknowledged);
        command.connection = self.mailbox.connection.0;
        let proposer = &self.broker.proposer;
        // There are at most as many as messages under way, so they are never refused.
        if command.received.is_empty() && command.released.is_empty() {
            let is_urgent = self
                .outbound
                .is_short_of_room(command.completed.len(), self.broker.config.max_inflight);
            let kind = command::command::Kind::Acknowledge(command);
            if is_urgent {
                proposer.submit_always(kind, ReplyTo::Nobody);
            } else {
                proposer.submit_deferred(kind);
            }
            return;
        }
        let request_id = self.requests.insert(Request::Acknowledge {
            received: command.received.clone(),
            released: command.released.clone(),
        });
        let waiter = ReplyTo::Connection(self.mailbox.clone(), request_id);
        proposer.submit_always(command::command::Kind::Acknowledge(command), waiter);
    }

    /// The log knows what the client had acknowledged.
    pub(super) fn acknowledged_in_log(&mut self, received: &[u64], released: &[u32]) {
        for sequence in received {
            self.release(Sequence(*sequence));
        }
        for packet_id in released {
            if let Some(packet_id) = u16::try_from(*packet_id).ok().and_then(PacketId::new) {
                self.inbound.completed_qos_2(packet_id);
                self.send_pubcomp(packet_id, ReasonCode::Success);
            }
        }
    }

    /// PUBREL is due for a message of the queue.
    pub(super) fn release(&mut self, sequence: Sequence) {
        let packet_id = self.outbound.release(sequence);
        self.send_pubrel(packet_id, ReasonCode::Success);
    }
}
