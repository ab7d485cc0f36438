//! From PUBLISH to subscriber: matching, order, QoS, limits, from every node to every node.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::rules;
use cluster_tests::wire::{self, Connect, Message, Packet, V5, V31, V311, Value, id};
use std::time::Duration;

#[test]
fn delivery() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            every_node_delivers_to_every_node,
            a_subscription_counts_everywhere_once_it_is_acknowledged,
            filters_match_as_the_standard_says,
            wrong_filters_are_refused,
            delivery_qos_is_the_lower_of_both,
            one_publishers_messages_keep_their_order,
            versions_understand_each_other,
            overlapping_subscriptions_carry_all_identifiers,
            payloads_of_every_size_arrive_whole,
            a_packet_above_the_servers_maximum_ends_the_connection,
            the_clients_maximum_packet_size_is_honoured,
            the_clients_receive_maximum_is_honoured,
            message_expiry_is_passed_on_and_counts_down,
            a_message_without_subscribers_is_acknowledged,
            what_an_ended_connection_was_to_get_reaches_nobody_else,
            a_slow_consumer_does_not_stop_others,
        ],
    );
}

fn every_node_delivers_to_every_node(cluster: &Cluster) {
    for subscribed in 0..3 {
        let mut subscriber = Connection::v5(cluster.mqtt(subscribed), "every-sub");
        subscriber.subscribe(&[("every/+/#", 1)]);
        for publishing in 0..3 {
            let mut publisher = Connection::v5(cluster.mqtt(publishing), "every-pub");
            for qos in [0, 1] {
                let payload = format!("{publishing}-{subscribed}-{qos}");
                let topic = format!("every/{publishing}/{qos}");
                assert_eq!(
                    publisher.publish(Message::new(&topic, &payload).qos(qos, 0)),
                    0
                );
                let publish = subscriber.publish_received();
                assert_eq!((publish.topic, publish.qos), (topic, qos));
                assert_eq!(publish.payload, payload.as_bytes());
                assert!(!publish.duplicate && !publish.retain);
            }
        }
        subscriber.expect_nothing();
    }
}

/// P6: SUBACK sent, then every PUBLISH accepted later on any node is matched against it.
fn a_subscription_counts_everywhere_once_it_is_acknowledged(cluster: &Cluster) {
    let mut publishers: Vec<Connection> = (0..3)
        .map(|node| Connection::v5(cluster.mqtt(node), &format!("p6-pub-{node}")))
        .collect();
    for round in 0..60 {
        let topic = format!("p6/{round}");
        let mut subscriber = Connection::v5(cluster.mqtt(round % 3), &format!("p6-sub-{round}"));
        subscriber.subscribe(&[(&topic, 1)]);
        let publisher = &mut publishers[(round / 3) % 3];
        publisher.publish(Message::new(&topic, "x").qos((round % 2) as u8, 0));
        assert_eq!(subscriber.publish_received().topic, topic);
    }
}

fn filters_match_as_the_standard_says(cluster: &Cluster) {
    let table: &[(&str, &[&str], &[&str])] = &[
        (
            "#",
            &["a", "a/b", "/", "/a", "a//b"],
            &["$a", "$a/b", "$SYS/x"],
        ),
        ("+", &["a", "b"], &["a/b", "/", "$a", "/a"]),
        ("+/+", &["/", "a/b", "/a", "a/"], &["a", "a/b/c", "$a/b"]),
        ("/+", &["/", "/a"], &["a", "a/b"]),
        (
            "a/#",
            &["a", "a/", "a/b", "a/b/c", "a//"],
            &["b", "ab", "A/b", "/a"],
        ),
        (
            "a/+/c",
            &["a/b/c", "a//c"],
            &["a/c", "a/b/b/c", "a/b", "a/b/c/"],
        ),
        ("a/+/#", &["a/b", "a/b/c", "a/"], &["a", "b/a"]),
        ("+/b/#", &["a/b", "a/b/c", "/b"], &["$a/b", "b", "a/c"]),
        ("$a/#", &["$a", "$a/b"], &["a", "$A/b", "$b"]),
        ("$a/+", &["$a/b"], &["$a", "$a/b/c"]),
        ("é/ ü", &["é/ ü"], &["e/ ü", "é/ü", "É/ ü"]),
        ("a//b", &["a//b"], &["a/b", "a///b"]),
    ];
    let mut publisher = Connection::v5(cluster.mqtt(0), "match-pub");
    for (number, (filter, matching, others)) in table.iter().enumerate() {
        let mut subscriber = Connection::v5(cluster.mqtt(number % 3), "match-sub");
        subscriber.subscribe(&[(filter, 0), ("match-end", 0)]);
        for topic in matching.iter().chain(*others) {
            publisher.publish(Message::new(topic, "x").qos(1, 0));
        }
        publisher.publish(Message::new("match-end", "x").qos(1, 0));
        let mut found = Vec::new();
        loop {
            let publish = subscriber.publish_received();
            if publish.topic == "match-end" {
                break;
            }
            found.push(publish.topic);
        }
        found.sort();
        let mut wanted = matching.to_vec();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "filter {filter}");
    }
}

