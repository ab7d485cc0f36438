//! Mosquitto's ACL files, side by side: the same files, read by Mosquitto and imported as rules, allow the same
//! messages. The rules are asked (`quorumq acl test`), and a node has them while clients publish and subscribe.
//!
//! The files are made at random from a seed (`QUORUMQ_SEED`). Where Mosquitto and the rules differ on purpose, nothing is
//! asked: names with `/`, `+` or `#` (docs/rules.md).
//!
//! `make mosquitto` runs it: nobody's tests should need another broker.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::random::Random;
use cluster_tests::wire::{self, Connect, Message, Packet};
use cluster_tests::{trial, wait};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Files that are compared.
const FILES: usize = 24;

/// The password of all users. Mosquitto, which has none of them in a file, takes any.
const PASSWORD: &str = "pencil";

/// The users of the files; the last one has no lines of its own.
const USERS: [&str; 3] = ["ann", "bob", "eve"];

const TOPICS: [&str; 6] = ["a", "a/b", "a/ann", "a/c1/b", "b/ann/c1", "$x/a"];

/// The broker, if it is installed: `MOSQUITTO_BIN`, or where packages put it.
fn mosquitto() -> Option<PathBuf> {
    let named = std::env::var_os("MOSQUITTO_BIN").map(PathBuf::from);
    let known = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"].map(PathBuf::from);
    named.into_iter().chain(known).find(|path| path.exists())
}

struct Broker(Child, SocketAddr);

impl Broker {
    fn start(program: &Path, directory: &Path, acl: &Path) -> Broker {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let file = directory.join("mosquitto.conf");
        // Started as root, it would become somebody who may not read the directory.
        let lines = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous true\nacl_file {}\n",
            address.port(),
            acl.display()
        );
        std::fs::write(&file, lines).expect("a file can be written");
        let child = Command::new(program)
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Mosquitto can be run");
        wait::until("Mosquitto", TIMEOUT, || {
            std::net::TcpStream::connect(address).ok()
        });
        Broker(child, address)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.below(of.len() as u64) as usize]
}

/// A file of some lines for each user, some patterns, and lines for who watches.
fn file(random: &mut Random) -> String {
    let mut text = String::from("user watcher\ntopic readwrite #\ntopic readwrite $x/#\n");
    let access = ["", "read ", "write ", "readwrite ", "deny "];
    let levels = ["a", "b", "+", "ann", "c1"];
    let pattern_levels = ["a", "b", "+", "%u", "%c", "x%c"];
    for user in ["ann", "bob"] {
        text += &format!("user {user}\n");
        for _ in 0..2 + random.below(7) {
            let topic = topic(random, &levels);
            text += &format!("topic {}{topic}\n", one(random, &access));
        }
    }
    for _ in 0..2 + random.below(7) {
        let topic = topic(random, &pattern_levels);
        text += &format!("pattern {}{topic}\n", one(random, &access));
    }
    text
}

fn topic(random: &mut Random, levels: &[&str]) -> String {
    let mut topic: Vec<&str> = (0..=random.below(2)).map(|_| one(random, levels)).collect();
    if random.below(3) == 0 {
        topic.push("#");
    }
    let reserved = random.below(8) == 0;
    [if reserved { "$x/" } else { "" }, &topic.join("/")].concat()
}

/// What Quorumq says by the imported rules.
fn quorumq(rules: &Path, user: &str, action: &str, topic: &str) -> bool {
    let output = Command::new(binary())
        .args([
            "acl",
            "test",
            user,
            action,
            topic,
            "--client-id",
            "c1",
            "--file",
        ])
        .arg(rules)
        .output()
        .expect("the binary can be run");
    match String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .next()
    {
        Some("allow") => true,
        Some("deny") => false,
        other => panic!("{other:?}: {output:?}"),
    }
}

