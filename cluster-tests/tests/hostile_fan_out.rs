//! P12: messages to many subscribers, and subscribers that hold their publishers up, beside clients that behave.

use cluster_tests::attacks;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::flow::{self, Load, with_small_buffer};
use cluster_tests::hostile::{Crowd, PINGRESP_WITHIN, Terms, beside, beside_on, one_worker};
use cluster_tests::store::{Request, StoreClient};
use cluster_tests::wait::{self, allowed};
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, V311, Value, Will, id};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Connections that this process and a node hold beside each other.
const SUBSCRIBERS: usize = 2_000;

/// How long publishers wait for a subscriber (`mqtt.outbox_stall_s`).
const STALL: Duration = Duration::from_secs(5);

/// What no attack may take longer than.
const LIMIT: Duration = Duration::from_secs(30);

attacks![
    a_large_message_to_two_thousand_subscribers,
    tiny_messages_to_two_thousand_subscribers,
    subscribers_that_take_everything_are_read,
    subscribers_that_never_acknowledge,
    writes_of_a_key_with_two_thousand_watchers,
    writes_of_a_key_with_two_thousand_watchers_on_another_node,
];

/// Subscribers of one topic on one node; they read.
fn subscribers(address: SocketAddr) -> Crowd {
    Crowd::raise_limits();
    Crowd::connect(
        &[address],
        SUBSCRIBERS,
        |number| Connect::v5(&format!("member-{number}")),
        |_| Some("fan/out".into()),
    )
}

/// A mebibyte each, two gibibytes in all, of which the node needs to hold one mebibyte.
fn a_large_message_to_two_thousand_subscribers(cluster: &mut Cluster) {
    const PAYLOAD: usize = 1_000_000;
    let members = subscribers(cluster.mqtt(0));
    let reader = members.read_on();
    let terms = Terms {
        memory_growth: 256 << 20,
        ..Terms::default()
    };
    beside_on(cluster, &terms, |cluster| {
        let mut publisher = Connection::v5(cluster.mqtt(cluster.nodes.len() - 1), "hostile");
        publisher.send(
            &Message::new("fan/out", vec![7; PAYLOAD])
                .qos(1, 1)
                .bytes(V5),
        );
        let began = Instant::now();
        let all = (SUBSCRIBERS * PAYLOAD) as u64;
        while reader.bytes() < all && began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
        }
        let (read, took) = (reader.bytes() >> 20, began.elapsed());
        eprintln!("{read} MiB of {} read in {took:.1?}", all >> 20);
        // They never acknowledge, which is theirs to do; it must reach them all the same.
        assert!(reader.bytes() >= all, "not all subscribers got it");
    });
    assert_eq!(reader.stop(), 0, "subscribers were ended");
}

/// Connections of one node that watch a key, and read.
fn watchers(address: SocketAddr, key: &str) -> Crowd {
    Crowd::raise_limits();
    let name = |number: usize| format!("watcher-{number}");
    let mut watchers = Crowd::connect(
        &[address],
        SUBSCRIBERS,
        |number| Connect::v5(&name(number)),
        |_| None,
    );
    for (number, watcher) in watchers.0.iter_mut().enumerate() {
        let asks = StoreClient::new(&name(number), &[address], 0);
        // With QoS 0 there is nothing to be acknowledged.
        let mut bytes = wire::subscribe(V5, 1, &Properties::new(), &[(&asks.response_topic, 0)]);
        let request = asks.message(&Request::keynotify(key), &[7; 16], 2);
        bytes.extend(request.bytes(V5));
        watcher.send(&bytes);
    }
    for watcher in &mut watchers.0 {
        loop {
            match watcher.receive(LIMIT) {
                Ok(Packet::Publish(answer)) if answer.payload == b"+OK\r\n" => break,
                Ok(Packet::Suback(_) | Packet::Puback(_)) => {}
                other => panic!("a watcher: {other:?}"),
            }
        }
    }
    watchers
}

/// A client that sends as many SETs of one key as may be under way, and waits until they are acknowledged.
fn write_much(address: SocketAddr, name: &str, key: &str) {
    const AT_ONCE: u16 = 500;
    let asks = StoreClient::new(name, &[address], 0);
    let mut writer = Connection::v5(address, name);
    let writes = (1..=AT_ONCE).flat_map(|number| {
        let request = Request::set(key, number.to_be_bytes());
        let correlation = u128::from(number).to_be_bytes();
        asks.message(&request, &correlation, number).bytes(V5)
    });
    writer.send(&writes.collect::<Vec<_>>());
    let mut acknowledged = 0;
    while acknowledged < AT_ONCE {
        match writer.receive(LIMIT) {
            Ok(Packet::Puback(ack)) if ack.code < 0x80 => acknowledged += 1,
            Ok(Packet::Publish(_)) => {}
            other => panic!("{name} after {acknowledged}: {other:?}"),
        }
    }
}

