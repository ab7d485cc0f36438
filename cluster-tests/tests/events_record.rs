//! Clients come, go, vanish and take each other over on three nodes that are killed, paused and cut off. What an
//! endpoint has got is judged by what the clients have seen: E1, E2, E3, E8.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::http::ask;
use cluster_tests::random::Random;
use cluster_tests::receiver::{Receiver, Reply};
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Packet, Properties};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 6;

/// Client ids of each thread.
const CLIENTS: u64 = 50;

/// How long a CONNECT or an end may take while nodes are down.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long the last event may take to arrive once all nodes are up.
const ARRIVED_WITHIN: Duration = Duration::from_secs(90);

/// `cluster.node_lease_ms`.
const LEASE: Duration = Duration::from_secs(5);

/// Beyond the lease, until the last client of a node that has died was told of: a second for the log, and one for a
/// busy machine and the delivery.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// What a client has seen of its connections.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// CONNECTs that were accepted.
    opened: u64,
    /// CONNECTs without an answer.
    unanswered: u64,
    /// DISCONNECTs that were sent.
    left: u64,
    /// DISCONNECTs whose close came while no node suffered: the log knows. Otherwise the system closes for a dead node.
    closed: u64,
    /// Connections that were told that another has taken their session over.
    taken_over: u64,
}

