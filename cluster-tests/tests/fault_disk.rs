//! P12: a full disk is a clear message, and nothing that was acknowledged is lost. Needs the right to mount a small
//! file system in memory; without it the test is skipped, which fails it.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::skip::skip;
use cluster_tests::store::{CallOutcome, Request, StoreClient, blob};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A file system of a fixed size; it is unmounted with this value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, megabytes: u32) -> Option<Self> {
        fs::create_dir_all(at).ok()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_loses_nothing_acknowledged() {
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let Some(_disk) = SmallDisk::mount(&cluster.nodes[0].data, 96) else {
        skip("a file system cannot be mounted here; it takes root");
        return;
    };
    cluster.start_node(0);
    cluster.wait_ready();
    let mut client = StoreClient::connected("filler", cluster.mqtt(0));
    let value = |number: u32| number.to_be_bytes().repeat(10_000);
    let mut acknowledged = 0;
    loop {
        let request = Request::set(format!("disk/{acknowledged}"), value(acknowledged));
        match client.try_call(&request, Duration::from_secs(5)) {
            CallOutcome::Answered(reply) if reply.payload == b"+OK\r\n" => acknowledged += 1,
            other => {
                eprintln!("after {acknowledged} writes: {other:?}");
                break;
            }
        }
        assert!(acknowledged < 20_000, "the disk never got full");
    }
    assert!(acknowledged > 100, "{acknowledged}");
    // It has stopped, or it refuses; either way it says why.
    let node = &mut cluster.nodes[0];
    let log = node.log_text();
    assert!(!log.contains("panicked"), "C2");
    let said = log.to_lowercase();
    assert!(
        ["no space left", "disk full", "disk is nearly full"]
            .iter()
            .any(|words| said.contains(words)),
        "it says why"
    );
    if node.is_running() {
        assert!(!node.is_ready(), "a node that cannot write is not ready");
    }
    node.kill();
    // The same data on a disk with room.
    let roomy = cluster.directory().join("roomy");
    let node = &mut cluster.nodes[0];
    let copied = Command::new("cp")
        .arg("-a")
        .arg(&node.data)
        .arg(&roomy)
        .status();
    assert!(copied.is_ok_and(|status| status.success()));
    let moved = fs::read_to_string(&node.config)
        .expect("it was written")
        .replace(&format!("{:?}", node.data), &format!("{roomy:?}"));
    fs::write(&node.config, moved).expect("it can be written");
    node.start();
    node.wait_ready(Duration::from_secs(30));
    let mut client = StoreClient::connected("reader", cluster.mqtt(0));
    for number in 0..acknowledged {
        client.expect(
            &Request::get(format!("disk/{number}")),
            blob(&value(number)),
        );
    }
    client.expect(&Request::set("disk/again", "v"), "+OK\r\n");
}
