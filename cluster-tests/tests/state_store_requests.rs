//! The form of requests and answers (docs/spec/state-store.md, Requests and Answers).

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::rules;
use cluster_tests::store::{Hlc, INVOKE, Request, StoreClient, blob, hex, resp};
use cluster_tests::wire::{self, Connect, Message, Packet, Publish, V5, V31, V311, Value, id};

const SERVICE: &str = "FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8";

#[test]
fn requests_and_answers() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            the_rust_sdk_is_answered,
            the_go_sdk_is_answered_although_no_local,
            the_dotnet_sdk_is_answered,
            every_answer_has_its_properties_and_nothing_else,
            correlation_data_comes_back_byte_for_byte,
            a_bare_request_is_accepted,
            empty_and_dollar_user_properties_are_legal,
            the_acknowledgement_is_0x00_never_0x10,
            without_response_topic_nothing_is_executed,
            without_correlation_data_nothing_is_executed,
            at_qos_0_nothing_is_executed,
            a_forbidden_response_topic_is_acknowledged_and_then_disconnected,
            a_client_before_mqtt_5_is_not_served_but_stays_connected,
            many_requests_may_be_outstanding,
            answers_go_before_their_acknowledgements,
            a_client_that_asks_for_much_at_once_gets_it,
            a_client_that_acknowledges_late_is_answered,
            any_node_answers_and_sees_what_others_wrote,
        ],
    );
}

/// A request as raw PUBLISH.
fn request(payload: &[u8], response_topic: &str, correlation: &[u8]) -> Message {
    Message::new(INVOKE, payload)
        .with(id::RESPONSE_TOPIC, Value::Text(response_topic.into()))
        .with(id::CORRELATION_DATA, Value::Binary(correlation.into()))
        .user("__ts", &Hlc::now("client").to_string())
}

/// Publishes at QoS 1 and returns the answer; the PUBACK must have come too.
#[track_caller]
fn ask(connection: &mut Connection, message: Message) -> Publish {
    assert_eq!(connection.publish(message.qos(1, 0)), 0x00);
    connection.publish_received()
}

#[track_caller]
fn assert_ok(answer: &Publish, topic: &str) {
    assert_eq!(answer.topic, topic);
    assert_eq!(answer.payload, b"+OK\r\n");
}

fn the_rust_sdk_is_answered(cluster: &Cluster) {
    let topic =
        format!("clients/rust-sdk/services/statestore/v1/{SERVICE}/command/invoke/response");
    let (mut client, _) =
        Connection::connect(cluster.mqtt(0), &Connect::v5("rust-sdk").durable(3600));
    client.subscribe(&[(&topic, 1)]);
    let message = request(&resp(["SET", "rust", "1"]), &topic, &[7; 16])
        .with(
            id::CONTENT_TYPE,
            Value::Text("application/octet-stream".into()),
        )
        .with(id::MESSAGE_EXPIRY, Value::FourBytes(10))
        .user("__srcId", "rust-sdk")
        .user("__protVer", "1.0")
        .user("$partition", "rust-sdk")
        .user("aio-persistence", "true")
        .user("$high_priority", "");
    assert_ok(&ask(&mut client, message), &topic);
}

fn the_go_sdk_is_answered_although_no_local(cluster: &Cluster) {
    let topic = format!(
        "clients/{}/statestore/v1/{SERVICE}/command/invoke",
        hex(b"go-sdk")
    );
    let mut client = Connection::v5(cluster.mqtt(1), "go-sdk");
    // Options: QoS 1, No Local.
    let suback = client.subscribe_for(&[(&topic, 0x05)]);
    assert_eq!(suback.codes, [1]);
    assert_ok(
        &ask(
            &mut client,
            request(&resp(["SET", "go", "1"]), &topic, &[8; 16]),
        ),
        &topic,
    );
}

fn the_dotnet_sdk_is_answered(cluster: &Cluster) {
    let topic = format!("clients/dotnet-sdk/services/statestore/v1/{SERVICE}/command/invoke");
    let mut client = Connection::v5(cluster.mqtt(2), "dotnet-sdk");
    client.subscribe(&[(&topic, 1)]);
    let message =
        request(&resp(["SET", "dotnet", "1"]), &topic, &[9; 16]).user("__invId", "dotnet-sdk");
    assert_ok(&ask(&mut client, message), &topic);
}

