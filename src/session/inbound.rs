//! Messages on their way from a client to the server: the receiving half of QoS 1 and QoS 2, and the server's receive
//! maximum.
//!
//! Replicated rows remember the packet ids of QoS 2 from the commit of the message to the commit of its PUBREL; a
//! connection that resumes a session begins with them. Nothing is acknowledged here: the caller proposes, and
//! acknowledges after the commit.

use std::num::NonZeroU16;

/// How many times the receive maximum a session remembers QoS 2 exchanges.
const REMEMBERED: usize = 4;

/// What follows from a PUBLISH with QoS 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// A new message: propose it. PUBACK or PUBREC follows the commit.
    New,
    /// Received before, its PUBREL is awaited: answer PUBREC, do not deliver `[MQTT-4.3.3-10]`.
    Duplicate,
    /// Received before, its commit is awaited: PUBREC will follow.
    UnderWay,
    /// The client has more unacknowledged messages than it may: DISCONNECT 0x93 Receive Maximum exceeded.
    TooMany,
    /// The id belongs to an exchange whose PUBREL is being committed: 0x91 Packet Identifier in use.
    PacketIdInUse,
}

/// What follows from a PUBREL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Propose it; PUBCOMP follows the commit.
    Propose,
    /// It is proposed already; PUBCOMP will follow.
    UnderWay,
    /// No such id: answer PUBCOMP 0x92 Packet Identifier not found (MQTT 3: plain PUBCOMP).
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The message is being committed.
    Publishing,
    /// PUBREC was sent, PUBREL is awaited.
    Received,
    /// PUBREL came, and is being committed.
    Releasing,
}

/// A QoS 2 exchange.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    packet_id: NonZeroU16,
    stage: Stage,
    /// Begun on an earlier connection: the client's send quota is whole again on each (MQTT 5.0 §4.9).
    is_resumed: bool,
}

/// The messages on their way from one client.
#[derive(Debug)]
pub struct Inbound {
    receive_maximum: NonZeroU16,
    /// QoS 1 messages whose commit is awaited.
    qos_1: u32,
    /// QoS 2 exchanges by packet id, in order.
    qos_2: Vec<Exchange>,
    /// Those of them that do not count against the receive maximum.
    resumed: usize,
}

impl Inbound {
    /// A connection whose client may have `receive_maximum` messages unacknowledged; `received` are the ids the session
    /// remembers.
    pub fn new(
        receive_maximum: NonZeroU16,
        received: impl IntoIterator<Item = NonZeroU16>,
    ) -> Self {
        let mut qos_2: Vec<_> = received
            .into_iter()
            .map(|packet_id| Exchange {
                packet_id,
                stage: Stage::Received,
                is_resumed: true,
            })
            .collect();
        qos_2.sort_unstable_by_key(|exchange| exchange.packet_id);
        qos_2.dedup_by_key(|exchange| exchange.packet_id);
        Inbound {
            receive_maximum,
            qos_1: 0,
            resumed: qos_2.len(),
            qos_2,
        }
    }

    /// Messages that count against the receive maximum.
    pub fn unacknowledged(&self) -> usize {
        // A connection has at most 65,535 of each kind.
        self.qos_1 as usize + self.qos_2.len() - self.resumed
    }

    /// Whether the client may not send another message, when `others` that are not counted here are unacknowledged.
    pub fn is_full_with(&self, others: usize) -> bool {
        self.unacknowledged() + others >= usize::from(self.receive_maximum.get())
    }

    /// PUBLISH with QoS 1. Whatever its id and DUP: acknowledged ids mean new messages `[MQTT-4.3.2-5]`.
    pub fn handle_qos_1(&mut self) -> Reception {
        if self.is_full() {
            return Reception::TooMany;
        }
        self.qos_1 += 1;
        Reception::New
    }

    /// PUBACK is sent.
    pub fn acknowledged_qos_1(&mut self) {
        self.qos_1 = self.qos_1.saturating_sub(1);
    }

