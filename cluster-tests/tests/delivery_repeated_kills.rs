//! One QoS 2 flow, both directions, and the clients' node is killed at every packet of it, one time after the other:
//! P3, P4. [MQTT-4.3.3-2] [MQTT-4.4.0-1]
//!
//! What the publisher sends goes to a subscriber that is killed with it, and to an observer on another node.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::delivery::trial::RECOVERY;
use cluster_tests::wire::{self, Connect, Message, Packet, V5};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The publisher's only packet id.
const PACKET_ID: u16 = 7;

/// Rounds: the clients' node leads in every other one.
const ROUNDS: u32 = 2;

#[test]
fn nodes_are_killed_again_and_again_within_one_flow() {
    let mut cluster = Cluster::start();
    let mut publisher = Client::open(&cluster, "repeated-publisher", None);
    let mut subscriber = Client::open(&cluster, "repeated-subscriber", Some("repeated/t"));
    let mut observer = Client::open(&cluster, "repeated-observer", Some("repeated/t"));
    observer.connection = None;
    for round in 0..ROUNDS {
        one_flow(&mut cluster, &mut publisher, &mut subscriber, round);
    }
    observer.resume(&cluster, 0);
    // All of them wait for it.
    let waiting: Vec<(u32, u16)> = (0..ROUNDS).map(|_| observer.message()).collect();
    for (round, (number, packet_id)) in (0..ROUNDS).zip(waiting) {
        assert_eq!(number, round, "in order");
        observer.send(wire::PUBREC, packet_id);
        observer.released(packet_id);
        observer.send(wire::PUBCOMP, packet_id);
    }
    let all: BTreeMap<u32, usize> = (0..ROUNDS).map(|round| (round, 1)).collect();
    for client in [&mut observer, &mut subscriber] {
        client.connection().expect_nothing();
        assert_eq!(client.delivered, all, "P4: {}", client.client_id);
    }
}

/// Kills the node of both clients, which go on at another one; then brings it back.
#[track_caller]
fn kill(cluster: &mut Cluster, clients: [&mut Client; 2], home: &mut usize, leads: bool) {
    cluster.nodes[*home].kill();
    let leader = cluster.wait_leader_other_than(*home);
    let next = (0..3).find(|node| *node != *home && (*node == leader) == leads);
    let next = next.expect("of two nodes one leads");
    for client in clients {
        client.resume(cluster, next);
    }
    cluster.start_node(*home);
    cluster.wait_ready();
    *home = next;
}

#[track_caller]
fn one_flow(cluster: &mut Cluster, publisher: &mut Client, subscriber: &mut Client, round: u32) {
    let leads = round.is_multiple_of(2);
    let mut home = match leads {
        true => cluster.wait_leader(),
        false => cluster.a_follower(),
    };
    publisher.resume(cluster, home);
    subscriber.resume(cluster, home);
    // PUBLISH is on its way.
    publisher.publish(round, false);
    kill(cluster, [publisher, subscriber], &mut home, leads);
    publisher.publish(round, true);
    publisher.received();
    // PUBREC was read; the subscriber has its PUBLISH.
    let (number, packet_id) = subscriber.message();
    assert_eq!(number, round);
    kill(cluster, [publisher, subscriber], &mut home, leads);
    // PUBREL is on its way; so is the subscriber's PUBREC of the PUBLISH that came again under the same id.
    publisher.send(wire::PUBREL, PACKET_ID);
    assert_eq!(subscriber.again(), (round, packet_id), "[MQTT-4.4.0-1]");
    subscriber.send(wire::PUBREC, packet_id);
    kill(cluster, [publisher, subscriber], &mut home, leads);
    publisher.send(wire::PUBREL, PACKET_ID);
    publisher.completed();
    // PUBCOMP was read, the subscriber's PUBREL too, after as much of its flow as was lost.
    subscriber.until_released((round, packet_id));
    kill(cluster, [publisher, subscriber], &mut home, leads);
    // PUBREL comes again, and PUBCOMP is on its way.
    subscriber.released(packet_id);
    subscriber.send(wire::PUBCOMP, packet_id);
    kill(cluster, [publisher, subscriber], &mut home, leads);
    subscriber.until_nothing(packet_id);
    publisher.connection().expect_nothing();
}

/// A client with a durable session.
struct Client {
    client_id: String,
    connection: Option<Connection>,
    /// How often each message was handed to the application: at its PUBREL.
    delivered: BTreeMap<u32, usize>,
    /// The message whose PUBREL has not come, by its packet id.
    unreleased: BTreeMap<u16, u32>,
}

impl Client {
    #[track_caller]
    fn open(cluster: &Cluster, client_id: &str, filter: Option<&str>) -> Self {
        let connect = Connect::v5(client_id).durable(600);
        let (mut connection, connack) = Connection::connect(cluster.mqtt(0), &connect);
        assert!(!connack.session_present, "S2: {client_id}");
        if let Some(filter) = filter {
            connection.subscribe(&[(filter, 2)]);
        }
        Self {
            client_id: client_id.to_owned(),
            connection: Some(connection),
            delivered: BTreeMap::new(),
            unreleased: BTreeMap::new(),
        }
    }