fn every_answer_has_its_properties_and_nothing_else(cluster: &Cluster) {
    let mut client = StoreClient::connected("properties", cluster.mqtt(0));
    let asked = [
        (Request::set("properties", "v"), true),
        (Request::of(["SET", "properties", "w", "NX"]), true),
        (Request::get("properties"), true),
        (Request::vdel("properties", "other"), false),
        (Request::keynotify("properties/none"), false),
        (Request::of(["KEYNOTIFY", "properties/none", "STOP"]), false),
        (Request::of(["KEYNOTIFY", "properties/none", "STOP"]), false),
        (Request::of(["SCAN", "properties*"]), false),
        (Request::del("properties"), true),
        (Request::get("properties"), false),
        (Request::del("properties"), false),
        (Request::vdel("properties", "v"), false),
        (Request::raw("rubbish"), false),
        (Request::of(["set", "properties", "v"]), false),
    ];
    for (request, versioned) in asked {
        let reply = client.call(&request);
        let publish = &reply.publish;
        let what = format!(
            "{} → {publish:?}",
            String::from_utf8_lossy(&request.payload)
        );
        assert_eq!(
            (publish.qos, publish.retain, publish.duplicate),
            (1, false, false),
            "{what}"
        );
        assert_eq!(publish.topic, client.response_topic, "{what}");
        assert_eq!(
            publish.properties.text(id::CONTENT_TYPE),
            Some("application/octet-stream"),
            "{what}"
        );
        assert_eq!(publish.properties.user_values("__stat"), ["200"], "{what}");
        assert_eq!(
            publish.properties.user_values("__protVer"),
            ["1.0"],
            "{what}"
        );
        assert_eq!(
            publish.properties.user_values("__ts").len(),
            usize::from(versioned),
            "{what}"
        );
        assert!(!publish.properties.has(id::RESPONSE_TOPIC), "{what}");
        assert!(!publish.properties.has(id::TOPIC_ALIAS), "{what}");
    }
}

fn correlation_data_comes_back_byte_for_byte(cluster: &Cluster) {
    let topic = "clients/correlation/response";
    let mut client = Connection::v5(cluster.mqtt(1), "correlation");
    client.subscribe(&[(topic, 1)]);
    let every_byte: Vec<u8> = (0..=255).collect();
    for correlation in [&[0x00][..], &[0xFF, 0x00, 0x0D, 0x0A], &every_byte] {
        let answer = ask(
            &mut client,
            request(&resp(["GET", "none"]), topic, correlation),
        );
        assert_eq!(
            answer.properties.binary(id::CORRELATION_DATA),
            Some(correlation)
        );
    }
}

fn a_bare_request_is_accepted(cluster: &Cluster) {
    let mut client = Connection::v5(cluster.mqtt(0), "bare");
    client.subscribe(&[("bare/answers", 1)]);
    // No message expiry, no content type, no user property at all.
    let message = Message::new(INVOKE, resp(["GET", "bare"]))
        .with(id::RESPONSE_TOPIC, Value::Text("bare/answers".into()))
        .with(id::CORRELATION_DATA, Value::Binary(vec![1]));
    assert_eq!(ask(&mut client, message).payload, b"$-1\r\n");
}

fn empty_and_dollar_user_properties_are_legal(cluster: &Cluster) {
    let mut client = Connection::v5(cluster.mqtt(0), "dollar");
    client.subscribe(&[("dollar/answers", 1)]);
    let message = request(&resp(["GET", "dollar"]), "dollar/answers", &[2])
        .user("$high_priority", "")
        .user("$partition", "dollar")
        .user("", "")
        .user("$", "")
        .user("__srcId", "");
    assert_eq!(ask(&mut client, message).payload, b"$-1\r\n");
}

fn the_acknowledgement_is_0x00_never_0x10(cluster: &Cluster) {
    // Nobody subscribes to INVOKE, nor to the response topic: that is no "no matching subscribers".
    let mut client = Connection::v5(cluster.mqtt(2), "puback");
    let message = request(&resp(["SET", "puback", "1"]), "puback/nobody/listens", &[3]);
    assert_eq!(client.publish(message.qos(1, 0)), 0x00);
    client.expect_nothing();
    StoreClient::connected("puback-reader", cluster.mqtt(0))
        .expect(&Request::get("puback"), "$1\r\n1\r\n");
}

