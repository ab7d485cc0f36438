//! P11, P12: a thread that does not come round, by a loop or a lock, is named in the log, the metrics and `/livez`. When
//! it comes round again, all is well; when it does not within `node.stuck_s`, its process ends, and its clients go on
//! elsewhere. Needs the right to trace a child; without it the tests are skipped, which fails them.

use cluster_tests::cluster::{Cluster, HeldThread, Node, Plan, Where};
use cluster_tests::connection::Connection;
use cluster_tests::skip::skip;
use cluster_tests::store::{Request, StoreClient};
use cluster_tests::wait;
use cluster_tests::wire::{Connect, Message, V5};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `node.stuck_s`: late enough to see before what is said after five seconds.
const STUCK: Duration = Duration::from_secs(9);

/// A thread that is stuck is named after five seconds.
const NAMED_WITHIN: Duration = Duration::from_secs(8);

/// Everything else.
const WITHIN: Duration = Duration::from_secs(30);

/// SIGABRT.
const ABORTED: i32 = 6;

/// A thread, and what the watchdog says of it.
struct Stuck {
    thread: &'static str,
    place: Where,
    named: &'static str,
    doing: &'static str,
}

const APPLY: Stuck = Stuck {
    thread: "apply",
    place: Where::AtWork,
    named: "apply",
    doing: "applying entries",
};

/// There is one, and its runtime does not come round without it.
const REPLICATION: Stuck = Stuck {
    thread: "replication",
    place: Where::Anywhere,
    named: "replication runtime",
    doing: "running its tasks",
};

const WORKER: Stuck = Stuck {
    thread: "clients",
    place: Where::AtWork,
    named: "clients",
    doing: "handling a client's packets",
};

fn cluster() -> Cluster {
    let stuck_s = STUCK.as_secs().to_string();
    let bound = |index| (index, "QUORUMQ__NODE__STUCK_S".to_owned(), stuck_s.clone());
    Cluster::start_with(Plan {
        // Nobody serves clients while the worker is held, or waits for a lock of the thread that is; `/livez` knows.
        extra: "[runtime]\nworker_threads = 1\n".into(),
        environment: (0..3).map(bound).collect(),
        ..Plan::default()
    })
}

/// A client that keeps threads at work, until this value goes.
struct Work {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Work {
    /// Publishes through a node: retained messages of QoS 1, which every node applies, or messages of QoS 0 for nobody,
    /// thousands with each read of the socket.
    fn start(address: SocketAddr, qos: u8) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let connection = Connection::v5(address, &format!("work-{qos}"));
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || publish(connection, qos, &stop)
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "a publisher panicked"
            );
        }
    }
}

fn publish(mut connection: Connection, qos: u8, stop: &AtomicBool) {
    const AT_ONCE: u16 = 500;
    let retained = |number: u16| Message {
        retain: true,
        ..Message::new(&format!("work/{number}"), [b'w'; 100]).qos(1, number)
    };
    let (chunk, answers) = match qos {
        0 => (Message::new("work", "").bytes(V5).repeat(50_000), 0),
        _ => {
            let numbers = 1..=AT_ONCE;
            (
                numbers
                    .flat_map(|number| retained(number).bytes(V5))
                    .collect(),
                AT_ONCE,
            )
        }
    };
    while !stop.load(Ordering::Relaxed) {
        // A node whose thread is held answers nobody, and ends.
        if connection.try_send(&chunk).is_err() {
            return;
        }
        let answered = (0..answers).all(|_| connection.receive(WITHIN).is_ok());
        if !answered {
            return;
        }
    }
}

/// Holds a thread that has `work` until the log names it. Where the thread has just begun or ended a piece of work,
/// nobody would: it is tried again, with new work, since the former may have ended meanwhile. `None`: nobody may trace
/// here.
fn hold<W>(node: &Node, stuck: &Stuck, work: impl Fn() -> W) -> Option<(HeldThread, Instant, W)> {
    let process = node.pid().expect("it runs");
    for _ in 0..5 {
        let work = work();
        let before = node.log_text().len();
        let held = match HeldThread::hold(process, stuck.thread, stuck.place) {
            Ok(held) => held,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                skip("a thread cannot be traced here");
                return None;
            }
            Err(error) => panic!("{}: {error}", stuck.thread),
        };
        let began = Instant::now();
        while began.elapsed() < NAMED_WITHIN {
            let log = node.log_text();
            let mut lines = log[before..].lines();
            if lines.any(|line| {
                let parts = ["does not come round", stuck.named, stuck.doing];
                parts.iter().all(|part| line.contains(part))
            }) {
                return Some((held, began, work));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} was held where nobody missed it", stuck.thread);
        drop(held);
    }
    panic!("nobody missed the thread {}", stuck.thread);
}

