//! P11, P12: one link is cut, or one node is silent, and nobody who has to do with the others waits for long.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::wait::{allowed, can_exceed, with_slack};
use cluster_tests::wire::{Message, Packet, V5};
use std::time::{Duration, Instant};

/// The longest time from a PUBLISH to its PUBACK when the subscriber's node cannot be reached, but the leader can:
/// `cluster.node_lease_ms`, and a second for slow machines.
const CONFIRMATION_WITHIN: Duration = Duration::from_secs(6);

/// The longest time from SUBSCRIBE to SUBACK on a healthy node while another one is silent.
const SUBACK_WITHIN: Duration = Duration::from_millis(500);

/// What hangs is given up after this.
const HANGS: Duration = Duration::from_secs(20);

const _: () = assert!(can_exceed(CONFIRMATION_WITHIN, HANGS));

/// Publishes with QoS 1; how long the PUBACK took.
fn publish(publisher: &mut Connection, topic: &str) -> Duration {
    let packet_id = publisher.packet_id();
    let began = Instant::now();
    publisher.send(&Message::new(topic, "x").qos(1, packet_id).bytes(V5));
    match publisher.receive(HANGS) {
        Ok(Packet::Puback(ack)) => assert_eq!(ack.packet_id, packet_id),
        other => panic!("no PUBACK after {:?}: {other:?}", began.elapsed()),
    }
    began.elapsed()
}

#[test]
fn a_publisher_does_not_wait_for_a_node_that_only_the_leader_reaches() {
    let cluster = Cluster::start_with(Plan {
        network: true,
        ..Plan::default()
    });
    let leader = cluster.wait_leader();
    let (near, far) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut subscriber = Connection::v5(cluster.mqtt(far), "subscriber");
    subscriber.subscribe(&[("links/#", 1)]);
    let mut publisher = Connection::v5(cluster.mqtt(near), "publisher");
    let mut took = vec![publish(&mut publisher, "links/whole")];
    subscriber.publish_received();
    cluster.network().separate(near, far);
    // Some are known to the other side only by the second: the link's buffers take the first.
    took.extend((0..4).map(|number| publish(&mut publisher, &format!("links/cut/{number}"))));
    cluster.network().heal();
    eprintln!("PUBACK after {took:?}");
    let longest = took.into_iter().max().expect("there are some");
    assert!(longest < with_slack(CONFIRMATION_WITHIN), "{longest:?}");
    // It goes on by itself.
    let mut again = Connection::v5(cluster.mqtt(far), "again");
    again.subscribe(&[("links/#", 1)]);
    publish(&mut publisher, "links/healed");
    assert_eq!(again.publish_received().topic, "links/healed");
}

#[test]
fn a_subscriber_of_a_healthy_node_does_not_wait_for_a_silent_one() {
    let mut cluster = Cluster::start();
    let silent = cluster.a_follower();
    let healthy = [(silent + 1) % 3, (silent + 2) % 3];
    cluster.nodes[silent].pause();
    let began = Instant::now();
    let mut took = Vec::new();
    while began.elapsed() < Duration::from_secs(6) {
        let number = took.len();
        let node = cluster.mqtt(healthy[number % 2]);
        let asked = Instant::now();
        let mut client = Connection::v5(node, &format!("comes-{number}"));
        let connected = asked.elapsed();
        client.subscribe(&[(&format!("silent/{number}/+"), 1)]);
        took.push((asked.elapsed() - connected, connected, began.elapsed()));
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.nodes[silent].resume();
    let slow: Vec<_> = took
        .iter()
        .filter(|took| took.0 > allowed(SUBACK_WITHIN))
        .collect();
    let (longest, ..) = took.iter().max().expect("there are some");
    let count = took.len();
    eprintln!("{count} SUBACKs, the longest after {longest:?}");
    assert!(
        slow.is_empty(),
        "{} of {count} SUBACKs took longer (SUBACK, CONNACK before it, time since the pause): {slow:?}",
        slow.len()
    );
}
