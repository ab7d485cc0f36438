//! The messages of a session's queue on their way to the client: which entry a packet id means, and what follows from
//! its acknowledgement.
//!
//! The window knows nothing that isn't in the replicated rows as well; a connection that resumes a session builds it
//! anew. The caller proposes what the window returns.
//!
//! Invariant: PUBREL is sent after the commit of its PUBREC.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use super::{QoS, Sequence};

/// What follows from a PUBACK or PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// Propose that the entry is finished.
    Finished(Sequence),
    /// No message with this id is on its way: the packet is a duplicate, or its exchange has ended. Nothing to do.
    Unknown,
    /// The packet does not belong to the QoS of the message: a protocol error.
    WrongQos,
}

/// What follows from a PUBREC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Propose that the entry was received; [`Window::release`] once that is committed.
    Propose(Sequence),
    /// It is proposed already; PUBREL will follow.
    UnderWay,
    /// PUBREL was sent before: send it again.
    Again,
    /// The client refused the message (0x80 or more): propose that the entry is finished `[MQTT-4.4.0-2]`.
    Refused(Sequence),
    /// No message with this id is on its way: answer PUBREL 0x92 Packet Identifier not found.
    Unknown,
    /// The message has QoS 1: a protocol error.
    WrongQos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// PUBLISH sent, PUBACK awaited.
    Qos1,
    /// PUBLISH sent, PUBREC awaited.
    Qos2,
    /// PUBREC received, its commit awaited.
    Receiving,
    /// PUBREL sent, PUBCOMP awaited.
    Released,
}

/// The messages on their way, by sequence.
#[derive(Debug, Default)]
pub struct Window {
    slots: VecDeque<(Sequence, Stage)>,
}

