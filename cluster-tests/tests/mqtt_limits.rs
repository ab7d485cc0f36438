//! Bounds of `[mqtt]` that hold for every client, each seen on the wire: the code that a client is told, and that
//! nothing was done.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, V311, Will};
use cluster_tests::{rules, wait};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const QUOTA_EXCEEDED: u8 = 0x97;
const TOPIC_FILTER_INVALID: u8 = 0x8F;
const TOPIC_NAME_INVALID: u8 = 0x90;

/// Bytes that the queues of the cluster may hold.
const QUEUED_BYTES: usize = 4_000;

/// Messages per second that a client may send.
const RATE: u32 = 50;

/// Connections per second.
const CONNECTION_RATE: u32 = 20;

const SESSIONS: usize = 12;

#[test]
fn limits_of_mqtt_hold() {
    let cluster = Cluster::start_with(Plan {
        size: 1,
        mqtt: format!(
            "max_topic_levels = 4\nmax_topic_bytes = 32\nmax_shared_subscriptions = 2\n\
             queued_max_bytes = {QUEUED_BYTES}\nclient_message_rate = {RATE}\n\
             connection_rate = {CONNECTION_RATE}\nmax_sessions = {SESSIONS}\n"
        ),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            a_topic_is_not_deeper_or_longer,
            a_filter_is_not_deeper_or_longer,
            a_will_is_not_deeper,
            there_are_not_more_groups,
            the_queues_hold_no_more,
            a_client_sends_no_faster,
            a_client_that_leaves_has_sent_no_faster,
            a_disconnect_holds_although_the_client_closes_its_socket,
            a_session_is_taken_over_at_once_from_a_client_above_its_rate,
            clients_connect_no_faster,
            there_are_not_more_sessions,
        ],
    );
}

/// Four levels in 32 bytes; five levels; 33 bytes.
const TOPICS: [(&str, bool); 3] = [
    ("topic/b/c/4567890123456789012345", true),
    ("topic/b/c/d/e", false),
    ("topic/b/c/45678901234567890123456", false),
];

fn a_topic_is_not_deeper_or_longer(cluster: &Cluster) {
    let mut reader = Connection::v5(cluster.mqtt(0), "topic-reader");
    reader.subscribe(&[("topic/#", 1)]);
    let mut client = Connection::v5(cluster.mqtt(0), "topic");
    let (mut old, _) = Connection::connect(cluster.mqtt(0), &Connect::at("topic-old", V311));
    for (topic, fits) in TOPICS {
        let code = client.publish(Message::new(topic, "5").qos(1, 1));
        match fits {
            true => assert!(code < 0x80, "{topic}: {code:#x}"),
            false => assert_eq!(code, TOPIC_NAME_INVALID, "{topic}"),
        }
        // MQTT 3.1.1 has no code for it: the message is dropped and counted.
        old.publish(Message::new(topic, "3").qos(1, 1));
        if fits {
            for _ in 0..2 {
                assert_eq!(reader.publish_received().topic, topic);
            }
        }
        reader.expect_nothing();
    }
}

fn a_filter_is_not_deeper_or_longer(cluster: &Cluster) {
    for (level, refusal) in [(V5, TOPIC_FILTER_INVALID), (V311, 0x80)] {
        let name = format!("filter-{level}");
        let (mut client, _) = Connection::connect(cluster.mqtt(0), &Connect::at(&name, level));
        let answer = client.subscribe_for(&TOPICS.map(|(filter, _)| (filter, 1)));
        assert_eq!(answer.codes, [1, refusal, refusal], "level {level}");
        let answer = client.subscribe_for(&[("a/+/+/#", 1), ("+/+/+/+/#", 1)]);
        assert_eq!(answer.codes, [1, refusal], "level {level}");
    }
}

fn will(topic: &str) -> Will {
    Will {
        qos: 1,
        retain: false,
        topic: topic.to_owned(),
        payload: Vec::new(),
        properties: Properties::new(),
    }
}

fn a_will_is_not_deeper(cluster: &Cluster) {
    for (topic, code) in [("a/b/c/d", 0), ("a/b/c/d/e", TOPIC_NAME_INVALID)] {
        let connect = Connect {
            will: Some(will(topic)),
            ..Connect::v5("will")
        };
        let (_, connack) = Connection::try_connect(cluster.mqtt(0), &connect).expect("an answer");
        assert_eq!(connack.code, code, "{topic}: {connack:?}");
    }
}

fn there_are_not_more_groups(cluster: &Cluster) {
    let mut client = Connection::v5(cluster.mqtt(0), "groups");
    let mut other = Connection::v5(cluster.mqtt(0), "groups-other");
    let answer = client.subscribe_for(&[("$share/g/a", 1), ("$share/g/b", 1), ("$share/g/c", 1)]);
    assert_eq!(answer.codes, [1, 1, QUOTA_EXCEEDED]);
    // Another member of a group makes no group.
    let answer = other.subscribe_for(&[("$share/g/a", 1), ("$share/h/a", 1), ("a", 1)]);
    assert_eq!(answer.codes, [1, QUOTA_EXCEEDED, 1]);
}

