//! A member of a shared subscription ends with unacknowledged messages: QoS 1 goes to another member, once; QoS 2 goes
//! to nobody else `[MQTT-4.8.2-5]`; what waited for a member is lost with none of them. Judged from what members wrote
//! down.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, Value, id};
use std::time::{Duration, Instant};

/// Messages that a member may have unacknowledged.
const RECEIVE_MAXIMUM: u16 = 8;

/// Published while there is one member: more than its receive maximum.
const FIRST: u32 = 13;

/// Messages that the first member acknowledges.
const ACKNOWLEDGED: u32 = 3;

/// The lease of a dead node, with time to spare on a slow machine.
const REASSIGNED_WITHIN: Duration = Duration::from_secs(30);

/// Three nodes with a shorter lease than the default, so that a dead one is noticed earlier.
#[track_caller]
fn cluster() -> Cluster {
    let settings = [("NODE_LEASE_MS", "3500"), ("GIVE_UP_MS", "3000")];
    let environment = (0..3).flat_map(|node| {
        settings.map(|(key, value)| (node, format!("QUORUMQ__CLUSTER__{key}"), value.to_owned()))
    });
    Cluster::start_with(Plan {
        environment: environment.collect(),
        ..Plan::default()
    })
}

/// A member with what it was sent.
struct Member {
    connection: Connection,
    /// Number and packet id, in the order in which they came.
    came: Vec<(u32, u16)>,
}

impl Member {
    /// `expiry_s` 0 is a session that ends with its connection.
    #[track_caller]
    fn join(
        cluster: &Cluster,
        node: usize,
        client_id: &str,
        filter: &str,
        receive_maximum: u16,
    ) -> Self {
        let connect =
            Connect::v5(client_id).with(id::RECEIVE_MAXIMUM, Value::TwoBytes(receive_maximum));
        let (mut connection, _) = Connection::connect(cluster.mqtt(node), &connect);
        // What waits for a member may come before the SUBACK.
        connection.send(&wire::subscribe(V5, 1, &Properties::new(), &[(filter, 2)]));
        let mut member = Self {
            connection,
            came: Vec::new(),
        };
        loop {
            match member.connection.expect() {
                Packet::Suback(suback) => {
                    assert_eq!(suback.codes, [2]);
                    return member;
                }
                other => member.write_down(other),
            }
        }
    }

    #[track_caller]
    fn write_down(&mut self, packet: Packet) {
        let Packet::Publish(publish) = packet else {
            panic!("instead of a message after {:?}: {packet:?}", self.came);
        };
        let text = String::from_utf8(publish.payload).expect("payloads are numbers");
        let number = text.parse().expect("payloads are numbers");
        self.came.push((number, publish.packet_id));
    }

    /// Waits until so many messages have come.
    #[track_caller]
    fn receive(&mut self, count: usize, within: Duration) {
        let deadline = Instant::now() + within;
        while self.came.len() < count {
            match self
                .connection
                .receive(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(packet) => self.write_down(packet),
                Err(fault) => panic!("{fault:?} after {:?}", self.came),
            }
        }
    }

    fn numbers(&self) -> Vec<u32> {
        self.came.iter().map(|(number, _)| *number).collect()
    }

    /// Acknowledges a message to the end of its flow.
    #[track_caller]
    fn acknowledge(&mut self, qos: u8, packet_id: u16) {
        if qos == 1 {
            let ack = wire::acknowledgement(wire::PUBACK, packet_id);
            return self.connection.send(&ack);
        }
        self.connection
            .send(&wire::acknowledgement(wire::PUBREC, packet_id));
        match self.connection.expect() {
            Packet::Pubrel(ack) => assert_eq!(ack.packet_id, packet_id),
            other => panic!("instead of PUBREL: {other:?}"),
        }
        self.connection
            .send(&wire::acknowledgement(wire::PUBCOMP, packet_id));
    }
}

impl Member {
    /// Exactly these come, in this order; all are acknowledged, and forgotten.
    #[track_caller]
    fn receive_all(&mut self, qos: u8, numbers: &[u32], within: Duration) {
        self.receive(numbers.len(), within);
        assert_eq!(self.numbers(), numbers);
        for (_, packet_id) in std::mem::take(&mut self.came) {
            self.acknowledge(qos, packet_id);
        }
    }
}

struct Publisher(Connection);

