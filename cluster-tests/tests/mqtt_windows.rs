//! Clients that keep to the server's receive maximum and acknowledge at once what they get: they are served, however much
//! they send ahead of their acknowledgements.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::flow::{self, Load};
use cluster_tests::rules;
use cluster_tests::store::{Request, StoreClient, blob};
use cluster_tests::wire::{self, Connect, Message, Packet, V5, V311, Value, Will, id};

const DEFERRED: &str = "quorumq_acknowledgements_deferred_total";
const DROPPED: &str = "quorumq_messages_dropped_total";
const STALLED: &str = "quorumq_subscribers_stalled_total";

#[test]
fn windows() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            reads_are_answered,
            writes_are_answered,
            reads_are_answered_beside_messages_to_oneself,
            before_mqtt_5_messages_with_qos_2_need_no_window,
            a_client_that_never_releases_its_messages_is_ended,
            a_client_that_leaves_while_its_requests_wait_is_heard,
            answers_that_the_client_does_not_accept_are_told,
            clients_that_publish_to_each_other_do_not_block_each_other,
            clients_that_write_all_before_they_read_do_not_block_each_other,
        ],
    );
}

/// Messages are not taken above `mqtt.outbox_max_bytes` then, and requests wait earlier.
#[test]
fn windows_without_back_pressure() {
    let cluster = Cluster::start_with(Plan {
        mqtt: "outbox_stall_s = 0".to_owned(),
        ..Plan::default()
    });
    for bytes in [1_000, 2_500] {
        let name = format!("writes-{bytes}");
        let write = asking(&name, bytes, Request::set("windows", "v"));
        exchange(&cluster, &name, 3_000, write);
    }
    a_large_answer_takes_no_room_of_messages_and_notifications(&cluster);
    // An answer that is larger than all that may wait, when nothing else does.
    let value = vec![b'v'; 1_048_000];
    let mut writer = StoreClient::connected("large-writer", cluster.mqtt(0));
    writer.expect(&Request::set("large", &value), "+OK\r\n");
    let connect = Connect::v5("large").with(id::RECEIVE_MAXIMUM, Value::TwoBytes(1));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.subscribe(&[(&answers("large"), 1)]);
    // It is not sent before the first is acknowledged, and answers of writes come behind it, or before.
    let mut asked = asking("large", 1_000, Request::of(["GET", "none"]))(1);
    asked.extend(asking("large", 1_000, Request::of(["GET", "large"]))(2));
    let mut write = asking("large", 1_000, Request::set("windows", "v"));
    asked.extend((3..=100).flat_map(&mut write));
    client.send(&asked);
    let (mut received, mut acknowledged, mut read) = (0, 0, 0);
    let mut first = None;
    while received < 100 || acknowledged < 100 {
        match client.expect() {
            Packet::Publish(answer) => {
                received += 1;
                read += usize::from(answer.payload == blob(&value));
                match received {
                    1 => first = Some(answer.packet_id),
                    _ => client.send(&wire::acknowledgement(wire::PUBACK, answer.packet_id)),
                }
            }
            Packet::Puback(ack) if ack.code == 0 => acknowledged += 1,
            other => panic!("{received} answers, {acknowledged} acknowledgements: {other:?}"),
        }
        if acknowledged >= 2
            && let Some(packet_id) = first.take()
        {
            client.send(&wire::acknowledgement(wire::PUBACK, packet_id));
        }
    }
    assert_eq!(read, 1);
}

/// It waits for an acknowledgement, and all that may wait for the client would be full with it.
fn a_large_answer_takes_no_room_of_messages_and_notifications(cluster: &Cluster) {
    let mut writer = StoreClient::connected("room-writer", cluster.mqtt(0));
    writer.expect(&Request::set("room", vec![b'v'; 1_048_000]), "+OK\r\n");
    a_large_answer_takes_no_room(cluster, &mut writer, "get", Request::of(["GET", "room"]));
    // The page has one of these keys, and its token is as long.
    for number in 1..=2 {
        let key = format!("room/{number}/{}", "k".repeat(523_000));
        writer.expect(&Request::set(key, "v"), "+OK\r\n");
    }
    let scan = Request::of(["SCAN", "room/*"]);
    a_large_answer_takes_no_room(cluster, &mut writer, "scan", scan);
}

