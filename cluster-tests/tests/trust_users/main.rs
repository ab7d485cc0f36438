//! Users of the cluster: made on one node, they log in on all; what is revoked ends at once on every node, and stays
//! revoked, also when the leader dies right after the answer.

mod bans;
mod imports;
mod outlive;
mod words;

use bans::{
    a_ban_keeps_out_and_ends, a_client_that_flaps_has_to_wait,
    a_name_that_fails_too_often_has_to_wait,
};
use cluster_tests::audit::Audit;
use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::hostile::PINGRESP_WITHIN;
use cluster_tests::security::{Shown, of_code};
use cluster_tests::wire::{
    self, Connack, Connect, Disconnect, Packet, Properties, V5, V311, Value, id,
};
use cluster_tests::{rules, script, wait};
use imports::{
    a_file_of_verifiers_is_imported, a_password_file_of_mosquitto_is_imported_and_replaced,
};
use quorumq::auth::scram::{Algorithm, Client};
use serde_json::Value as Json;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use words::{no_secret_is_shown, the_audit_log_says_who_did_what, what_is_wrong_is_said};

const CONTINUE: u8 = 0x18;

/// A wrong password, which is nothing else.
const GUESS: &str = "a guess that nobody else makes";

/// How long a revoked connection may live on, anywhere, once the operator has the answer.
const REVOKED_WITHIN: Duration = Duration::from_secs(1);

/// Cheap hashes, and nobody of this machine is exempt from the counting of failures.
const AUTH: &str = "[auth]\npassword_memory_kib = 64\npassword_passes = 1\nscram_iterations = 4096\nfailures_per_user = 5\n\
     failures_per_address = 1000\nfailures_pause_s = 600\nfailure_delay_ms = 1\nfailures_exempt = []\n\
     flapping_connects = 20\n";

fn plan() -> Plan {
    Plan {
        extra: AUTH.into(),
        ..Plan::default()
    }
}

/// The program, with a node's HTTP port and something on its standard input.
fn run(cluster: &Cluster, node: usize, arguments: &[&str], input: &str) -> Output {
    run_at(cluster.nodes[node].addresses.http, arguments, input)
}