/// Publishes `message` at QoS 1, which must fail with 0x83 and a reason, and shows that `key` was not set.
#[track_caller]
fn refused(cluster: &Cluster, name: &str, message: Message) {
    let mut client = Connection::v5(cluster.mqtt(0), name);
    client.subscribe(&[("refused/answers", 1)]);
    let packet_id = client.packet_id();
    client.send(&message.qos(1, packet_id).bytes(V5));
    match client.expect() {
        Packet::Puback(ack) => {
            assert_eq!((ack.packet_id, ack.code), (packet_id, 0x83));
            let reason = ack.properties.text(id::REASON_STRING);
            assert!(reason.is_some_and(|reason| !reason.is_empty()), "{ack:?}");
        }
        other => panic!("instead of PUBACK 0x83: {other:?}"),
    }
    client.expect_nothing();
    StoreClient::connected("refused-reader", cluster.mqtt(1))
        .expect(&Request::get(name), "$-1\r\n");
}

fn without_response_topic_nothing_is_executed(cluster: &Cluster) {
    let message = Message::new(INVOKE, resp(["SET", "no-topic", "1"]))
        .with(id::CORRELATION_DATA, Value::Binary(vec![1; 16]))
        .user("__ts", &Hlc::now("client").to_string());
    refused(cluster, "no-topic", message);
}

fn without_correlation_data_nothing_is_executed(cluster: &Cluster) {
    let message = Message::new(INVOKE, resp(["SET", "no-correlation", "1"]))
        .with(id::RESPONSE_TOPIC, Value::Text("refused/answers".into()))
        .user("__ts", &Hlc::now("client").to_string());
    refused(cluster, "no-correlation", message);
}

fn at_qos_0_nothing_is_executed(cluster: &Cluster) {
    let mut client = Connection::v5(cluster.mqtt(0), "qos0");
    client.subscribe(&[("qos0/answers", 1)]);
    client.publish(request(
        &resp(["SET", "qos0", "1"]),
        "qos0/answers",
        &[1; 16],
    ));
    client.expect_nothing();
    StoreClient::connected("qos0-reader", cluster.mqtt(0)).expect(&Request::get("qos0"), "$-1\r\n");
}

fn a_forbidden_response_topic_is_acknowledged_and_then_disconnected(cluster: &Cluster) {
    let forbidden = [
        INVOKE.to_owned(),
        format!("clients/statestore/v1/{SERVICE}/x/command/notify/41"),
        format!("clients/statestore/v1/{SERVICE}"),
        "answers/+/x".to_owned(),
        "answers/#".to_owned(),
    ];
    for topic in forbidden {
        let mut client = Connection::v5(cluster.mqtt(1), "forbidden");
        let message = request(&resp(["SET", "forbidden", "1"]), &topic, &[1; 16]).qos(1, 77);
        client.send(&message.bytes(V5));
        match client.expect() {
            Packet::Puback(ack) => assert_eq!((ack.packet_id, ack.code), (77, 0x90), "{topic}"),
            other => panic!("{topic}: instead of PUBACK 0x90: {other:?}"),
        }
        client.expect_disconnect(0x90);
    }
    StoreClient::connected("forbidden-reader", cluster.mqtt(0))
        .expect(&Request::get("forbidden"), "$-1\r\n");
}

fn a_client_before_mqtt_5_is_not_served_but_stays_connected(cluster: &Cluster) {
    for level in [V311, V31] {
        let (mut client, _) = Connection::connect(cluster.mqtt(0), &Connect::at("old", level));
        client.subscribe(&[("clients/#", 1)]);
        // Acknowledged, or the client would send it for ever.
        client.publish(Message::new(INVOKE, resp(["SET", "old", "1"])).qos(1, 0));
        client.publish(Message::new(INVOKE, resp(["SET", "old", "1"])));
        client.expect_nothing();
    }
    StoreClient::connected("old-reader", cluster.mqtt(0)).expect(&Request::get("old"), "$-1\r\n");
}

