//! A replica is killed with SIGKILL again and again: what it acknowledged is there, and nothing is applied twice.

mod directory;
mod raft_support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use directory::Directory;
use quorumq::base::ids::NodeId;
use quorumq::testing::Peer;
use raft_support::{Node, eventually, insist, listen, row, times_written};

/// Names the directory for the test that runs as a child of the other.
const CHILD: &str = "QUORUMQ_TEST_RAFT_CHILD";
const KILLS: u64 = 4;

async fn single(dir: &Path) -> Node {
    let node = Node::start(1, dir, listen(None).await).await;
    let only = Peer {
        node: NodeId(1),
        address: node.address.to_string(),
    };
    node.raft.bootstrap(vec![only]).await.unwrap();
    eventually("leadership", || node.leads().then_some(())).await;
    node
}

/// Writes numbered keys for ever, printing each once it is applied. Only as a child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_writes_for_ever() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let node = single(Path::new(&dir)).await;
    let backing = node.raft.backing();
    let first = (0..).find(|number| row(&*backing, &number.to_string()).is_none());
    let mut applied = node.raft.applied();
    for number in first.unwrap().. {
        let batch = Bytes::from(format!("{number}=x"));
        node.raft.propose(batch).await.unwrap();
        while row(&*backing, &number.to_string()).is_none() {
            applied.changed().await.unwrap();
        }
        // Every now and then some of the state is on disk already when the process dies.
        if number % 64 == 50 {
            node.raft.snapshot().await.unwrap();
        }
        let mut out = std::io::stdout();
        writeln!(out, "applied {number}").unwrap();
        out.flush().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_nothing_acknowledged_and_applies_nothing_twice() {
    let dir = Directory::new();
    let mut last = 0;
    for kill in 1..=KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_writes_for_ever", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        for line in out.lines().map_while(Result::ok) {
            let number = line
                .strip_prefix("applied ")
                .and_then(|text| text.parse().ok());
            last = number.unwrap_or(last).max(last);
            if last >= kill * 90 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
    }
    assert!(last >= KILLS * 90);
    let node = single(dir.path()).await;
    insist("a read", || node.raft.read_barrier()).await;
    let backing = node.raft.backing();
    for number in 0..=last {
        let key = number.to_string();
        assert_eq!(
            row(&*backing, &key).as_deref(),
            Some(&b"x"[..]),
            "{key} of {last}"
        );
        assert_eq!(times_written(&*backing, &key), 1, "{key}");
    }
}
