//! A subscriber at one point of its flow.

use crate::helper::Helper;
use crate::session::{open, resume};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::record::Label;
use cluster_tests::record::{Arrival, Event, Interest, SubscriberRecord, SubscriberShape};
use cluster_tests::wire::{self, Packet};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

/// How far a subscriber's flow is when its node dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// Not connected when the message comes.
    Away,
    /// PUBLISH received and not read.
    Queued,
    /// PUBLISH read.
    Published,
    /// PUBACK or PUBREC in transit.
    Answered,
    /// PUBREL received and not read.
    Released,
    /// PUBREL read.
    ReleaseRead,
    /// PUBCOMP in transit.
    Completed,
}

pub const RECEIVING: [(u8, Receiving); 11] = [
    (1, Receiving::Away),
    (1, Receiving::Queued),
    (1, Receiving::Published),
    (1, Receiving::Answered),
    (2, Receiving::Away),
    (2, Receiving::Queued),
    (2, Receiving::Published),
    (2, Receiving::Answered),
    (2, Receiving::Released),
    (2, Receiving::ReleaseRead),
    (2, Receiving::Completed),
];

/// A subscriber with one message half received.
pub struct Receiver {
    /// Index in [`RECEIVING`].
    point: usize,
    /// Of its topic.
    number: usize,
    prefix: String,
    connection: Option<Connection>,
    pub record: SubscriberRecord,
    /// Packet ids of QoS 2 flows that have not ended.
    open: BTreeSet<u16>,
    began: Instant,
}

impl Receiver {
    #[track_caller]
    pub fn new(prefix: &str, point: usize, number: usize, node: SocketAddr) -> Self {
        let client_id = format!("{prefix}-receiver-{number}");
        let mut connection = open(&client_id, node);
        connection.subscribe(&[(&format!("{prefix}/t{number}"), 2)]);
        let mut receiver = Self {
            point,
            number,
            prefix: prefix.to_owned(),
            connection: Some(connection),
            record: SubscriberRecord {
                shape: SubscriberShape {
                    interest: Interest::Topic(number),
                    receive_maximum: u16::MAX,
                    ..SubscriberShape::new(client_id)
                },
                identifier: None,
                first_uncertain: false,
                events: Vec::new(),
            },
            open: BTreeSet::new(),
            began: Instant::now(),
        };
        receiver.log(Event::Connected { present: false });
        receiver
    }

    pub fn point(&self) -> (u8, Receiving) {
        RECEIVING[self.point]
    }

    fn log(&mut self, event: Event) {
        let at = u64::try_from(self.began.elapsed().as_millis()).expect("a test is short");
        self.record.events.push((at, event));
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is connected")
    }

    /// The next packet, written down, and the answer that it asks for; a PINGRESP asks for none.
    #[track_caller]
    fn next(&mut self) -> Option<(u8, u16)> {
        let who = self.record.shape.client_id.clone();
        match self.connection().receive(TIMEOUT) {
            Ok(Packet::Publish(publish)) => {
                let (qos, packet_id) = (publish.qos, publish.packet_id);
                let inside = publish.topic.strip_prefix(&format!("{}/", self.prefix));
                let arrival = Arrival {
                    packet_id,
                    duplicate: publish.duplicate,
                    qos,
                    retain: publish.retain,
                    topic: inside.unwrap_or(&publish.topic).to_owned(),
                    label: Label::parse(&publish.payload),
                    identifiers: publish.properties.subscription_identifiers(),
                };
                self.log(Event::Publish(arrival));
                if qos == 1 {
                    return Some((wire::PUBACK, packet_id));
                }
                self.open.insert(packet_id);
                Some((wire::PUBREC, packet_id))
            }
            Ok(Packet::Pubrel(ack)) => {
                let packet_id = ack.packet_id;
                self.log(Event::Pubrel { packet_id });
                Some((wire::PUBCOMP, packet_id))
            }
            Ok(Packet::Pingresp) => None,
            other => panic!("{who}, {:?}: {other:?}", self.point()),
        }
    }

    #[track_caller]
    fn read(&mut self) -> (u8, u16) {
        self.next().expect("no ping was sent")
    }

    #[track_caller]
    fn answer(&mut self, (header, packet_id): (u8, u16)) {
        self.log(match header {
            wire::PUBACK => Event::SentPuback { packet_id },
            wire::PUBREC => Event::SentPubrec { packet_id },
            _ => Event::SentPubcomp { packet_id },
        });
        if header == wire::PUBCOMP {
            self.open.remove(&packet_id);
        }
        self.connection()
            .send(&wire::acknowledgement(header, packet_id));
    }

    #[track_caller]
    pub fn approach(&mut self, helper: &mut Helper) {
        let (qos, stage) = self.point();
        if stage == Receiving::Away {
            self.connection = None;
            self.log(Event::Cut);
        }
        helper.publish(self.number, qos, 0);
        match stage {
            Receiving::Away => {}
            Receiving::Queued => self.connection().wait_for_bytes(),
            Receiving::Published | Receiving::Answered => {
                self.read();
            }
            Receiving::Released => {
                let answer = self.read();
                self.answer(answer);
                self.connection().wait_for_bytes();
            }
            Receiving::ReleaseRead | Receiving::Completed => {
                let answer = self.read();
                self.answer(answer);
                self.read();
            }
        }
    }

    /// The answer to what was read last, on its way when the node dies.
    #[track_caller]
    pub fn last_packet(&mut self) {
        let (qos, stage) = self.point();
        let header = match (stage, qos) {
            (Receiving::Answered, 1) => wire::PUBACK,
            (Receiving::Answered, _) => wire::PUBREC,
            (Receiving::Completed, _) => wire::PUBCOMP,
            _ => return,
        };
        let packet_id = self
            .record
            .events
            .iter()
            .rev()
            .find_map(|(_, event)| match event {
                Event::Publish(arrival) => Some(arrival.packet_id),
                _ => None,
            });
        self.answer((header, packet_id.expect("a message was read")));
    }

    /// Ends the flow on another node, until a second message has come through.
    #[track_caller]
    pub fn go_on(&mut self, nodes: &[SocketAddr], helper: &mut Helper) {
        if self.connection.take().is_some() {
            self.log(Event::Cut);
        }
        self.connection = Some(resume(&self.record.shape.client_id, nodes));
        self.log(Event::Connected { present: true });
        let (qos, _) = self.point();
        helper.publish(self.number, qos, 1);
        let has_last = |record: &SubscriberRecord| {
            let mut labels = record.labels().into_iter();
            labels.any(|label| label.sequence == 1)
        };
        while !has_last(&self.record) {
            let answer = self.read();
            self.answer(answer);
        }
        // Until every flow has ended and nothing follows.
        let deadline = Instant::now() + TIMEOUT;
        let mut answered = true;
        while answered || !self.open.is_empty() {
            let open = &self.open;
            assert!(Instant::now() < deadline, "no PUBREL comes for {open:?}");
            answered = false;
            self.connection().send(&wire::PINGREQ);
            while let Some(answer) = self.next() {
                self.answer(answer);
                answered = true;
            }
        }
    }
}