fn run_at(http: SocketAddr, arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(binary())
        .args(arguments)
        .args(["--http", &http.to_string(), "--output", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    process.wait_with_output().expect("it was started")
}

#[track_caller]
fn done(cluster: &Cluster, node: usize, arguments: &[&str], input: &str) -> Json {
    let output = run(cluster, node, arguments, input);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or(Json::Null)
}

#[track_caller]
fn add(cluster: &Cluster, node: usize, name: &str, password: &str) {
    done(
        cluster,
        node,
        &["user", "add", name],
        &format!("{password}\n"),
    );
}

fn with_password(connect: Connect, name: &str, password: &str) -> Connect {
    Connect {
        user_name: Some(name.to_owned()),
        password: Some(password.as_bytes().to_vec()),
        ..connect
    }
}

/// The code of the CONNACK, and the connection.
#[track_caller]
fn connect(node: SocketAddr, connect: &Connect) -> (Connection, u8) {
    let mut connection = Connection::open(node, connect.level).expect("a node accepts connections");
    connection.send(&connect.bytes());
    match connection.expect() {
        Packet::Connack(connack) => (connection, connack.code),
        other => panic!("instead of CONNACK: {other:?}"),
    }
}

#[track_caller]
fn logged_in(node: SocketAddr, client_id: &str, name: &str, password: &str) -> Connection {
    let request = with_password(Connect::v5(client_id), name, password);
    let (connection, code) = connect(node, &request);
    assert_eq!(code, 0, "{name} logs in");
    connection
}

/// What a client is told by a node that knows its credentials well: one that may be behind says 0x88 or 0x89 (3), so
/// that it comes again.
fn code_at(node: SocketAddr, level: u8, name: &str, password: &str) -> u8 {
    let request = with_password(
        Connect::at(&format!("code-{level}-{name}"), level),
        name,
        password,
    );
    wait::until("a node that is not behind", TIMEOUT, || {
        let code = connect(node, &request).1;
        (![3, 0x88, 0x89].contains(&code)).then_some(code)
    })
}

fn auth(method: &str, data: &str) -> Vec<u8> {
    let list = Properties::new()
        .with(id::AUTHENTICATION_METHOD, Value::Text(method.into()))
        .with(id::AUTHENTICATION_DATA, Value::Binary(data.into()));
    wire::packet(0xF0, &[&[CONTINUE][..], &wire::properties(&list)].concat())
}

/// The CONNACK of a log-in by SCRAM.
#[track_caller]
fn scram(node: SocketAddr, algorithm: Algorithm, name: &str, password: &str) -> Connack {
    let mut client = Client::by(algorithm, name, password, &[7; 32]).expect("they can be prepared");
    let request = Connect::v5(&format!("{}-{name}", algorithm.name()))
        .with(
            id::AUTHENTICATION_METHOD,
            Value::Text(algorithm.name().into()),
        )
        .with(
            id::AUTHENTICATION_DATA,
            Value::Binary(client.first().into()),
        );
    let mut connection = Connection::open(node, V5).expect("a node accepts connections");
    connection.send(&request.bytes());
    let challenge = match connection.expect() {
        Packet::Auth(Disconnect { properties, .. }) => properties,
        other => panic!("instead of AUTH: {other:?}"),
    };
    let challenge = challenge
        .binary(id::AUTHENTICATION_DATA)
        .expect("a challenge");
    let answer = client.answer(challenge).expect("a challenge of SCRAM");
    connection.send(&auth(algorithm.name(), &answer));
    let Packet::Connack(connack) = connection.expect() else {
        panic!("no CONNACK");
    };
    if connack.code == 0 {
        let last = connack.properties.binary(id::AUTHENTICATION_DATA);
        let verified = client.verify(last.expect("the server's signature"));
        assert_eq!(verified, Ok(()), "the server knows the user, too");
    }
    connack
}

/// The connection ends with this code, within the time from `since` on.
#[track_caller]
fn ends(connection: &mut Connection, code: u8, since: Instant) {
    let left = wait::allowed(REVOKED_WITHIN).saturating_sub(since.elapsed());
    match connection.receive(left) {
        Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, code),
        other => panic!("instead of DISCONNECT {code:#04x} within {left:?}: {other:?}"),
    }
}

#[test]
fn users() {
    let audit = Audit::new();
    let mut cluster = Cluster::start_with(Plan {
        extra: AUTH.to_owned() + &audit.toml(),
        ..Plan::default()
    });
    let (_, code) = connect(cluster.mqtt(0), &Connect::v5("nobody"));
    assert_eq!(code, 0, "as long as there is no user, everybody may come");
    add(&cluster, 0, "anna", "pencil");
    rules::show(
        &cluster,
        rules![
            a_user_logs_in_on_every_node_once_the_operator_has_the_answer,
            nobody_comes_in_without_a_password_any_more,
            unknown_names_and_wrong_passwords_are_answered_alike,
            both_hashes_of_scram_log_in,
            clients_of_others_log_in,
            a_changed_password_ends_connections_on_every_node,
            a_disabled_user_is_gone_and_comes_back_when_enabled,
            a_deleted_user_is_gone,
            groups_and_attributes_are_kept,
            a_password_file_of_mosquitto_is_imported_and_replaced,
            a_file_of_verifiers_is_imported,
            what_is_wrong_is_said,
            a_ban_keeps_out_and_ends,
            a_name_that_fails_too_often_has_to_wait,
            a_client_that_flaps_has_to_wait,
        ],
    );
    cluster.assert_states_agree();
    the_audit_log_says_who_did_what(&audit);
    no_secret_is_shown(&mut cluster, &audit);
}

fn a_user_logs_in_on_every_node_once_the_operator_has_the_answer(cluster: &Cluster) {
    let mut shown = Shown::by("a_user_logs_in_on_every_node_once_the_operator_has_the_answer");
    for round in 0..6 {
        let name = format!("new-{round}");
        add(cluster, round % 3, &name, "secret");
        for node in cluster.addresses() {
            for level in [V311, V5] {
                let code = code_at(node, level, &name, "secret");
                assert_eq!(code, 0, "{name} at {node}");
                shown.saw(
                    "Other ways of a client",
                    "users",
                    "what is right",
                    of_code(code),
                );
            }
        }
    }
    shown.finish();
}

fn nobody_comes_in_without_a_password_any_more(cluster: &Cluster) {
    for node in cluster.addresses() {
        assert_eq!(connect(node, &Connect::v5("no-name")).1, 0x87);
        assert_eq!(connect(node, &Connect::at("no-name-3", V311)).1, 5);
        let only_name = Connect {
            user_name: Some("anna".into()),
            ..Connect::v5("only-name")
        };
        assert_eq!(connect(node, &only_name).1, 0x87);
    }
}

fn unknown_names_and_wrong_passwords_are_answered_alike(cluster: &Cluster) {
    let mut shown = Shown::by("unknown_names_and_wrong_passwords_are_answered_alike");
    let answer = |name: &str, password: &str| {
        let request = with_password(Connect::v5("alike"), name, password);
        let mut connection = Connection::open(cluster.mqtt(1), V5).expect("a connection");
        connection.send(&request.bytes());
        let answer = connection.receive_frame(TIMEOUT).expect("a CONNACK");
        connection.expect_closed();
        answer
    };
    let wrong = answer("anna", GUESS);
    assert_eq!(wrong, answer("who-is-this", GUESS));
    // Behind the flags of the CONNACK.
    let code = of_code(wrong.1[1]);
    shown.saw("Other ways of a client", "users", "what is wrong", code);
    shown.finish();
    assert_eq!(code_at(cluster.mqtt(1), V311, "anna", "wrong"), 5);
    assert_eq!(code_at(cluster.mqtt(1), V311, "\u{7f}odd", "wrong"), 5);
}

fn both_hashes_of_scram_log_in(cluster: &Cluster) {
    for node in cluster.addresses() {
        for algorithm in Algorithm::ALL {
            assert_eq!(scram(node, algorithm, "anna", "pencil").code, 0);
            assert_eq!(scram(node, algorithm, "anna", "Pencil").code, 0x87);
            assert_eq!(scram(node, algorithm, "unknown", "pencil").code, 0x87);
        }
    }
}

fn clients_of_others_log_in(cluster: &Cluster) {
    let mut broken = Vec::new();
    for (password, expected) in [("pencil", "accepted"), ("wrong", "refused")] {
        for (node, address) in cluster.addresses().iter().enumerate() {
            let arguments = [
                address.to_string(),
                "anna".into(),
                password.into(),
                expected.into(),
            ];
            let report = script::run(script::python("password.py"), &arguments, |_, _| {});
            let held = report.iter().filter(|said| said["holds"] == true).count();
            if held != 2 {
                broken.push(format!("paho at node {node}, {expected}: {report:?}"));
            }
            for version in ["311", "5"] {
                let (host, port) = (address.ip().to_string(), address.port().to_string());
                let status = Command::new("mosquitto_pub")
                    .args(["-h", &host, "-p", &port, "-V", version, "-q", "1"])
                    .args(["-u", "anna", "-P", password, "-t", "log-in", "-m", "x"])
                    .stderr(Stdio::null())
                    .status()
                    .expect("mosquitto_pub can be started");
                if status.success() != (expected == "accepted") {
                    broken.push(format!(
                        "mosquitto_pub -V {version} at node {node}: {status}"
                    ));
                }
            }
        }
    }
    assert_none(&broken);
}

/// Connections of a user on every node, and one of somebody else, who stays.
struct Live {
    of_user: Vec<Connection>,
    of_other: Connection,
}

impl Live {
    #[track_caller]
    fn start(cluster: &Cluster, name: &str, password: &str) -> Live {
        let nodes = cluster.addresses().into_iter().enumerate();
        Live {
            of_user: nodes
                .map(|(at, node)| logged_in(node, &format!("live-{name}-{at}"), name, password))
                .collect(),
            of_other: logged_in(cluster.mqtt(2), &format!("other-{name}"), "anna", "pencil"),
        }
    }

    #[track_caller]
    fn ended(mut self, code: u8, since: Instant) {
        for connection in &mut self.of_user {
            ends(connection, code, since);
        }
        self.of_other.expect_nothing();
        self.of_other.disconnect();
    }
}

fn a_changed_password_ends_connections_on_every_node(cluster: &Cluster) {
    add(cluster, 0, "changing", "old");
    for round in 0..3 {
        let (old, new) = match round % 2 {
            0 => ("old", "new"),
            _ => ("new", "old"),
        };
        let live = Live::start(cluster, "changing", old);
        let arguments = ["user", "set-password", "changing"];
        done(cluster, round, &arguments, &format!("{new}\n"));
        live.ended(0x87, Instant::now());
        for node in cluster.addresses() {
            assert_eq!(code_at(node, V5, "changing", old), 0x87);
            assert_eq!(code_at(node, V311, "changing", new), 0);
            assert_eq!(scram(node, Algorithm::Sha512, "changing", new).code, 0);
        }
    }
}

fn a_disabled_user_is_gone_and_comes_back_when_enabled(cluster: &Cluster) {
    add(cluster, 1, "resting", "p");
    let live = Live::start(cluster, "resting", "p");
    done(cluster, 2, &["user", "disable", "resting"], "");
    live.ended(0x87, Instant::now());
    for node in cluster.addresses() {
        assert_eq!(code_at(node, V5, "resting", "p"), 0x87);
        assert_eq!(scram(node, Algorithm::Sha256, "resting", "p").code, 0x87);
    }
    done(cluster, 0, &["user", "enable", "resting"], "");
    for node in cluster.addresses() {
        assert_eq!(code_at(node, V5, "resting", "p"), 0);
    }
}

fn a_deleted_user_is_gone(cluster: &Cluster) {
    let mut shown = Shown::by("a_deleted_user_is_gone");
    add(cluster, 1, "leaving", "p");
    let live = Live::start(cluster, "leaving", "p");
    done(cluster, 0, &["user", "delete", "leaving"], "");
    live.ended(0x87, Instant::now());
    for node in cluster.addresses() {
        assert_eq!(code_at(node, V311, "leaving", "p"), 5);
        let code = of_code(code_at(node, V5, "leaving", "p"));
        shown.saw(
            "Other ways of a client",
            "users",
            "what was withdrawn",
            code,
        );
    }
    shown.finish();
    let again = run(cluster, 0, &["user", "delete", "leaving"], "");
    assert_eq!(again.status.code(), Some(1), "{again:?}");
}

fn groups_and_attributes_are_kept(cluster: &Cluster) {
    let labels = [
        "--group",
        "a",
        "--group",
        "b",
        "--attribute",
        "site=x=y",
        "--note",
        "n",
    ];
    let arguments = [&["user", "add", "labelled"][..], &labels].concat();
    let made = done(cluster, 0, &arguments, "p\n");
    let shown = done(cluster, 1, &["user", "show", "labelled"], "");
    assert_eq!(made, shown);
    assert_eq!(shown["groups"], serde_json::json!(["a", "b"]));
    assert_eq!(shown["attributes"]["site"], "x=y");
    done(cluster, 2, &["user", "set", "labelled", "--group", "c"], "");
    let shown = done(cluster, 0, &["user", "show", "labelled"], "");
    assert_eq!(shown["groups"], serde_json::json!(["c"]));
    assert_eq!(shown["note"], "n");
}

/// Names and nice values of a process's threads.
fn threads(process: u32) -> Vec<(String, i32)> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let lines = threads.flatten().filter_map(|thread| {
        // A thread may have ended.
        std::fs::read_to_string(thread.path().join("stat")).ok()
    });
    let read = lines.map(|line| {
        let (before, after) = line.rsplit_once(") ").expect("a name in parentheses");
        let (_, name) = before.split_once(" (").expect("a name in parentheses");
        // The 19th field of the line is the 17th after the name.
        let nice = after.split(' ').nth(16).and_then(|nice| nice.parse().ok());
        (name.to_owned(), nice.expect("a nice value"))
    });
    read.collect()
}

