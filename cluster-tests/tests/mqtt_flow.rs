//! A subscriber that reads slowly costs bounded memory, slows down those who publish to it and nobody else, and loses
//! nothing that was acknowledged while it is waited for.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::flow::{self, Load, ReadRate};
use cluster_tests::rules;
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Message, Packet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEFERRED: &str = "quorumq_acknowledgements_deferred_total";
const DROPPED: &str = "quorumq_messages_dropped_total";
const STALLED: &str = "quorumq_subscribers_stalled_total";
const MEMORY: &str = "process_resident_memory_bytes";

/// `mqtt.outbox_stall_s` in these tests.
const STALL: Duration = Duration::from_secs(4);

#[test]
fn back_pressure() {
    let cluster = Cluster::start_with(Plan {
        mqtt: format!("outbox_stall_s = {}", STALL.as_secs()),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            a_subscriber_that_reads_slowly_slows_its_publishers_and_nobody_else,
            a_subscriber_that_acknowledges_slowly_slows_its_publishers,
            acknowledgements_of_logged_messages_are_deferred_on_the_subscribers_node,
            a_publisher_with_messages_unacknowledged_waits_as_others_do,
            a_subscriber_that_reads_steadily_stays,
            a_subscriber_that_does_not_read_is_ended,
        ],
    );
}

fn sum(cluster: &Cluster, metric: &str) -> f64 {
    let nodes = cluster.nodes.iter();
    nodes.filter_map(|node| node.metric(metric)).sum()
}

/// Two publishers on each of two nodes, with QoS 1 and 2, and what they saw.
fn publish_from_two_nodes(cluster: &Cluster, load: &Load) -> Vec<flow::PublisherStats> {
    std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..4)
            .map(|number| {
                let load = Load {
                    qos: 1 + (number / 2) as u8,
                    ..load.clone()
                };
                let address = cluster.mqtt(number % 2);
                scope.spawn(move || {
                    let name = format!("{}-pub-{number}", load.topic);
                    let connection = Connection::v5(address, &name);
                    flow::publish(connection, number as u32, &load)
                })
            })
            .collect();
        let joined = publishers.into_iter().map(|publisher| publisher.join());
        joined
            .map(|seen| seen.expect("the publisher is through"))
            .collect()
    })
}

/// One message at a time from one client to another until it is told to stop; the round trips.
fn ping(address: std::net::SocketAddr, stop: &AtomicBool) -> Vec<Duration> {
    let mut from = Connection::v5(address, "ping-from");
    let mut to = Connection::v5(address, "ping-to");
    to.subscribe(&[("ping", 1)]);
    let mut trips = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        from.publish(Message::new("ping", "x").qos(1, 0));
        to.publish_received();
        trips.push(began.elapsed());
    }
    trips.sort_unstable();
    trips
}

fn a_subscriber_that_reads_slowly_slows_its_publishers_and_nobody_else(cluster: &Cluster) {
    let (deferred, dropped) = (sum(cluster, DEFERRED), sum(cluster, DROPPED));
    let memory = sum(cluster, MEMORY);
    let mut slow = flow::with_small_buffer(cluster.mqtt(0), &Connect::v5("slow-reader"));
    slow.subscribe(&[("slow", 2)]);
    let load = Load {
        topic: "slow".into(),
        qos: 1,
        messages: 3000,
        bytes: 32 * 1024,
        window: 1000,
    };
    let stop = AtomicBool::new(false);
    let most = std::sync::Mutex::new(0.0f64);
    let trips = std::thread::scope(|scope| {
        let trips = scope.spawn(|| ping(cluster.mqtt(0), &stop));
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let now = sum(cluster, MEMORY);
                let mut most = most.lock().expect("nobody panics with it");
                *most = most.max(now);
                drop(most);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let publishers = scope.spawn(|| publish_from_two_nodes(cluster, &load));
        let rate = ReadRate {
            messages: 64,
            rest: Duration::from_millis(30),
        };
        flow::subscribe(&mut slow, 4 * load.messages, rate);
        let seen = publishers.join().expect("all is acknowledged");
        stop.store(true, Ordering::Relaxed);
        for published in seen {
            assert_eq!(published.acknowledged, load.messages);
            let longest = published.longest_gap;
            assert!(longest < TIMEOUT, "{published:?}");
        }
        trips.join().expect("the others are served")
    });
    assert_eq!(
        sum(cluster, DROPPED) - dropped,
        0.0,
        "something was dropped"
    );
    assert!(sum(cluster, DEFERRED) > deferred, "nobody had to wait");
    let grown = *most.lock().expect("nobody panics with it") - memory;
    // What nodes need to come up to speed is a part of it; what was published is more than twice as much.
    let published = f64::from(4 * load.messages) * load.bytes as f64;
    assert!(
        grown < 0.45 * published,
        "{grown} bytes more with {published} bytes published"
    );
    let (median, worst) = (trips[trips.len() / 2], trips[trips.len() - 1]);
    eprintln!(
        "{} round trips of others: median {median:?}, worst {worst:?}; {grown} bytes more",
        trips.len()
    );
    assert!(
        median < wait::allowed(Duration::from_millis(50)),
        "median {median:?}"
    );
    assert!(
        worst < wait::allowed(Duration::from_secs(2)),
        "worst {worst:?}"
    );
}

