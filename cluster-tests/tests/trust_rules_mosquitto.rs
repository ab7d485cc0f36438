//! Mosquitto's ACL files, side by side: the same files, read by Mosquitto and imported as rules, allow the same
//! messages.
//!
//! The files are made at random from a seed (`SEED`). Where Mosquitto and the rules differ on purpose, nothing is
//! asked: names with `/`, `+` or `#` (docs/rules.md).

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::binary;
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::random::Random;
use cluster_tests::wire::{Connect, Message};
use cluster_tests::{trial, wait};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Files that are compared.
const FILES: usize = 8;

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

    fn connect(&self, user: &str, client_id: &str) -> Connection {
        let mut connect = Connect::v5(client_id);
        connect.user_name = Some(user.to_owned());
        Connection::connect(self.1, &connect).0
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

/// A file of up to a dozen lines, and one for who watches.
fn file(random: &mut Random) -> String {
    let mut text = String::from("user watcher\ntopic readwrite #\ntopic readwrite $x/#\n");
    let access = ["", "read ", "write ", "readwrite ", "deny "];
    let levels = ["a", "b", "+", "ann", "c1"];
    let pattern_levels = ["a", "b", "+", "%u", "%c", "x%c"];
    for user in ["ann", "bob"] {
        text += &format!("user {user}\n");
        for _ in 0..random.below(5) {
            let topic = topic(random, &levels);
            text += &format!("topic {}{topic}\n", one(random, &access));
        }
    }
    for _ in 0..random.below(5) {
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
    match String::from_utf8_lossy(&output.stdout).trim() {
        "allow" => true,
        "deny" => false,
        other => panic!("{other:?}: {output:?}"),
    }
}

/// What Mosquitto does: whether a message reaches the watcher, and whether one of the watcher reaches the user.
fn judged_by_mosquitto(broker: &Broker, user: &str, topic: &str) -> (bool, bool) {
    let mut watcher = broker.connect("watcher", "watcher");
    watcher.subscribe(&[(topic, 1), ("end", 1)]);
    let mut client = broker.connect(user, "c1");
    client.publish(Message {
        qos: 1,
        ..Message::new(topic, "1")
    });
    // The watcher's own message comes behind it.
    let arrived =
        |connection: &mut Connection| connection.next_publish(Duration::from_millis(400)).is_ok();
    let written = arrived(&mut watcher);
    client.subscribe_for(&[(topic, 1)]);
    watcher.publish(Message {
        qos: 1,
        ..Message::new(topic, "2")
    });
    (written, arrived(&mut client))
}

#[test]
#[ignore = "needs an installed Mosquitto, or MOSQUITTO_BIN"]
fn files_mean_what_they_mean_to_mosquitto() {
    let program = mosquitto().expect("Mosquitto is installed, or MOSQUITTO_BIN names it");
    let mut random = Random::new(trial::seed());
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut differences = Vec::new();
    let mut allowed = 0;
    for number in 0..FILES {
        let text = file(&mut random);
        let acl = directory.path().join(format!("acl-{number}"));
        std::fs::write(&acl, &text).expect("a file can be written");
        let imported = Command::new(binary())
            .args(["acl", "import-mosquitto"])
            .arg(&acl)
            .output()
            .expect("the binary can be run");
        assert!(imported.status.success(), "{text}\n{imported:?}");
        let rules = directory.path().join(format!("rules-{number}.json"));
        std::fs::write(&rules, imported.stdout).expect("a file can be written");
        let broker = Broker::start(&program, directory.path(), &acl);
        for user in USERS {
            for topic in TOPICS {
                let theirs = judged_by_mosquitto(&broker, user, topic);
                let ours = (
                    quorumq(&rules, user, "publish", topic),
                    quorumq(&rules, user, "receive", topic),
                );
                allowed += u32::from(ours.0) + u32::from(ours.1);
                if theirs != ours {
                    differences.push(format!(
                        "{user} {topic}: Mosquitto (write, read) {theirs:?}, the rules {ours:?}, by\n{text}"
                    ));
                }
            }
        }
    }
    assert_none(&differences);
    assert!(allowed > 10, "the files allow something: {allowed}");
}
