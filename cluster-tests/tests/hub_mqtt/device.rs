//! A device or a module, as the client libraries connect and ask.

use crate::back_end::{HOST, KEYS, path_of, token};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wire::{Connect, Message, Packet, Publish, V5, Value, id};
use serde_json::{Value as Json, json};
use std::net::SocketAddr;

pub const ANSWERS: &str = "$iothub/twin/res/#";
pub const DESIRED: &str = "$iothub/twin/PATCH/properties/desired/#";

/// A CONNECT of an identity with this password; the session lasts.
pub fn connect(level: u8, identity: &str, password: &str) -> Connect {
    let connect = Connect {
        user_name: Some(format!(
            "{HOST}/{identity}/?api-version=2019-10-01&DeviceClientType=py-iothub-device%2F2.14.0"
        )),
        password: Some(password.into()),
        clean: false,
        ..Connect::at(identity, level)
    };
    match level {
        V5 => connect.with(id::SESSION_EXPIRY, Value::FourBytes(3_600)),
        _ => connect,
    }
}

/// A token of the identity itself.
pub fn own_token(identity: &str) -> String {
    token(&path_of(identity), KEYS[0], None, 3_600)
}

/// Connects; tells whether the session was found.
#[track_caller]
pub fn open(node: SocketAddr, level: u8, identity: &str) -> (Connection, bool) {
    let connect = connect(level, identity, &own_token(identity));
    let (connection, connack) = Connection::connect(node, &connect);
    (connection, connack.session_present)
}

/// The code of the CONNACK.
#[track_caller]
pub fn code(node: SocketAddr, connect: &Connect) -> u8 {
    let mut connection = Connection::open(node, connect.level).expect("a node accepts connections");
    connection.send(&connect.bytes());
    match connection.expect() {
        Packet::Connack(connack) => connack.code,
        other => panic!("instead of CONNACK: {other:?}"),
    }
}

/// Sends a request with QoS 1. The answer comes first, then its acknowledgement.
#[track_caller]
pub fn ask(connection: &mut Connection, request: Message) -> Publish {
    let packet_id = connection.packet_id();
    ask_as(connection, request, packet_id)
}

/// The same with a packet identifier: what is sent again has its own ([MQTT-4.4.0-1]).
#[track_caller]
pub fn ask_as(connection: &mut Connection, request: Message, packet_id: u16) -> Publish {
    let request = request.qos(1, packet_id);
    connection.send(&request.bytes(connection.level()));
    let answer = match connection.expect() {
        Packet::Publish(answer) => answer,
        other => panic!("instead of an answer to {}: {other:?}", request.topic),
    };
    assert_eq!((answer.qos, answer.retain), (0, false), "{}", answer.topic);
    match connection.expect() {
        Packet::Puback(ack) => assert_eq!((ack.packet_id, ack.code), (packet_id, 0)),
        other => panic!("instead of PUBACK: {other:?}"),
    }
    answer
}

/// What the device sees of its twin.
#[track_caller]
pub fn get(connection: &mut Connection, request: &str) -> Json {
    let topic = format!("$iothub/twin/GET/?$rid={request}");
    let answer = ask(connection, Message::new(&topic, " "));
    assert_eq!(
        answer.topic,
        format!("$iothub/twin/res/200/?$rid={request}")
    );
    serde_json::from_slice(&answer.payload).expect("JSON")
}

/// A PATCH of reported properties.
pub fn patch(request: &str, reported: &Json) -> Message {
    let topic = format!("$iothub/twin/PATCH/properties/reported/?$rid={request}");
    Message::new(&topic, reported.to_string())
}

/// Reports; returns the version.
#[track_caller]
pub fn report(connection: &mut Connection, request: &str, reported: &Json) -> u64 {
    let answer = ask(connection, patch(request, reported));
    assert_eq!(answer.payload, b"");
    let version = answer
        .topic
        .strip_prefix(&format!("$iothub/twin/res/204/?$rid={request}&$version="));
    let version = version.unwrap_or_else(|| panic!("{}", answer.topic));
    version.parse().expect("a number")
}

/// The next notification: the version in its topic, and the body.
#[track_caller]
pub fn notification(connection: &mut Connection) -> (u64, Json) {
    let publish = connection.next_publish(TIMEOUT);
    let publish = publish.unwrap_or_else(|fault| panic!("no notification: {fault:?}"));
    let version = publish
        .topic
        .strip_prefix("$iothub/twin/PATCH/properties/desired/?$version=");
    let version = version.unwrap_or_else(|| panic!("{}", publish.topic));
    let version = version.parse().expect("a number");
    let body: Json = serde_json::from_slice(&publish.payload).expect("JSON");
    assert_eq!(body["$version"], json!(version));
    (version, body)
}