/// Runs a command of the binary, which succeeds, and returns what it prints.
#[track_caller]
fn done(arguments: &[&str], input: &str) -> String {
    let mut process = Command::new(binary())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    // A command that reads nothing may have ended already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = process.wait_with_output().expect("it was started");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A node with the users of the files, whose hashes are cheap.
fn node() -> (Cluster, String) {
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: "[auth]\npassword_memory_kib = 64\npassword_passes = 1\nscram_iterations = 4096\n"
            .into(),
        ..Plan::default()
    });
    let http = cluster.nodes[0].addresses.http.to_string();
    for user in USERS.iter().chain(&["watcher"]) {
        let add = ["user", "--http", &http, "add", user];
        done(&add, &format!("{PASSWORD}\n"));
    }
    (cluster, http)
}

/// Connects as a user. The client identifier may still be that of a user who is leaving.
fn connect(broker: SocketAddr, user: &str, client_id: &str) -> Connection {
    let mut connect = Connect::v5(client_id);
    connect.user_name = Some(user.to_owned());
    connect.password = Some(PASSWORD.into());
    wait::until(&format!("{user} connects"), TIMEOUT, || {
        let (connection, connack) = Connection::try_connect(broker, &connect).ok()?;
        (connack.code == 0).then_some(connection)
    })
}

/// Whether a message has arrived: what was sent before a PINGREQ comes before its answer.
#[track_caller]
fn has_arrived(connection: &mut Connection) -> bool {
    connection.send(&wire::PINGREQ);
    let mut arrived = false;
    loop {
        match connection.receive(TIMEOUT) {
            Ok(Packet::Publish(_)) => arrived = true,
            Ok(Packet::Pingresp) => return arrived,
            other => panic!("instead of PINGRESP: {other:?}"),
        }
    }
}

/// What a broker does: whether a message reaches the watcher, and whether one of the watcher reaches the user.
#[track_caller]
fn judged(broker: SocketAddr, user: &str, topic: &str) -> (bool, bool) {
    let mut watcher = connect(broker, "watcher", "watcher");
    watcher.subscribe(&[(topic, 1)]);
    let mut client = connect(broker, user, "c1");
    client.publish(Message {
        qos: 1,
        ..Message::new(topic, "1")
    });
    let written = has_arrived(&mut watcher);
    client.subscribe_for(&[(topic, 1)]);
    watcher.publish(Message {
        qos: 1,
        ..Message::new(topic, "2")
    });
    let read = has_arrived(&mut client);
    client.disconnect();
    watcher.disconnect();
    (written, read)
}

#[test]
#[ignore = "needs an installed Mosquitto, or MOSQUITTO_BIN; make mosquitto"]
fn files_mean_what_they_mean_to_mosquitto() {
    let program = mosquitto().expect("Mosquitto is installed, or MOSQUITTO_BIN names it");
    let (cluster, http) = node();
    let mut random = Random::new(trial::seed());
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut differences = Vec::new();
    let (mut allowed, mut refused) = (0, 0);
    for number in 0..FILES {
        let text = file(&mut random);
        let acl = directory.path().join(format!("acl-{number}"));
        std::fs::write(&acl, &text).expect("a file can be written");
        let path = acl.to_str().expect("text");
        let imported = done(&["acl", "import-mosquitto", path], "");
        let rules = directory.path().join(format!("rules-{number}.json"));
        std::fs::write(&rules, &imported).expect("a file can be written");
        done(&["acl", "--http", &http, "set", "-"], &imported);
        let broker = Broker::start(&program, directory.path(), &acl);
        for user in USERS {
            for topic in TOPICS {
                let theirs = judged(broker.1, user, topic);
                let node = judged(cluster.mqtt(0), user, topic);
                let asked = (
                    quorumq(&rules, user, "publish", topic),
                    quorumq(&rules, user, "receive", topic),
                );
                for is_allowed in [theirs.0, theirs.1] {
                    *if is_allowed {
                        &mut allowed
                    } else {
                        &mut refused
                    } += 1;
                }
                if theirs != node || theirs != asked {
                    differences.push(format!(
                        "{user} {topic}: (write, read) is {theirs:?} with Mosquitto, {node:?} with a node, and \
                         {asked:?} by `acl test`, for\n{text}"
                    ));
                }
            }
        }
    }
    eprintln!("{FILES} files: {allowed} allowed, {refused} refused");
    assert_none(&differences);
    assert!(allowed > 100 && refused > 100, "both: {allowed}, {refused}");
}