    /// PUBLISH with QoS 2.
    pub fn handle_qos_2(&mut self, packet_id: NonZeroU16) -> Reception {
        match self.search(packet_id) {
            Ok(at) => match self.qos_2[at].stage {
                Stage::Publishing => Reception::UnderWay,
                Stage::Received => Reception::Duplicate,
                Stage::Releasing => Reception::PacketIdInUse,
            },
            Err(_) if self.is_full() => Reception::TooMany,
            Err(at) => {
                let exchange = Exchange {
                    packet_id,
                    stage: Stage::Publishing,
                    is_resumed: false,
                };
                self.qos_2.insert(at, exchange);
                Reception::New
            }
        }
    }

    /// PUBREC is sent. With a reason code of 0x80 or more the id means a new message next time `[MQTT-4.3.3-9]`.
    pub fn received_qos_2(&mut self, packet_id: NonZeroU16, refused: bool) {
        if let Ok(at) = self.search(packet_id) {
            if refused {
                self.remove(at);
            } else if self.qos_2[at].stage == Stage::Publishing {
                self.qos_2[at].stage = Stage::Received;
            }
        }
    }

    /// PUBREL.
    pub fn handle_pubrel(&mut self, packet_id: NonZeroU16) -> Release {
        let Ok(at) = self.search(packet_id) else {
            return Release::Unknown;
        };
        match self.qos_2[at].stage {
            // Before its PUBREC: proposals keep their order, so the release is committed after the message.
            Stage::Publishing | Stage::Received => {
                self.qos_2[at].stage = Stage::Releasing;
                Release::Propose
            }
            Stage::Releasing => Release::UnderWay,
        }
    }