impl Publisher {
    #[track_caller]
    fn publish(&mut self, topic: &str, qos: u8, number: u32) {
        let packet_id = self.0.packet_id();
        let message = Message::new(topic, number.to_string()).qos(qos, packet_id);
        self.0.send(&message.bytes(V5));
        match (qos, self.0.expect()) {
            (1, Packet::Puback(ack)) => assert!(ack.code < 0x80, "{ack:?}"),
            (_, Packet::Pubrec(ack)) => {
                assert!(ack.code < 0x80, "{ack:?}");
                self.0.send(&wire::acknowledgement(wire::PUBREL, packet_id));
                let last = self.0.expect();
                assert!(matches!(last, Packet::Pubcomp(_)), "{last:?}");
            }
            (_, other) => panic!("{number} was answered {other:?}"),
        }
    }
}

/// How the first member ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Connection,
    Node,
}

#[test]
fn a_members_connection_ends() {
    let mut cluster = cluster();
    show(&mut cluster, 1, End::Connection);
    show(&mut cluster, 2, End::Connection);
}

#[test]
fn a_members_node_is_killed() {
    let mut cluster = cluster();
    show(&mut cluster, 1, End::Node);
    show(&mut cluster, 2, End::Node);
}

#[track_caller]
fn show(cluster: &mut Cluster, qos: u8, end: End) {
    let name = format!("shared-{end:?}-{qos}").to_lowercase();
    let (topic, filter) = (format!("{name}/t"), format!("$share/g/{name}/t"));
    let home = cluster.a_follower();
    let elsewhere = (0..3).find(|node| *node != home).expect("there are three");
    let (connection, _) = Connection::connect(
        cluster.mqtt(elsewhere),
        &Connect::v5(&format!("{name}-publisher")),
    );
    let mut publisher = Publisher(connection);
    let mut first = Member::join(
        cluster,
        home,
        &format!("{name}-first"),
        &filter,
        RECEIVE_MAXIMUM,
    );
    for number in 1..=FIRST {
        publisher.publish(&topic, qos, number);
    }
    // Its receive maximum, and one more for each that it acknowledges: what brings that one shows that the
    // acknowledgement is in the log.
    first.receive(usize::from(RECEIVE_MAXIMUM), TIMEOUT);
    for index in 0..ACKNOWLEDGED as usize {
        let (_, packet_id) = first.came[index];
        first.acknowledge(qos, packet_id);
        first.receive(usize::from(RECEIVE_MAXIMUM) + index + 1, TIMEOUT);
    }
    first.connection.expect_nothing();
    let given = u32::from(RECEIVE_MAXIMUM) + ACKNOWLEDGED;
    assert_eq!(first.numbers(), (1..=given).collect::<Vec<_>>(), "{name}");
    let unacknowledged: Vec<u32> = (ACKNOWLEDGED + 1..=given).collect();
    // Another member gets what waits.
    let mut second = Member::join(cluster, elsewhere, &format!("{name}-second"), &filter, 100);
    let waiting: Vec<u32> = (given + 1..=FIRST).collect();
    second.receive_all(qos, &waiting, TIMEOUT);
    second.connection.expect_nothing();
    match end {
        // Without a DISCONNECT.
        End::Connection => drop(first),
        End::Node => cluster.nodes[home].kill(),
    }
    if qos == 1 {
        // What it had not acknowledged goes to the other one: each once, in order.
        second.receive_all(qos, &unacknowledged, REASSIGNED_WITHIN);
    } else {
        // Its session ends with it.
        wait_ended(cluster, elsewhere, &format!("{name}-first"));
    }
    // Whatever is published now comes, and nothing before it: [MQTT-4.8.2-5].
    let later: Vec<u32> = (FIRST + 1..=FIRST + 2 * u32::from(RECEIVE_MAXIMUM)).collect();
    for number in &later {
        publisher.publish(&topic, qos, *number);
    }
    second.receive_all(qos, &later, REASSIGNED_WITHIN);
    second.connection.expect_nothing();
    if let End::Node = end {
        cluster.start_node(home);
        cluster.wait_ready();
        second.connection.expect_nothing();
    }
    second.connection.disconnect();
}

/// Waits until there is no session of that client.
#[track_caller]
fn wait_ended(cluster: &Cluster, node: usize, client_id: &str) {
    let deadline = Instant::now() + REASSIGNED_WITHIN;
    while cluster.nodes[node].has_session(client_id) {
        assert!(
            Instant::now() < deadline,
            "the session of {client_id} lives"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
