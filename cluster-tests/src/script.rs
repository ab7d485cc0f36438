//! Runs programs that use other people's MQTT clients against a cluster.
//!
//! A program gets the addresses of the nodes as arguments. It writes one JSON object per line. `{"ask": "kill", "node":
//! 1}` asks to kill the node of that index ("start" brings it back, "kill-leader" kills whichever leads and brings it
//! back when there is another); the harness answers `done` on standard input. All other lines are its report, which the
//! test judges.

use crate::cluster::Cluster;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a program may write nothing.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a program may run.
const RUN_TIMEOUT: Duration = Duration::from_secs(240);

/// Where `scripts/setup test` keeps the clients.
pub fn installed() -> PathBuf {
    let cache = std::env::var("CACHE").unwrap_or_else(|_| {
        let home = std::env::var("HOME").expect("HOME is set");
        format!("{home}/.cache/quorumq")
    });
    let clients = Path::new(&cache).join("clients");
    assert!(
        clients.join("stamp").exists(),
        "no clients in {}; run `scripts/setup test`",
        clients.display()
    );
    clients
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(name)
}

/// A Python program of `clients/python`.
pub fn python(name: &str) -> Command {
    let mut command = Command::new(installed().join("venv/bin/python"));
    command.arg("-B").arg(source("python").join(name));
    command
}

/// A Python program of `clients/python` that uses the libraries of Azure IoT Hub. They need another version of an MQTT
/// client than the others test with, so they have an environment of their own.
pub fn azure_python(name: &str) -> Command {
    let mut command = Command::new(installed().join("azure/bin/python"));
    command.arg("-B").arg(source("python").join(name));
    command
}

/// A JavaScript program of `clients/js`.
pub fn node_js(name: &str) -> Command {
    let mut command = Command::new("node");
    command
        .arg(source("js").join(name))
        .env("NODE_PATH", installed().join("node_modules"));
    command
}

/// A process that does not outlive this value.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines of a stream, read by a thread of their own.
pub fn lines_of(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Runs a program with the nodes' addresses to its end, does what it asks, and returns its report.
#[track_caller]
pub fn run(
    mut command: Command,
    addresses: &[String],
    mut act: impl FnMut(&str, usize),
) -> Vec<Value> {
    command
        .args(addresses)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let started = command.spawn();
    let mut process =
        Guarded(started.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}")));
    let mut answers = process.0.stdin.take().expect("it is piped");
    let lines = lines_of(process.0.stdout.take().expect("it is piped"));
    let deadline = Instant::now() + RUN_TIMEOUT;
    let mut report = Vec::new();
    loop {
        let line = match lines.recv_timeout(SILENCE_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{command:?} has said nothing for {SILENCE_TIMEOUT:?}")
            }
        };
        assert!(
            Instant::now() < deadline,
            "{command:?} runs for {RUN_TIMEOUT:?}"
        );
        let said: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{command:?} said {line:?}: {error}"));
        match (said["ask"].as_str(), said["node"].as_u64()) {
            (Some(what), Some(node)) => {
                act(what, usize::try_from(node).expect("an index of a node"));
                // If the program has ended meanwhile, its status below says so.
                let _ = writeln!(answers, "done");
            }
            _ => report.push(said),
        }
    }
    let status = process.0.wait().expect("it was started");
    assert!(status.success(), "{command:?} ended with {status}");
    report
}

/// Carries out what a program asks for.
#[track_caller]
pub fn act(cluster: &mut Cluster, what: &str, node: usize) {
    match what {
        "kill" => cluster.nodes[node].kill(),
        "start" => {
            cluster.start_node(node);
            cluster.wait_ready();
        }
        "kill-leader" => {
            let leader = cluster.wait_leader();
            cluster.nodes[leader].kill();
            cluster.wait_leader_other_than(leader);
            cluster.start_node(leader);
        }
        other => panic!("a program asked for {other:?}"),
    }
}