/// What is read for a client waits until it has taken what was read before.
fn a_client_that_asks_for_much_at_once_gets_it(cluster: &Cluster) {
    let mut writer = StoreClient::connected("much-writer", cluster.mqtt(0));
    for (bytes, count) in [(900_000, 20_u16), (50_000, 300), (10_000, 1_000)] {
        let value = vec![b'v'; bytes];
        writer.expect(&Request::set("much", &value), b"+OK\r\n");
        let name = format!("much-{bytes}");
        let mut client = Connection::v5(cluster.mqtt(1), &name);
        client.subscribe(&[("much/answers", 0)]);
        let asked = (1..=count).flat_map(|number| {
            let message = request(
                &resp(["GET", "much"]),
                "much/answers",
                &number.to_be_bytes(),
            );
            message.qos(1, number).bytes(V5)
        });
        client.send(&asked.collect::<Vec<_>>());
        let (mut acknowledged, mut answered) = (0, 0);
        while acknowledged < count || answered < count {
            match client.expect() {
                Packet::Puback(ack) => {
                    acknowledged += 1;
                    assert_eq!((ack.code, ack.packet_id), (0, acknowledged), "{name}");
                }
                Packet::Publish(publish) => {
                    answered += 1;
                    let correlation = publish.properties.binary(id::CORRELATION_DATA);
                    assert_eq!(correlation, Some(&answered.to_be_bytes()[..]), "{name}");
                    assert_eq!(publish.payload, blob(&value), "{name}");
                }
                other => panic!("{name} after {answered} answers: {other:?}"),
            }
        }
        client.disconnect();
    }
    writer.disconnect();
}

/// What waits for its acknowledgements holds up no answer: it may acknowledge a message by what it is answered.
fn a_client_that_acknowledges_late_is_answered(cluster: &Cluster) {
    const MESSAGES: u16 = 400;
    const ASKED: u16 = 60;
    let mut writer = StoreClient::connected("late-writer", cluster.mqtt(0));
    writer.expect(&Request::set("late", vec![b'v'; 10_000]), b"+OK\r\n");
    let connect = Connect::v5("late").with(id::RECEIVE_MAXIMUM, Value::TwoBytes(1));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.subscribe(&[
        ("late/messages", 1),
        ("late/answers", 0),
        ("late/certain", 1),
    ]);
    let mut publisher = Connection::v5(cluster.mqtt(1), "late-publisher");
    for _ in 0..MESSAGES {
        let message = Message::new("late/messages", vec![b'm'; 1_000]);
        assert_eq!(publisher.publish(message.qos(1, 0)), 0);
    }
    let Packet::Publish(first) = client.expect() else {
        panic!("no message");
    };
    for number in 1..=3_u16 {
        for words in [["GET", "late"], ["SCAN", "late*"]] {
            let message = request(&resp(words), "late/answers", &number.to_be_bytes());
            client.send(&message.qos(1, number).bytes(V5));
            let (mut answered, mut acknowledged) = (false, false);
            while !(answered && acknowledged) {
                match client.expect() {
                    Packet::Publish(answer) if answer.topic == "late/answers" => answered = true,
                    Packet::Puback(ack) if ack.code == 0 => acknowledged = true,
                    other => panic!("{words:?} {number}: {other:?}"),
                }
            }
        }
    }
    // Answers that wait for acknowledgements, too.
    let asked = (1..=ASKED).flat_map(|number| {
        let message = request(
            &resp(["GET", "late"]),
            "late/certain",
            &number.to_be_bytes(),
        );
        message.qos(1, number).bytes(V5)
    });
    client.send(&asked.collect::<Vec<_>>());
    client.send(&wire::acknowledgement(wire::PUBACK, first.packet_id));
    let (mut messages, mut answers) = (1, 0);
    while messages < MESSAGES || answers < ASKED {
        match client.expect() {
            Packet::Publish(publish) => {
                match &*publish.topic {
                    "late/messages" => messages += 1,
                    _ => answers += 1,
                }
                client.send(&wire::acknowledgement(wire::PUBACK, publish.packet_id));
            }
            Packet::Puback(ack) => assert_eq!(ack.code, 0),
            other => panic!("after {messages} messages, {answers} answers: {other:?}"),
        }
    }
    client.disconnect();
    publisher.disconnect();
    writer.disconnect();
}

