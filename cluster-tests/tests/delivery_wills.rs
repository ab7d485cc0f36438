//! Wills of clients whose node dies, and wills that are due when the leader dies: W1 to W5, P9.
//!
//! Each client's will carries a label of its own; an observer that moves from node to node writes down what comes.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::delivery::failover_client::FailoverClient;
use cluster_tests::delivery::load::{Load, Shape};
use cluster_tests::delivery::trial;
use cluster_tests::record::Label;
use cluster_tests::record::{At, PublisherRecord, Record, Sent, SubscriberShape};
use cluster_tests::wire;
use cluster_tests::wire::{Connect, Properties, V5, Value, Will, id};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The lease of a dead node, a will's delay and some time more.
const DUE: Duration = Duration::from_secs(25);

/// Longer than every delay of a will that must not come, and than the lease: by then it would have come.
const CANCELLED: Duration = Duration::from_secs(5);

/// Three nodes with a shorter lease than the default, so that a dead one is noticed earlier.
#[track_caller]
fn cluster() -> Cluster {
    let settings = [("NODE_LEASE_MS", "2500"), ("GIVE_UP_MS", "1500")];
    let environment = (0..3).flat_map(|node| {
        settings.map(|(key, value)| (node, format!("QUORUMQ__CLUSTER__{key}"), value.to_owned()))
    });
    Cluster::start_with(Plan {
        environment: environment.collect(),
        ..Plan::default()
    })
}

/// A client with a will, and what is to become of it.
struct Case {
    name: &'static str,
    label: Label,
    expected: Expected,
    /// Kept so that its socket lives as long as its node.
    connection: Option<Connection>,
    /// Since when the delay counts at the earliest, in the observer's time.
    ended: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Once, not earlier than this after its connection ended.
    After(Duration),
    Never,
}

/// Clients with wills of one test.
struct Wills {
    prefix: String,
    observer: Load,
    cases: Vec<Case>,
}

impl Wills {
    #[track_caller]
    fn start(prefix: &str, nodes: &[SocketAddr]) -> Self {
        Self {
            prefix: prefix.to_owned(),
            observer: Load::start(nodes, &observed(prefix)),
            cases: Vec::new(),
        }
    }