fn a_large_answer_takes_no_room(
    cluster: &Cluster,
    writer: &mut StoreClient,
    name: &str,
    read: Request,
) {
    let connect = Connect::v5(name).with(id::RECEIVE_MAXIMUM, Value::TwoBytes(1));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.subscribe(&[(&answers(name), 1), (&messages(name), 1)]);
    client.send(&asking(name, 1_000, Request::keynotify(name))(1));
    let (mut watches, mut first) = (false, None);
    while !watches || first.is_none() {
        match client.expect() {
            Packet::Publish(answer) => first = Some(answer.packet_id),
            Packet::Puback(ack) if ack.code == 0 => watches = true,
            other => panic!("{other:?}"),
        }
    }
    // Its answer waits until the first is acknowledged, its own acknowledgement does not.
    client.send(&asking(name, 1_000, read)(2));
    assert!(matches!(client.expect(), Packet::Puback(ack) if ack.code == 0));
    writer.expect(&Request::set(name, "v"), "+OK\r\n");
    let mut publisher = Connection::v5(cluster.mqtt(1), "room-publisher");
    for number in 1..=50 {
        let message = Message::new(&messages(name), vec![b'm'; 1_000]).qos(1, number);
        publisher.send(&message.bytes(V5));
        assert!(matches!(publisher.expect(), Packet::Puback(ack) if ack.code == 0));
    }
    let (mut notified, mut answered, mut heard) = (0, 0, 0);
    let mut next = first;
    while notified + answered + heard < 52 {
        if let Some(packet_id) = next.take() {
            client.send(&wire::acknowledgement(wire::PUBACK, packet_id));
        }
        let Packet::Publish(publish) = client.expect() else {
            panic!("{notified} notifications, {answered} answers, {heard} messages");
        };
        match publish.payload.len() {
            1_000 => heard += 1,
            1_046_000.. => answered += 1,
            _ => notified += 1,
        }
        next = Some(publish.packet_id);
    }
    assert_eq!((notified, answered, heard), (1, 1, 50), "{name}");
}

/// Messages under way, of at most 1,024 (`mqtt.receive_maximum`).
const UNDER_WAY: u16 = 1_000;

/// Sends that many messages to the client's node, each when there is room for it, and acknowledges what comes: one
/// message for each. The client's receive maximum is small, so what comes has to wait for its acknowledgements.
#[track_caller]
fn exchange(cluster: &Cluster, name: &str, all: u16, mut message: impl FnMut(u16) -> Vec<u8>) {
    let connect = Connect::v5(name).with(id::RECEIVE_MAXIMUM, Value::TwoBytes(10));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.subscribe(&[(&answers(name), 1), (&messages(name), 1)]);
    client.send(&(1..=UNDER_WAY).flat_map(&mut message).collect::<Vec<_>>());
    let (mut received, mut acknowledged) = (0, 0);
    while received < all || acknowledged < all {
        match client.receive(TIMEOUT) {
            Ok(Packet::Publish(publish)) => {
                received += 1;
                client.send(&wire::acknowledgement(wire::PUBACK, publish.packet_id));
            }
            Ok(Packet::Puback(ack)) if ack.code == 0 => {
                acknowledged += 1;
                let next = UNDER_WAY + acknowledged;
                if next <= all {
                    client.send(&message(next));
                }
            }
            other => panic!("{received} messages, {acknowledged} acknowledgements: {other:?}"),
        }
    }
    client.disconnect();
}

fn answers(name: &str) -> String {
    format!("windows/{name}/answers")
}

fn messages(name: &str) -> String {
    format!("windows/{name}/messages")
}

/// Requests to the state store with so many bytes of correlation data.
fn asking(name: &str, bytes: usize, request: Request) -> impl FnMut(u16) -> Vec<u8> {
    let mut asks = StoreClient::new(name, &[], 0);
    asks.response_topic = answers(name);
    let mut correlation = vec![b'c'; bytes];
    move |number| {
        correlation[..2].copy_from_slice(&number.to_be_bytes());
        asks.message(&request, &correlation, number).bytes(V5)
    }
}