/// What probes and operators are told of it.
#[track_caller]
fn assert_told(node: &Node, stuck: &Stuck) {
    let said = format!("{} has been {} for ", stuck.named, stuck.doing);
    wait::until_ok("/livez to say it", WITHIN, || match node.get("/livez") {
        Some(answer) if answer.status == 503 && answer.body.contains(&said) => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
    let threads = node.metric("quorumq_threads_stuck");
    assert!(threads >= Some(1.0), "quorumq_threads_stuck {threads:?}");
}

/// The process ends by itself, not before its time, and says why.
#[track_caller]
fn assert_ends(node: &mut Node, stuck: &Stuck, since: Instant) {
    let status = node.wait_exit(WITHIN);
    let after = since.elapsed();
    eprintln!("{}: {status} after {after:.1?}", stuck.thread);
    assert_eq!(status.signal(), Some(ABORTED), "{status}");
    // It is looked twice a second, and a look may have been late.
    assert!(after >= STUCK - Duration::from_millis(500), "{after:?}");
    let log = node.log_text();
    let said = format!("{} has been {} for ", stuck.named, stuck.doing);
    let mut lines = log.lines();
    let said = lines.any(|line| {
        let ends = line.starts_with("quorumq: ") && line.contains("(node.stuck_s)");
        ends && line.contains(&said)
    });
    assert!(said, "it does not say why");
}

/// Clients of the node that has ended find their sessions elsewhere; the node comes back, with the same state.
#[track_caller]
fn assert_goes_on(cluster: &mut Cluster, ended: usize, client_id: &str) {
    let other = cluster.mqtt((ended + 1) % 3);
    let connect = Connect::v5(client_id).durable(600);
    let connected = wait::until("its client to connect elsewhere", WITHIN, || {
        let connected = Connection::try_connect(other, &connect).ok();
        connected.filter(|(_, connack)| connack.code == 0)
    });
    assert!(connected.1.session_present, "P3: {:?}", connected.1);
    write_through(cluster, (ended + 1) % 3);
    write_through(cluster, (ended + 2) % 3);
    cluster.start_node(ended);
    cluster.wait_ready();
    write_through(cluster, ended);
    cluster.assert_states_agree();
}

/// A SET through a node is answered; how long it took.
#[track_caller]
fn write_through(cluster: &Cluster, node: usize) -> Duration {
    let began = Instant::now();
    let mut client = StoreClient::new("writes", &[cluster.mqtt(node)], 0);
    let reply = client.call_until_answered(&Request::set("threads", "v"), WITHIN);
    assert_eq!(reply.payload, b"+OK\r\n", "{reply:?}");
    client.disconnect();
    began.elapsed()
}

fn durable_client(cluster: &Cluster, node: usize) -> Connection {
    Connection::connect(cluster.mqtt(node), &Connect::v5("lives").durable(600)).0
}

/// On the leader, whose own apply every write waits for.
#[test]
fn an_apply_thread_that_stands_still_is_named_and_then_ends_its_node() {
    let mut cluster = cluster();
    let victim = cluster.wait_leader();
    let _client = durable_client(&cluster, victim);
    let other = cluster.mqtt((victim + 1) % 3);
    let held = hold(&cluster.nodes[victim], &APPLY, || Work::start(other, 1));
    let Some((held, _, work)) = held else {
        return;
    };
    assert_told(&cluster.nodes[victim], &APPLY);
    drop(held);
    let node = &cluster.nodes[victim];
    wait::until_ok("the thread to come round", WITHIN, || {
        let (live, stuck) = (node.get("/livez"), node.metric("quorumq_threads_stuck"));
        let is_well = live.as_ref().is_some_and(|answer| answer.status == 200);
        let is_named = node.log_text().contains("the thread came round again");
        match is_well && stuck == Some(0.0) && is_named {
            true => Ok(()),
            false => Err(format!("{live:?}, {stuck:?} stuck")),
        }
    });
    write_through(&cluster, victim);
    drop(work);
    let victim = cluster.wait_leader();
    let _client = durable_client(&cluster, victim);
    let other = cluster.mqtt((victim + 1) % 3);
    let held = hold(&cluster.nodes[victim], &APPLY, || Work::start(other, 1));
    let Some((_held, since, work)) = held else {
        return;
    };
    assert_ends(&mut cluster.nodes[victim], &APPLY, since);
    drop(work);
    assert_goes_on(&mut cluster, victim, "lives");
}

/// On the leader: the others do without it before its process ends.
#[test]
fn a_replication_thread_that_stands_still_costs_its_node_the_lead() {
    let mut cluster = cluster();
    let victim = cluster.wait_leader();
    let _client = durable_client(&cluster, victim);
    let Some((_held, since, ())) = hold(&cluster.nodes[victim], &REPLICATION, || ()) else {
        return;
    };
    assert_told(&cluster.nodes[victim], &REPLICATION);
    for other in [(victim + 1) % 3, (victim + 2) % 3] {
        let took = write_through(&cluster, other);
        eprintln!("a SET of node {other} beside it took {took:.1?}");
    }
    assert!(
        cluster.nodes[victim].is_running(),
        "the others waited for its end"
    );
    assert_ends(&mut cluster.nodes[victim], &REPLICATION, since);
    assert_goes_on(&mut cluster, victim, "lives");
}

#[test]
fn a_worker_that_stands_still_holds_up_its_own_node_alone() {
    let mut cluster = cluster();
    let victim = cluster.a_follower();
    let _client = durable_client(&cluster, victim);
    let own = cluster.mqtt(victim);
    let held = hold(&cluster.nodes[victim], &WORKER, || Work::start(own, 0));
    let Some((_held, since, work)) = held else {
        return;
    };
    assert_told(&cluster.nodes[victim], &WORKER);
    for other in [(victim + 1) % 3, (victim + 2) % 3] {
        let took = write_through(&cluster, other);
        eprintln!("a SET of node {other} beside it took {took:.1?}");
    }
    assert_ends(&mut cluster.nodes[victim], &WORKER, since);
    drop(work);
    assert_goes_on(&mut cluster, victim, "lives");
}
