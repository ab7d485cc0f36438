//! Bounds of one listener: what a client is told of them, what ends its connection, and that other listeners have none.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::rules;
use cluster_tests::wire::{Connect, Message, Properties, V5, V311, Value, Will, id};
use std::net::{SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const QUOTA_EXCEEDED: u8 = 0x97;
const PACKET_TOO_LARGE: u8 = 0x95;
const RETAIN_NOT_SUPPORTED: u8 = 0x9A;
const QOS_NOT_SUPPORTED: u8 = 0x9B;

/// Messages per second that a client of the listener `slow` may send, and is sent.
const RATE: u32 = 20;

/// Where the listeners `small` and `slow` are.
static ADDRESSES: OnceLock<[SocketAddr; 2]> = OnceLock::new();

fn small() -> SocketAddr {
    ADDRESSES.get().expect("the test makes it first")[0]
}

fn slow() -> SocketAddr {
    ADDRESSES.get().expect("the test makes it first")[1]
}

#[test]
fn limits_of_a_listener_hold() {
    let free = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = |held: &TcpListener| held.local_addr().expect("it is bound");
    let held = [free(), free()];
    let [small, slow] = *ADDRESSES.get_or_init(|| held.each_ref().map(address));
    drop(held);
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: format!(
            "[[listeners]]\nname = \"open\"\naddress = \"{{mqtt}}\"\n\
             [[listeners]]\nname = \"small\"\naddress = \"{small}\"\nmax_packet_size_bytes = 2000\nmax_qos = 1\n\
             retain = false\nsession_expiry_max_s = 60\nmax_keep_alive_s = 90\nreceive_maximum = 3\n\
             max_inflight = 2\nmax_subscriptions = 1\nqueue_max_bytes = 1000\n\
             [[listeners]]\nname = \"slow\"\naddress = \"{slow}\"\nclient_message_rate = {RATE}\n\
             delivery_message_rate = {RATE}\n"
        ),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            the_connack_announces_them,
            another_listener_has_none,
            a_packet_that_is_too_large_ends_the_connection,
            a_qos_that_is_too_high_ends_the_connection,
            a_retained_message_ends_the_connection,
            a_will_is_judged_by_them,
            one_subscription_more_is_refused,
            a_client_before_mqtt_5_is_bounded_alike,
            a_queue_holds_no_more,
            messages_come_and_go_no_faster,
        ],
    );
}

fn the_connack_announces_them(_: &Cluster) {
    let connect = Connect::v5("announced").durable(3_600);
    let (_, connack) = Connection::connect(small(), &connect);
    for (id, value) in [
        (id::MAXIMUM_PACKET_SIZE, Value::FourBytes(2_000)),
        (id::RECEIVE_MAXIMUM, Value::TwoBytes(3)),
        (id::MAXIMUM_QOS, Value::Byte(1)),
        (id::RETAIN_AVAILABLE, Value::Byte(0)),
        (id::SESSION_EXPIRY, Value::FourBytes(60)),
        (id::SERVER_KEEP_ALIVE, Value::TwoBytes(90)),
    ] {
        assert_eq!(connack.properties.get(id), Some(&value), "{connack:?}");
    }
}

fn another_listener_has_none(cluster: &Cluster) {
    let connect = Connect::v5("unbounded").durable(3_600);
    let (mut client, connack) = Connection::connect(cluster.mqtt(0), &connect);
    for id in [
        id::MAXIMUM_QOS,
        id::RETAIN_AVAILABLE,
        id::SESSION_EXPIRY,
        id::SERVER_KEEP_ALIVE,
    ] {
        assert!(!connack.properties.has(id), "{connack:?}");
    }
    let answer = client.subscribe_for(&[("unbounded/a", 2), ("unbounded/b", 2)]);
    assert_eq!(answer.codes, [2, 2]);
    client.publish(Message::new("unbounded/a", vec![0; 5_000]).qos(1, 1));
    assert_eq!(client.publish_received().payload.len(), 5_000);
}

fn a_packet_that_is_too_large_ends_the_connection(_: &Cluster) {
    let mut client = Connection::v5(small(), "large");
    // A fixed header of three bytes, the topic, the packet id, and no properties.
    let fits = Message::new("t", vec![0; 2_000 - 3 - 3 - 2 - 1]).qos(1, 1);
    assert_eq!(fits.bytes(V5).len(), 2_000);
    client.publish(fits);
    let message = Message::new("t", vec![0; 2_000 - 3 - 3 - 2]).qos(1, 2);
    client.send(&message.bytes(V5));
    client.expect_disconnect(PACKET_TOO_LARGE);
    let long = Connect {
        user_name: Some("x".repeat(2_000)),
        ..Connect::v5("large")
    };
    let (mut refused, connack) = Connection::try_connect(small(), &long).expect("an answer");
    assert_eq!(connack.code, PACKET_TOO_LARGE, "{connack:?}");
    refused.expect_closed();
}