    /// Connects again, to that node if it serves; the session must be there (S1).
    #[track_caller]
    fn resume(&mut self, cluster: &Cluster, node: usize) {
        self.connection = None;
        let mut nodes: Vec<SocketAddr> = cluster.addresses();
        nodes.rotate_left(node);
        let connect = Connect::v5(&self.client_id).durable(600);
        let deadline = Instant::now() + RECOVERY;
        // Patient with each of them: a CONNECT that is given up may take the session over later.
        for node in nodes.iter().cycle() {
            assert!(
                Instant::now() < deadline,
                "no node serves {}",
                self.client_id
            );
            match Connection::try_connect(*node, &connect) {
                Ok((connection, connack)) if connack.code == 0 => {
                    assert!(connack.session_present, "S1: {}", self.client_id);
                    self.connection = Some(connection);
                    return;
                }
                Ok(_) | Err(Fault::Closed) => std::thread::sleep(Duration::from_millis(50)),
                Err(fault) => panic!("{} at {node}: {fault:?}", self.client_id),
            }
        }
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is connected")
    }

    #[track_caller]
    fn send(&mut self, header: u8, packet_id: u16) {
        let packet = wire::acknowledgement(header, packet_id);
        self.connection().send(&packet);
    }

    #[track_caller]
    fn publish(&mut self, number: u32, duplicate: bool) {
        let mut message = Message::new("repeated/t", number.to_string()).qos(2, PACKET_ID);
        message.duplicate = duplicate;
        self.connection().send(&message.bytes(V5));
    }

    #[track_caller]
    fn received(&mut self) {
        match self.connection().expect() {
            Packet::Pubrec(ack) => assert!(ack.packet_id == PACKET_ID && ack.code < 0x80),
            other => panic!("instead of PUBREC: {other:?}"),
        }
    }

    /// PUBCOMP; with 0x92 when the earlier PUBREL had arrived.
    #[track_caller]
    fn completed(&mut self) {
        match self.connection().expect() {
            Packet::Pubcomp(ack) => {
                assert_eq!(ack.packet_id, PACKET_ID);
                assert!([0, 0x92].contains(&ack.code), "{ack:?}");
            }
            other => panic!("instead of PUBCOMP: {other:?}"),
        }
    }

    /// Number and packet id of the next PUBLISH.
    #[track_caller]
    fn message(&mut self) -> (u32, u16) {
        let packet = self.connection().expect();
        self.take(packet)
    }

    /// The same, of one that was sent before.
    #[track_caller]
    fn again(&mut self) -> (u32, u16) {
        let packet = self.connection().expect();
        if let Packet::Publish(publish) = &packet {
            assert!(publish.duplicate, "[MQTT-3.3.1-1]: {publish:?}");
        }
        self.take(packet)
    }

    #[track_caller]
    fn take(&mut self, packet: Packet) -> (u32, u16) {
        let Packet::Publish(publish) = packet else {
            panic!("instead of PUBLISH: {packet:?}");
        };
        assert_eq!(publish.qos, 2);
        let text = String::from_utf8(publish.payload).expect("payloads are numbers");
        let number = text.parse().expect("payloads are numbers");
        self.unreleased.insert(publish.packet_id, number);
        (number, publish.packet_id)
    }

    /// PUBREL: the application gets the message, if it has not had it.
    #[track_caller]
    fn released(&mut self, packet_id: u16) {
        match self.connection().expect() {
            Packet::Pubrel(ack) => assert_eq!(ack.packet_id, packet_id, "[MQTT-4.4.0-1]"),
            other => panic!("{}: instead of PUBREL: {other:?}", self.client_id),
        }
        self.deliver(packet_id);
    }

    fn deliver(&mut self, packet_id: u16) {
        if let Some(number) = self.unreleased.remove(&packet_id) {
            *self.delivered.entry(number).or_default() += 1;
        }
    }

    /// PUBREL, or first the PUBLISH once more if the PUBREC was lost.
    #[track_caller]
    fn until_released(&mut self, expected: (u32, u16)) {
        loop {
            match self.connection().expect() {
                Packet::Pubrel(ack) => {
                    assert_eq!(ack.packet_id, expected.1, "[MQTT-4.4.0-1]");
                    return self.deliver(expected.1);
                }
                packet => {
                    assert_eq!(self.take(packet), expected);
                    self.send(wire::PUBREC, expected.1);
                }
            }
        }
    }

    /// Nothing, or first the PUBREL once more if the PUBCOMP was lost.
    #[track_caller]
    fn until_nothing(&mut self, packet_id: u16) {
        self.connection().send(&wire::PINGREQ);
        match self.connection().receive(TIMEOUT) {
            Ok(Packet::Pingresp) => return,
            Ok(Packet::Pubrel(ack)) => assert_eq!(ack.packet_id, packet_id, "[MQTT-4.4.0-1]"),
            other => panic!("instead of PUBREL or nothing: {other:?}"),
        }
        self.send(wire::PUBCOMP, packet_id);
        let last = self.connection().expect();
        assert!(matches!(last, Packet::Pingresp), "{last:?}");
        self.connection().expect_nothing();
    }
}