/// Nobody notices the log-ins of others: they are hashed by threads of their own, which give way to all others.
#[test]
fn log_ins_do_not_hold_up_others() {
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: "[auth]\npassword_queue = 8\npassword_threads = 1\nfailure_delay_ms = 0\n".into(),
        ..Plan::default()
    });
    add(&cluster, 0, "anna", "pencil");
    let mut bystander = logged_in(cluster.mqtt(0), "bystander", "anna", "pencil");
    let node = cluster.mqtt(0);
    let (busy, slowest) = std::thread::scope(|scope| {
        let floods: Vec<_> = (0..24)
            .map(|number| {
                scope.spawn(move || {
                    let name = format!("flood-{number}");
                    let request = with_password(Connect::v5(&name), &name, "x");
                    let codes = (0..4).map(|_| connect(node, &request).1);
                    codes.filter(|code| *code == 0x89).count()
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        while floods.iter().any(|flood| !flood.is_finished()) {
            let asked = Instant::now();
            bystander.send(&[0xC0, 0]);
            match bystander.receive(TIMEOUT) {
                Ok(Packet::Pingresp) => slowest = slowest.max(asked.elapsed()),
                other => panic!("instead of PINGRESP: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let busy = floods
            .into_iter()
            .map(|flood| flood.join().expect("it ends"));
        (busy.sum::<usize>(), slowest)
    });
    assert!(busy > 0, "what is too much is refused as busy");
    let process = cluster.nodes[0].pid().expect("it runs");
    let (hashing, others): (Vec<_>, Vec<_>) = threads(process)
        .into_iter()
        .partition(|(name, _)| name == "passwords");
    assert_eq!(hashing, [("passwords".to_owned(), 19)]);
    assert!(
        others.iter().all(|(_, nice)| *nice < 19),
        "no other thread gives way as they do: {others:?}"
    );
    assert!(
        slowest < wait::allowed(PINGRESP_WITHIN),
        "a PINGRESP took {slowest:?}"
    );
    let _: Result<Packet, Fault> = bystander.receive(Duration::from_millis(1));
    bystander.disconnect();
}