fn wrong_filters_are_refused(cluster: &Cluster) {
    let wrong = [
        "",
        "a/#/b",
        "#/a",
        "a#",
        "a/#b",
        "a+",
        "+a",
        "a/b+/c",
        "++",
        "$share/",
        "$share//a",
        "$share/g",
        "$share/g/",
        "$share/+/a",
        "$share/g#/a",
    ];
    for filter in wrong {
        let mut client = Connection::v5(cluster.mqtt(0), "wrong-filter");
        client.send(&wire::subscribe(
            V5,
            1,
            &wire::Properties::new(),
            &[(filter, 0)],
        ));
        match client.receive(TIMEOUT) {
            Ok(Packet::Suback(suback)) => assert_eq!(suback.codes, [0x8F], "{filter:?}"),
            Ok(Packet::Disconnect(disconnect)) => {
                assert!(
                    [0x81, 0x82, 0x8F].contains(&disconnect.code),
                    "{filter:?}: {disconnect:?}"
                );
            }
            other => panic!("{filter:?}: {other:?}"),
        }
    }
}

fn delivery_qos_is_the_lower_of_both(cluster: &Cluster) {
    let mut publisher = Connection::v5(cluster.mqtt(0), "lower-pub");
    let mut subscriber = Connection::v5(cluster.mqtt(1), "lower-sub");
    subscriber.subscribe(&[("lower/0", 0), ("lower/1", 1)]);
    for (topic, published, delivered) in [
        ("lower/0", 0, 0),
        ("lower/0", 1, 0),
        ("lower/1", 0, 0),
        ("lower/1", 1, 1),
    ] {
        publisher.publish(Message::new(topic, "x").qos(published, 0));
        let publish = subscriber.publish_received();
        assert_eq!(
            publish.qos, delivered,
            "{topic} published at {published} [MQTT-3.8.4-8]"
        );
    }
    // Overlapping: the highest granted.
    subscriber.subscribe(&[("lower/both", 1), ("lower/#", 0)]);
    publisher.publish(Message::new("lower/both", "x").qos(1, 0));
    let publish = subscriber.publish_received();
    assert_eq!(publish.qos, 1, "[MQTT-3.3.4-2]");
}

/// P5, D4.
fn one_publishers_messages_keep_their_order(cluster: &Cluster) {
    const COUNT: u16 = 600;
    let mut subscribers: Vec<Connection> = (0..3)
        .map(|node| {
            let mut subscriber = Connection::v5(cluster.mqtt(node), &format!("order-sub-{node}"));
            subscriber.subscribe(&[("order/#", 1)]);
            subscriber
        })
        .collect();
    for qos in [0, 1] {
        let mut publisher = Connection::v5(cluster.mqtt(1), "order-pub");
        let mut bytes = Vec::new();
        for number in 1..=COUNT {
            bytes.extend(
                Message::new("order/x", number.to_be_bytes())
                    .qos(qos, number)
                    .bytes(V5),
            );
        }
        publisher.send(&bytes);
        for subscriber in &mut subscribers {
            for number in 1..=COUNT {
                let publish = subscriber.publish_received();
                assert_eq!(publish.payload, number.to_be_bytes(), "QoS {qos}");
            }
            subscriber.expect_nothing();
        }
    }
}

fn versions_understand_each_other(cluster: &Cluster) {
    for from in [V31, V311, V5] {
        for to in [V31, V311, V5] {
            let (mut subscriber, _) =
                Connection::connect(cluster.mqtt(1), &Connect::at("understand-sub", to));
            let suback = subscriber.subscribe_for(&[("understand", 1)]);
            assert_eq!(suback.codes, [1]);
            let (mut publisher, _) =
                Connection::connect(cluster.mqtt(2), &Connect::at("understand-pub", from));
            let message = Message::new("understand", "x")
                .qos(1, 0)
                .user("only", "in 5");
            publisher.publish(message);
            let publish = subscriber.publish_received();
            assert_eq!(
                (publish.payload.as_slice(), publish.qos),
                (b"x".as_slice(), 1)
            );
            let expected = if from == V5 && to == V5 {
                vec![("only", "in 5")]
            } else {
                vec![]
            };
            assert_eq!(publish.properties.user_properties(), expected);
        }
    }
}

