//! P12: a full disk is a clear message, and nothing that was acknowledged is lost; a disk that is about to be full
//! takes no more writes until there is room again. Needs the right to mount a small file system in memory; without it
//! the test is skipped, which fails it.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::random::Random;
use cluster_tests::skip::skip;
use cluster_tests::store::{CallOutcome, Request, StoreClient, blob};
use cluster_tests::wait;
use std::fs::{self, File};
use std::io::Write as _;
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

/// A value that takes its length on the disk, and is the same for the same `number`.
fn incompressible(number: u32, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(number.into());
    (0..bytes / 8)
        .flat_map(|_| random.draw().to_be_bytes())
        .collect()
}

#[test]
fn a_full_disk_loses_nothing_acknowledged() {
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        // Without the guard, so that it really gets full.
        extra: "[disk]\nreserve_percent = 0\n".into(),
        ..Plan::default()
    });
    let Some(_disk) = SmallDisk::mount(&cluster.nodes[0].data, 96) else {
        skip("a file system cannot be mounted here; it takes root");
        return;
    };
    cluster.start_node(0);
    cluster.wait_ready();
    let mut client = StoreClient::connected("filler", cluster.mqtt(0));
    let value = |number: u32| incompressible(number, 40_000);
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

/// The disk guard: before the disk is full, writes are refused with a reason, and reads, deletes and the process go on.
/// When there is room again, so do writes, by themselves.
#[test]
fn a_disk_that_fills_up_refuses_writes_until_there_is_room() {
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let Some(_disk) = SmallDisk::mount(&cluster.nodes[0].data, 1024) else {
        skip("a file system cannot be mounted here; it takes root");
        return;
    };
    // Something else that takes room, and gives it back.
    let ballast = cluster.nodes[0].data.join("ballast");
    let mut file = File::create(&ballast).expect("there is room");
    for _ in 0..512 {
        file.write_all(&vec![7; 1 << 20]).expect("there is room");
    }
    cluster.start_node(0);
    cluster.wait_ready();
    let mut client = StoreClient::connected("filler", cluster.mqtt(0));
    // Durable sessions are not opened while the disk is low.
    let mut reader = StoreClient::connected("reader", cluster.mqtt(0));
    let value = |number: u32| incompressible(number, 200_000);
    let mut acknowledged = 0;
    let refusal = loop {
        let request = Request::set(format!("disk/{acknowledged}"), value(acknowledged));
        match client.try_call(&request, Duration::from_secs(10)) {
            CallOutcome::Answered(reply) if reply.payload == b"+OK\r\n" => acknowledged += 1,
            other => break other,
        }
        assert!(acknowledged < 20_000, "the disk never got full");
    };
    let said = match &refusal {
        CallOutcome::Answered(reply) => String::from_utf8_lossy(&reply.payload).into_owned(),
        CallOutcome::Refused(code) => format!("{code:#04x}"),
        other => format!("{other:?}"),
    };
    eprintln!("after {acknowledged} writes: {said}");
    assert!(acknowledged > 50, "{acknowledged}");
    let node = &mut cluster.nodes[0];
    assert!(node.is_running(), "the node has ended: {said}");
    assert!(
        said.starts_with("-ERR") || said == "0x97",
        "no clear answer: {said}"
    );
    let told = node.get("/readyz?verbose").expect("it answers").body;
    assert!(told.to_lowercase().contains("disk"), "/readyz says: {told}");
    for number in [0, acknowledged - 1] {
        reader.expect(
            &Request::get(format!("disk/{number}")),
            blob(&value(number)),
        );
    }
    reader.expect(&Request::del("disk/1"), ":1\r\n");
    drop(file);
    fs::remove_file(&ballast).expect("it is there");
    wait::until(
        "writes to be accepted again",
        Duration::from_secs(30),
        || {
            let outcome = reader.try_call(&Request::set("disk/again", "v"), Duration::from_secs(5));
            matches!(outcome, CallOutcome::Answered(reply) if reply.payload == b"+OK\r\n")
                .then_some(())
        },
    );
    cluster.wait_ready();
    let log = cluster.nodes[0].log_text();
    assert!(!log.contains("panicked"), "C2");
}
