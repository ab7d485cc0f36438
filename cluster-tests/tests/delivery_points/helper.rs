//! The publisher whose messages the receivers get.

use crate::session::{open, resume};
use cluster_tests::connection::Connection;
use cluster_tests::record::Label;
use cluster_tests::record::{PublisherRecord, Sent};
use cluster_tests::wire::{self, Message, Packet, V5};
use std::net::SocketAddr;

/// Publishes to the receivers, whole flows, from a node that lives or is back.
pub struct Helper {
    prefix: String,
    connection: Connection,
    pub record: PublisherRecord,
}

/// Number of the helper in labels.
const HELPER: usize = 99;

impl Helper {
    pub fn new(prefix: &str, node: SocketAddr) -> Self {
        let client_id = format!("{prefix}-helper");
        Self {
            prefix: prefix.to_owned(),
            connection: open(&client_id, node),
            record: PublisherRecord {
                client_id,
                ..PublisherRecord::default()
            },
        }
    }

    #[track_caller]
    pub fn again(self, nodes: &[SocketAddr]) -> Self {
        Self {
            connection: resume(&self.record.client_id, nodes),
            ..self
        }
    }

    /// Message `sequence` for that topic, acknowledged.
    #[track_caller]
    pub fn publish(&mut self, topic: usize, qos: u8, sequence: u32) {
        let label = Label {
            publisher: HELPER,
            topic,
            qos,
            sequence,
        };
        let packet_id = self.connection.packet_id();
        let name = format!("{}/t{topic}", self.prefix);
        let message = Message::new(&name, label.payload()).qos(qos, packet_id);
        self.connection.send(&message.bytes(V5));
        match (qos, self.connection.expect()) {
            (1, Packet::Puback(ack)) if ack.code < 0x80 => {}
            (2, Packet::Pubrec(ack)) if ack.code < 0x80 => {
                self.connection
                    .send(&wire::acknowledgement(wire::PUBREL, packet_id));
                let last = self.connection.expect();
                assert!(matches!(last, Packet::Pubcomp(_)), "{last:?}");
            }
            (_, other) => panic!("{label} was answered {other:?}"),
        }
        self.record.messages.push(Sent {
            label,
            sent: 0,
            attempts: 1,
            accepted: Some(0),
            refused: None,
        });
    }
}