fn overlapping_subscriptions_carry_all_identifiers(cluster: &Cluster) {
    let mut subscriber = Connection::v5(cluster.mqtt(0), "overlap-sub");
    for (packet_id, number, filter) in [
        (101, 7, "overlap/#"),
        (102, 268_435_455, "overlap/a"),
        (103, 3, "+/a"),
    ] {
        let list = wire::Properties::new().with(id::SUBSCRIPTION_IDENTIFIER, Value::Varint(number));
        subscriber.send(&wire::subscribe(V5, packet_id, &list, &[(filter, 0)]));
        assert!(matches!(subscriber.expect(), Packet::Suback(suback) if suback.codes == [0]));
    }
    let mut publisher = Connection::v5(cluster.mqtt(1), "overlap-pub");
    publisher.publish(Message::new("overlap/a", "x"));
    publisher.publish(Message::new("overlap/end", "x"));
    let mut found = Vec::new();
    loop {
        let publish = subscriber.publish_received();
        if publish.topic == "overlap/end" {
            break;
        }
        found.extend(publish.properties.subscription_identifiers());
    }
    found.sort_unstable();
    assert_eq!(found, [3, 7, 268_435_455], "[MQTT-3.3.4-4] [MQTT-3.3.4-5]");
}

fn payloads_of_every_size_arrive_whole(cluster: &Cluster) {
    let mut subscriber = Connection::v5(cluster.mqtt(2), "sizes-sub");
    subscriber.subscribe(&[("sizes", 1)]);
    let mut publisher = Connection::v5(cluster.mqtt(0), "sizes-pub");
    for size in [
        0_usize, 1, 110, 120, 127, 128, 129, 1000, 16_370, 16_383, 16_384, 65_535, 65_536, 300_000,
        1_000_000,
    ] {
        for qos in [0, 1] {
            let payload: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            assert_eq!(
                publisher.publish(Message::new("sizes", &payload).qos(qos, 0)),
                0
            );
            let publish = subscriber.publish_received();
            assert!(publish.payload == payload, "{size} bytes at QoS {qos}");
        }
    }
}

fn a_packet_above_the_servers_maximum_ends_the_connection(cluster: &Cluster) {
    let mut client = Connection::v5(cluster.mqtt(0), "oversize");
    // The header alone is enough to know.
    client.send(&[0x30]);
    client.send(&wire::varint((1 << 20) + 1));
    client.expect_disconnect(0x95);
    let (mut client, _) = Connection::connect(cluster.mqtt(0), &Connect::at("oversize", V311));
    client.send(&[0x30]);
    client.send(&wire::varint((1 << 20) + 1));
    client.expect_closed();
}

fn the_clients_maximum_packet_size_is_honoured(cluster: &Cluster) {
    let connect = Connect::v5("small").with(id::MAXIMUM_PACKET_SIZE, Value::FourBytes(64));
    let (mut small, _) = Connection::connect(cluster.mqtt(0), &connect);
    small.subscribe(&[("small", 1)]);
    let mut publisher = Connection::v5(cluster.mqtt(1), "small-pub");
    for qos in [0, 1] {
        publisher.publish(Message::new("small", vec![b'x'; 100]).qos(qos, 0));
        publisher.publish(Message::new("small", "fits").qos(qos, 0));
        // [MQTT-3.1.2-25]: dropped as if delivered.
        assert_eq!(small.publish_received().payload, b"fits");
    }
    small.expect_nothing();
}

