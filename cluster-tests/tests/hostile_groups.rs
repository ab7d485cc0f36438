//! P12: shared subscriptions without number, beside clients that behave.

use cluster_tests::attacks;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::hostile::{Terms, beside_on};
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, Value, id};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

attacks![
    messages_to_ten_thousand_groups,
    messages_and_subscriptions_in_turns,
];

/// As many as one session may have (`mqtt.max_subscriptions`), but for a few.
const GROUPS: usize = 9_900;

/// How long each attack goes on.
const ATTACK: Duration = Duration::from_secs(10);

/// How long a SUBSCRIBE or a PUBLISH of the attacker may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A client that is the one member of each of so many groups of a topic.
fn member(address: SocketAddr, topic: &str) -> Connection {
    let connect = Connect::v5("member").durable(60);
    let connect = connect.with(id::RECEIVE_MAXIMUM, Value::TwoBytes(65_535));
    let mut member = Connection::connect(address, &connect).0;
    let groups: Vec<String> = (0..GROUPS)
        .map(|number| format!("$share/g{number:04}/{topic}"))
        .collect();
    for (number, some) in groups.chunks(1_000).enumerate() {
        let filters: Vec<(&str, u8)> = some.iter().map(|group| (group.as_str(), 1)).collect();
        let list = Properties::new();
        member.send(&wire::subscribe(V5, number as u16 + 1, &list, &filters));
        match member.receive(ANSWER_WITHIN) {
            Ok(Packet::Suback(suback)) => {
                assert!(suback.codes.iter().all(|code| *code < 0x80), "{suback:?}");
            }
            other => panic!("instead of SUBACK: {other:?}"),
        }
    }
    member
}

/// What was published, and what became of it.
#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    refused: AtomicU64,
    delivered: AtomicU64,
}

/// Publishes with many PUBLISHes under way, until it is stopped.
fn publish_on(address: SocketAddr, name: &str, topic: &str, stop: &AtomicBool, counts: &Counts) {
    const UNDER_WAY: usize = 500;
    let mut publisher = Connection::v5(address, name);
    let mut under_way = 0;
    while !stop.load(Ordering::Relaxed) || under_way > 0 {
        while under_way < UNDER_WAY && !stop.load(Ordering::Relaxed) {
            let packet_id = publisher.packet_id();
            publisher.send(&Message::new(topic, [b'x'; 16]).qos(1, packet_id).bytes(V5));
            under_way += 1;
        }
        match publisher.receive(ANSWER_WITHIN) {
            Ok(Packet::Puback(ack)) => {
                under_way -= 1;
                let count = match ack.code < 0x80 {
                    true => &counts.taken,
                    false => &counts.refused,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Reads and acknowledges whatever comes, until it is stopped.
fn acknowledge_on(member: &mut Connection, stop: &AtomicBool, counts: &Counts) {
    while !stop.load(Ordering::Relaxed) {
        if member.next_publish(Duration::from_millis(100)).is_ok() {
            counts.delivered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Subscribes and unsubscribes again and again, without waiting for an answer.
fn change_on(address: SocketAddr, name: &str, topic: &str, stop: &AtomicBool) {
    const AT_ONCE: u16 = 50;
    let mut client = Connection::v5(address, name);
    while !stop.load(Ordering::Relaxed) {
        let filter = format!("$share/{name}/{topic}");
        let changes = (1..=AT_ONCE).flat_map(|number| {
            let list = Properties::new();
            let subscribe = wire::subscribe(V5, number, &list, &[(&filter, 1)]);
            [
                subscribe,
                wire::unsubscribe(V5, number + AT_ONCE, &[&filter]),
            ]
            .concat()
        });
        client.send(&changes.collect::<Vec<_>>());
        let mut answers = 0;
        while answers < 2 * AT_ONCE {
            match client.receive(ANSWER_WITHIN) {
                Ok(Packet::Suback(_) | Packet::Unsuback(_)) => answers += 1,
                Ok(Packet::Publish(_)) => {}
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

fn terms() -> Terms {
    Terms {
        // What waits in queues, in memory until it is flushed.
        memory_growth: 480 << 20,
        ..Terms::default()
    }
}

/// Each message is ten thousand rows of work.
fn messages_to_ten_thousand_groups(cluster: &mut Cluster) {
    let nodes = cluster.nodes.len();
    let mut member = member(cluster.mqtt(0), "t");
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    beside_on(cluster, &terms(), |cluster| {
        std::thread::scope(|scope| {
            let (stop, counts, cluster) = (&stop, &counts, &*cluster);
            for publisher in 0..3 {
                let address = cluster.mqtt(publisher % nodes);
                let name = format!("hostile-{publisher}");
                scope.spawn(move || publish_on(address, &name, "t", stop, counts));
            }
            let member = &mut member;
            scope.spawn(move || acknowledge_on(member, stop, counts));
            std::thread::sleep(ATTACK);
            let owed = cluster.nodes[0].metric("quorumq_fan_outs");
            eprintln!("{owed:?} messages are still to go into queues");
            assert!(owed > Some(0.0), "each is more than an entry may do");
            stop.store(true, Ordering::Relaxed);
        });
        eprintln!("{counts:?}");
        assert!(counts.taken.load(Ordering::Relaxed) > 0);
        end(cluster, member);
    });
}

/// Each change outdates the look-up of ten thousand groups, which each message needs.
fn messages_and_subscriptions_in_turns(cluster: &mut Cluster) {
    let nodes = cluster.nodes.len();
    let mut member = member(cluster.mqtt(0), "t");
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    beside_on(cluster, &terms(), |cluster| {
        std::thread::scope(|scope| {
            let (stop, counts, cluster) = (&stop, &counts, &*cluster);
            for number in 0..6 {
                let address = cluster.mqtt(number % nodes);
                scope.spawn(move || {
                    publish_on(address, &format!("hostile-{number}"), "t", stop, counts);
                });
                scope.spawn(move || change_on(address, &format!("changes-{number}"), "t", stop));
            }
            let member = &mut member;
            scope.spawn(move || acknowledge_on(member, stop, counts));
            std::thread::sleep(ATTACK);
            stop.store(true, Ordering::Relaxed);
        });
        eprintln!("{counts:?}");
        assert!(counts.taken.load(Ordering::Relaxed) > 0);
        end(cluster, member);
    });
}

/// The session of all groups ends, and so does everything that waits in them.
fn end(cluster: &Cluster, mut member: Connection) {
    let at_once = Properties::new().with(id::SESSION_EXPIRY, Value::FourBytes(0));
    member.send(&wire::disconnect(V5, 0, &at_once));
    let began = Instant::now();
    wait::until("nothing to be left of it", Duration::from_secs(300), || {
        let nodes = cluster.nodes.iter();
        let mut left = nodes.map(|node| {
            let metric = |name| node.metric(name).unwrap_or(1.0);
            metric("quorumq_fan_outs") + metric("quorumq_queued_messages")
        });
        left.all(|left| left == 0.0).then_some(())
    });
    eprintln!("all of it was gone after {:.1?}", began.elapsed());
}
