//! Connecting: what is negotiated, who is who, keep-alive, take-over.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::rules;
use cluster_tests::wait::{allowed, can_exceed, with_slack};
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, V31, V311, Value, id};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

#[test]
fn sessions() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            connack_announces_what_the_server_takes,
            an_empty_client_id_is_given_one,
            client_ids_of_any_form_are_taken,
            clean_start_is_never_session_present,
            the_session_expiry_is_not_contradicted,
            keep_alive_ends_a_silent_connection,
            keep_alive_is_fed_by_inbound_packets_only,
            a_second_connection_takes_over_on_the_same_node,
            a_second_connection_takes_over_across_nodes,
            take_over_works_for_every_version,
            many_quick_take_overs_leave_one_connection,
            nothing_comes_before_the_connack,
            disconnect_is_followed_by_the_close,
            pings_are_answered_while_others_load,
        ],
    );
}

fn connack_announces_what_the_server_takes(cluster: &Cluster) {
    let (_, connack) = Connection::connect(cluster.mqtt(0), &Connect::v5("announces"));
    let properties = &connack.properties;
    assert!(!connack.session_present, "[MQTT-3.2.2-2]");
    assert_eq!(properties.number(id::RECEIVE_MAXIMUM), Some(1024));
    assert_eq!(properties.number(id::MAXIMUM_PACKET_SIZE), Some(1 << 20));
    assert_eq!(properties.number(id::TOPIC_ALIAS_MAXIMUM), Some(32));
    assert!(
        properties
            .number(id::MAXIMUM_QOS)
            .is_none_or(|qos| qos <= 1),
        "2 is said by leaving it out"
    );
    assert!(
        !properties.has(id::ASSIGNED_CLIENT_ID),
        "the client has an id"
    );
    assert!(!properties.has(id::RESPONSE_INFORMATION), "[MQTT-3.1.2-28]");
    assert!(
        !properties.has(id::AUTHENTICATION_METHOD),
        "[MQTT-4.12.0-6]"
    );
    for available in [
        id::WILDCARD_AVAILABLE,
        id::SUBSCRIPTION_IDENTIFIER_AVAILABLE,
    ] {
        assert_ne!(properties.number(available), Some(0));
    }
}

fn an_empty_client_id_is_given_one(cluster: &Cluster) {
    let mut given = BTreeSet::new();
    for round in 0..9 {
        let mut connect = Connect::v5("");
        // Legal with clean start 0, too.
        connect.clean = round % 2 == 0;
        let (_, connack) = Connection::connect(cluster.mqtt(round % 3), &connect);
        let assigned = connack
            .properties
            .text(id::ASSIGNED_CLIENT_ID)
            .expect("[MQTT-3.2.2-16]");
        assert!(!assigned.is_empty() && !connack.session_present);
        assert!(
            given.insert(assigned.to_owned()),
            "{assigned} was given twice"
        );
    }
}

fn client_ids_of_any_form_are_taken(cluster: &Cluster) {
    let long = "x".repeat(2000);
    let ids = [
        "a",
        "0123456789abcdefghijABC",
        &long,
        "with/+#$ and space",
        "ключ-鍵",
        "\u{FEFF}bom",
        "$SYS",
    ];
    for client_id in ids {
        for level in [V5, V311, V31] {
            let connect = Connect::at(client_id, level);
            match Connection::try_connect(cluster.mqtt(1), &connect) {
                Ok((mut connection, connack)) => {
                    // 3.1 allows at most 23 characters, and says so with code 2.
                    let too_long = level == V31 && client_id.chars().count() > 23;
                    assert!(
                        connack.code == 0 || (too_long && connack.code == 2),
                        "{client_id:.30} {level}"
                    );
                    if connack.code == 0 {
                        connection.expect_nothing();
                    }
                }
                Err(fault) => panic!("{client_id:.30} at level {level}: {fault:?}"),
            }
        }
    }
}