/// Four million notifications.
fn writes_of_a_key_with_two_thousand_watchers(cluster: &mut Cluster) {
    write_with_watchers_on(cluster, 0);
}

/// The same where the leader, as a rule, has none of them, and sees from the others alone what they have to do.
fn writes_of_a_key_with_two_thousand_watchers_on_another_node(cluster: &mut Cluster) {
    write_with_watchers_on(cluster, cluster.nodes.len() / 2);
}

fn write_with_watchers_on(cluster: &mut Cluster, node: usize) {
    let (near, far) = (cluster.mqtt(node), cluster.mqtt(cluster.nodes.len() - 1));
    let watchers = watchers(near, "watched");
    let reader = watchers.read_on();
    // What waits for watchers is theirs, up to the memory of a connection each.
    let terms = Terms {
        memory_growth: 480 << 20,
        ..Terms::default()
    };
    beside_on(cluster, &terms, |_| {
        std::thread::scope(|scope| {
            for number in 0..4 {
                let name = format!("hostile-{number}");
                scope.spawn(move || write_much(far, &name, "watched"));
            }
        });
    });
    eprintln!("{} MiB of notifications were read", reader.bytes() >> 20);
    assert_eq!(reader.stop(), 0, "watchers were ended");
}

/// A subscriber of the same messages, which takes them as fast as it can, and pings: the longest time until it has its
/// PINGRESP. What is ahead of that is little, as long as its PINGREQs are read.
fn pinged(address: SocketAddr, stop: &AtomicBool) -> Duration {
    let mut member = Connection::v5(address, "member-that-pings");
    member.subscribe(&[("fan/out", 0)]);
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        member.send(&wire::PINGREQ);
        loop {
            match member.receive(LIMIT) {
                Ok(Packet::Pingresp) => break,
                Ok(Packet::Publish(_)) => {}
                other => panic!(
                    "instead of PINGRESP, after {:?}: {other:?}",
                    asked.elapsed()
                ),
            }
        }
        longest = longest.max(asked.elapsed());
    }
    longest
}