/// Its socket is empty all the time, but its receive maximum is small.
fn a_subscriber_that_acknowledges_slowly_slows_its_publishers(cluster: &Cluster) {
    let (deferred, dropped) = (sum(cluster, DEFERRED), sum(cluster, DROPPED));
    let connect = flow::connect_with_maximum("slow-acknowledger", 10);
    let mut slow = Connection::connect(cluster.mqtt(1), &connect).0;
    slow.subscribe(&[("slow-ack", 2)]);
    let load = Load {
        topic: "slow-ack".into(),
        qos: 1,
        messages: 1000,
        bytes: 1024,
        window: 500,
    };
    std::thread::scope(|scope| {
        let publishers = scope.spawn(|| publish_from_two_nodes(cluster, &load));
        let rate = ReadRate {
            messages: 10,
            rest: Duration::from_millis(8),
        };
        flow::subscribe(&mut slow, 4 * load.messages, rate);
        publishers.join().expect("all is acknowledged");
    });
    assert_eq!(
        sum(cluster, DROPPED) - dropped,
        0.0,
        "something was dropped"
    );
    assert!(sum(cluster, DEFERRED) > deferred, "nobody had to wait");
}

/// A durable subscriber sends the topic's messages through the log. There, too, the slow one beside it slows the
/// publishers of its own node.
fn acknowledgements_of_logged_messages_are_deferred_on_the_subscribers_node(cluster: &Cluster) {
    let (deferred, dropped) = (sum(cluster, DEFERRED), sum(cluster, DROPPED));
    let durable = Connect::v5("logged-durable").durable(600);
    let mut durable = Connection::connect(cluster.mqtt(1), &durable).0;
    durable.subscribe(&[("logged", 1)]);
    let mut slow = flow::with_small_buffer(cluster.mqtt(0), &Connect::v5("logged-slow"));
    slow.subscribe(&[("logged", 1)]);
    let load = Load {
        topic: "logged".into(),
        qos: 1,
        messages: 4000,
        bytes: 2048,
        window: 400,
    };
    let publisher = Connection::v5(cluster.mqtt(0), "logged-pub");
    let quick = ReadRate {
        messages: u32::MAX,
        rest: Duration::ZERO,
    };
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| flow::publish(publisher, 1, &load));
        scope.spawn(|| flow::subscribe(&mut durable, load.messages, quick));
        let rate = ReadRate {
            messages: 64,
            rest: Duration::from_millis(60),
        };
        flow::subscribe(&mut slow, load.messages, rate);
        publisher.join().expect("all is acknowledged");
    });
    assert_eq!(
        sum(cluster, DROPPED) - dropped,
        0.0,
        "something was dropped"
    );
    assert!(sum(cluster, DEFERRED) > deferred, "nobody had to wait");
}

