//! Retained messages set, replaced and deleted while nodes die, and read through every node: R1 to R3, P6.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::delivery::failover_client::FailoverClient;
use cluster_tests::delivery::trial::RECOVERY;
use cluster_tests::random::Random;
use cluster_tests::trial::seed;
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
const TOPICS_EACH: usize = 5;

/// After the answer to a ping, no retained message has come for this long: those of a SUBSCRIBE are all there.
const SILENCE: Duration = Duration::from_millis(300);

/// What one topic's only writer did, in its order; it goes on when a change is acknowledged, and not before.
#[derive(Debug, Clone, Default)]
struct Changes {
    /// The value that each change sets; none: it deletes.
    begun: Vec<Option<u32>>,
    acknowledged: usize,
}

impl Changes {
    /// Violations by a reader that asked when `acknowledged` changes were. What was changed while it was answered may
    /// come live instead; nothing older may come after it.
    fn judge(&self, acknowledged: usize, heard: &[Heard]) -> Vec<String> {
        let mut found = Vec::new();
        let retained = heard.iter().filter(|heard| heard.retained).count();
        if retained > 1 {
            found.push(format!("R1: {retained} retained messages"));
        }
        found.extend(self.judge_first(acknowledged, heard.first().and_then(|first| first.value)));
        // Values of a topic rise; one that was published twice comes twice.
        let values: Vec<u32> = heard.iter().filter_map(|heard| heard.value).collect();
        if !values.is_sorted_by(|one, next| one <= next) {
            found.push("R2: an older value after a newer one".into());
        }
        found
    }

    fn judge_first(&self, acknowledged: usize, first: Option<u32>) -> Option<String> {
        let allowed: Vec<Option<u32>> = match acknowledged.checked_sub(1) {
            Some(last) => self.begun[last..].to_vec(),
            None => [&[None], &self.begun[..]].concat(),
        };
        if allowed.contains(&first) {
            return None;
        }
        Some(match first {
            Some(value) if !self.begun.contains(&first) => {
                format!("R2: {value} is there, and was never set")
            }
            Some(value) if allowed == [None] => {
                format!("R3: {value} is there again, and was deleted")
            }
            Some(value) => format!("R2: {value} is there, {allowed:?} may be"),
            None => format!("R2: nothing is there, {allowed:?} may be"),
        })
    }
}

struct World {
    prefix: String,
    topics: Vec<Mutex<Changes>>,
    stop: AtomicBool,
    changes: AtomicUsize,
    reads: AtomicUsize,
    violations: Mutex<Vec<String>>,
}

impl World {
    fn topic(&self, index: usize) -> String {
        format!("{}/{index}", self.prefix)
    }

    fn changes(&self, topic: usize) -> Changes {
        let changes = self.topics[topic].lock();
        changes.expect("no holder of the lock panics").clone()
    }

    fn change<T>(&self, topic: usize, write: impl FnOnce(&mut Changes) -> T) -> T {
        let changes = self.topics[topic].lock();
        write(&mut changes.expect("no holder of the lock panics"))
    }
}

