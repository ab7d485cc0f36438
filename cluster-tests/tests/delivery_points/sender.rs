//! A publisher at one point of its flow.

use crate::session::{open, resume};
use cluster_tests::connection::Connection;
use cluster_tests::record::Label;
use cluster_tests::record::{PublisherRecord, Sent};
use cluster_tests::wire::{self, Ack, Message, Packet, V5};
use std::net::SocketAddr;

/// The packet id of all messages of a publisher, so that an id that was not freed is noticed.
const PACKET_ID: u16 = 77;

/// How far a publisher's flow is when its node dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// PUBLISH in transit.
    Published,
    /// PUBACK or PUBREC received and not read.
    Committed,
    /// PUBACK or PUBREC read.
    Answered,
    /// PUBREC read; the client forgets that and begins again.
    AnsweredAndForgotten,
    /// PUBREL in transit.
    Released,
    /// PUBCOMP received and not read.
    Completed,
    /// PUBCOMP read.
    Finished,
}

pub const SENDING: [(u8, Sending); 10] = [
    (1, Sending::Published),
    (1, Sending::Committed),
    (1, Sending::Answered),
    (2, Sending::Published),
    (2, Sending::Committed),
    (2, Sending::Answered),
    (2, Sending::AnsweredAndForgotten),
    (2, Sending::Released),
    (2, Sending::Completed),
    (2, Sending::Finished),
];

/// A publisher with one message half sent.
pub struct Sender {
    pub point: usize,
    prefix: String,
    client_id: String,
    connection: Connection,
    pub record: PublisherRecord,
}

impl Sender {
    pub fn new(prefix: &str, point: usize, node: SocketAddr) -> Self {
        let client_id = format!("{prefix}-sender-{point}");
        Self {
            point,
            prefix: prefix.to_owned(),
            connection: open(&client_id, node),
            record: PublisherRecord {
                client_id: client_id.clone(),
                ..PublisherRecord::default()
            },
            client_id,
        }
    }

    fn qos(&self) -> u8 {
        SENDING[self.point].0
    }

    fn stage(&self) -> Sending {
        SENDING[self.point].1
    }

    fn label(&self, sequence: u32) -> Label {
        Label {
            publisher: self.point,
            topic: self.point,
            qos: self.qos(),
            sequence,
        }
    }

    /// Sends message `sequence`, for the first time or again.
    fn publish(&mut self, sequence: u32, duplicate: bool) {
        let label = self.label(sequence);
        let index = sequence as usize;
        if self.record.messages.len() == index {
            self.record.messages.push(Sent {
                label,
                sent: 0,
                attempts: 0,
                accepted: None,
                refused: None,
            });
        }
        self.record.messages[index].attempts += 1;
        let topic = format!("{}/t{}", self.prefix, self.point);
        let mut message = Message::new(&topic, label.payload()).qos(label.qos, PACKET_ID);
        message.duplicate = duplicate;
        self.connection.send(&message.bytes(V5));
    }

    /// PUBACK or PUBREC.
    #[track_caller]
    fn answered(&mut self, sequence: u32) {
        let ack = match (self.qos(), self.connection.expect()) {
            (1, Packet::Puback(ack)) | (2, Packet::Pubrec(ack)) => ack,
            (_, other) => panic!("{}: instead of PUBACK or PUBREC: {other:?}", self.client_id),
        };
        self.check(&ack);
        self.record.messages[sequence as usize].accepted = Some(0);
    }

    #[track_caller]
    fn check(&self, ack: &Ack) {
        let who = (&self.client_id, self.stage());
        assert_eq!(ack.packet_id, PACKET_ID, "{who:?}: {ack:?}");
        assert!(ack.code < 0x80, "{who:?}: {ack:?}");
    }

    fn release(&mut self) {
        self.connection
            .send(&wire::acknowledgement(wire::PUBREL, PACKET_ID));
    }

    /// PUBCOMP; `again`: with reason 0x92 when the first one was sent.
    #[track_caller]
    fn completed(&mut self, again: bool) {
        match self.connection.expect() {
            Packet::Pubcomp(ack) if ack.code == 0x92 && again => {}
            Packet::Pubcomp(ack) => self.check(&ack),
            other => panic!("{}: instead of PUBCOMP: {other:?}", self.client_id),
        }
    }

    pub fn approach(&mut self) {
        use Sending::{
            Answered, AnsweredAndForgotten, Committed, Completed, Finished, Published, Released,
        };
        match self.stage() {
            Published => {}
            Committed => {
                self.publish(0, false);
                self.connection.wait_for_bytes();
            }
            Answered | AnsweredAndForgotten | Released => {
                self.publish(0, false);
                self.answered(0);
            }
            Completed => {
                self.publish(0, false);
                self.answered(0);
                self.release();
                self.connection.wait_for_bytes();
            }
            Finished => {
                self.publish(0, false);
                self.answered(0);
                self.release();
                self.completed(false);
            }
        }
    }

    pub fn last_packet(&mut self) {
        match self.stage() {
            Sending::Published => self.publish(0, false),
            Sending::Released => self.release(),
            _ => {}
        }
    }

    /// Ends the flow on another node; then the id must be free for another message.
    #[track_caller]
    pub fn go_on(&mut self, nodes: &[SocketAddr]) {
        self.connection = resume(&self.client_id, nodes);
        let is_qos_2 = self.qos() == 2;
        match self.stage() {
            Sending::Published | Sending::Committed | Sending::AnsweredAndForgotten => {
                self.publish(0, true);
                self.answered(0);
                if is_qos_2 {
                    self.release();
                    self.completed(false);
                }
            }
            Sending::Answered if is_qos_2 => {
                self.release();
                self.completed(false);
            }
            Sending::Released | Sending::Completed => {
                self.release();
                self.completed(true);
            }
            Sending::Answered | Sending::Finished => {}
        }
        self.publish(1, false);
        self.answered(1);
        if is_qos_2 {
            self.release();
            self.completed(false);
        }
        self.connection.expect_nothing();
    }
}
