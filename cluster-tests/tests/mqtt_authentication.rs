//! Extended authentication (MQTT 5 §4.12) with SCRAM-SHA-256: what needs a nonce that the server chose, and so can't be
//! a conversation of `corpus/log_in/`; the command line; and a client that others wrote.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wire::{
    self, Connack, Connect, Disconnect, Message, Packet, Properties, V5, Value, Will, id,
};
use cluster_tests::{corpus, rules, script};
use quorumq::auth::scram::Client;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const METHOD: &str = "SCRAM-SHA-256";
const CONTINUE: u8 = 0x18;
const RE_AUTHENTICATE: u8 = 0x19;

/// A line for `user`, made by the program itself.
fn made_line(user: &str, password: &str) -> String {
    let arguments = ["password", user, "--iterations", "4096"];
    let output = run(&arguments, format!("{password}\n").as_bytes());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("a line is text")
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut process = Command::new(binary())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(input).expect("the binary reads its input");
    drop(stdin);
    process.wait_with_output().expect("it was started")
}

struct Users(tempfile::TempDir);

impl Users {
    fn new(text: &str) -> Self {
        let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
        std::fs::write(directory.path().join("users"), text).expect("a file can be written");
        Self(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("users")
    }

    fn plan(&self) -> Plan {
        Plan {
            extra: format!("[auth]\nscram_file = {:?}", self.path()),
            mqtt: "connect_timeout_s = 5".into(),
            ..Plan::default()
        }
    }
}

#[test]
fn authentication() {
    let text = format!("{}{}", corpus::USERS, made_line("anna, bob=c", "p w"));
    let users = Users::new(&text);
    let cluster = Cluster::start_with(users.plan());
    rules::show(
        &cluster,
        rules![
            who_proves_the_password_is_let_in_by_every_node,
            nothing_is_taken_over_before_the_proof,
            a_wrong_password_is_refused,
            a_client_authenticates_again_while_messages_flow,
            a_failed_re_authentication_ends_the_connection,
            nobody_becomes_somebody_else,
            a_re_authentication_keeps_to_its_method_and_order,
            a_re_authentication_ends_in_time,
            the_command_line_logs_in,
            mqtt_js_logs_in,
        ],
    );
}

fn scram(user: &str, password: &str) -> Client {
    static ROUND: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
    let round = ROUND.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Client::new(user, password, &[round; 32]).expect("names of these tests can be prepared")
}

fn with_method(connect: Connect, data: &str) -> Connect {
    let method = Value::Text(METHOD.into());
    connect
        .with(id::AUTHENTICATION_METHOD, method)
        .with(id::AUTHENTICATION_DATA, Value::Binary(data.into()))
}

fn auth(code: u8, method: &str, data: &str) -> Vec<u8> {
    let list = Properties::new()
        .with(id::AUTHENTICATION_METHOD, Value::Text(method.into()))
        .with(id::AUTHENTICATION_DATA, Value::Binary(data.into()));
    wire::packet(0xF0, &[&[code][..], &wire::properties(&list)].concat())
}

/// An AUTH of the server: it names the method [MQTT-4.12.0-5].
#[track_caller]
fn auth_data(packet: Packet, code: u8) -> Vec<u8> {
    match packet {
        Packet::Auth(Disconnect {
            code: came,
            properties,
        }) => {
            assert_eq!(came, code);
            assert_eq!(properties.text(id::AUTHENTICATION_METHOD), Some(METHOD));
            let data = properties.binary(id::AUTHENTICATION_DATA);
            data.expect("SCRAM always has data").to_vec()
        }
        other => panic!("instead of AUTH {code:#04x}: {other:?}"),
    }
}

/// CONNECT, AUTH both ways, and what comes then.
fn log_in(node: SocketAddr, connect: Connect, scram: &mut Client) -> (Connection, Packet) {
    let mut connection = Connection::open(node, V5).expect("a node accepts connections");
    connection.send(&with_method(connect, &scram.first()).bytes());
    let challenge = auth_data(connection.expect(), CONTINUE);
    let answer = scram.answer(&challenge).expect("a challenge of SCRAM");
    connection.send(&auth(CONTINUE, METHOD, &answer));
    let packet = connection.expect();
    (connection, packet)
}

#[track_caller]
fn accepted(packet: Packet, scram: &Client) -> Connack {
    let Packet::Connack(connack) = packet else {
        panic!("instead of CONNACK: {packet:?}");
    };
    assert_eq!(connack.code, 0, "{connack:?}");
    let properties = &connack.properties;
    assert_eq!(properties.text(id::AUTHENTICATION_METHOD), Some(METHOD));
    let last = properties.binary(id::AUTHENTICATION_DATA);
    let verified = scram.verify(last.expect("the server's signature is there"));
    assert_eq!(verified, Ok(()), "the server knows the user, too");
    connack
}

#[track_caller]
fn user(node: SocketAddr, client_id: &str) -> Connection {
    let mut scram = scram("user", "pencil");
    let (connection, packet) = log_in(node, Connect::v5(client_id), &mut scram);
    accepted(packet, &scram);
    connection
}

/// [MQTT-4.12.0-5] [MQTT-3.1.4-5] [MQTT-3.2.0-1]
fn who_proves_the_password_is_let_in_by_every_node(cluster: &Cluster) {
    for (round, (name, password)) in [("user", "pencil"), ("anna, bob=c", "p w")]
        .into_iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        let mut scram = scram(name, password);
        let connect = Connect::v5(&format!("let-in-{name}")).durable(60);
        let (connection, packet) = log_in(cluster.mqtt(round % 3), connect, &mut scram);
        let connack = accepted(packet, &scram);
        assert_eq!(connack.session_present, round >= 2, "round {round}");
        connection.disconnect();
    }
}