fn the_queues_hold_no_more(cluster: &Cluster) {
    let durable = Connect::v5("queues").durable(600);
    let (mut client, _) = Connection::connect(cluster.mqtt(0), &durable);
    client.subscribe(&[("queued", 1)]);
    client.disconnect();
    let mut publisher = Connection::v5(cluster.mqtt(0), "queues-publisher");
    let mut taken = 0;
    let refusal = loop {
        let code = publisher.publish(Message::new("queued", vec![b'x'; 500]).qos(1, 1));
        if code >= 0x80 {
            break code;
        }
        taken += 1;
        assert!(taken <= QUEUED_BYTES / 500 + 1, "{taken} are queued");
    };
    assert_eq!(refusal, QUOTA_EXCEEDED);
    assert!(taken >= QUEUED_BYTES / 500 / 2, "{taken}");
    // What nobody queues is no part of it.
    let code = publisher.publish(Message::new("nobody", vec![b'x'; 500]).qos(1, 1));
    assert!(code < 0x80, "{code:#x}");
    let (mut client, connack) = Connection::connect(cluster.mqtt(0), &durable);
    assert!(connack.session_present);
    for _ in 0..taken {
        client.publish_received();
    }
    client.expect_nothing();
    wait::until("room again", TIMEOUT, || {
        let message = Message::new("queued", vec![b'x'; 500]).qos(1, 1);
        (publisher.publish(message) < 0x80).then_some(())
    });
    client.publish_received();
}

fn a_client_sends_no_faster(cluster: &Cluster) {
    let mut reader = Connection::v5(cluster.mqtt(0), "rate-reader");
    reader.subscribe(&[("rate", 0)]);
    let mut client = Connection::v5(cluster.mqtt(0), "rate");
    let began = Instant::now();
    let mut pinged = Vec::new();
    // A second's worth passes at once, what comes next waits.
    for part in [3 * RATE, 1] {
        let one = Message::new("rate", "x").bytes(V5);
        client.send(&one.repeat(part as usize));
        client.send(&wire::PINGREQ);
        match client.expect() {
            Packet::Pingresp => pinged.push(began.elapsed()),
            other => panic!("instead of PINGRESP: {other:?}"),
        }
        for _ in 0..part {
            reader.publish_received();
        }
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1_900), "it took {took:?}");
    assert!(
        pinged[0] < took / 2,
        "what is no PUBLISH waited for {pinged:?} of {took:?}"
    );
}

/// What comes behind the messages takes effect behind them.
fn a_client_that_leaves_has_sent_no_faster(cluster: &Cluster) {
    let mut reader = Connection::v5(cluster.mqtt(0), "leaves-reader");
    reader.subscribe(&[("leaves", 0)]);
    for says_so in [true, false] {
        let connect = Connect {
            will: Some(will("leaves")),
            ..Connect::v5("leaves")
        };
        let (mut client, _) = Connection::connect(cluster.mqtt(0), &connect);
        let mut packets = Message::new("leaves", "x")
            .bytes(V5)
            .repeat(3 * RATE as usize);
        if says_so {
            packets.extend(wire::disconnect(V5, 0, &Properties::new()));
        }
        let began = Instant::now();
        client.send(&packets);
        let closed = client.stream().shutdown(std::net::Shutdown::Write);
        closed.expect("it is open");
        for _ in 0..3 * RATE {
            assert_eq!(reader.publish_received().payload, b"x");
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(1_900), "it took {took:?}");
        if !says_so {
            assert_eq!(reader.publish_received().payload, b"", "the will");
        }
        client.expect_closed();
    }
    reader.expect_nothing();
}

/// Whether a will was published, before a message that is sent afterwards.
fn was_published(reader: &mut Connection, cluster: &Cluster, topic: &str) -> bool {
    let mut last = Connection::v5(cluster.mqtt(0), "after-the-will");
    last.send(&Message::new(topic, "last").bytes(V5));
    let mut will = false;
    loop {
        match reader.publish_received().payload.as_slice() {
            b"last" => return will,
            b"" => will = true,
            _ => {}
        }
    }
}

/// Messages that are lost because their publisher's connection ended.
fn unhandled(cluster: &Cluster) -> Option<u64> {
    let metrics = cluster.nodes[0].get("/metrics")?.body;
    let name = "quorumq_messages_dropped_total{reason=\"unhandled\"}";
    let lost = metrics.lines().find_map(|line| line.strip_prefix(name));
    Some(lost.map_or(0, |lost| lost.trim().parse().expect("a number")))
}