/// It never acknowledges what it has sent to itself, and sends ten times what may wait for a subscriber that takes a
/// few megabytes a second.
fn a_publisher_with_messages_unacknowledged_waits_as_others_do(cluster: &Cluster) {
    for node in [0, 1] {
        let load = Load {
            topic: format!("behind-{node}"),
            qos: 1,
            messages: 1000,
            bytes: 16 << 10,
            window: 1000,
        };
        let connect = flow::connect_with_maximum(&format!("{}-reader", load.topic), 100);
        let mut reader = flow::with_small_buffer(cluster.mqtt(0), &connect);
        reader.subscribe(&[(&load.topic, 1)]);
        let own = format!("{}-own", load.topic);
        let connect = flow::connect_with_maximum(&own, 1);
        let mut behind = Connection::connect(cluster.mqtt(node), &connect).0;
        behind.subscribe(&[(&own, 1)]);
        for _ in 0..2 {
            let packet_id = behind.packet_id();
            let message = Message::new(&own, "never acknowledged").qos(1, packet_id);
            behind.send(&message.bytes(behind.level()));
        }
        for _ in 0..3 {
            let received = behind.expect();
            assert!(
                matches!(received, Packet::Publish(_) | Packet::Puback(_)),
                "{received:?}"
            );
        }
        std::thread::scope(|scope| {
            let published = scope.spawn(|| flow::publish(behind, 0, &load));
            let rate = ReadRate {
                messages: 4,
                rest: Duration::from_millis(16),
            };
            flow::subscribe(&mut reader, load.messages, rate);
            published.join().expect("all is acknowledged");
        });
    }
}

/// Publishes with as many messages unacknowledged as fit into a window, until it is told to stop. With QoS 0 it waits a
/// little after as many.
fn publish_until(mut publisher: Connection, qos: u8, stop: &AtomicBool) {
    const WINDOW: usize = 200;
    let mut under_way = 0;
    while !stop.load(Ordering::Relaxed) {
        while under_way < WINDOW {
            let packet_id = publisher.packet_id();
            let message = Message::new("steady", vec![b's'; 4096]).qos(qos, packet_id);
            publisher.send(&message.bytes(publisher.level()));
            under_way += 1;
        }
        match publisher.receive(Duration::from_millis(100)) {
            Ok(Packet::Puback(ack)) if ack.code < 0x80 => under_way -= 1,
            Err(Fault::Timeout) if qos == 0 => under_way = 0,
            Err(Fault::Timeout) => {}
            other => panic!("QoS {qos}: {other:?}"),
        }
    }
}

/// Reads so many PUBLISH packets, and acknowledges them.
fn read(subscriber: &mut Connection, messages: usize) {
    for _ in 0..messages {
        match subscriber.receive(flow::LIMIT) {
            Ok(Packet::Publish(publish)) if publish.qos == 1 => {
                subscriber.send(&wire::acknowledgement(wire::PUBACK, publish.packet_id));
            }
            Ok(Packet::Publish(_)) => {}
            other => panic!("a subscriber that reads: {other:?}"),
        }
    }
}

/// 60 kB/s are twice as much as a client must read. Because it has read fast before, its system has made room for
/// megabytes, and shows for many seconds nothing of what the client reads of them.
fn a_subscriber_that_reads_steadily_stays(cluster: &Cluster) {
    let (stalled, deferred) = (sum(cluster, STALLED), sum(cluster, DEFERRED));
    let mut steady = Connection::v5(cluster.mqtt(0), "steady");
    steady.subscribe(&[("steady", 1)]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, qos) in [1, 1, 0].into_iter().enumerate() {
            let name = format!("steady-pub-{number}");
            let publisher = Connection::v5(cluster.mqtt(number % 2), &name);
            let stop = &stop;
            scope.spawn(move || publish_until(publisher, qos, stop));
        }
        // Whatever becomes of the subscriber, the publishers are told to stop.
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            read(&mut steady, 20_000);
            let began = Instant::now();
            while began.elapsed() < 5 * STALL {
                read(&mut steady, 3);
                std::thread::sleep(Duration::from_millis(200));
            }
        }));
        stop.store(true, Ordering::Relaxed);
        read.expect("it is served");
    });
    assert_eq!(sum(cluster, STALLED) - stalled, 0.0, "it was stalled");
    assert!(sum(cluster, DEFERRED) > deferred, "nobody had to wait");
}

