//! Bounds of one listener and of one principal: what a client is told of them, what ends its connection, and that
//! others have none.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::store::{Request, StoreClient};
use cluster_tests::wire::{Connect, Message, Packet, Properties, V5, V311, Value, Will, id};
use cluster_tests::{http, rules, wait, wire};
use std::net::{SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const QUOTA_EXCEEDED: u8 = 0x97;
const CONNECTION_RATE_EXCEEDED: u8 = 0x9F;
const SERVER_UNAVAILABLE_V311: u8 = 3;
const PACKET_TOO_LARGE: u8 = 0x95;
const RETAIN_NOT_SUPPORTED: u8 = 0x9A;
const QOS_NOT_SUPPORTED: u8 = 0x9B;

/// Messages per second that a client of the listener `slow` may send, and is sent.
const RATE: u32 = 20;

/// Bytes per second that a client of the listener `thin` may send, and is sent.
const BYTE_RATE: usize = 20_000;

/// Connections per second of the listener `rare`.
const CONNECTION_RATE: u32 = 5;

/// Listeners beside the one without bounds.
const LISTENERS: [&str; 6] = ["small", "slow", "thin", "few", "rare", "single"];

/// Where they are.
static ADDRESSES: OnceLock<[SocketAddr; LISTENERS.len()]> = OnceLock::new();

fn at(name: &str) -> SocketAddr {
    let index = LISTENERS.iter().position(|known| *known == name);
    ADDRESSES.get().expect("the test makes it first")[index.expect("a listener")]
}

fn small() -> SocketAddr {
    at("small")
}

fn slow() -> SocketAddr {
    at("slow")
}

#[test]
fn limits_of_a_listener_hold() {
    let free = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = |held: &TcpListener| held.local_addr().expect("it is bound");
    let held = LISTENERS.map(|_| free());
    let [small, slow, thin, few, rare, single] =
        *ADDRESSES.get_or_init(|| held.each_ref().map(address));
    drop(held);
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: format!(
            "[[listeners]]\nname = \"open\"\naddress = \"{{mqtt}}\"\n\
             [[listeners]]\nname = \"small\"\naddress = \"{small}\"\nmax_packet_size_bytes = 2000\nmax_qos = 1\n\
             retain = false\nsession_expiry_max_s = 60\nmax_keep_alive_s = 90\nreceive_maximum = 3\n\
             max_inflight = 2\nmax_subscriptions = 1\nqueue_max_bytes = 1000\n\
             [[listeners]]\nname = \"slow\"\naddress = \"{slow}\"\nclient_message_rate = {RATE}\n\
             delivery_message_rate = {RATE}\n\
             [[listeners]]\nname = \"thin\"\naddress = \"{thin}\"\nclient_byte_rate = {BYTE_RATE}\n\
             delivery_byte_rate = {BYTE_RATE}\n\
             [[listeners]]\nname = \"few\"\naddress = \"{few}\"\nmax_connections = 2\n\
             [[listeners]]\nname = \"rare\"\naddress = \"{rare}\"\nconnection_rate = {CONNECTION_RATE}\n\
             [[listeners]]\nname = \"single\"\naddress = \"{single}\"\nmax_sessions = 1\n"
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
            bytes_come_and_go_no_faster,
            one_connection_more_is_refused,
            connections_are_accepted_no_faster,
            one_session_more_is_refused,
        ],
    );
    limit_principals(&cluster);
    rules::show(
        &cluster,
        rules![
            a_principal_has_as_many_connections_as_it_may,
            a_principal_that_connects_too_often_is_told,
            a_principal_has_as_many_sessions_as_it_may,
            a_queue_of_a_principal_holds_no_more,
            a_principal_sends_and_gets_no_more_bytes,
            a_principal_that_may_not_retain_is_told,
        ],
    );
}