    /// PUBCOMP is sent: the id means a new message next time `[MQTT-4.3.3-12]`.
    pub fn completed_qos_2(&mut self, packet_id: NonZeroU16) {
        if let Ok(at) = self.search(packet_id) {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) {
        let exchange = self.qos_2.remove(at);
        self.resumed -= usize::from(exchange.is_resumed);
    }

    /// Whether an exchange with this packet id is under way.
    pub fn knows(&self, packet_id: NonZeroU16) -> bool {
        self.search(packet_id).is_ok()
    }

    /// Whether so many QoS 2 exchanges wait for their PUBREL or its commit, those of earlier connections included, that
    /// the session is to remember no more. A client that releases what it has sent comes to twice its receive maximum,
    /// when it reconnects; what is remembered is read with every CONNECT.
    pub fn remembers_too_many(&self) -> bool {
        self.qos_2.len() >= REMEMBERED * usize::from(self.receive_maximum.get())
    }

    /// Whether the client may not begin another exchange.
    pub fn is_full(&self) -> bool {
        self.unacknowledged() >= usize::from(self.receive_maximum.get())
    }

    /// Whether the next exchange waits for a PUBREL, however soon others are acknowledged.
    pub fn awaits_release(&self) -> bool {
        let is_received = |exchange: &Exchange| exchange.stage == Stage::Received;
        self.is_full() && self.qos_2.iter().any(is_received)
    }

    fn search(&self, packet_id: NonZeroU16) -> Result<usize, usize> {
        self.qos_2
            .binary_search_by_key(&packet_id, |exchange| exchange.packet_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(packet_id: u16) -> NonZeroU16 {
        NonZeroU16::new(packet_id).expect("tests use ids above 0")
    }

    fn inbound(receive_maximum: u16) -> Inbound {
        Inbound::new(id(receive_maximum), [])
    }

    #[test]
    fn a_client_is_waited_for_when_its_releases_alone_make_room() {
        let mut inbound = inbound(2);
        inbound.handle_qos_1();
        inbound.handle_qos_2(id(1));
        assert!(inbound.is_full() && !inbound.awaits_release(), "others are");
        inbound.received_qos_2(id(1), false);
        assert!(inbound.awaits_release());
        inbound.acknowledged_qos_1();
        assert!(!inbound.awaits_release(), "there is room");
    }

    #[test]
    fn mqtt_4_3_3_10_until_pubrel_the_same_id_is_delivered_once() {
        let mut inbound = inbound(10);
        assert_eq!(inbound.handle_qos_2(id(7)), Reception::New);
        assert_eq!(inbound.handle_qos_2(id(7)), Reception::UnderWay);
        inbound.received_qos_2(id(7), false);
        assert_eq!(inbound.handle_qos_2(id(7)), Reception::Duplicate);
        assert_eq!(inbound.handle_pubrel(id(7)), Release::Propose);
        assert_eq!(inbound.handle_pubrel(id(7)), Release::UnderWay);
        assert_eq!(inbound.handle_qos_2(id(7)), Reception::PacketIdInUse);
        inbound.completed_qos_2(id(7));
        assert_eq!(inbound.handle_pubrel(id(7)), Release::Unknown);
        assert_eq!(inbound.handle_qos_2(id(7)), Reception::New);
    }

    #[test]
    fn mqtt_4_3_3_9_a_refused_id_means_a_new_message() {
        let mut inbound = inbound(10);
        inbound.handle_qos_2(id(7));
        inbound.received_qos_2(id(7), true);
        assert_eq!(inbound.handle_pubrel(id(7)), Release::Unknown);
        assert_eq!(inbound.handle_qos_2(id(7)), Reception::New);
    }

    #[test]
    fn a_resumed_session_knows_its_received_ids_and_has_its_whole_quota() {
        let mut inbound = Inbound::new(id(2), [id(9), id(3), id(9)]);
        assert_eq!(inbound.unacknowledged(), 0);
        assert_eq!(inbound.handle_qos_2(id(3)), Reception::Duplicate);
        assert_eq!(inbound.handle_pubrel(id(9)), Release::Propose);
        assert_eq!(inbound.handle_qos_2(id(1)), Reception::New);
        assert_eq!(inbound.handle_qos_1(), Reception::New);
        assert_eq!(inbound.handle_qos_1(), Reception::TooMany);
        inbound.completed_qos_2(id(9));
        assert_eq!(inbound.handle_qos_1(), Reception::TooMany);
        inbound.completed_qos_2(id(1));
        assert_eq!(inbound.handle_qos_2(id(9)), Reception::New);
        assert_eq!(inbound.unacknowledged(), 2);
    }

    #[test]
    fn exchanges_that_are_never_released_do_not_add_up_over_connections() {
        let (mut received, mut connections) = (Vec::new(), 0);
        loop {
            let mut inbound = Inbound::new(id(2), received.iter().copied());
            connections += 1;
            while !inbound.is_full() && !inbound.remembers_too_many() {
                let new = id(received.len() as u16 + 1);
                assert_eq!(inbound.handle_qos_2(new), Reception::New);
                inbound.received_qos_2(new, false);
                received.push(new);
            }
            if !inbound.is_full() {
                break;
            }
        }
        assert_eq!((received.len(), connections), (4 * 2, 5));
    }

    #[test]
    fn a_pubrel_may_overtake_its_pubrec() {
        let mut inbound = inbound(10);
        inbound.handle_qos_2(id(7));
        assert_eq!(inbound.handle_pubrel(id(7)), Release::Propose);
        inbound.received_qos_2(id(7), false);
        assert_eq!(inbound.handle_pubrel(id(7)), Release::UnderWay);
    }

    #[test]
    fn the_receive_maximum_counts_both_qos_and_no_message_twice() {
        let mut inbound = inbound(2);
        assert_eq!(inbound.handle_qos_1(), Reception::New);
        assert_eq!(inbound.handle_qos_2(id(1)), Reception::New);
        assert_eq!(inbound.handle_qos_1(), Reception::TooMany);
        assert_eq!(inbound.handle_qos_2(id(2)), Reception::TooMany);
        assert_eq!(inbound.handle_qos_2(id(1)), Reception::UnderWay);
        inbound.acknowledged_qos_1();
        assert_eq!(inbound.handle_qos_2(id(2)), Reception::New);
        inbound.completed_qos_2(id(1));
        assert_eq!(inbound.handle_qos_1(), Reception::New);
        inbound.acknowledged_qos_1();
        inbound.acknowledged_qos_1();
        assert_eq!(inbound.unacknowledged(), 1, "never below what is there");
    }
}