fn clean_start_is_never_session_present(cluster: &Cluster) {
    for _ in 0..2 {
        let mut connect = Connect::v5("clean").durable(60);
        connect.clean = true;
        let (_, connack) = Connection::connect(cluster.mqtt(2), &connect);
        assert!(!connack.session_present, "[MQTT-3.2.2-2]");
    }
}

fn the_session_expiry_is_not_contradicted(cluster: &Cluster) {
    // Absent in CONNACK means that the server goes by what the client asked for.
    for expiry in [0, 3600, u32::MAX] {
        let (_, connack) =
            Connection::connect(cluster.mqtt(0), &Connect::v5("expiry").durable(expiry));
        let said = connack.properties.number(id::SESSION_EXPIRY);
        assert!(said.is_none() || said == Some(expiry), "{said:?}");
    }
}

/// The latest end of a connection with a keep-alive of 1 s, from its CONNECT on.
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(4);

const _: () = assert!(can_exceed(KEEP_ALIVE_WITHIN, TIMEOUT));

fn keep_alive_ends_a_silent_connection(cluster: &Cluster) {
    let connected = Instant::now();
    let (mut connection, connack) =
        Connection::connect(cluster.mqtt(0), &Connect::v5("silent").keep_alive(1));
    assert_eq!(
        connack
            .properties
            .number(id::SERVER_KEEP_ALIVE)
            .unwrap_or(1),
        1,
        "[MQTT-3.2.2-22]"
    );
    connection.expect_disconnect(0x8D);
    let after = connected.elapsed();
    assert!(
        after >= Duration::from_millis(1490),
        "closed early, after {after:?} [MQTT-3.1.2-22]"
    );
    assert!(
        after < with_slack(KEEP_ALIVE_WITHIN),
        "closed late, after {after:?}"
    );
}

fn keep_alive_is_fed_by_inbound_packets_only(cluster: &Cluster) {
    let address = cluster.mqtt(1);
    let (mut fed, _) = Connection::connect(address, &Connect::v5("fed").keep_alive(1));
    let (mut starved, _) = Connection::connect(address, &Connect::v5("starved").keep_alive(1));
    let mut publisher = Connection::v5(address, "feeder");
    let began = Instant::now();
    starved.subscribe(&[("feeding", 0)]);
    let mut ended = None;
    while began.elapsed() < with_slack(KEEP_ALIVE_WITHIN) && ended.is_none() {
        fed.send(&wire::PINGREQ);
        assert_eq!(fed.expect(), Packet::Pingresp);
        // What the server sends does not count.
        publisher.publish(Message::new("feeding", "x"));
        match starved.receive(Duration::from_millis(300)) {
            Ok(Packet::Publish(_)) | Err(Fault::Timeout) => {}
            Ok(Packet::Disconnect(disconnect)) => {
                assert_eq!(disconnect.code, 0x8D);
                ended = Some(began.elapsed());
            }
            other => panic!("{other:?}"),
        }
    }
    let ended = ended.expect("keep-alive ends a connection that only receives");
    assert!(ended >= Duration::from_millis(1400), "after {ended:?}");
    fed.expect_nothing();
}

fn a_second_connection_takes_over_on_the_same_node(cluster: &Cluster) {
    let mut first = Connection::v5(cluster.mqtt(0), "same");
    let mut second = Connection::v5(cluster.mqtt(0), "same");
    first.expect_disconnect(0x8E);
    second.expect_nothing();
}

fn a_second_connection_takes_over_across_nodes(cluster: &Cluster) {
    let mut previous: Option<Connection> = None;
    for round in 0..9 {
        let mut connection = Connection::v5(cluster.mqtt(round % 3), "across");
        if let Some(mut previous) = previous.take() {
            previous.expect_disconnect(0x8E);
        }
        connection.expect_nothing();
        previous = Some(connection);
    }
}