/// A client that is sent no more for now gets the rest when that time is over, whatever it sends right before.
#[test]
fn what_a_rate_holds_back_goes_on() {
    const CLIENTS: u64 = 8;
    const BYTES: usize = 20_000;
    /// Bytes per second: that many at once, then one answer each 50 ms.
    const RATE: usize = 20 * BYTES;
    const ANSWERS: u16 = 20 + 15;
    let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let paced = held.local_addr().expect("it is bound");
    drop(held);
    let cluster = Cluster::start_with(Plan {
        size: 1,
        // One answer at a time: the next GET waits until it has left.
        mqtt: "max_packet_size_bytes = 32000\noutbox_max_bytes = 32000\n".into(),
        extra: format!(
            "[[listeners]]\nname = \"open\"\naddress = \"{{mqtt}}\"\n\
             [[listeners]]\nname = \"paced\"\naddress = \"{paced}\"\ndelivery_byte_rate = {RATE}\n"
        ),
        ..Plan::default()
    });
    let mut writer = StoreClient::connected("paced-writer", cluster.mqtt(0));
    writer.expect(&Request::set("paced", vec![b'v'; BYTES]), b"+OK\r\n");
    let one = |client: u64| {
        let name = format!("paced-{client}");
        let mut asks = StoreClient::new(&name, &[paced], 0);
        asks.response_topic = format!("{name}/answers");
        let mut connection = Connection::v5(paced, &name);
        connection.subscribe(&[(&asks.response_topic, 0)]);
        let requests = (1..=ANSWERS).flat_map(|id| {
            let correlation = id.to_be_bytes();
            asks.message(&Request::get("paced"), &correlation, id)
                .bytes(V5)
        });
        connection.send(&requests.collect::<Vec<_>>());
        for number in 0..u64::from(ANSWERS) {
            let bytes = loop {
                match connection.receive(TIMEOUT) {
                    Ok(Packet::Publish(answer)) => break answer.payload.len() + 200,
                    Ok(Packet::Puback(_) | Packet::Pingresp) => {}
                    other => panic!("{name}, instead of answer {number}: {other:?}"),
                }
            };
            if number >= 20 {
                let pause = Duration::from_secs_f64(bytes as f64 / RATE as f64);
                let before = Duration::from_micros(500 * (1 + (number * 7 + client) % 15));
                std::thread::sleep(pause.saturating_sub(before));
                connection.send(&wire::PINGREQ);
            }
        }
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let one = &one;
            scope.spawn(move || one(client));
        }
    });
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
    holds_two(cluster, small(), "queue");
}

/// The queue of a client that connects there holds 1,000 bytes.
fn holds_two(cluster: &Cluster, address: SocketAddr, client_id: &str) {
    let connect = Connect::v5(client_id).durable(60);
    let (mut client, _) = Connection::connect(address, &connect);
    client.subscribe(&[(client_id, 1)]);
    client.disconnect();
    let mut publisher = Connection::v5(cluster.mqtt(0), "queue-publisher");
    for at in 0..5_u8 {
        publisher.publish(Message::new(client_id, vec![at; 400]).qos(1, 1));
    }
    let (mut client, connack) = Connection::connect(address, &connect);
    assert!(connack.session_present);
    // Two of 400 bytes fit, and the oldest are dropped.
    assert_eq!(client.publish_received().payload, vec![3; 400]);
    assert_eq!(client.publish_received().payload, vec![4; 400]);
    client.expect_nothing();
}

fn messages_come_and_go_no_faster(cluster: &Cluster) {
    let mut sender = Connection::v5(slow(), "slow-sender");
    let mut receiver = Connection::v5(slow(), "slow-receiver");
    both_ways(cluster, &mut sender, &mut receiver, 3 * RATE, 1);
}

fn bytes_come_and_go_no_faster(cluster: &Cluster) {
    let mut sender = Connection::v5(at("thin"), "thin-sender");
    let mut receiver = Connection::v5(at("thin"), "thin-receiver");
    both_ways(cluster, &mut sender, &mut receiver, 60, 3 * BYTE_RATE / 60);
}

/// What `sender` sends to an unbounded client, and what such a one sends to `receiver`: so many messages of this size
/// are three times what may pass in a second.
fn both_ways(
    cluster: &Cluster,
    sender: &mut Connection,
    receiver: &mut Connection,
    count: u32,
    size: usize,
) {
    let mut fast = Connection::v5(cluster.mqtt(0), "fast");
    receiver.subscribe(&[("to/slow", 0)]);
    fast.subscribe(&[("from/slow", 0)]);
    // What comes at once passes at once; what comes next waits until the rate has caught up, but for one second.
    let least = Duration::from_millis(1_900);
    for (from, to, topic) in [
        (sender, &mut fast, "from/slow"),
        (
            &mut Connection::v5(cluster.mqtt(0), "fast-sender"),
            receiver,
            "to/slow",
        ),
    ] {
        let began = Instant::now();
        for part in [count, 1] {
            for _ in 0..part {
                from.send(&Message::new(topic, vec![b'x'; size]).bytes(V5));
            }
            for _ in 0..part {
                to.publish_received();
            }
        }
        let took = began.elapsed();
        assert!(took >= least, "{count} messages of {topic} took {took:?}");
    }
}

/// The code of the CONNACK, and the connection.
#[track_caller]
fn code(address: SocketAddr, connect: &Connect) -> (u8, Connection) {
    let (connection, connack) = Connection::try_connect(address, connect).expect("an answer");
    (connack.code, connection)
}

/// Two connections are there, of clients whose identifiers begin so; a further one is refused until one of them ends.
fn only_two(address: SocketAddr, name: &str) {
    let request = |at| Connect::v5(&format!("{name}-{at}"));
    let first = Connection::connect(address, &request(1)).0;
    let mut second = Connection::connect(address, &request(2)).0;
    let (refusal, mut refused) = code(address, &request(3));
    assert_eq!(refusal, QUOTA_EXCEEDED);
    refused.expect_closed();
    let (refusal, _) = code(address, &Connect::at(&format!("{name}-4"), V311));
    assert_eq!(refusal, SERVER_UNAVAILABLE_V311);
    second.expect_nothing();
    first.disconnect();
    wait::until("a place", TIMEOUT, || {
        (code(address, &request(3)).0 == 0).then_some(())
    });
}