/// Whoever is sent much is read all the same.
fn subscribers_that_take_everything_are_read(cluster: &mut Cluster) {
    let members = subscribers(cluster.mqtt(0));
    let reader = members.read_on();
    let stop = AtomicBool::new(false);
    let (address, publisher) = (cluster.mqtt(0), cluster.mqtt(cluster.nodes.len() - 1));
    let longest = std::thread::scope(|scope| {
        let pinged = scope.spawn(|| pinged(address, &stop));
        let mut publisher = Connection::v5(publisher, "hostile");
        let message = Message::new("fan/out", vec![7; 100_000]).bytes(V5);
        let began = Instant::now();
        // Whoever is answered only when it is over is answered too late.
        let flood = allowed(2 * PINGRESP_WITHIN) + Duration::from_secs(2);
        while began.elapsed() < flood {
            publisher.send(&message);
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        pinged.join().expect("it is answered")
    });
    eprintln!(
        "longest PINGRESP {longest:?}; {} MiB read",
        reader.bytes() >> 20
    );
    assert_eq!(reader.stop(), 0, "subscribers were ended");
    assert!(longest < allowed(2 * PINGRESP_WITHIN), "{longest:?}");
}

/// One read of a publisher's socket holds thousands of messages, each for 2,000 subscribers.
fn tiny_messages_to_two_thousand_subscribers(cluster: &mut Cluster) {
    let members = subscribers(cluster.mqtt(0));
    let reader = members.read_on();
    let chunk = Message::new("fan/out", "").bytes(V5).repeat(5_000);
    let terms = Terms {
        // 100 MB are on their way to subscribers that read as they can.
        memory_growth: 256 << 20,
        ..Terms::default()
    };
    beside_on(cluster, &terms, |cluster| {
        let mut publisher = Connection::v5(cluster.mqtt(0), "hostile");
        publisher.send(&chunk);
        let began = Instant::now();
        // QoS 0 is dropped where too much waits; much of it arrives all the same.
        let much = (SUBSCRIBERS * chunk.len()) as u64 / 8;
        while began.elapsed() < Duration::from_secs(4) || reader.bytes() < much {
            let (read, all) = (reader.bytes() >> 20, much >> 17);
            assert!(began.elapsed() < LIMIT, "{read} of {all} MiB arrived");
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} MiB read", reader.bytes() >> 20);
    });
    assert_eq!(reader.stop(), 0, "subscribers were ended");
}

/// Two clean 3.1.1 subscribers: there are more messages than packet ids for them. The publisher waits for them for
/// `mqtt.outbox_stall_s`, and then goes on without.
fn subscribers_that_never_acknowledge(cluster: &mut Cluster) {
    let load = Load {
        topic: "never/acknowledged".into(),
        qos: 1,
        messages: 100_000,
        bytes: 16,
        window: 1000,
    };
    beside(cluster, |cluster| {
        let members = Crowd::connect(
            &[cluster.mqtt(0)],
            2,
            |number| Connect::at(&format!("never-{number}"), V311),
            |_| Some("never/acknowledged".into()),
        );
        let reader = members.read_on();
        let publisher = Connection::v5(cluster.mqtt(cluster.nodes.len() - 1), "hostile");
        let began = Instant::now();
        let seen = flow::publish(publisher, 1, &load);
        eprintln!("{:.1?}, {seen:?}", began.elapsed());
        wait::until("both subscribers to be ended", LIMIT, || {
            (reader.ended() == 2).then_some(())
        });
        // A header of two bytes, the topic with its length, a packet id, the payload.
        let message = (2 + 2 + load.topic.len() + 2 + load.bytes) as u64;
        let received = reader.bytes() / message / 2;
        eprintln!("each subscriber had {received} messages");
        reader.stop();
        assert!(received > 10_000 && received <= 65_535, "{received}");
        assert!(
            seen.slowest > STALL / 2,
            "the publisher was not held back: {seen:?}"
        );
    });
}

/// [MQTT-3.1.2-22]: a publisher whose PUBACKs are held back sends PINGREQs; it is alive, whatever its subscribers do.
#[test]
fn a_publisher_that_is_held_back_and_pings_stays() {
    let cluster = Cluster::start_with(Plan {
        // Held back for as long as the test looks.
        mqtt: "outbox_stall_s = 60\n".into(),
        ..Plan::default()
    });
    for (round, same_node) in [true, false].into_iter().enumerate() {
        let topic = format!("held/{round}");
        let mut watcher = Connection::v5(cluster.mqtt(2), &format!("watcher-{round}"));
        watcher.subscribe(&[(&format!("will/{round}"), 1)]);
        let near = cluster.mqtt(0);
        let mut slow = with_small_buffer(near, &Connect::v5(&format!("slow-{round}")));
        slow.subscribe(&[(&topic, 1)]);
        let mut connect = Connect::v5(&format!("publisher-{round}")).keep_alive(4);
        connect.will = Some(Will {
            topic: format!("will/{round}"),
            payload: b"gone".to_vec(),
            ..Will::default()
        });
        let address = if same_node { near } else { cluster.mqtt(1) };
        let (mut publisher, _) = Connection::connect(address, &connect);
        let message = |number| {
            Message::new(&topic, vec![1; 16_000])
                .qos(1, number)
                .bytes(V5)
        };
        let (sent, acknowledged) = publish_until_held_back(&mut publisher, message);
        eprintln!("round {round}: held back with {acknowledged} PUBACKs for {sent}");
        for ping in 0..8 {
            std::thread::sleep(Duration::from_secs(1));
            publisher.send(&wire::PINGREQ);
            match publisher.receive(Duration::from_secs(1)) {
                Ok(Packet::Pingresp) => {}
                other => panic!("round {round}: {other:?} for PINGREQ {ping} while held back"),
            }
        }
        // As many as its server announced, 1,024, and more than it keeps for a client: they are not even read, nor are
        // the PINGREQs behind them.
        let rest: Vec<u8> = (sent + 1..=1000).flat_map(message).collect();
        let mut sender = publisher
            .stream()
            .try_clone()
            .expect("a socket can be cloned");
        let sending = std::thread::spawn(move || {
            let _ = std::io::Write::write_all(&mut sender, &rest);
        });
        match publisher.receive(Duration::from_secs(9)) {
            Err(Fault::Timeout) => {}
            other => panic!("round {round}: {other:?} while it is not read"),
        }
        watcher.expect_nothing();
        let _ = publisher.stream().shutdown(std::net::Shutdown::Both);
        sending.join().expect("it ends with its socket");
    }
}

/// Publishes one message after the other until none is acknowledged any more; returns how many were sent and how many
/// were acknowledged.
fn publish_until_held_back(
    publisher: &mut Connection,
    message: impl Fn(u16) -> Vec<u8>,
) -> (u16, u16) {
    let (mut sent, mut acknowledged) = (0, 0);
    loop {
        // Fewer bytes than a server keeps for a client that it holds back.
        while sent - acknowledged < 10 {
            sent += 1;
            assert!(sent < 1000, "nobody was held back");
            publisher.send(&message(sent));
        }
        match publisher.receive(Duration::from_secs(2)) {
            Ok(Packet::Puback(_)) => acknowledged += 1,
            Err(Fault::Timeout) => return (sent, acknowledged),
            other => panic!("{other:?} after {acknowledged} PUBACKs"),
        }
    }
}

/// [MQTT-3.1.4-5]: a durable session in a flood of QoS 0 can be resumed whenever its client comes.
#[test]
fn a_session_in_a_flood_is_always_resumed() {
    let cluster = Cluster::start();
    let stop = AtomicBool::new(false);
    let (resumed, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let connect = |client_id: &str| {
        let connect = Connect::v5(client_id).durable(600);
        connect.with(id::RECEIVE_MAXIMUM, Value::TwoBytes(65_535))
    };
    let chunk = Message::new("flood", [b'f'; 50]).bytes(V5).repeat(200);
    std::thread::scope(|scope| {
        for node in 0..2 {
            let address = cluster.mqtt(node);
            let (stop, chunk) = (&stop, &chunk);
            scope.spawn(move || {
                let mut publisher = Connection::v5(address, &format!("flood-{node}"));
                while !stop.load(Ordering::Relaxed) {
                    publisher.send(chunk);
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
        for client in 0..4 {
            let (addresses, connect) = (cluster.addresses(), &connect);
            let (stop, resumed, refused) = (&stop, &resumed, &refused);
            scope.spawn(move || {
                let connect = connect(&format!("resumes-{client}"));
                let (mut first, _) = Connection::connect(addresses[0], &connect);
                first.send(&wire::subscribe(
                    V5,
                    1,
                    &wire::Properties::new(),
                    &[("flood", 1)],
                ));
                while !matches!(first.expect(), Packet::Suback(_)) {}
                drop(first);
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Mostly on the same node, and through a take-over or after a close.
                    let address = addresses[usize::from(round % 4 == 3)];
                    match Connection::try_connect(address, &connect) {
                        Ok((mut next, connack)) if connack.code == 0 => {
                            resumed.fetch_add(1, Ordering::Relaxed);
                            let _ = next.receive(Duration::from_millis(5 + round % 20));
                            if round % 2 == 0 {
                                next.hang_up();
                            }
                        }
                        other => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            let other = other.map(|(_, connack)| connack);
                            eprintln!("client {client}, round {round}: {other:?}");
                        }
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(12));
        stop.store(true, Ordering::Relaxed);
    });
    let (resumed, refused) = (resumed.into_inner(), refused.into_inner());
    eprintln!("{resumed} times resumed, {refused} times refused");
    assert!(resumed > 50, "{resumed}");
    assert_eq!(refused, 0, "refused beside {resumed} that were resumed");
}

/// A message that 20,000 sessions wait for, once a second.
fn a_message_to_twenty_thousand_durable_sessions(cluster: &mut Cluster) {
    const SESSIONS: usize = 20_000;
    Crowd::raise_limits();
    for first in (0..SESSIONS).step_by(5_000) {
        let name = |number: usize| format!("away-{}", first + number);
        let crowd = Crowd::connect(
            &[cluster.mqtt(0)],
            5_000,
            |number| Connect::v5(&name(number)).durable(600),
            |_| Some("to/all".into()),
        );
        crowd.hang_up();
    }
    let terms = Terms {
        // Their queues, in memory until they are flushed.
        memory_growth: 256 << 20,
        ..Terms::default()
    };
    beside_on(cluster, &terms, |cluster| {
        let mut publisher = Connection::v5(cluster.mqtt(0), "hostile");
        for _ in 0..4 {
            let began = Instant::now();
            let code = publisher.publish(Message::new("to/all", [b'a'; 100]).qos(1, 0));
            eprintln!("PUBACK {code:#04x} after {:.1?}", began.elapsed());
            std::thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
        }
    });
}

#[test]
fn a_message_to_twenty_thousand_durable_sessions_of_three_nodes() {
    a_message_to_twenty_thousand_durable_sessions(&mut Cluster::start());
}

#[test]
fn a_message_to_twenty_thousand_durable_sessions_of_one_worker() {
    a_message_to_twenty_thousand_durable_sessions(&mut one_worker());
}
