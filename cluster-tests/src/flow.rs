//! Publishers with large windows and slow subscribers, for tests of back-pressure.

use crate::connection::{Connection, Fault};
use crate::wire::{self, Connect, Message, Packet, Value, id};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long anything here may take.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A connection whose socket buffers little that was not read.
#[track_caller]
pub fn with_small_buffer(address: SocketAddr, connect: &Connect) -> Connection {
    let connection = Connection::connect(address, connect).0;
    rustix::net::sockopt::set_socket_recv_buffer_size(connection.stream(), 64 << 10)
        .expect("a socket's buffer can be set");
    connection
}

/// What a publisher has to send.
#[derive(Debug, Clone)]
pub struct Load {
    pub topic: String,
    pub qos: u8,
    pub messages: u32,
    pub bytes: usize,
    /// Messages that may be unacknowledged at once.
    pub window: usize,
}

/// What a publisher saw.
#[derive(Debug, Clone, Copy)]
pub struct PublisherStats {
    pub acknowledged: u32,
    /// The longest time from a message to its PUBACK or PUBREC.
    pub slowest: Duration,
    /// The longest time between two of them.
    pub longest_gap: Duration,
}

/// Publishes all of `load` and waits for every acknowledgement. Payloads begin with `from` and the message's number.
#[track_caller]
pub fn publish(mut connection: Connection, from: u32, load: &Load) -> PublisherStats {
    let deadline = Instant::now() + LIMIT;
    let mut sent = 0;
    let mut waiting: HashMap<u16, Instant> = HashMap::new();
    let mut releasing = 0;
    let mut seen = PublisherStats {
        acknowledged: 0,
        slowest: Duration::ZERO,
        longest_gap: Duration::ZERO,
    };
    let mut last = Instant::now();
    while seen.acknowledged < load.messages || releasing > 0 {
        while sent < load.messages && waiting.len() + releasing < load.window {
            let packet_id = connection.packet_id();
            let mut payload = vec![0; load.bytes];
            payload[..4].copy_from_slice(&from.to_be_bytes());
            payload[4..8].copy_from_slice(&sent.to_be_bytes());
            let message = Message::new(&load.topic, payload).qos(load.qos, packet_id);
            waiting.insert(packet_id, Instant::now());
            let bytes = message.bytes(connection.level());
            // A closed connection is noticed when it is read.
            assert_ne!(
                connection.try_send(&bytes),
                Err(Fault::Timeout),
                "publisher {from} could not send for a long time"
            );
            sent += 1;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let packet = connection.receive(left).unwrap_or_else(|fault| {
            panic!(
                "publisher {from}: {fault:?} with {} of {} acknowledged",
                seen.acknowledged, load.messages
            )
        });
        match packet {
            Packet::Puback(ack) | Packet::Pubrec(ack) => {
                assert!(ack.code < 0x80, "publisher {from}: {ack:?}");
                let since = waiting.remove(&ack.packet_id);
                let since = since.unwrap_or_else(|| panic!("publisher {from}: twice: {ack:?}"));
                seen.acknowledged += 1;
                seen.slowest = seen.slowest.max(since.elapsed());
                seen.longest_gap = seen.longest_gap.max(last.elapsed());
                last = Instant::now();
                if load.qos == 2 {
                    releasing += 1;
                    connection.send(&wire::acknowledgement(wire::PUBREL, ack.packet_id));
                }
            }
            Packet::Pubcomp(_) => releasing -= 1,
            other => panic!("publisher {from}: unexpected {other:?}"),
        }
    }
    seen
}

/// How fast a subscriber reads.
#[derive(Debug, Clone, Copy)]
pub struct ReadRate {
    /// Messages between two pauses.
    pub messages: u32,
    /// How long it pauses.
    pub rest: Duration,
}

/// Reads `total` messages at that rate, acknowledges each, and checks that those of every publisher come once and in
/// their order.
#[track_caller]
pub fn subscribe(connection: &mut Connection, total: u32, rate: ReadRate) {
    let mut next: HashMap<(u32, u8), u32> = HashMap::new();
    let mut count = 0;
    let deadline = Instant::now() + LIMIT;
    while count < total {
        let left = deadline.saturating_duration_since(Instant::now());
        let packet = connection.receive(left).unwrap_or_else(|fault| {
            panic!("{fault:?} after {count} of {total} messages: {next:?}")
        });
        match packet {
            Packet::Publish(publish) => {
                let number = |at: usize| {
                    let bytes = publish
                        .payload
                        .get(at..at + 4)
                        .expect("publishers write it");
                    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
                };
                let expected = next.entry((number(0), publish.qos)).or_default();
                assert_eq!(
                    number(4),
                    *expected,
                    "publisher {} is out of order",
                    number(0)
                );
                *expected += 1;
                let answer = match publish.qos {
                    1 => wire::PUBACK,
                    _ => wire::PUBREC,
                };
                connection.send(&wire::acknowledgement(answer, publish.packet_id));
                count += 1;
                if count % rate.messages == 0 {
                    std::thread::sleep(rate.rest);
                }
            }
            Packet::Pubrel(ack) => {
                connection.send(&wire::acknowledgement(wire::PUBCOMP, ack.packet_id));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// MQTT 5, clean start, a receive maximum.
pub fn connect_with_maximum(client_id: &str, receive_maximum: u16) -> Connect {
    Connect::v5(client_id).with(id::RECEIVE_MAXIMUM, Value::TwoBytes(receive_maximum))
}
