//! P12: a full disk is a clear message, and nothing that was acknowledged is lost; a disk that is about to be full
//! takes no more writes until there is room again. Needs the right to mount a small file system in memory; without it
//! the test is skipped, which fails it.

use cluster_tests::cluster::{Cluster, Node, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::random::Random;
use cluster_tests::skip::skip;
use cluster_tests::store::{CallOutcome, Request, StoreClient, blob};
use cluster_tests::wait;
use cluster_tests::wire::{Connect, Message, V5, V311};
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

/// How long a change of a disk may take to be known everywhere.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);

/// The state store's answer to what is not stored.
const QUOTA: &str = "-ERR the quota has been exceeded\r\n";

/// What takes room on a node's disk, and is no data of the node.
fn ballast(node: &Node, megabytes: usize) -> PathBuf {
    let path = node.data.join("ballast");
    let mut file = File::create(&path).expect("there is room");
    for _ in 0..megabytes {
        file.write_all(&vec![7; 1 << 20]).expect("there is room");
    }
    path
}

/// Three nodes, each on a disk of its own with that much room beside its reserve, which is 256 MiB.
fn three_disks(room: usize) -> Option<(Cluster, Vec<SmallDisk>, Vec<PathBuf>)> {
    let mut cluster = Cluster::prepare(Plan::default());
    let mount = |node: &Node| SmallDisk::mount(&node.data, 1024);
    let disks: Option<Vec<_>> = cluster.nodes.iter().map(mount).collect();
    let Some(disks) = disks else {
        skip("a file system cannot be mounted here; it takes root");
        return None;
    };
    let nodes = cluster.nodes.iter();
    let ballasts = nodes.map(|node| ballast(node, 1024 - 256 - room)).collect();
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready();
    Some((cluster, disks, ballasts))
}

/// Clients of one node from before its writes were refused.
struct Before {
    client: StoreClient,
    /// A session with a message in its queue, and its next connection.
    name: String,
}

impl Before {
    fn on(cluster: &Cluster, node: usize) -> Self {
        let name = format!("queued-{node}");
        let connect = Connect::v5(&name).durable(600);
        let (mut queued, _) = Connection::connect(cluster.mqtt(node), &connect);
        queued.subscribe(&[(&name, 1)]);
        queued.disconnect();
        let mut publisher = Connection::v5(cluster.mqtt(node), &format!("publisher-{node}"));
        assert_eq!(publisher.publish(Message::new(&name, "1").qos(1, 0)), 0);
        let mut client = StoreClient::connected(&format!("before-{node}"), cluster.mqtt(node));
        client.expect(&Request::set(format!("kept/{node}"), "v"), "+OK\r\n");
        client.expect(&Request::set(format!("deleted/{node}"), "v"), "+OK\r\n");
        Self { client, name }
    }
}

/// What a node refuses while writes are refused, and what it does not.
#[track_caller]
fn assert_refuses(cluster: &Cluster, node: usize, before: &mut Before) {
    let address = cluster.mqtt(node);
    let client = &mut before.client;
    let refused = || cluster.nodes[node].metric("quorumq_writes_refused_total");
    let counted = refused();
    client.expect(&Request::set("refused", "v"), QUOTA);
    client.expect(&Request::keynotify("refused"), QUOTA);
    assert!(refused() > counted, "a refusal is not counted");
    // Past the log it goes, into the log it does not.
    let mut publisher = Connection::v5(address, &format!("full-{node}"));
    assert_eq!(
        publisher.publish(Message::new("nobody/waits", "x").qos(1, 0)),
        0x10
    );
    assert_eq!(
        publisher.publish(Message::new(&before.name, "2").qos(1, 0)),
        0x97
    );
    for (level, code) in [(V5, 0x97), (V311, 3)] {
        let connect = Connect::at(&format!("new-{node}-{level}"), level).durable(600);
        let connected = Connection::try_connect(address, &connect);
        let told = connected.map(|(_, connack)| connack.code);
        assert_eq!(
            told,
            Ok(code),
            "a new durable session of node {node}, MQTT {level}"
        );
    }
    // What makes no use of room, or makes room.
    client.expect(&Request::get(format!("kept/{node}")), blob(b"v"));
    client.expect(&Request::del(format!("deleted/{node}")), ":1\r\n");
    let connect = Connect::v5(&before.name).durable(600);
    let (mut queued, connack) = Connection::connect(address, &connect);
    assert!(connack.session_present, "P3");
    assert_eq!(queued.publish_received().payload, b"1");
    queued.disconnect();
    // It was acknowledged.
    let (mut queued, _) = Connection::connect(address, &connect);
    queued.expect_nothing();
    assert_eq!(queued.subscribe_for(&[("more", 1)]).codes, [0x97]);
    queued.disconnect();
    let now = cluster.nodes[node].metric("quorumq_writes_refused_now");
    assert_eq!(now, Some(1.0), "quorumq_writes_refused_now");
}

/// Whether each node says that its disk is low, and is not ready because of it.
#[track_caller]
fn wait_low(cluster: &Cluster, low: [bool; 3]) {
    for (node, low) in cluster.nodes.iter().zip(low) {
        let what = format!("node {} to say that its disk is low: {low}", node.id);
        wait::until_ok(&what, KNOWN_WITHIN, || {
            let refuses = node.metric("quorumq_writes_refused_now");
            let (metric, ready) = (node.metric("quorumq_disk_low"), node.get("/readyz?verbose"));
            let text = format!("low {metric:?}, refuses {refuses:?}, /readyz {ready:?}");
            let ready = ready.ok_or_else(|| text.clone())?;
            let says = ready.body.to_lowercase().contains("[-] disk");
            let is_low = (metric, ready.status, says) == (Some(1.0), 503, true);
            let is_fine = (metric, ready.status, says) == (Some(0.0), 200, false);
            let is_said = if low { is_low } else { is_fine };
            match is_said && refuses == Some(1.0) {
                true => Ok(()),
                false => Err(text),
            }
        });
    }
}

/// Writes are taken again on every node, by themselves; nobody has ended, and all have the same.
#[track_caller]
fn assert_recovers(cluster: &mut Cluster, before: &mut [Before]) {
    cluster.wait_ready();
    for before in before {
        wait::until_ok("writes to be taken again", KNOWN_WITHIN, || {
            let request = Request::set("again", "v");
            match before.client.try_call(&request, Duration::from_secs(5)) {
                CallOutcome::Answered(reply) if reply.payload == b"+OK\r\n" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
    for node in &mut cluster.nodes {
        assert!(node.is_running(), "node {} has ended", node.id);
        let log = node.log_text();
        assert!(!log.contains("panicked"), "C2");
        assert_eq!(node.metric("quorumq_disk_low"), Some(0.0));
        assert_eq!(node.metric("quorumq_writes_refused_now"), Some(0.0));
    }
    cluster.assert_states_agree();
}

/// Replicas store the same, so that writes fill all disks together.
#[test]
fn three_disks_that_fill_up_refuse_writes_until_there_is_room() {
    let Some((mut cluster, _disks, ballasts)) = three_disks(96) else {
        return;
    };
    let mut before: Vec<Before> = (0..3).map(|node| Before::on(&cluster, node)).collect();
    let mut written = 0;
    let refusal = loop {
        let request = Request::set(format!("fills/{written}"), incompressible(written, 400_000));
        let client = &mut before[written as usize % 3].client;
        let reply = client.call(&request);
        if reply.payload != b"+OK\r\n" {
            break String::from_utf8_lossy(&reply.payload).into_owned();
        }
        written += 1;
        assert!(written < 5_000, "the disks never got full");
    };
    eprintln!("after {written} writes: {refusal:?}");
    assert_eq!(refusal, QUOTA);
    wait_low(&cluster, [true; 3]);
    for (node, before) in before.iter_mut().enumerate() {
        assert_refuses(&cluster, node, before);
    }
    for ballast in ballasts {
        fs::remove_file(ballast).expect("it is there");
    }
    assert_recovers(&mut cluster, &mut before);
    let last = written - 1;
    let value = blob(&incompressible(last, 400_000));
    let request = Request::get(format!("fills/{last}"));
    before[0].client.expect(&request, value);
}

/// Two with room could not lose one more: with the disk of one of three low, every node refuses.
#[test]
fn one_low_disk_of_three_refuses_writes_on_every_node() {
    let Some((mut cluster, _disks, ballasts)) = three_disks(600) else {
        return;
    };
    let mut before: Vec<Before> = (0..3).map(|node| Before::on(&cluster, node)).collect();
    let low = cluster.a_follower();
    ballast(&cluster.nodes[low], 1024 - 240);
    let mut disks = [false; 3];
    disks[low] = true;
    wait_low(&cluster, disks);
    for (node, before) in before.iter_mut().enumerate() {
        assert_refuses(&cluster, node, before);
    }
    fs::remove_file(&ballasts[low]).expect("it is there");
    assert_recovers(&mut cluster, &mut before);
}
