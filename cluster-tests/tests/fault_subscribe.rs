//! SUBACK while a node is silent, and what that node accepts when it comes back: P6.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wire::{Message, Packet};

/// A lease that no test outlasts: the silent node is never declared dead.
fn without_lease_end() -> Plan {
    let lease = |index| {
        [
            ("QUORUMQ__CLUSTER__NODE_LEASE_MS", "600000"),
            ("QUORUMQ__CLUSTER__GIVE_UP_MS", "300000"),
        ]
        .map(|(name, value)| (index, name.to_owned(), value.to_owned()))
    };
    Plan {
        environment: (0..3).flat_map(lease).collect(),
        ..Plan::default()
    }
}

/// A subscriber does not wait for a paused node. A message that this node is sent while it is paused, and accepts when
/// it goes on, reaches the subscriber all the same.
#[test]
fn a_paused_node_holds_no_suback_up_and_misses_no_subscription() {
    let mut cluster = Cluster::start_with(without_lease_end());
    for round in 0..6 {
        let paused = cluster.a_follower();
        let other = (paused + 1 + round % 2) % 3;
        let topic = format!("silent/{round}");
        let qos = (round % 2) as u8;
        let mut publisher = Connection::v5(cluster.mqtt(paused), &format!("publisher-{round}"));
        let mut subscriber = Connection::v5(cluster.mqtt(other), &format!("subscriber-{round}"));
        cluster.nodes[paused].pause();
        let packet_id = publisher.packet_id();
        publisher.send(&Message::new(&topic, "x").qos(qos, packet_id).bytes(5));
        subscriber.subscribe(&[(&topic, 1)]);
        cluster.nodes[paused].resume();
        if qos == 1 {
            match publisher.expect_answer() {
                Packet::Puback(ack) => assert_eq!((ack.packet_id, ack.code), (packet_id, 0)),
                other => panic!("instead of PUBACK: {other:?}"),
            }
        }
        let publish = subscriber
            .next_publish(TIMEOUT)
            .unwrap_or_else(|fault| panic!("round {round}: {topic} was missed: {fault:?}"));
        assert_eq!((publish.topic, publish.qos), (topic, qos));
    }
}

/// The same with a node that is gone.
#[test]
fn a_killed_node_holds_no_suback_up() {
    let mut cluster = Cluster::start_with(without_lease_end());
    let killed = cluster.a_follower();
    cluster.nodes[killed].kill();
    let other = (killed + 1) % 3;
    let mut subscriber = Connection::v5(cluster.mqtt(other), "subscriber");
    subscriber.subscribe(&[("gone/+", 1)]);
    let mut publisher = Connection::v5(cluster.mqtt((killed + 2) % 3), "publisher");
    assert_eq!(publisher.publish(Message::new("gone/1", "x").qos(1, 0)), 0);
    assert_eq!(subscriber.publish_received().topic, "gone/1");
}
