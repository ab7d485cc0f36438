//! Retained messages set, replaced and deleted while nodes die, and read through every node: R1 to R3, P6.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::delivery::hopper::Hopper;
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
use std::time::Duration;

const WRITERS: usize = 3;
const TOPICS_EACH: usize = 5;

/// After the answer to a ping, nothing more has come for this long: the retained messages of a SUBSCRIBE are all there.
const SILENCE: Duration = Duration::from_millis(300);

/// What one topic's only writer did, in its order; it goes on when a change is acknowledged, and not before.
#[derive(Debug, Clone, Default)]
struct Changes {
    /// The value that each change sets; none: it deletes.
    begun: Vec<Option<u32>>,
    acknowledged: usize,
}

impl Changes {
    /// Violations by a reader that asked when `acknowledged` changes were, and heard all when `begun` had been begun.
    fn judge(&self, acknowledged: usize, begun: usize, heard: Option<u32>) -> Option<String> {
        let allowed: Vec<Option<u32>> = match acknowledged.checked_sub(1) {
            Some(last) => self.begun[last..begun].to_vec(),
            None => [&[None], &self.begun[..begun]].concat(),
        };
        if allowed.contains(&heard) {
            return None;
        }
        let older = self.begun[..begun].contains(&heard);
        Some(match (heard, older) {
            (Some(value), true) if allowed == [None] => {
                format!("R3: {value} is there again, and was deleted")
            }
            (Some(value), true) => format!("R2: {value} is there, {allowed:?} may be"),
            (Some(value), false) => format!("R2: {value} is there, and was never set"),
            (None, _) => format!("R2: nothing is there, {allowed:?} may be"),
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
    let mut hopper = Hopper::new(nodes, writer);
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
                let (connection, _) = hopper.connect(&connect, &never)?;
                Some(connection)
            });
            let mut open = open.expect("it is not told to stop");
            if acknowledged(&mut open, &message) {
                connection = Some(open);
                break;
            }
            hopper.hop();
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

/// What a new subscriber of a node is sent, per topic; none when the node does not serve now.
fn heard(world: &World, node: SocketAddr, client_id: &str) -> Option<BTreeMap<String, Vec<u32>>> {
    let connect = Connect::v5(client_id);
    let patience = Duration::from_millis(2500);
    let (mut connection, connack) =
        Connection::try_connect_within(node, &connect, patience).ok()?;
    if connack.code != 0 {
        return None;
    }
    let filter = format!("{}/+", world.prefix);
    // Without retain as published, the flag tells what was retained from what comes live [MQTT-3.3.1-9].
    let subscribe = wire::subscribe(V5, 1, &Properties::new(), &[(&filter, 0)]);
    connection.try_send(&subscribe).ok()?;
    connection.try_send(&wire::PINGREQ).ok()?;
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let (mut granted, mut answered) = (false, false);
    loop {
        let wait = if answered { SILENCE } else { patience };
        match connection.receive(wait) {
            Ok(Packet::Suback(suback)) => {
                assert_eq!(suback.codes, [0]);
                granted = true;
            }
            Ok(Packet::Pingresp) => answered = true,
            Ok(Packet::Publish(publish)) if publish.retain => {
                let text = String::from_utf8_lossy(&publish.payload).into_owned();
                let value = text.parse().unwrap_or_else(|_| {
                    panic!("R2: {:?} holds {text:?}", publish.topic);
                });
                found.entry(publish.topic).or_default().push(value);
            }
            // Live, and not judged here.
            Ok(Packet::Publish(_)) => {}
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
    let Some(heard) = heard(world, node, client_id) else {
        return false;
    };
    let mut found = Vec::new();
    for (topic, acknowledged) in before.into_iter().enumerate() {
        let name = world.topic(topic);
        let values = heard.get(&name).map_or(&[][..], Vec::as_slice);
        if values.len() > 1 {
            found.push(format!("R1: {name} has {values:?}"));
        }
        let changes = world.changes(topic);
        let value = values.first().copied();
        if let Some(why) = changes.judge(acknowledged, changes.begun.len(), value) {
            found.push(format!("{why}: {name}, through {node}"));
        }
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
        wait::until("retained messages to be changed and read", RECOVERY, || {
            let more = counted(&self.world.changes) >= changes + 150
                && counted(&self.world.reads) >= reads + 5;
            more.then_some(())
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
    let changes = Changes {
        begun: vec![Some(1), Some(2), None, Some(4)],
        acknowledged: 3,
    };
    let judge = |acknowledged, begun, heard| {
        let why = changes.judge(acknowledged, begun, heard)?;
        Some(why[..2].to_owned())
    };
    assert_eq!(judge(0, 1, None), None);
    assert_eq!(judge(0, 1, Some(1)), None);
    assert_eq!(judge(1, 2, Some(2)), None);
    assert_eq!(judge(2, 2, Some(1)), Some("R2".into()));
    assert_eq!(judge(2, 2, None), Some("R2".into()));
    assert_eq!(judge(2, 3, None), None);
    assert_eq!(judge(3, 3, Some(2)), Some("R3".into()));
    assert_eq!(judge(3, 4, Some(4)), None);
    assert_eq!(judge(3, 4, Some(2)), Some("R2".into()));
    assert_eq!(judge(0, 2, Some(9)), Some("R2".into()));
}