/// What is under way is more than an outbox holds (`mqtt.outbox_max_bytes`).
fn reads_are_answered(cluster: &Cluster) {
    let read = asking("reads", 1_000, Request::of(["GET", "windows"]));
    exchange(cluster, "reads", 3_000, read);
}

/// All of their answers would be more than may wait for a client.
fn writes_are_answered(cluster: &Cluster) {
    let write = asking("writes", 1_000, Request::set("windows", "v"));
    exchange(cluster, "writes", 4_000, write);
}

/// The messages wait for their own subscriber.
fn reads_are_answered_beside_messages_to_oneself(cluster: &Cluster) {
    let mut read = asking("mixture", 2_100, Request::of(["GET", "windows"]));
    let topic = messages("mixture");
    exchange(cluster, "mixture", 5_000, |number| match number % 2 {
        0 => read(number),
        _ => {
            let message = Message::new(&topic, vec![b'm'; 2_000]);
            message.qos(1, number).bytes(V5)
        }
    });
}

/// There is no receive maximum. Each PUBREL is behind all that was sent before its PUBREC.
fn before_mqtt_5_messages_with_qos_2_need_no_window(cluster: &Cluster) {
    const ALL: u16 = 3_000;
    let connect = Connect::at("without-window", V311);
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.send(&of_qos_2(1..=ALL));
    let (mut received, mut completed) = (0, 0);
    while completed < ALL {
        match client.receive(TIMEOUT) {
            Ok(Packet::Pubrec(ack)) => {
                received += 1;
                client.send(&wire::acknowledgement(wire::PUBREL, ack.packet_id));
            }
            Ok(Packet::Pubcomp(_)) => completed += 1,
            other => panic!("{received} received, {completed} completed: {other:?}"),
        }
    }
    client.disconnect();
}

fn of_qos_2(numbers: impl Iterator<Item = u16>) -> Vec<u8> {
    let message = |number| Message::new("windows/none", vec![b'm'; 1_000]).qos(2, number);
    numbers
        .flat_map(|number| message(number).bytes(V311))
        .collect()
}

/// It is not read any further, and nothing goes on.
fn a_client_that_never_releases_its_messages_is_ended(cluster: &Cluster) {
    let mut heir = Connection::v5(cluster.mqtt(2), "heir");
    heir.subscribe(&[("windows/will", 0)]);
    let mut connect = Connect::at("never-releases", V311);
    connect.will = Some(Will {
        topic: "windows/will".into(),
        payload: b"gone".to_vec(),
        qos: 0,
        retain: false,
        properties: wire::Properties::new(),
    });
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    std::thread::scope(|scope| {
        // It stands still when neither the node nor the system takes more.
        scope.spawn(|| client.try_send(&of_qos_2(1..=20_000)));
        let will = heir.receive(2 * TIMEOUT + TIMEOUT);
        assert!(
            matches!(&will, Ok(Packet::Publish(will)) if will.payload == b"gone"),
            "{will:?}"
        );
    });
}