/// Also when there are more than one turn of the connection answers: each goes to others, too.
fn answers_go_before_their_acknowledgements(cluster: &Cluster) {
    const COUNT: u16 = 1_000;
    let subscribed = |number| {
        let mut client = Connection::v5(cluster.mqtt(1), &format!("order-{number}"));
        client.subscribe(&[("order/#", 0)]);
        client
    };
    let _others: Vec<_> = (1..10).map(subscribed).collect();
    let mut client = subscribed(0);
    let asked = (1..=COUNT).flat_map(|number| {
        let topic = format!("order/{number}");
        let message = request(&resp(["SET", "order", "x"]), &topic, &number.to_be_bytes());
        message.qos(1, number).bytes(V5)
    });
    client.send(&asked.collect::<Vec<_>>());
    let (mut acknowledged, mut answered) = (0, std::collections::HashSet::new());
    while acknowledged < COUNT {
        match client.expect() {
            Packet::Puback(ack) => {
                let (id, count) = (ack.packet_id, answered.len());
                assert!(answered.contains(&Some(id)), "{id} after {count}");
                acknowledged += 1;
            }
            Packet::Publish(answer) => {
                let number = answer.properties.binary(id::CORRELATION_DATA);
                answered.insert(number.map(|number| u16::from_be_bytes([number[0], number[1]])));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn many_requests_may_be_outstanding(cluster: &Cluster) {
    const COUNT: u16 = 200;
    let topic = "many/answers";
    let mut client = Connection::v5(cluster.mqtt(1), "many");
    client.subscribe(&[(topic, 1)]);
    let mut bytes = Vec::new();
    for number in 1..=COUNT {
        let payload = resp([
            "SET".to_owned(),
            format!("many/{}", number % 7),
            number.to_string(),
        ]);
        let message = request(&payload, topic, &number.to_be_bytes()).qos(1, 1000 + number);
        bytes.extend(message.bytes(V5));
    }
    client.send(&bytes);
    let mut acknowledged = Vec::new();
    let mut answered = Vec::new();
    while acknowledged.len() < usize::from(COUNT) || answered.len() < usize::from(COUNT) {
        match client.expect() {
            Packet::Puback(ack) => {
                assert_eq!(ack.code, 0);
                acknowledged.push(ack.packet_id - 1000);
            }
            Packet::Publish(publish) => {
                client.send(&wire::acknowledgement(wire::PUBACK, publish.packet_id));
                assert_eq!(publish.payload, b"+OK\r\n");
                let correlation = publish
                    .properties
                    .binary(id::CORRELATION_DATA)
                    .expect("it has some");
                answered.push(u16::from_be_bytes([correlation[0], correlation[1]]));
            }
            other => panic!("{other:?}"),
        }
    }
    let wanted: Vec<u16> = (1..=COUNT).collect();
    assert_eq!(
        acknowledged, wanted,
        "PUBACKs in the order of the PUBLISHes [MQTT-4.6.0-2]"
    );
    assert_eq!(
        answered, wanted,
        "one client's writes are answered in their order"
    );
    let mut reader = StoreClient::connected("many-reader", cluster.mqtt(2));
    for key in 0..7 {
        let last = (1..=COUNT)
            .filter(|number| number % 7 == key)
            .max()
            .expect("there is one");
        reader.expect(
            &Request::get(format!("many/{key}")),
            blob(last.to_string().as_bytes()),
        );
    }
}

fn any_node_answers_and_sees_what_others_wrote(cluster: &Cluster) {
    let mut clients: Vec<StoreClient> = (0..3)
        .map(|index| StoreClient::connected(&format!("any-{index}"), cluster.mqtt(index)))
        .collect();
    for round in 0..10 {
        for writer in 0..3 {
            let value = format!("{round}-{writer}");
            clients[writer].expect(&Request::set("any", &value), "+OK\r\n");
            for reader in &mut clients {
                reader.expect(&Request::get("any"), blob(value.as_bytes()));
            }
        }
    }
    for client in clients {
        client.disconnect();
    }
}