fn a_qos_that_is_too_high_ends_the_connection(_: &Cluster) {
    let mut client = Connection::v5(small(), "qos");
    // [MQTT-3.2.2-10]
    assert_eq!(client.subscribe_for(&[("qos", 2)]).codes, [2]);
    client.publish(Message::new("qos", "1").qos(1, 1));
    // [MQTT-3.2.2-11]
    client.send(&Message::new("qos", "2").qos(2, 9).bytes(V5));
    assert_eq!(client.publish_received().payload, b"1");
    client.expect_disconnect(QOS_NOT_SUPPORTED);
}

fn a_retained_message_ends_the_connection(_: &Cluster) {
    let mut client = Connection::v5(small(), "retain");
    let retained = Message {
        retain: true,
        ..Message::new("retain", "1")
    };
    // [MQTT-3.2.2-14]
    client.send(&retained.bytes(V5));
    client.expect_disconnect(RETAIN_NOT_SUPPORTED);
}

fn a_will_is_judged_by_them(_: &Cluster) {
    // [MQTT-3.2.2-12], [MQTT-3.2.2-13]
    for (qos, retain, code) in [
        (2, false, QOS_NOT_SUPPORTED),
        (1, true, RETAIN_NOT_SUPPORTED),
        (1, false, 0),
    ] {
        let connect = Connect {
            will: Some(Will {
                qos,
                retain,
                topic: "will".to_owned(),
                payload: Vec::new(),
                properties: Properties::new(),
            }),
            ..Connect::v5("will")
        };
        let (_, connack) = Connection::try_connect(small(), &connect).expect("an answer");
        assert_eq!(connack.code, code, "{connack:?}");
    }
}

fn one_subscription_more_is_refused(_: &Cluster) {
    let mut client = Connection::v5(small(), "filters");
    let answer = client.subscribe_for(&[("filters/a", 1), ("filters/b", 1)]);
    assert_eq!(answer.codes, [1, QUOTA_EXCEEDED]);
    assert_eq!(client.subscribe_for(&[("filters/a", 0)]).codes, [0]);
}

/// There is no reason code then: the connection is closed.
fn a_client_before_mqtt_5_is_bounded_alike(_: &Cluster) {
    let connect = || Connection::connect(small(), &Connect::at("old", V311)).0;
    let mut client = connect();
    let answer = client.subscribe_for(&[("old/a", 1), ("old/b", 1)]);
    assert_eq!(answer.codes, [1, 0x80]);
    let retained = Message {
        retain: true,
        ..Message::new("x", "1")
    };
    let messages = [
        Message::new("x", vec![0; 2_000]),
        Message::new("x", "2").qos(2, 9),
        retained,
    ];
    for message in messages {
        let mut client = connect();
        client.send(&message.bytes(V311));
        client.expect_closed();
    }
}

fn a_queue_holds_no_more(cluster: &Cluster) {
    let connect = Connect::v5("queue").durable(60);
    let (mut client, _) = Connection::connect(small(), &connect);
    client.subscribe(&[("queue", 1)]);
    client.disconnect();
    let mut publisher = Connection::v5(cluster.mqtt(0), "queue-publisher");
    for at in 0..5_u8 {
        publisher.publish(Message::new("queue", vec![at; 400]).qos(1, 1));
    }
    let (mut client, connack) = Connection::connect(small(), &connect);
    assert!(connack.session_present);
    // Two of 400 bytes fit, and the oldest are dropped.
    assert_eq!(client.publish_received().payload, vec![3; 400]);
    assert_eq!(client.publish_received().payload, vec![4; 400]);
    client.expect_nothing();
}

fn messages_come_and_go_no_faster(cluster: &Cluster) {
    let mut sender = Connection::v5(slow(), "slow-sender");
    let mut receiver = Connection::v5(slow(), "slow-receiver");
    let mut fast = Connection::v5(cluster.mqtt(0), "fast");
    receiver.subscribe(&[("to/slow", 0)]);
    fast.subscribe(&[("from/slow", 0)]);
    // What comes at once passes at once; what comes next waits until the rate has caught up, but for one second.
    let count = 3 * RATE;
    let least = Duration::from_millis(1_900);
    for (from, to, topic) in [
        (&mut sender, &mut fast, "from/slow"),
        (
            &mut Connection::v5(cluster.mqtt(0), "fast-sender"),
            &mut receiver,
            "to/slow",
        ),
    ] {
        let began = Instant::now();
        for part in [count, 1] {
            for _ in 0..part {
                from.send(&Message::new(topic, "x").bytes(V5));
            }
            for _ in 0..part {
                to.publish_received();
            }
        }
        let took = began.elapsed();
        assert!(took >= least, "{count} messages of {topic} took {took:?}");
    }
}