fn take_over_works_for_every_version(cluster: &Cluster) {
    for (first, second) in [(V311, V5), (V5, V311), (V31, V311), (V311, V31)] {
        let (mut old, _) = Connection::connect(cluster.mqtt(1), &Connect::at("versions", first));
        let (mut new, _) = Connection::connect(cluster.mqtt(2), &Connect::at("versions", second));
        if first == V5 {
            old.expect_disconnect(0x8E);
        } else {
            old.expect_closed();
        }
        new.expect_nothing();
    }
}

fn many_quick_take_overs_leave_one_connection(cluster: &Cluster) {
    let connections: Vec<Connection> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12)
            .map(|number| scope.spawn(move || Connection::v5(cluster.mqtt(number % 3), "quick")))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it connects"))
            .collect()
    });
    let mut alive = 0;
    for mut connection in connections {
        // A connection that was taken over has been told, or is told now, and does not answer a ping any more.
        let _ = connection.try_send(&wire::PINGREQ);
        match connection.receive(TIMEOUT) {
            Ok(Packet::Pingresp) => match connection.receive(Duration::from_millis(500)) {
                Err(Fault::Timeout) => alive += 1,
                Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x8E),
                Err(Fault::Closed) => {}
                other => panic!("{other:?}"),
            },
            Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x8E),
            Err(Fault::Closed) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(alive, 1, "S4: one connection per client id");
}

fn nothing_comes_before_the_connack(cluster: &Cluster) {
    let mut connection = Connection::open(cluster.mqtt(0), V5).expect("the port is open");
    assert_eq!(
        connection.receive(Duration::from_millis(300)),
        Err(Fault::Timeout)
    );
    // Everything at once: the answers come in order.
    let mut bytes = Connect::v5("at-once").bytes();
    bytes.extend(wire::subscribe(
        V5,
        1,
        &Properties::new(),
        &[("at-once", 1)],
    ));
    bytes.extend(Message::new("at-once", "x").qos(1, 2).bytes(V5));
    bytes.extend(wire::PINGREQ);
    connection.send(&bytes);
    assert!(
        matches!(connection.expect(), Packet::Connack(_)),
        "[MQTT-3.2.0-1]"
    );
    let mut seen = BTreeSet::new();
    while seen.len() < 4 {
        seen.insert(match connection.expect() {
            Packet::Suback(_) => "suback",
            Packet::Puback(ack) if ack.code == 0 => "puback",
            Packet::Publish(_) => "publish",
            Packet::Pingresp => "pingresp",
            other => panic!("{other:?}"),
        });
    }
}

fn disconnect_is_followed_by_the_close(cluster: &Cluster) {
    for level in [V5, V311] {
        for reason in [0x00, 0x04] {
            let (mut connection, _) =
                Connection::connect(cluster.mqtt(2), &Connect::at("leaves", level));
            connection.send(&wire::disconnect(level, reason, &Properties::new()));
            connection.expect_closed();
        }
    }
    let (mut connection, _) =
        Connection::connect(cluster.mqtt(2), &Connect::v5("leaves").durable(10));
    let list = Properties::new()
        .with(id::SESSION_EXPIRY, Value::FourBytes(0))
        .with(id::REASON_STRING, Value::Text("bye".into()))
        .user("a", "b");
    connection.send(&wire::disconnect(V5, 0x00, &list));
    connection.expect_closed();
}

fn pings_are_answered_while_others_load(cluster: &Cluster) {
    let address = cluster.mqtt(0);
    let mut loader = Connection::v5(address, "loader");
    let mut pinger = Connection::v5(address, "pinger");
    let batch: Vec<u8> = (1..=200)
        .flat_map(|id| {
            Message::new("load/x", vec![b'x'; 4000])
                .qos(1, id)
                .bytes(V5)
        })
        .collect();
    for _ in 0..20 {
        loader.send(&batch);
        let sent = Instant::now();
        pinger.expect_nothing();
        assert!(
            sent.elapsed() < allowed(Duration::from_secs(2)),
            "PINGRESP after {:?}",
            sent.elapsed()
        );
        for _ in 0..200 {
            assert!(matches!(loader.expect(), Packet::Puback(_)));
        }
    }
}