/// Most clients close their socket right behind DISCONNECT, so that what they are sent ends the connection before it has
/// its turn.
fn a_disconnect_holds_although_the_client_closes_its_socket(cluster: &Cluster) {
    let mut reader = Connection::v5(cluster.mqtt(0), "closes-reader");
    reader.subscribe(&[("closes", 0)]);
    for says_so in [true, false] {
        let before = unhandled(cluster).expect("the node answers");
        let connect = Connect {
            will: Some(will("closes")),
            ..Connect::v5("closes")
        };
        let (mut client, _) = Connection::connect(cluster.mqtt(0), &connect);
        let mut packets = Vec::new();
        for packet_id in 1..=2 * RATE as u16 {
            packets.extend(Message::new("closes", "x").qos(1, packet_id).bytes(V5));
        }
        packets.extend(Message::new("closes", "x").bytes(V5).repeat(RATE as usize));
        if says_so {
            packets.extend(wire::disconnect(V5, 0, &Properties::new()));
        }
        client.send(&packets);
        drop(client);
        wait::until("the connection to end", TIMEOUT, || {
            (unhandled(cluster)? > before).then_some(())
        });
        // Whoever opens the session next finds that it has ended.
        Connection::v5(cluster.mqtt(0), "closes").disconnect();
        assert_eq!(was_published(&mut reader, cluster, "closes"), !says_so);
    }
}

fn a_session_is_taken_over_at_once_from_a_client_above_its_rate(cluster: &Cluster) {
    let lost = unhandled(cluster).expect("the node answers");
    let mut client = Connection::v5(cluster.mqtt(0), "taken-over");
    client.send(&Message::new("taken-over", "x").bytes(V5).repeat(1_000));
    let began = Instant::now();
    let (next, _) = Connection::connect(cluster.mqtt(0), &Connect::v5("taken-over"));
    let took = began.elapsed();
    assert!(
        took < wait::allowed(Duration::from_secs(2)),
        "it took {took:?}"
    );
    next.disconnect();
    wait::until("what is lost to be counted", TIMEOUT, || {
        (unhandled(cluster)? > lost).then_some(())
    });
}

/// When each of many clients that connect at the same moment was answered, in the order in which they came. None is to
/// have a session: each is told the same, that its will's topic is too deep.
fn answers_of_many(address: SocketAddr) -> Vec<Duration> {
    let connect = Connect {
        will: Some(will("a/b/c/d/e")),
        ..Connect::v5("many")
    };
    let began = Instant::now();
    let opened = (0..3 * CONNECTION_RATE).map(|_| {
        let mut client = Connection::open(address, V5).expect("the system takes it");
        client.send(&connect.bytes());
        client
    });
    // All are there before the first answer is looked at.
    let opened: Vec<Connection> = opened.collect();
    let answered = opened.into_iter().map(|mut client| {
        match client.expect() {
            Packet::Connack(connack) => assert_eq!(connack.code, TOPIC_NAME_INVALID),
            other => panic!("instead of CONNACK: {other:?}"),
        }
        began.elapsed()
    });
    answered.collect()
}

fn clients_connect_no_faster(cluster: &Cluster) {
    wait::until_ok("a machine that has time", TIMEOUT * 6, || {
        let answered = answers_of_many(cluster.mqtt(0));
        for (before, took) in answered.iter().enumerate() {
            // A second's worth passes at once, and the pause comes after the one that is too many.
            let most = f64::from(CONNECTION_RATE) * (took.as_secs_f64() + 1.0) + 1.0;
            let count = before + 1;
            assert!(count as f64 <= most, "{count} after {took:?}: {answered:?}");
        }
        // It is the bound that the others have waited for: those that it lets pass at once came much faster. A machine
        // that is too busy for that shows nothing.
        let at_once = answered[CONNECTION_RATE as usize - 1];
        if at_once < Duration::from_millis(250) {
            return Ok(());
        }
        // Until a second's worth passes at once again.
        std::thread::sleep(Duration::from_millis(1_200));
        Err(format!("{CONNECTION_RATE} took {at_once:?}"))
    });
}

/// Last, because it takes all there are.
fn there_are_not_more_sessions(cluster: &Cluster) {
    let mut held = Vec::new();
    let (refusal, mut refused) = loop {
        let connect = Connect::v5(&format!("session-{}", held.len())).durable(600);
        let answer = Connection::try_connect(cluster.mqtt(0), &connect).expect("an answer");
        match answer.1.code {
            0 => held.push(answer.0),
            code => break (code, answer.0),
        }
        assert!(held.len() <= SESSIONS, "{} sessions", held.len());
    };
    assert_eq!(refusal, QUOTA_EXCEEDED);
    refused.expect_closed();
    // Whoever has a session may have it again, and a session that ends makes room.
    let again = Connect::v5("session-0").durable(600);
    let (first, connack) = Connection::connect(cluster.mqtt(0), &again);
    assert!(connack.session_present);
    first.disconnect();
    let (ends, _) = Connection::connect(cluster.mqtt(0), &Connect::v5("session-0"));
    ends.disconnect();
    wait::until("a place", TIMEOUT, || {
        let connect = Connect::v5("session-new").durable(600);
        let answer = Connection::try_connect(cluster.mqtt(0), &connect).ok()?;
        (answer.1.code == 0).then_some(())
    });
}