fn a_subscriber_that_does_not_read_is_ended(cluster: &Cluster) {
    let stalled = sum(cluster, STALLED);
    let mut dead = flow::with_small_buffer(cluster.mqtt(0), &Connect::v5("dead"));
    dead.subscribe(&[("dead", 2)]);
    let load = Load {
        topic: "dead".into(),
        qos: 1,
        messages: 6000,
        bytes: 1024,
        window: 500,
    };
    for published in publish_from_two_nodes(cluster, &load) {
        assert_eq!(published.acknowledged, load.messages);
        let longest = published.longest_gap;
        assert!(longest < STALL + TIMEOUT, "{published:?}");
    }
    assert_eq!(sum(cluster, STALLED) - stalled, 1.0);
    let rest = dead.read_to_end(flow::LIMIT).expect("it is closed");
    assert!(rest.len() > 64 << 10, "only {} bytes were left", rest.len());
}

#[test]
fn a_stalled_subscriber_may_miss_messages_instead() {
    let cluster = Cluster::start_with(Plan {
        size: 1,
        mqtt: "outbox_stall_s = 2\noutbox_full = \"drop\"".into(),
        ..Plan::default()
    });
    let node = &cluster.nodes[0];
    let mut dead = flow::with_small_buffer(cluster.mqtt(0), &Connect::v5("dead"));
    dead.subscribe(&[("dead", 1)]);
    let load = Load {
        topic: "dead".into(),
        qos: 1,
        messages: 12_000,
        bytes: 1024,
        window: 500,
    };
    let began = Instant::now();
    let publisher = Connection::v5(cluster.mqtt(0), "dead-pub");
    let published = flow::publish(publisher, 1, &load);
    assert_eq!(published.acknowledged, load.messages);
    assert!(published.slowest >= Duration::from_secs(1), "{published:?}");
    assert_eq!(node.metric(STALLED), Some(1.0));
    let dropped = node.metric(DROPPED).unwrap_or(0.0);
    assert!(
        dropped > 0.0,
        "nothing was dropped in {:?}",
        began.elapsed()
    );
    // What was kept comes in order; then the client is served as before.
    let mut publisher = Connection::v5(cluster.mqtt(0), "dead-pub");
    let mut last = None;
    let mut count = 0;
    while f64::from(count) < f64::from(load.messages) - dropped {
        let publish = dead.publish_received();
        let number = publish.payload[4..8].to_vec();
        assert!(Some(&number) > last.as_ref(), "out of order");
        last = Some(number);
        count += 1;
    }
    publisher.publish(Message::new("dead", "x").qos(1, 0));
    assert_eq!(dead.publish_received().payload, b"x");
}

/// The subscriber's node dies while publishers of another node wait for the subscriber.
#[test]
fn the_end_of_the_subscribers_node_releases_publishers() {
    let mut cluster = Cluster::start_with(Plan {
        mqtt: "outbox_stall_s = 600".into(),
        ..Plan::default()
    });
    let mut dead = flow::with_small_buffer(cluster.mqtt(2), &Connect::v5("dead"));
    dead.subscribe(&[("dead", 2)]);
    let load = Load {
        topic: "dead".into(),
        qos: 1,
        messages: 8000,
        bytes: 1024,
        window: 400,
    };
    std::thread::scope(|scope| {
        let published = {
            let (load, addresses) = (&load, cluster.addresses());
            let publishers: Vec<_> = (0..2u8)
                .map(|number| {
                    let connection =
                        Connection::v5(addresses[usize::from(number)], &format!("pub-{number}"));
                    let load = Load {
                        qos: 1 + number,
                        ..load.clone()
                    };
                    scope.spawn(move || flow::publish(connection, number.into(), &load))
                })
                .collect();
            publishers
        };
        wait::until("publishers to wait", flow::LIMIT, || {
            let deferred = cluster.nodes[2].metric(DEFERRED)?;
            let sent = cluster.nodes[2].metric("quorumq_messages_sent_total")?;
            std::thread::sleep(Duration::from_millis(200));
            let later = cluster.nodes[2].metric("quorumq_messages_sent_total")?;
            (deferred > 0.0 && later == sent).then_some(())
        });
        assert!(published.iter().all(|publisher| !publisher.is_finished()));
        cluster.nodes[2].kill();
        for publisher in published {
            let seen = publisher.join().expect("all is acknowledged");
            assert_eq!(seen.acknowledged, load.messages);
        }
    });
    assert!(matches!(
        dead.read_to_end(TIMEOUT),
        Ok(_) | Err(Fault::Closed)
    ));
}