impl Window {
    /// How many messages are on their way.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether none is.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// A PUBLISH with QoS 1 or 2 was granted; one with QoS 0 leaves no trace.
    pub fn publish(&mut self, sequence: Sequence, qos: QoS) {
        match qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.put(sequence, Stage::Qos1),
            QoS::ExactlyOnce => self.put(sequence, Stage::Qos2),
        }
    }

    /// The reception of a message is committed, so PUBREL is due, or due once more on a resumed session; returns its
    /// packet id `[MQTT-4.3.3-4]`.
    pub fn release(&mut self, sequence: Sequence) -> NonZeroU16 {
        self.put(sequence, Stage::Released);
        sequence.packet_id()
    }

    /// PUBACK with any reason code `[MQTT-4.3.2-3]`.
    pub fn handle_puback(&mut self, packet_id: NonZeroU16) -> Acknowledged {
        match self.find(packet_id) {
            Some((at, Stage::Qos1)) => self.finish(at),
            Some(_) => Acknowledged::WrongQos,
            None => Acknowledged::Unknown,
        }
    }

    /// PUBREC; `refused` when its reason code is 0x80 or more.
    pub fn handle_pubrec(&mut self, packet_id: NonZeroU16, refused: bool) -> Received {
        let Some((at, stage)) = self.find(packet_id) else {
            return Received::Unknown;
        };
        match stage {
            Stage::Qos1 => Received::WrongQos,
            Stage::Qos2 if refused => match self.finish(at) {
                Acknowledged::Finished(sequence) => Received::Refused(sequence),
                _ => Received::Unknown,
            },
            Stage::Qos2 => {
                let slot = &mut self.slots[at];
                slot.1 = Stage::Receiving;
                Received::Propose(slot.0)
            }
            Stage::Receiving => Received::UnderWay,
            Stage::Released => Received::Again,
        }
    }

    /// PUBCOMP with any reason code: also 0x92 ends the exchange.
    pub fn handle_pubcomp(&mut self, packet_id: NonZeroU16) -> Acknowledged {
        match self.find(packet_id) {
            Some((at, Stage::Released)) => self.finish(at),
            Some((_, Stage::Qos1 | Stage::Qos2)) => Acknowledged::WrongQos,
            // PUBREL was not sent yet, so this can't be its answer.
            Some((_, Stage::Receiving)) | None => Acknowledged::Unknown,
        }
    }

    fn put(&mut self, sequence: Sequence, stage: Stage) {
        match self.slots.back() {
            // The usual case: grants come in order.
            Some((last, _)) if *last < sequence => self.slots.push_back((sequence, stage)),
            None => self.slots.push_back((sequence, stage)),
            Some(_) => match self.search(sequence) {
                Ok(at) => self.slots[at].1 = stage,
                Err(at) => self.slots.insert(at, (sequence, stage)),
            },
        }
    }

    fn find(&self, packet_id: NonZeroU16) -> Option<(usize, Stage)> {
        let (oldest, _) = self.slots.front()?;
        let at = self
            .search(Sequence::of_packet_id(packet_id, *oldest))
            .ok()?;
        Some((at, self.slots[at].1))
    }

    fn search(&self, sequence: Sequence) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&sequence, |slot| slot.0)
    }

    fn finish(&mut self, at: usize) -> Acknowledged {
        match self.slots.remove(at) {
            Some((sequence, _)) => Acknowledged::Finished(sequence),
            None => Acknowledged::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64) -> NonZeroU16 {
        Sequence(sequence).packet_id()
    }

    fn window(entries: &[(u64, QoS)]) -> Window {
        let mut window = Window::default();
        for (sequence, qos) in entries {
            window.publish(Sequence(*sequence), *qos);
        }
        window
    }

    #[test]
    fn qos_1_ends_with_puback() {
        let mut window = window(&[(1, QoS::AtLeastOnce)]);
        assert_eq!(
            window.handle_puback(id(1)),
            Acknowledged::Finished(Sequence(1))
        );
        assert_eq!(window.handle_puback(id(1)), Acknowledged::Unknown);
        assert!(window.is_empty());
    }

    #[test]
    fn qos_2_goes_on_when_its_pubrec_is_committed() {
        let mut window = window(&[(1, QoS::ExactlyOnce)]);
        assert_eq!(
            window.handle_pubrec(id(1), false),
            Received::Propose(Sequence(1))
        );
        assert_eq!(window.handle_pubrec(id(1), false), Received::UnderWay);
        assert_eq!(window.handle_pubcomp(id(1)), Acknowledged::Unknown);
        assert_eq!(window.release(Sequence(1)), id(1));
        assert_eq!(window.handle_pubrec(id(1), false), Received::Again);
        assert_eq!(
            window.handle_pubcomp(id(1)),
            Acknowledged::Finished(Sequence(1))
        );
        assert_eq!(window.handle_pubcomp(id(1)), Acknowledged::Unknown);
    }

    #[test]
    fn mqtt_4_4_0_2_a_refused_message_is_finished() {
        let mut window = window(&[(1, QoS::ExactlyOnce)]);
        assert_eq!(
            window.handle_pubrec(id(1), true),
            Received::Refused(Sequence(1))
        );
        assert_eq!(window.handle_pubrec(id(1), false), Received::Unknown);
    }

    #[test]
    fn acknowledgements_of_the_other_qos_are_protocol_errors() {
        let mut window = window(&[(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce)]);
        assert_eq!(window.handle_pubrec(id(1), false), Received::WrongQos);
        assert_eq!(window.handle_pubcomp(id(1)), Acknowledged::WrongQos);
        assert_eq!(window.handle_puback(id(2)), Acknowledged::WrongQos);
        assert_eq!(window.handle_pubcomp(id(2)), Acknowledged::WrongQos);
        assert_eq!(window.len(), 2);
    }

    #[test]
    fn acknowledgements_come_in_any_order_also_around_the_last_id() {
        let start = 32_760;
        let entries: Vec<_> = (start..start + 12).map(|s| (s, QoS::AtLeastOnce)).collect();
        let mut window = window(&entries);
        for sequence in [start + 11, start, start + 6, start + 5, start + 1] {
            assert_eq!(
                window.handle_puback(id(sequence)),
                Acknowledged::Finished(Sequence(sequence))
            );
        }
        assert_eq!(window.len(), 7);
    }

    #[test]
    fn owed_pubrels_come_first_and_grants_fill_in_between() {
        let mut window = Window::default();
        assert_eq!(window.release(Sequence(5)), id(5));
        window.publish(Sequence(3), QoS::AtLeastOnce);
        window.publish(Sequence(7), QoS::ExactlyOnce);
        assert_eq!(
            window.handle_puback(id(3)),
            Acknowledged::Finished(Sequence(3))
        );
        assert_eq!(
            window.handle_pubcomp(id(5)),
            Acknowledged::Finished(Sequence(5))
        );
        assert_eq!(
            window.handle_pubrec(id(7), false),
            Received::Propose(Sequence(7))
        );
    }

    #[test]
    fn qos_0_leaves_no_trace() {
        assert!(window(&[(1, QoS::AtMostOnce)]).is_empty());
    }
}