/// Sets and deletes the retained messages of its topics until the end, through whichever node serves.
fn write(world: &World, nodes: &[SocketAddr], writer: usize, seed: u64) {
    let mut random = Random::new(seed.wrapping_mul(31).wrapping_add(writer as u64));
    let connect = Connect::v5(&format!("{}-writer-{writer}", world.prefix)).durable(600);
    let mut nodes = FailoverClient::new(nodes, writer);
    let never = AtomicBool::new(false);
    let (mut value, mut packet_id) = (0_u32, 0_u16);
    let mut connection: Option<Connection> = None;
    while !world.stop.load(Ordering::Relaxed) {
        let topic = writer * TOPICS_EACH + random.below(TOPICS_EACH as u64) as usize;
        value += 1;
        let set = (!random.chance(20)).then_some(value);
        let payload = set.map_or_else(Vec::new, |value| value.to_string().into_bytes());
        packet_id = packet_id % 1000 + 1;
        let mut message = Message::new(&world.topic(topic), payload).qos(1, packet_id);
        message.retain = true;
        world.change(topic, |changes| changes.begun.push(set));
        loop {
            let open = connection.take().or_else(|| {
                let (connection, _) = nodes.connect(&connect, &never)?;
                Some(connection)
            });
            let mut open = open.expect("it is not told to stop");
            if acknowledged(&mut open, &message) {
                connection = Some(open);
                break;
            }
            nodes.fail_over();
            message.duplicate = true;
        }
        world.change(topic, |changes| changes.acknowledged = changes.begun.len());
        world.changes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Sends; false when the node does not answer.
fn acknowledged(connection: &mut Connection, message: &Message) -> bool {
    if connection.try_send(&message.bytes(V5)).is_err() {
        return false;
    }
    match connection.receive(Duration::from_millis(2500)) {
        Ok(Packet::Puback(ack)) => {
            assert!(ack.code < 0x80, "{ack:?}");
            assert_eq!(ack.packet_id, message.packet_id);
            true
        }
        Ok(Packet::Disconnect(_)) | Err(Fault::Closed | Fault::Timeout) => false,
        other => panic!("instead of PUBACK: {other:?}"),
    }
}

/// A message of a topic at a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    /// With RETAIN 1; others came live.
    retained: bool,
    /// None: the value was deleted.
    value: Option<u32>,
}

/// What a new subscriber of a node is sent, per topic and in order, until the retained messages have ended; none when
/// the node does not serve now.
fn listen(
    world: &World,
    node: SocketAddr,
    client_id: &str,
) -> Option<BTreeMap<String, Vec<Heard>>> {
    let connect = Connect::v5(client_id);
    let timeout = Duration::from_millis(2500);
    let (mut connection, connack) = Connection::try_connect_within(node, &connect, timeout).ok()?;
    if connack.code != 0 {
        return None;
    }
    let filter = format!("{}/+", world.prefix);
    // Without retain as published, the flag tells what was retained from what comes live [MQTT-3.3.1-9].
    let subscribe = wire::subscribe(V5, 1, &Properties::new(), &[(&filter, 0)]);
    connection.try_send(&subscribe).ok()?;
    connection.try_send(&wire::PINGREQ).ok()?;
    let mut found: BTreeMap<String, Vec<Heard>> = BTreeMap::new();
    let (mut granted, mut answered) = (false, false);
    let mut last = Instant::now();
    loop {
        let wait = if answered { SILENCE } else { timeout };
        match connection.receive(wait.saturating_sub(last.elapsed())) {
            Ok(Packet::Suback(suback)) => {
                assert_eq!(suback.codes, [0]);
                granted = true;
            }
            Ok(Packet::Pingresp) => (answered, last) = (true, Instant::now()),
            Ok(Packet::Publish(publish)) => {
                let retained = publish.retain;
                if retained {
                    last = Instant::now();
                }
                let text = String::from_utf8_lossy(&publish.payload).into_owned();
                let value = text.parse().ok();
                let is_right = value.is_some() || (text.is_empty() && !retained);
                assert!(is_right, "R2: {:?} holds {text:?}", publish.topic);
                let heard = Heard { retained, value };
                found.entry(publish.topic).or_default().push(heard);
            }
            Err(Fault::Timeout) if answered && granted => return Some(found),
            Ok(Packet::Disconnect(_)) | Err(Fault::Closed | Fault::Timeout) => return None,
            other => panic!("{other:?}"),
        }
    }
}

/// Reads through one node and judges; false when the node does not serve now.
fn read(world: &World, node: SocketAddr, client_id: &str) -> bool {
    let before: Vec<usize> = (0..world.topics.len())
        .map(|topic| world.changes(topic).acknowledged)
        .collect();
    let Some(heard) = listen(world, node, client_id) else {
        return false;
    };
    let mut found = Vec::new();
    for (topic, acknowledged) in before.into_iter().enumerate() {
        let name = world.topic(topic);
        let heard = heard.get(&name).map_or(&[][..], Vec::as_slice);
        let whys = world.changes(topic).judge(acknowledged, heard);
        found.extend(
            whys.iter()
                .map(|why| format!("{why}: {name}, through {node}: {heard:?}")),
        );
    }
    world.reads.fetch_add(1, Ordering::Relaxed);
    let mut violations = world
        .violations
        .lock()
        .expect("no holder of the lock panics");
    violations.extend(found);
    true
}

/// Writers and, for each node, a reader.
struct Load {
    world: Arc<World>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(name: &str, nodes: &[SocketAddr], seed: u64) -> Self {
        let topics = WRITERS * TOPICS_EACH;
        let world = Arc::new(World {
            prefix: format!("{name}-{seed}"),
            topics: (0..topics).map(|_| Mutex::default()).collect(),
            stop: AtomicBool::new(false),
            changes: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            violations: Mutex::default(),
        });
        let mut threads = Vec::new();
        for writer in 0..WRITERS {
            let (world, nodes) = (world.clone(), nodes.to_vec());
            threads.push(std::thread::spawn(move || {
                write(&world, &nodes, writer, seed);
            }));
        }
        for (index, node) in nodes.iter().copied().enumerate() {
            let world = world.clone();
            threads.push(std::thread::spawn(move || {
                let client_id = format!("{}-reader-{index}", world.prefix);
                while !world.stop.load(Ordering::Relaxed) {
                    if !read(&world, node, &client_id) {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }));
        }
        Self { world, threads }
    }

    #[track_caller]
    fn wait_progress(&self) {
        let counted = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (changes, reads) = (counted(&self.world.changes), counted(&self.world.reads));
        wait::until("150 changes of retained messages", RECOVERY, || {
            (counted(&self.world.changes) >= changes + 150).then_some(())
        });
        wait::until("5 reads of them", RECOVERY, || {
            (counted(&self.world.reads) >= reads + 5).then_some(())
        });
    }

    #[track_caller]
    fn stop(self) -> Arc<World> {
        self.world.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no client panics");
        }
        self.world
    }
}

/// Reads through every node until each has answered, then judges everything.
#[track_caller]
fn judge_finally(cluster: &Cluster, world: &World) {
    for index in 0..cluster.nodes.len() {
        let client_id = format!("{}-last-{index}", world.prefix);
        wait::until("a node to be read", RECOVERY, || {
            read(world, cluster.mqtt(index), &client_id).then_some(())
        });
    }
    let violations = world
        .violations
        .lock()
        .expect("no holder of the lock panics");
    let (changes, reads) = (&world.changes, &world.reads);
    eprintln!("{}: {changes:?} changes, {reads:?} reads", world.prefix);
    assert_none(&violations);
}

/// Runs a load, does `fault`, and judges; the prefix of all topics holds the seed.
#[track_caller]
fn trial(cluster: &mut Cluster, name: &str, fault: impl FnOnce(&mut Cluster, &Load)) -> Arc<World> {
    let load = Load::start(name, &cluster.addresses(), seed());
    load.wait_progress();
    fault(cluster, &load);
    cluster.wait_ready();
    load.wait_progress();
    let world = load.stop();
    judge_finally(cluster, &world);
    world
}

#[test]
fn retained_messages_survive_the_death_of_any_node() {
    let mut cluster = Cluster::start();
    trial(&mut cluster, "retained-follower", |cluster, load| {
        let follower = cluster.a_follower();
        cluster.nodes[follower].kill();
        load.wait_progress();
        cluster.start_node(follower);
    });
    let world = trial(&mut cluster, "retained-leader", |cluster, load| {
        let leader = cluster.wait_leader();
        cluster.nodes[leader].kill();
        load.wait_progress();
        cluster.start_node(leader);
    });
    // R3: what was deleted stays deleted, what was set stays set, when every node was dead.
    for node in &mut cluster.nodes {
        node.kill();
    }
    for index in 0..cluster.nodes.len() {
        cluster.start_node(index);
    }
    cluster.wait_ready();
    judge_finally(&cluster, &world);
}

#[test]
fn retained_messages_are_not_set_back_by_a_leader_that_slept() {
    let mut cluster = Cluster::start();
    trial(&mut cluster, "retained-paused", |cluster, load| {
        let leader = cluster.wait_leader();
        cluster.nodes[leader].pause();
        load.wait_progress();
        cluster.nodes[leader].resume();
    });
}

#[test]
fn stale_lost_and_resurrected_values_are_found() {
    let judge = |begun: &[Option<u32>], acknowledged, heard: &[(bool, Option<u32>)]| {
        let changes = Changes {
            begun: begun.to_vec(),
            acknowledged,
        };
        let heard: Vec<Heard> = heard
            .iter()
            .map(|(retained, value)| Heard {
                retained: *retained,
                value: *value,
            })
            .collect();
        let found = changes.judge(acknowledged, &heard);
        found
            .iter()
            .map(|why| why[..2].to_owned())
            .collect::<Vec<_>>()
    };
    let good = Vec::<String>::new();
    let (one, two, four) = (Some(1), Some(2), Some(4));
    assert_eq!(judge(&[one], 0, &[]), good);
    assert_eq!(judge(&[one], 0, &[(true, one)]), good);
    assert_eq!(judge(&[one, two], 1, &[(true, two)]), good);
    assert_eq!(judge(&[one, two], 1, &[(true, one), (false, two)]), good);
    assert_eq!(judge(&[one, two], 1, &[(false, two)]), good);
    assert_eq!(judge(&[one, two, None], 2, &[]), good);
    assert_eq!(judge(&[one, two, None, four], 3, &[(true, four)]), good);
    assert_eq!(judge(&[one, two], 2, &[(true, one)]), ["R2"]);
    assert_eq!(judge(&[one, two], 2, &[]), ["R2"]);
    assert_eq!(judge(&[one, two, None], 3, &[(true, two)]), ["R3"]);
    assert_eq!(judge(&[one, two, None, four], 3, &[(true, two)]), ["R2"]);
    assert_eq!(judge(&[one, two], 0, &[(true, Some(9))]), ["R2"]);
    assert_eq!(judge(&[one, two], 1, &[(true, one), (true, two)]), ["R1"]);
    assert_eq!(judge(&[one, two], 1, &[(false, two), (true, one)]), ["R2"]);
}
