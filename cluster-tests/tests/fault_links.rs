//! P11, P12: one link is cut, or one node is silent, and nobody who has to do with the others waits for long.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::wait::{allowed, allowed_times};
use cluster_tests::wire::{Message, Packet, V5};
use std::time::{Duration, Instant};

/// The longest time from a PUBLISH to its PUBACK when the subscriber's node cannot be reached, but the leader can: a
/// second until the message goes through the log, and another one for slow machines.
const CONFIRMATION_WITHIN: Duration = Duration::from_secs(2);

/// A publisher that waited for the lease of the node instead (`cluster.node_lease_ms`) waited that long.
const LEASE: Duration = Duration::from_secs(5);

/// The longest time from SUBSCRIBE to SUBACK on a healthy node while another one is silent.
const SUBACK_WITHIN: Duration = Duration::from_millis(500);

/// Subscribers that waited for a silent node until its lease ended waited that long, one after the other.
const WAITED_FOR_SILENT: Duration = Duration::from_millis(1_250);

/// What a busy machine is allowed here: less than [`allowed`], by which these waits would not be found.
const TIMES: u32 = 2;

/// SUBACKs that may be as late as [`allowed`] lets them: what holds the machine up does not hit as many.
const LATE: usize = 2;

/// What hangs is given up after this.
const HANGS: Duration = Duration::from_secs(20);

const _: () = assert!(
    CONFIRMATION_WITHIN.as_millis() * (TIMES as u128) < LEASE.as_millis()
        && SUBACK_WITHIN.as_millis() * (TIMES as u128) < WAITED_FOR_SILENT.as_millis()
        && WAITED_FOR_SILENT.as_millis() * (LATE as u128 + 1) < LEASE.as_millis()
        && LEASE.as_millis() < HANGS.as_millis(),
    "each wait would be found"
);

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
    let bound = allowed_times(CONFIRMATION_WITHIN, TIMES);
    assert!(
        longest < bound,
        "a PUBACK after {longest:?}, {bound:?} allowed"
    );
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
    let count = took.len();
    took.sort_unstable_by_key(|(suback, ..)| std::cmp::Reverse(*suback));
    let longest = took[0].0;
    let many = took.get(LATE).map_or(Duration::ZERO, |took| took.0);
    eprintln!("{count} SUBACKs, the longest after {longest:?}, all but {LATE} within {many:?}");
    let (bound, bound_of_many) = (allowed(SUBACK_WITHIN), allowed_times(SUBACK_WITHIN, TIMES));
    assert!(
        longest < bound && many < bound_of_many,
        "of {count} SUBACKs one took {longest:?} ({bound:?} allowed), and {} as long as {many:?} ({bound_of_many:?} \
         allowed); the longest (SUBACK, CONNACK before it, time since the pause): {:?}",
        LATE + 1,
        &took[..count.min(10)]
    );
}