/// [MQTT-3.1.4-2]
fn nothing_is_taken_over_before_the_proof(cluster: &Cluster) {
    let mut owner = user(cluster.mqtt(0), "owned");
    let mut scram = scram("user", "pen");
    let (_, packet) = log_in(cluster.mqtt(1), Connect::v5("owned"), &mut scram);
    assert!(matches!(packet, Packet::Connack(connack) if connack.code == 0x87));
    owner.expect_nothing();
}

/// [MQTT-4.12.0-4]
fn a_wrong_password_is_refused(cluster: &Cluster) {
    for (name, password) in [("user", "Pencil"), ("nobody", "pencil"), ("User", "pencil")] {
        let mut scram = scram(name, password);
        let (mut connection, packet) = log_in(cluster.mqtt(0), Connect::v5("wrong"), &mut scram);
        let Packet::Connack(connack) = packet else {
            panic!("instead of CONNACK: {packet:?}");
        };
        assert_eq!(connack.code, 0x87, "{name} {password}");
        assert!(!connack.properties.has(id::AUTHENTICATION_DATA));
        connection.expect_closed();
    }
}

/// MQTT 5 §4.12.1: [MQTT-4.12.1-1] [MQTT-4.12.0-5]
fn a_client_authenticates_again_while_messages_flow(cluster: &Cluster) {
    let mut connection = user(cluster.mqtt(2), "again");
    connection.subscribe(&[("again/t", 1)]);
    for _ in 0..3 {
        let mut scram = scram("user", "pencil");
        connection.send(&auth(RE_AUTHENTICATE, METHOD, &scram.first()));
        let challenge = auth_data(connection.expect_answer(), CONTINUE);
        assert_eq!(
            connection.publish(Message::new("again/t", "x").qos(1, 0)),
            0
        );
        assert_eq!(connection.publish_received().payload, b"x");
        let answer = scram.answer(&challenge).expect("a challenge of SCRAM");
        connection.send(&auth(CONTINUE, METHOD, &answer));
        let last = auth_data(connection.expect_answer(), 0);
        assert_eq!(scram.verify(&last), Ok(()));
    }
    connection.expect_nothing();
}

/// [MQTT-4.12.1-2]
fn a_failed_re_authentication_ends_the_connection(cluster: &Cluster) {
    let mut witness = user(cluster.mqtt(1), "failing-witness");
    witness.subscribe(&[("failing/will", 0)]);
    let mut first = scram("user", "pencil");
    let mut connect = Connect::v5("failing");
    connect.will = Some(Will {
        topic: "failing/will".into(),
        payload: b"gone".to_vec(),
        ..Will::default()
    });
    let (mut connection, packet) = log_in(cluster.mqtt(0), connect, &mut first);
    accepted(packet, &first);
    let mut scram = scram("user", "wrong");
    connection.send(&auth(RE_AUTHENTICATE, METHOD, &scram.first()));
    let challenge = auth_data(connection.expect_answer(), CONTINUE);
    let answer = scram.answer(&challenge).expect("a challenge of SCRAM");
    connection.send(&auth(CONTINUE, METHOD, &answer));
    connection.expect_disconnect(0x87);
    assert_eq!(witness.publish_received().payload, b"gone");
}

/// A session belongs to one identity.
fn nobody_becomes_somebody_else(cluster: &Cluster) {
    let mut connection = user(cluster.mqtt(0), "changing");
    let mut scram = scram("anna, bob=c", "p w");
    connection.send(&auth(RE_AUTHENTICATE, METHOD, &scram.first()));
    let challenge = auth_data(connection.expect_answer(), CONTINUE);
    let answer = scram.answer(&challenge).expect("a challenge of SCRAM");
    connection.send(&auth(CONTINUE, METHOD, &answer));
    connection.expect_disconnect(0x87);
}