fn the_clients_receive_maximum_is_honoured(cluster: &Cluster) {
    let connect = Connect::v5("narrow").with(id::RECEIVE_MAXIMUM, Value::TwoBytes(2));
    let (mut narrow, _) = Connection::connect(cluster.mqtt(2), &connect);
    narrow.subscribe(&[("narrow", 1)]);
    let mut publisher = Connection::v5(cluster.mqtt(0), "narrow-pub");
    for number in 0..6_u8 {
        publisher.publish(Message::new("narrow", [number]).qos(1, 0));
    }
    let mut next = || match narrow.receive(TIMEOUT) {
        Ok(Packet::Publish(publish)) => (publish.packet_id, publish.payload[0]),
        other => panic!("{other:?}"),
    };
    let mut open = vec![next(), next()];
    for number in 2..6 {
        // [MQTT-3.3.4-9]: nothing more, but [MQTT-3.3.4-10] other packets still flow.
        narrow.send(&wire::PINGREQ);
        assert_eq!(narrow.expect(), Packet::Pingresp);
        let (packet_id, _) = open.remove(0);
        narrow.send(&wire::acknowledgement(wire::PUBACK, packet_id));
        match narrow.receive(TIMEOUT) {
            Ok(Packet::Publish(publish)) => {
                assert_eq!(publish.payload, [number]);
                assert!(
                    open.iter().all(|(id, _)| *id != publish.packet_id),
                    "D7: in use"
                );
                open.push((publish.packet_id, publish.payload[0]));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn message_expiry_is_passed_on_and_counts_down(cluster: &Cluster) {
    let mut subscriber = Connection::v5(cluster.mqtt(0), "life-sub");
    subscriber.subscribe(&[("life", 1)]);
    let mut publisher = Connection::v5(cluster.mqtt(1), "life-pub");
    for expiry_s in [1, 60, u32::MAX] {
        let message =
            Message::new("life", "x").with(id::MESSAGE_EXPIRY, Value::FourBytes(expiry_s));
        publisher.publish(message.qos(1, 0));
        let publish = subscriber.publish_received();
        let left = publish
            .properties
            .number(id::MESSAGE_EXPIRY)
            .expect("[MQTT-3.3.2-6]");
        assert!(
            left <= expiry_s && left.saturating_add(5) >= expiry_s,
            "{left} of {expiry_s}"
        );
    }
}

fn a_message_without_subscribers_is_acknowledged(cluster: &Cluster) {
    for node in 0..3 {
        let mut publisher = Connection::v5(cluster.mqtt(node), "nobody-pub");
        let code = publisher.publish(Message::new("nobody/listens", "x").qos(1, 0));
        assert!(code == 0x00 || code == 0x10, "{code:#04x}");
    }
}

fn a_slow_consumer_does_not_stop_others(cluster: &Cluster) {
    let address = cluster.mqtt(0);
    let mut slow = Connection::v5(address, "slow");
    slow.subscribe(&[("flood", 0)]);
    let mut quick = Connection::v5(address, "quick");
    quick.subscribe(&[("flood/end", 0)]);
    let before = cluster.nodes[0]
        .metric("process_resident_memory_bytes")
        .unwrap_or(0.0);
    let mut publisher = Connection::v5(address, "flooder");
    // 100 MiB are published to a client that does not read.
    for _ in 0..1600 {
        publisher.publish(Message::new("flood", vec![b'x'; 64 * 1024]));
    }
    publisher.publish(Message::new("flood/end", "x").qos(1, 0));
    quick.publish_received();
    let after = cluster.nodes[0]
        .metric("process_resident_memory_bytes")
        .unwrap_or(0.0);
    assert!(
        after - before < 64.0 * 1024.0 * 1024.0,
        "memory grew by {} bytes",
        after - before
    );
    cluster_tests::wait::until("what was dropped to be counted", TIMEOUT, || {
        (cluster.nodes[0].metric("quorumq_messages_dropped_total")? > 0.0).then_some(())
    });
    // It may have been disconnected; if not, it is alive.
    loop {
        match slow.receive(Duration::from_millis(500)) {
            Ok(Packet::Publish(_)) => {}
            Ok(Packet::Disconnect(disconnect)) => {
                assert!(disconnect.code >= 0x80);
                break;
            }
            Err(Fault::Timeout) => {
                slow.expect_nothing();
                break;
            }
            Err(Fault::Closed) => break,
            other => panic!("{other:?}"),
        }
    }
}

/// What waits for a connection when it is taken over is its own: no other connection of the node is sent it.
fn what_an_ended_connection_was_to_get_reaches_nobody_else(cluster: &Cluster) {
    let address = cluster.mqtt(0);
    let mut bystanders: Vec<Connection> = (0..16)
        .map(|number| Connection::v5(address, &format!("bystander-{number}")))
        .collect();
    for bystander in &mut bystanders {
        bystander.subscribe(&[("bystanders", 0)]);
    }
    let mut publisher = Connection::v5(address, "crowd-pub");
    for _ in 0..3 {
        let mut owner = Connection::v5(address, "crowd-owner");
        owner.subscribe(&[("crowd", 0)]);
        // More than the sockets hold between them, so that some waits in the broker.
        for _ in 0..400 {
            publisher.publish(Message::new("crowd", vec![b'x'; 32 * 1024]));
        }
        publisher.expect_nothing();
        let mut next = Connection::v5(address, "crowd-owner");
        next.expect_nothing();
        while !matches!(owner.receive(TIMEOUT), Err(Fault::Closed)) {}
        for text in ["one", "two", "three"] {
            publisher.publish(Message::new("bystanders", text));
            for bystander in &mut bystanders {
                let publish = bystander.publish_received();
                assert_eq!(publish.payload, text.as_bytes(), "{}", publish.topic);
            }
        }
    }
}