#[track_caller]
fn subscribe(cluster: &Cluster, receiver: &Receiver) {
    let body = json!({
        "url": receiver.url(),
        "subject_begins_with": "clients/record-",
        "rate_per_min": 60_000,
        "timeout_s": 2,
    });
    let target = "/v1/events/subscriptions/record";
    let answer = ask(
        cluster.nodes[0].http(),
        "PUT",
        target,
        &[],
        &body.to_string(),
    );
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// A client that connects wherever it can.
struct Client {
    id: String,
    seen: Seen,
    connection: Option<Connection>,
}

impl Client {
    fn new(id: String) -> Self {
        Client {
            id,
            seen: Seen::default(),
            connection: None,
        }
    }

    /// Connects; a connection that it has already is taken over, and should hear of it.
    fn connect(&mut self, address: SocketAddr, random: &mut Random) -> bool {
        let mut connect = Connect::v5(&self.id);
        if random.chance(50) {
            connect = connect.durable(600);
        }
        match Connection::try_connect_within(address, &connect, PATIENCE) {
            Ok((connection, connack)) if connack.code == 0 => {
                self.seen.opened += 1;
                if let Some(mut former) = self.connection.replace(connection) {
                    self.seen.taken_over += u64::from(is_told_of_take_over(&mut former));
                }
                true
            }
            Ok(_) => false,
            Err(_) => {
                self.seen.unanswered += 1;
                false
            }
        }
    }

    fn leave(&mut self, is_calm: &AtomicBool) -> bool {
        let Some(mut connection) = self.connection.take() else {
            return false;
        };
        // Its node may be dead, and have been replaced: then the connection has ended already.
        let is_alive = connection.try_send(&wire::PINGREQ).is_ok()
            && matches!(connection.receive(PATIENCE), Ok(Packet::Pingresp));
        if !is_alive {
            return false;
        }
        let bytes = wire::disconnect(connection.level(), 0, &Properties::new());
        self.seen.left += 1;
        let was_calm = is_calm.load(Ordering::SeqCst);
        let is_closed = connection.try_send(&bytes).is_ok()
            && matches!(connection.receive(PATIENCE), Err(Fault::Closed));
        let is_known = is_closed && was_calm && is_calm.load(Ordering::SeqCst);
        self.seen.closed += u64::from(is_known);
        is_known
    }

    fn vanish(&mut self) {
        self.connection = None;
    }
}

fn is_told_of_take_over(connection: &mut Connection) -> bool {
    loop {
        match connection.receive(PATIENCE) {
            Ok(Packet::Disconnect(disconnect)) => return disconnect.code == 0x8E,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// What clients do until they are told to stop; then each connects once more and leaves in order.
fn live(
    thread: u64,
    addresses: &[SocketAddr],
    stop: &AtomicBool,
    is_calm: &AtomicBool,
    steps: &AtomicU64,
) -> Vec<Client> {
    let mut random = Random::new(0x00ec_0de0 + thread);
    let name = |number| Client::new(format!("record-{thread}-{number}"));
    let mut clients: Vec<Client> = (0..CLIENTS).map(name).collect();
    while !stop.load(Ordering::Relaxed) {
        let client = &mut clients[usize::try_from(random.below(CLIENTS)).expect("it is small")];
        let node = usize::try_from(random.below(3)).expect("it is small");
        match random.below(10) {
            0..6 => drop(client.connect(addresses[node], &mut random)),
            6..9 => drop(client.leave(is_calm)),
            _ => client.vanish(),
        }
        steps.fetch_add(1, Ordering::SeqCst);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let address = addresses[number % 3];
        wait::until("a last visit", Duration::from_secs(60), || {
            let is_done = client.connect(address, &mut random) && client.leave(is_calm);
            is_done.then_some(())
        });
    }
    clients
}

/// Waits until the log has ended the life of a node: the connection of a client that has stayed there is lost.
#[track_caller]
fn wait_declared_down(receiver: &Receiver, keeper: &str) {
    wait::until("the end of a keeper", ARRIVED_WITHIN, || {
        let is_lost = |event: &Value| {
            let data = &event["data"];
            data["clientSessionName"] == keeper && data["disconnectionReason"] == "ConnectionLost"
        };
        receiver.events().iter().any(is_lost).then_some(())
    });
}

/// Waits until the clients have had so many steps in peace.
#[track_caller]
fn wait_steps(steps: &AtomicU64, more: u64) {
    let before = steps.load(Ordering::SeqCst);
    wait::until("clients to go on", ARRIVED_WITHIN, || {
        (steps.load(Ordering::SeqCst) >= before + more).then_some(())
    });
}

/// Has nodes suffer, one way after the other, with calm in between.
fn torment(cluster: &mut Cluster, receiver: &Receiver, is_calm: &AtomicBool, steps: &AtomicU64) {
    let ways: [fn(&mut Cluster, &Receiver); 5] = [
        |cluster, _| {
            let leader = cluster.wait_leader();
            cluster.nodes[leader].kill();
            cluster.wait_leader_other_than(leader);
            cluster.start_node(leader);
        },
        |cluster, receiver| {
            let follower = cluster.a_follower();
            let keeper = Connection::v5(cluster.mqtt(follower), "record-killed");
            cluster.nodes[follower].kill();
            wait_declared_down(receiver, "record-killed");
            drop(keeper);
            cluster.start_node(follower);
        },
        |cluster, _| {
            let leader = cluster.wait_leader();
            cluster.nodes[leader].pause();
            cluster.wait_leader_other_than(leader);
            cluster.nodes[leader].resume();
        },
        |cluster, receiver| {
            let follower = cluster.a_follower();
            let keeper = Connection::v5(cluster.mqtt(follower), "record-cut-off");
            cluster.network().isolate(follower);
            wait_declared_down(receiver, "record-cut-off");
            drop(keeper);
            cluster.network().heal();
        },
        |cluster, _| {
            for node in 0..3 {
                cluster.nodes[node].kill();
            }
            for node in 0..3 {
                cluster.start_node(node);
            }
        },
    ];
    for way in ways {
        is_calm.store(false, Ordering::SeqCst);
        way(cluster, receiver);
        cluster.wait_ready();
        is_calm.store(true, Ordering::SeqCst);
        wait_steps(steps, 100);
    }
}

/// An event of a session, as far as its order and its truth are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    /// Empty for Connected.
    reason: String,
    sequence: u64,
    id: String,
}

/// The events of each session in the order in which they came first; repetitions have to be the same.
fn told(events: &[Value]) -> Result<BTreeMap<String, Vec<Told>>, String> {
    let mut by_id: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut sessions: BTreeMap<String, Vec<Told>> = BTreeMap::new();
    for event in events {
        let id = event["id"].as_str().ok_or("an event without an id")?;
        match by_id.insert(id, event) {
            Some(former) if former == event => continue,
            Some(former) => return Err(format!("E2: {former} and {event}")),
            None => {}
        }
        let data = &event["data"];
        let kind = event["type"].as_str().ok_or("an event without a type")?;
        let reason = match kind.ends_with("MQTTClientSessionConnected") {
            true => "",
            false => data["disconnectionReason"].as_str().ok_or("no reason")?,
        };
        let session = data["clientSessionName"].as_str().ok_or("no session")?;
        sessions.entry(session.to_owned()).or_default().push(Told {
            reason: reason.to_owned(),
            sequence: data["sequenceNumber"].as_u64().ok_or("no number")?,
            id: id.to_owned(),
        });
    }
    Ok(sessions)
}

/// Whether what was told of a session fits what its client has seen.
fn judge(told: &[Told], seen: Seen) -> Result<(), String> {
    let expected = (0..).map(|place: u64| (place / 2 + 1, place % 2 == 1));
    for (told, (sequence, is_end)) in told.iter().zip(expected) {
        if (told.sequence, !told.reason.is_empty()) != (sequence, is_end) {
            return Err(format!("E3: {told:?} where number {sequence} has its turn"));
        }
    }
    let last = told.last().ok_or("nothing was told")?;
    if last.reason != "ClientInitiatedDisconnect" {
        return Err(format!("E8: the last is {last:?}"));
    }
    let opened = last.sequence;
    if !(seen.opened..=seen.opened + seen.unanswered).contains(&opened) {
        return Err(format!("E1: {opened} connections were told"));
    }
    let of = |reason| told.iter().filter(|told| told.reason == reason).count() as u64;
    let left = of("ClientInitiatedDisconnect");
    if !(seen.closed..=seen.left).contains(&left) {
        return Err(format!("{left} were told to have left"));
    }
    if of("SessionTakenOver") < seen.taken_over {
        return Err("fewer were told to be taken over".to_owned());
    }
    let known = [
        "",
        "ClientInitiatedDisconnect",
        "SessionTakenOver",
        "ConnectionLost",
        "ServerError",
        "ServerInitiatedDisconnect",
    ];
    match told
        .iter()
        .find(|told| !known.contains(&told.reason.as_str()))
    {
        Some(other) => Err(format!("nobody has made {other:?}")),
        None => Ok(()),
    }
}

fn judge_all(receiver: &Receiver, clients: &[Client]) -> Result<(), String> {
    let sessions = told(&receiver.events())?;
    let mut wrong = Vec::new();
    for Client { id, seen, .. } in clients {
        let told = sessions.get(id).map_or(&[][..], Vec::as_slice);
        if let Err(what) = judge(told, *seen) {
            wrong.push(format!("{id}: {what}; {seen:?}"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} are wrong: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        )),
    }
}

#[test]
fn what_is_told_of_clients_is_what_happened() {
    let mut cluster = Cluster::start_with(Plan {
        network: true,
        ..Plan::default()
    });
    let random = Mutex::new(Random::new(7));
    let receiver = Receiver::with(move |_| {
        let mut random = random.lock().expect("no holder of the lock panics");
        match random.below(20) {
            0 => Reply::status(503),
            1 => Reply::Slow(Duration::from_millis(200), 200),
            _ => Reply::status(200),
        }
    });
    subscribe(&cluster, &receiver);
    let addresses: Vec<SocketAddr> = (0..3).map(|node| cluster.mqtt(node)).collect();
    let (stop, is_calm) = (AtomicBool::new(false), AtomicBool::new(true));
    let steps = AtomicU64::new(0);
    let clients: Vec<Client> = std::thread::scope(|scope| {
        let living: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (addresses, stop, is_calm, steps) = (&addresses, &stop, &is_calm, &steps);
                scope.spawn(move || live(thread, addresses, stop, is_calm, steps))
            })
            .collect();
        torment(&mut cluster, &receiver, &is_calm, &steps);
        stop.store(true, Ordering::Relaxed);
        let ended = living.into_iter().map(|thread| thread.join());
        ended
            .flat_map(|clients| clients.expect("a client's thread ends"))
            .collect()
    });
    wait::until_ok("the truth of every client", ARRIVED_WITHIN, || {
        judge_all(&receiver, &clients)
    });
    let opened: u64 = clients.iter().map(|client| client.seen.opened).sum();
    assert!(
        opened > 600,
        "only {opened} connections, which proves little"
    );
    cluster.assert_states_agree();
}

/// The connections of a node that dies end in the order in which they were made, and nobody else's; and soon after its
/// lease.
#[test]
fn the_clients_of_a_node_that_dies_are_lost_in_order() {
    let mut cluster = Cluster::start();
    let receiver = Receiver::start();
    subscribe(&cluster, &receiver);
    let follower = cluster.a_follower();
    let other = (0..3).find(|node| *node != follower).expect("three nodes");
    let names: Vec<String> = (0..300)
        .map(|number| format!("record-{number:03}"))
        .collect();
    let dying: Vec<Connection> = names
        .iter()
        .map(|name| Connection::v5(cluster.mqtt(follower), name))
        .collect();
    let mut bystander = Connection::v5(cluster.mqtt(other), "record-bystander");
    // What was recorded before does not delay what follows.
    wait::until("their beginnings", ARRIVED_WITHIN, || {
        (receiver.events().len() > names.len()).then_some(())
    });
    let killed = Instant::now();
    cluster.nodes[follower].kill();
    let lost = wait::until_ok("the end of each", ARRIVED_WITHIN, || {
        let mut lost = Vec::new();
        for event in receiver.events() {
            let data = &event["data"];
            if data["disconnectionReason"] == "ConnectionLost" {
                let name = data["clientSessionName"].as_str().unwrap_or_default();
                lost.push(name.to_owned());
            }
        }
        match lost.len() >= names.len() {
            true => Ok(lost),
            false => Err(format!("{} of {}", lost.len(), names.len())),
        }
    });
    assert_eq!(lost, names);
    let taken = receiver.taken();
    let last = taken.last().expect("there are some");
    let told = last.at.duration_since(killed);
    assert!(
        told < wait::with_slack(LEASE + TOLD_WITHIN),
        "E3: {told:?} after its death"
    );
    bystander.expect_nothing();
    drop(dying);
}