    fn client_id(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Connects a client with a will of that QoS; the session lives for `expiry_s`.
    #[track_caller]
    fn connect(
        &mut self,
        node: SocketAddr,
        name: &'static str,
        (qos, delay_s, expiry_s): (u8, u32, u32),
        expected: Expected,
    ) -> &mut Case {
        let label = Label {
            publisher: self.cases.len(),
            topic: 0,
            qos,
            sequence: 0,
        };
        let mut connect = Connect::v5(&self.client_id(name)).durable(expiry_s);
        connect.will = Some(Will {
            topic: format!("{}/t0", self.prefix),
            payload: label.payload(),
            qos,
            retain: false,
            properties: Properties::new().with(id::WILL_DELAY, Value::FourBytes(delay_s)),
        });
        let (connection, _) = Connection::connect(node, &connect);
        self.cases.push(Case {
            name,
            label,
            expected,
            connection: Some(connection),
            ended: 0,
        });
        self.cases.last_mut().expect("it was just added")
    }

    /// Connects the client of that name again, without a will, to whichever node serves.
    #[track_caller]
    fn reconnect(&mut self, name: &str, nodes: &[SocketAddr]) {
        let connect = Connect::v5(&self.client_id(name)).durable(600);
        let never = AtomicBool::new(false);
        let found = FailoverClient::new(nodes, 0).connect(&connect, &never);
        let (connection, connack) = found.expect("it is not told to stop");
        assert!(connack.session_present, "S1: {name}");
        let case = self.cases.iter_mut().find(|case| case.name == name);
        case.expect("it is there").connection = Some(connection);
    }

    /// When the observer got each will, in milliseconds since it began.
    fn arrivals(record: &Record, label: Label) -> Vec<At> {
        let deliveries = record.subscribers[0].deliveries();
        let of_label = deliveries.iter().filter(|found| found.label == label);
        of_label.map(|found| found.at).collect()
    }

    /// Waits for the wills that must come, and for those that must not long enough; then judges.
    #[track_caller]
    fn judge(mut self) {
        let deadline = Instant::now() + DUE;
        let earliest = Instant::now() + CANCELLED;
        let cases = std::mem::take(&mut self.cases);
        let mut record = self.observer.stop_when(|so_far| {
            let came = |case: &Case| {
                case.expected == Expected::Never || !Self::arrivals(so_far, case.label).is_empty()
            };
            let now = Instant::now();
            now > deadline || (now > earliest && cases.iter().all(came))
        });
        let mut violations = Vec::new();
        for case in &cases {
            violations.extend(violation(case, &Self::arrivals(&record, case.label)));
        }
        // And by the rules for all messages: none invented, none in a wrong place.
        record.publishers = cases.iter().map(published).collect();
        violations.extend(trial::violations(&record));
        eprintln!("{}: {} wills", self.prefix, cases.len());
        assert_none(&violations);
    }
}

fn observed(prefix: &str) -> Shape {
    Shape {
        publishers: 0,
        subscribers: vec![SubscriberShape::new(format!("{prefix}-observer"))],
        ..Shape::new(prefix, 0)
    }
}

/// What is wrong with the times at which a will came.
fn violation(case: &Case, arrivals: &[At]) -> Option<String> {
    let (name, expected) = (case.name, case.expected);
    match (expected, arrivals) {
        (Expected::Never, []) => None,
        (Expected::Never, _) => Some(format!("W2 or W5: {name}: a will came at {arrivals:?} ms")),
        (Expected::After(_), []) => Some(format!("W1 or W4: {name}: no will came")),
        (Expected::After(delay), [at]) => {
            let due = u128::from(case.ended) + delay.as_millis();
            let early = u128::from(*at) < due;
            early.then(|| format!("W5: {name}: its will came at {at} ms, due at {due} ms"))
        }
        (Expected::After(_), _) => Some(format!("W3: {name}: its will came at {arrivals:?} ms")),
    }
}

/// The will as a message of its own publisher.
fn published(case: &Case) -> PublisherRecord {
    let must_come = case.expected != Expected::Never;
    PublisherRecord {
        client_id: case.name.to_owned(),
        messages: vec![Sent {
            label: case.label,
            sent: 0,
            attempts: 1,
            accepted: must_come.then_some(0),
            refused: None,
        }],
        ..PublisherRecord::default()
    }
}

const AT_ONCE: Expected = Expected::After(Duration::ZERO);

fn seconds(delay_s: u64) -> Expected {
    Expected::After(Duration::from_secs(delay_s))
}

/// Wills of clients of one node, and what they are to become when it is killed.
#[track_caller]
fn the_node_of_clients_is_killed(cluster: &mut Cluster, prefix: &str, home: usize) {
    let elsewhere = (0..cluster.nodes.len()).find(|node| *node != home);
    let elsewhere = elsewhere.expect("there are three nodes");
    let mut nodes = cluster.addresses();
    nodes.rotate_left(elsewhere);
    let mut wills = Wills::start(prefix, &nodes);
    let node = cluster.mqtt(home);
    wills.connect(node, "qos0", (0, 0, 0), AT_ONCE);
    wills.connect(node, "qos1", (1, 0, 0), AT_ONCE);
    wills.connect(node, "qos2", (2, 0, 600), AT_ONCE);
    wills.connect(node, "delayed", (2, 2, 600), seconds(2));
    // [MQTT-3.1.3-9]: the end of the session comes first.
    wills.connect(node, "session-ends", (1, 600, 1), seconds(1));
    wills.connect(node, "comes-back-in-time", (1, 4, 600), Expected::Never);
    // [MQTT-3.1.4-3], without a delay: the old connection has ended, and not with a DISCONNECT.
    wills.connect(node, "comes-back", (2, 0, 600), AT_ONCE);
    let left = wills.connect(node, "has-left", (1, 0, 600), Expected::Never);
    left.connection
        .take()
        .expect("it is connected")
        .disconnect();
    let other = wills.connect(nodes[0], "lives-elsewhere", (1, 0, 600), Expected::Never);
    assert!(other.connection.is_some());
    let cut = wills.connect(node, "cut-before", (1, 3, 600), seconds(3));
    cut.connection = None;
    let now = wills.observer.now();
    for case in &mut wills.cases {
        case.ended = now;
    }
    cluster.nodes[home].kill();
    wills.reconnect("comes-back-in-time", &nodes);
    wills.reconnect("comes-back", &nodes);
    // W3: not once more when the node is back.
    cluster.start_node(home);
    cluster.wait_ready();
    wills.judge();
}

#[test]
fn a_node_with_wills_is_killed() {
    let mut cluster = cluster();
    let follower = cluster.a_follower();
    the_node_of_clients_is_killed(&mut cluster, "will-follower", follower);
}

#[test]
fn a_leader_with_wills_is_killed() {
    let mut cluster = cluster();
    let leader = cluster.wait_leader();
    the_node_of_clients_is_killed(&mut cluster, "will-leader", leader);
}

/// The leader, who keeps the time, dies while wills of other nodes' clients are due, and before it has seen that one of
/// those nodes is dead.
#[test]
fn the_leader_is_killed_while_wills_are_due() {
    let mut cluster = cluster();
    let leader = cluster.wait_leader();
    let home = (leader + 1) % 3;
    let mut nodes = cluster.addresses();
    nodes.rotate_left((leader + 2) % 3);
    let mut wills = Wills::start("will-due", &nodes);
    let node = cluster.mqtt(home);
    wills.connect(node, "at-once", (2, 0, 600), AT_ONCE);
    wills.connect(node, "delayed", (1, 2, 600), seconds(2));
    wills.connect(node, "comes-back-in-time", (1, 4, 600), Expected::Never);
    wills.connect(node, "stays", (1, 0, 600), Expected::Never);
    let now = wills.observer.now();
    for case in &mut wills.cases {
        if case.name != "stays" {
            case.connection = None;
        }
        case.ended = now;
    }
    cluster.nodes[leader].kill();
    wills.reconnect("comes-back-in-time", &nodes);
    // The client that stayed is at its node still, or has been told to go: then its will is due.
    let stayed = wills.cases.iter_mut().find(|case| case.name == "stays");
    let connection = stayed.and_then(|case| case.connection.as_mut());
    let connection = connection.expect("it was connected");
    connection.expect_nothing();
    cluster.start_node(leader);
    cluster.wait_ready();
    connection.expect_nothing();
    let farewell = wire::disconnect(V5, 0, &Properties::new());
    connection.send(&farewell);
    wills.judge();
}