/// They wait for its acknowledgements of answers, of which none follows.
fn a_client_that_leaves_while_its_requests_wait_is_heard(cluster: &Cluster) {
    let connect = Connect::v5("leaves").with(id::RECEIVE_MAXIMUM, Value::TwoBytes(2));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.subscribe(&[(&answers("leaves"), 1)]);
    let mut write = asking("leaves", 3_000, Request::set("windows", "v"));
    client.send(&(1..=UNDER_WAY).flat_map(&mut write).collect::<Vec<_>>());
    client.send(&wire::disconnect(V5, 0, &wire::Properties::new()));
    let end = loop {
        match client.receive(TIMEOUT) {
            Ok(Packet::Publish(_) | Packet::Puback(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Err(Fault::Closed)), "{end:?}");
}

/// A value is an error then. What has been done is none: without its answer it is not acknowledged.
fn answers_that_the_client_does_not_accept_are_told(cluster: &Cluster) {
    let mut writer = StoreClient::connected("accepts-all", cluster.mqtt(0));
    writer.expect(&Request::set("large", vec![b'v'; 3_000]), "+OK\r\n");
    let accepts = |name: &str| {
        let connect = Connect::v5(name).with(id::MAXIMUM_PACKET_SIZE, Value::FourBytes(1_000));
        let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
        client.subscribe(&[(&answers(name), 1)]);
        client
    };
    let mut client = accepts("accepts-little");
    for (key, told) in [("large", "-ERR the answer is larger"), ("none", "$-1")] {
        let mut read = asking("accepts-little", 16, Request::of(["GET", key]));
        client.send(&read(7));
        match (client.expect(), client.expect()) {
            (Packet::Publish(answer), Packet::Puback(ack)) => {
                let payload = String::from_utf8_lossy(&answer.payload);
                assert!(payload.starts_with(told), "{payload}");
                assert_eq!((ack.packet_id, ack.code), (7, 0));
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    client.disconnect();
    for request in [Request::of(["GET", "large"]), Request::set("done", "v")] {
        let mut client = accepts("accepts-nothing");
        client.send(&asking("accepts-nothing", 1_000, request)(7));
        client.expect_disconnect(0x95);
    }
    writer.expect(&Request::of(["GET", "done"]), blob(b"v"));
}

fn sum(cluster: &Cluster, metric: &str) -> f64 {
    let nodes = cluster.nodes.iter();
    nodes.filter_map(|node| node.metric(metric)).sum()
}

/// Each has its acknowledgements behind its messages: whoever stops reading one of them blocks the other.
fn clients_that_publish_to_each_other_do_not_block_each_other(cluster: &Cluster) {
    let deferred = sum(cluster, DEFERRED);
    let load = Load {
        topic: "mutual".into(),
        qos: 1,
        messages: 3000,
        bytes: 2048,
        window: 400,
    };
    publish_to_each_other(cluster, &load, 20);
    assert!(sum(cluster, DEFERRED) > deferred, "nobody had to wait");
}

/// They take nothing before that, so more waits for each than its socket takes.
fn clients_that_write_all_before_they_read_do_not_block_each_other(cluster: &Cluster) {
    let load = Load {
        topic: "all-written".into(),
        qos: 1,
        messages: 3000,
        bytes: 6000,
        window: 1000,
    };
    publish_to_each_other(cluster, &load, 1000);
}

/// Two clients of one node.
#[track_caller]
fn publish_to_each_other(cluster: &Cluster, load: &Load, receive_maximum: u16) {
    let (stalled, dropped) = (sum(cluster, STALLED), sum(cluster, DROPPED));
    let names = ["a", "b"].map(|name| format!("{}-{name}", load.topic));
    let clients = names.each_ref().map(|own| {
        let connect = flow::connect_with_maximum(own, receive_maximum);
        let mut connection = flow::with_small_buffer(cluster.mqtt(0), &connect);
        connection.subscribe(&[(own, 1)]);
        connection
    });
    std::thread::scope(|scope| {
        for (connection, other) in clients.into_iter().zip(names.iter().rev()) {
            scope.spawn(move || mutual(connection, other, load));
        }
    });
    assert_eq!(
        sum(cluster, DROPPED) - dropped,
        0.0,
        "something was dropped"
    );
    assert_eq!(sum(cluster, STALLED) - stalled, 0.0, "somebody was stalled");
}

/// Publishes and receives as many, on one thread.
fn mutual(mut connection: Connection, other: &str, load: &Load) {
    let (mut sent, mut acknowledged, mut received) = (0, 0, 0);
    while acknowledged < load.messages || received < load.messages {
        while sent < load.messages && sent - acknowledged < load.window as u32 {
            let packet_id = connection.packet_id();
            let message = Message::new(other, vec![b'm'; load.bytes]).qos(load.qos, packet_id);
            connection.send(&message.bytes(connection.level()));
            sent += 1;
        }
        match connection.receive(flow::LIMIT) {
            Ok(Packet::Puback(ack)) => {
                assert!(ack.code < 0x80, "{ack:?}");
                acknowledged += 1;
            }
            Ok(Packet::Publish(publish)) => {
                connection.send(&wire::acknowledgement(wire::PUBACK, publish.packet_id));
                received += 1;
            }
            found => panic!("{found:?}: {acknowledged} acknowledged, {received} received"),
        }
    }
}