/// [MQTT-4.12.1-1] [MQTT-4.12.1-2]
fn a_re_authentication_keeps_to_its_method_and_order(cluster: &Cluster) {
    let first = scram("user", "pencil").first();
    let mut connection = user(cluster.mqtt(0), "order");
    connection.send(&auth(RE_AUTHENTICATE, "PLAIN", &first));
    connection.expect_disconnect(0x82);
    let mut connection = user(cluster.mqtt(0), "order");
    connection.send(&auth(CONTINUE, METHOD, &first));
    connection.expect_disconnect(0x82);
    let mut connection = user(cluster.mqtt(0), "order");
    connection.send(&auth(RE_AUTHENTICATE, METHOD, &first));
    auth_data(connection.expect_answer(), CONTINUE);
    connection.send(&auth(RE_AUTHENTICATE, METHOD, &first));
    connection.expect_disconnect(0x82);
}

fn a_re_authentication_ends_in_time(cluster: &Cluster) {
    let mut connection = user(cluster.mqtt(0), "late");
    connection.send(&auth(
        RE_AUTHENTICATE,
        METHOD,
        &scram("user", "pencil").first(),
    ));
    auth_data(connection.expect_answer(), CONTINUE);
    // The time of a CONNECT is 5 s here.
    match connection.receive(TIMEOUT) {
        Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x87),
        other => panic!("instead of DISCONNECT: {other:?}"),
    }
    connection.expect_closed();
}

fn the_command_line_logs_in(cluster: &Cluster) {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let file = directory.path().join("password");
    std::fs::write(&file, "pencil\nand what is no password\n").expect("it can be written");
    let file = file.to_str().expect("temporary paths are text").to_owned();
    let server = cluster.mqtt(1).to_string();
    let as_user = |arguments: &[&str], password_file: &str| {
        let common = [
            "--server",
            &server,
            "--username",
            "user",
            "--scram",
            "--password-file",
            password_file,
        ];
        run(&[arguments, &common].concat(), b"")
    };
    let set = as_user(&["kv", "set", "logged", "in"], &file);
    assert!(set.status.success(), "{set:?}");
    let get = as_user(&["kv", "get", "logged"], &file);
    assert_eq!(String::from_utf8_lossy(&get.stdout).trim_end(), "in");
    let sent = as_user(
        &["pub", "--topic", "logged", "--message", "in", "--qos", "1"],
        &file,
    );
    assert!(sent.status.success(), "{sent:?}");
    std::fs::write(directory.path().join("wrong"), "pen\n").expect("it can be written");
    let wrong = directory.path().join("wrong");
    let refused = as_user(
        &["kv", "get", "logged"],
        wrong.to_str().expect("it is text"),
    );
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("0x87"), "{said}");
    // Without --scram the password would be sent as it is, and is of no use.
    let plain = [
        "kv",
        "get",
        "logged",
        "--server",
        &server,
        "--username",
        "user",
        "--password",
        "pencil",
    ];
    let refused = run(&plain, b"");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let lonely = run(
        &["kv", "get", "logged", "--server", &server, "--scram"],
        b"",
    );
    assert_eq!(lonely.status.code(), Some(1), "{lonely:?}");
}

fn mqtt_js_logs_in(cluster: &Cluster) {
    let addresses: Vec<String> = cluster
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let never = |what: &str, _| panic!("nothing is to be done to nodes, {what} was asked");
    let report = script::run(script::node_js("log_in.js"), &addresses, never);
    let holds = |said: &serde_json::Value| said["holds"] == true;
    let broken: Vec<String> = report
        .iter()
        .filter(|said| !holds(said))
        .map(ToString::to_string)
        .collect();
    assert_none(&broken);
    assert_eq!(report.len(), 3, "{report:#?}");
}

#[test]
fn a_bad_file_of_users_is_named_with_its_line() {
    let text = format!("# users\n{}anna:secret\n", corpus::USERS);
    let users = Users::new(&text);
    let setting = format!("auth.scram_file={}", users.path().display());
    for command in ["check", "serve"] {
        let output = run(&[command, "--set", &setting], b"");
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("users:3: auth.scram_file: "), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let absent = run(&["check", "--set", "auth.scram_file=/absent/users"], b"");
    assert_eq!(absent.status.code(), Some(78), "{absent:?}");
    let empty = run(&["password", "anna"], b"\n");
    assert_eq!(empty.status.code(), Some(1), "{empty:?}");
}