fn one_connection_more_is_refused(cluster: &Cluster) {
    only_two(at("few"), "few");
    Connection::v5(cluster.mqtt(0), "elsewhere").expect_nothing();
}

fn connections_are_accepted_no_faster(_: &Cluster) {
    let count = 3 * CONNECTION_RATE;
    let began = Instant::now();
    for at_all in 0..count {
        Connection::v5(at("rare"), &format!("rare-{at_all}"));
    }
    let took = began.elapsed();
    // Those of one second come at once, and the pause after the last one keeps nobody waiting.
    assert!(
        took >= Duration::from_millis(1_700),
        "{count} took {took:?}"
    );
}

/// A session that is there before a bound is.
fn held(name: &str) -> Connect {
    Connect::v5(&format!("{name}-held")).durable(60)
}

/// A session that is there goes on; a further one is not begun.
fn only_one_session(address: SocketAddr, name: &str) {
    let held = held(name);
    let (mut client, connack) = Connection::connect(address, &held);
    assert!(connack.session_present);
    let (refusal, _) = code(address, &Connect::v5(&format!("{name}-new")));
    assert_eq!(refusal, QUOTA_EXCEEDED);
    let old = Connect::at(&format!("{name}-new"), V311);
    assert_eq!(code(address, &old).0, SERVER_UNAVAILABLE_V311);
    client.expect_nothing();
}

fn one_session_more_is_refused(cluster: &Cluster) {
    let held = held("single");
    Connection::connect(cluster.mqtt(0), &held).0.disconnect();
    only_one_session(at("single"), "single");
    Connection::v5(cluster.mqtt(0), "single-new").expect_nothing();
}

/// Clients say who they are by the beginnings of their identifiers. None has a name, so all are one principal; bounds
/// hold for those that they are said of.
fn limit_principals(cluster: &Cluster) {
    let held = held("lone");
    Connection::connect(cluster.mqtt(0), &held).0.disconnect();
    let of = |client_ids: &str, limits: &str| {
        format!("{{\"principals\":{{\"client_ids\":[\"{client_ids}\"]}},\"limits\":{{{limits}}}}}")
    };
    let rate = format!("\"bytes_in_per_s\":{BYTE_RATE},\"bytes_out_per_s\":{BYTE_RATE}");
    let limits = [
        of("pair-*", "\"connections\":2"),
        of("rush-*", "\"connects_per_s\":2"),
        of("lone-*", "\"sessions\":1"),
        of("narrow", "\"queue_bytes\":1000"),
        of("drip-*", &rate),
        of("fleeting", "\"retain\":false"),
    ];
    let rules = format!(
        "{{\"default\":\"allow\",\"limits\":[{}]}}",
        limits.join(",")
    );
    let http = cluster.nodes[0].http();
    let answer = http::ask(http, "PUT", "/v1/rules", &[], &rules).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn a_principal_has_as_many_connections_as_it_may(cluster: &Cluster) {
    only_two(cluster.mqtt(0), "pair");
}

fn a_principal_that_connects_too_often_is_told(cluster: &Cluster) {
    // Whoever is refused has used up nothing, so more than a few are refused only if they come fast.
    for (version, refusal) in [
        (V5, CONNECTION_RATE_EXCEEDED),
        (V311, SERVER_UNAVAILABLE_V311),
    ] {
        let mut connects = (0..100).map(|at_all| {
            let connect = Connect::at(&format!("rush-{version:?}-{at_all}"), version);
            code(cluster.mqtt(0), &connect).0
        });
        let refused = connects.find(|code| *code != 0);
        assert_eq!(refused, Some(refusal), "a hundred at once, {version:?}");
    }
    wait::until("the pause to end", TIMEOUT, || {
        let (found, _) = code(cluster.mqtt(0), &Connect::v5("rush-late"));
        (found == 0).then_some(())
    });
}

fn a_principal_has_as_many_sessions_as_it_may(cluster: &Cluster) {
    only_one_session(cluster.mqtt(0), "lone");
}

fn a_queue_of_a_principal_holds_no_more(cluster: &Cluster) {
    holds_two(cluster, cluster.mqtt(0), "narrow");
}

fn a_principal_sends_and_gets_no_more_bytes(cluster: &Cluster) {
    let mut sender = Connection::v5(cluster.mqtt(0), "drip-sender");
    let mut receiver = Connection::v5(cluster.mqtt(0), "drip-receiver");
    both_ways(cluster, &mut sender, &mut receiver, 60, 3 * BYTE_RATE / 60);
}

fn a_principal_that_may_not_retain_is_told(cluster: &Cluster) {
    let mut client = Connection::v5(cluster.mqtt(0), "fleeting");
    let retained = Message {
        retain: true,
        ..Message::new("fleeting", "1")
    };
    client.send(&retained.bytes(V5));
    client.expect_disconnect(RETAIN_NOT_SUPPORTED);
}
