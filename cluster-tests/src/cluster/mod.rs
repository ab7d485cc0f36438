//! Real clusters of the real binary: started in temporary directories on free ports, killed, paused, wiped and
//! restarted.
//!
//! Invariant: nodes end with the value that holds them, panics included.
//! Invariant: one cluster runs at a time on a machine, because the timing of faults would mean nothing otherwise. A
//! lock file sees to it across test processes.
//! Invariant: a test that fails or hangs says what every node was doing ([`diagnosis`]); [`watchdog`] ends those that
//! hang.

pub mod diagnosis;
mod held_thread;
mod network;
mod node;
mod plan;
mod ports;
mod stall;
mod watchdog;

pub use held_thread::{HeldThread, Where};
pub use network::Network;
pub use node::{Entry, Node};
pub use plan::{Plan, binary};
pub use stall::Disk;
pub use watchdog::DEADLINE;

use self::ports::Slot;
use crate::wait;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use watchdog::{Processes, Watchdog};

/// How long a cluster may take to become ready.
pub const READY_WITHIN: Duration = Duration::from_secs(30);

/// Nodes of one cluster.
pub struct Cluster {
    pub nodes: Vec<Node>,
    /// The network between them, when the plan asked for one that can be cut.
    network: Option<Network>,
    /// Where clients connect, if that is not at the nodes themselves.
    doors: Vec<SocketAddr>,
    directory: TempDir,
    processes: Processes,
    _watchdog: Watchdog,
    slot: Slot,
}

impl Cluster {
    /// Three nodes, ready.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(Plan::default())
    }

    /// One node, ready.
    #[track_caller]
    pub fn single() -> Self {
        Self::start_with(Plan {
            size: 1,
            ..Plan::default()
        })
    }

    #[track_caller]
    pub fn start_with(plan: Plan) -> Self {
        let mut cluster = Self::prepare(plan);
        for index in 0..cluster.nodes.len() {
            cluster.start_node(index);
        }
        cluster.wait_ready();
        cluster
    }

    /// Directories and configuration files, and nothing started.
    pub fn prepare(plan: Plan) -> Self {
        // Asked first: the wait for the lock counts where the runner counts it.
        watchdog::left_of(plan.deadline);
        let slot = Slot::wait();
        let mut directory =
            TempDir::with_prefix("quorumq-cluster-").expect("a temporary directory can be made");
        if std::env::var_os("QUORUMQ_KEEP").is_some() {
            directory.disable_cleanup(true);
            eprintln!("kept: {}", directory.path().display());
        }
        let ports = slot.free_ports(plan.size * 4, &[]);
        let (inside, outside) = (&ports[..plan.size], &ports[3 * plan.size..]);
        let has_network = plan.network || !plan.delay.is_zero();
        let network = has_network.then(|| Network::start(outside, inside));
        if let Some(network) = &network {
            network.delay_all(plan.delay);
        }
        let seen = if has_network { outside } else { inside };
        let members: Vec<(usize, SocketAddr)> = seen
            .iter()
            .copied()
            .enumerate()
            .map(|(index, address)| (index + 1, address))
            .collect();
        let nodes: Vec<Node> = (0..plan.size)
            .map(|index| {
                let environment = environment_of(&plan, index, directory.path());
                let addresses = node::Addresses {
                    cluster: ports[index],
                    mqtt: ports[plan.size + index],
                    http: ports[2 * plan.size + index],
                };
                Node::prepare(
                    directory.path(),
                    index + 1,
                    addresses,
                    Entry::Member(&members),
                    &plan,
                    environment,
                )
            })
            .collect();
        let processes: Processes = Arc::new(Mutex::new(nodes.iter().map(Node::process).collect()));
        let path = directory.path().to_owned();
        let left = watchdog::left_of(plan.deadline);
        let watchdog = Watchdog::start(processes.clone(), left, {
            let processes = processes.clone();
            move |report| end_hanging_test(&report, &processes, &path)
        });
        Self {
            nodes,
            network,
            doors: Vec::new(),
            directory,
            processes,
            _watchdog: watchdog,
            slot,
        }
    }

    /// Starts a node that does not run.
    #[track_caller]
    pub fn start_node(&mut self, index: usize) {
        self.nodes[index].start();
        if let Some(network) = &self.network {
            network.is(index, self.nodes[index].pid());
        }
    }

    /// A further node with an empty disk that is not started yet: one that asks the others to be added, or, if it
    /// `waits`, one that an operator adds. Returns its index.
    pub fn add_node(&mut self, waits: bool) -> usize {
        let taken: Vec<SocketAddr> = self
            .nodes
            .iter()
            .flat_map(|node| {
                [
                    node.addresses.cluster,
                    node.addresses.mqtt,
                    node.addresses.http,
                ]
            })
            .collect();
        let ports = self.slot.free_ports(3, &taken);
        let id = self.nodes.iter().map(|node| node.id).max().unwrap_or(0) + 1;
        let addresses = node::Addresses {
            cluster: ports[0],
            mqtt: ports[1],
            http: ports[2],
        };
        let mut members: Vec<(usize, SocketAddr)> = self
            .nodes
            .iter()
            .map(|node| (node.id, node.addresses.cluster))
            .collect();
        let via: Vec<SocketAddr> = members.iter().map(|(_, address)| *address).collect();
        members.push((id, addresses.cluster));
        let entry = match waits {
            true => Entry::Member(&members),
            false => Entry::Joins(&via),
        };
        let plan = Plan::default();
        let path = self.directory.path();
        let node = Node::prepare(path, id, addresses, entry, &plan, Vec::new());
        let mut processes = self.processes.lock().expect("no holder of the lock panics");
        processes.push(node.process());
        drop(processes);
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The network between the nodes.
    #[track_caller]
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("the plan asked for a network")
    }

    /// Whether [`Node::set_disk`] has an effect.
    pub fn disks_can_stall(&self) -> bool {
        let loads = |node: &Node| {
            node.environment
                .iter()
                .any(|(name, _)| name == "LD_PRELOAD")
        };
        self.nodes.iter().all(loads)
    }

    /// Where the cluster's files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Clients of each node connect at this address from now on.
    pub fn enter_by(&mut self, doors: Vec<SocketAddr>) {
        assert_eq!(doors.len(), self.nodes.len(), "one for each node");
        self.doors = doors;
    }

    pub fn mqtt(&self, index: usize) -> SocketAddr {
        let door = self.doors.get(index).copied();
        door.unwrap_or_else(|| self.nodes[index].mqtt())
    }

    /// MQTT addresses of all nodes.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let nodes = 0..self.nodes.len();
        nodes.map(|index| self.mqtt(index)).collect()
    }

    /// Every running node says that it is ready.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        self.wait_ready_within(READY_WITHIN);
    }

    #[track_caller]
    pub fn wait_ready_within(&mut self, within: Duration) {
        for node in &mut self.nodes {
            if node.is_running() {
                node.wait_ready(within);
            }
        }
    }

    /// Index of the node that running nodes call leader.
    pub fn leader(&self) -> Option<usize> {
        let mut best: Option<(u64, usize)> = None;
        for node in self.nodes.iter().filter(|node| node.answers()) {
            if let Some((term, leader)) = node.leader_seen()
                && best.is_none_or(|(known, _)| term > known)
            {
                best = Some((term, leader));
            }
        }
        let (_, leader) = best?;
        self.nodes
            .iter()
            .position(|node| node.id == leader && node.answers())
    }

    /// Waits for a leader that runs.
    #[track_caller]
    pub fn wait_leader(&self) -> usize {
        wait::until_ok("a leader", READY_WITHIN, || {
            self.leader().ok_or_else(|| self.leaders_seen())
        })
    }

    /// Waits for a leader other than that node.
    #[track_caller]
    pub fn wait_leader_other_than(&self, index: usize) -> usize {
        let what = format!("a leader other than node {}", self.nodes[index].id);
        wait::until_ok(&what, READY_WITHIN, || {
            let leader = self.leader().filter(|leader| *leader != index);
            leader.ok_or_else(|| self.leaders_seen())
        })
    }

    /// What each node says of the leader.
    fn leaders_seen(&self) -> String {
        let seen = self.nodes.iter().map(|node| match node.leader_seen() {
            Some((term, leader)) => format!("node {} sees {leader} in term {term}", node.id),
            None if node.answers() => format!("node {} sees none", node.id),
            None => format!("node {} does not run", node.id),
        });
        seen.collect::<Vec<_>>().join(", ")
    }

    /// What every node is doing, as far as it can be seen from outside.
    pub fn diagnosis(&self) -> String {
        watchdog::describe(&self.processes)
    }

    /// Every voter has the same rows after the same log entry. All voters must run.
    #[track_caller]
    pub fn assert_states_agree(&self) {
        let asked = wait::until_ok("all nodes to hash their states", READY_WITHIN, || {
            let node = &self.nodes[self.leader().ok_or("no leader")?];
            let answer = node.post("/v1/cluster/verify", READY_WITHIN);
            let answer = answer.filter(|answer| answer.status == 200);
            let answer = answer.ok_or("no answer")?;
            let found: serde_json::Value =
                serde_json::from_str(&answer.body).map_err(|_| "no JSON")?;
            let differs = |key: &str| found[key].as_array().is_none_or(|list| !list.is_empty());
            match differs("missing") && !differs("differ") && !differs("disputed") {
                true => Err("not all nodes have answered".to_owned()),
                false => Ok((differs("differ") || differs("disputed"), found)),
            }
        });
        let (differ, found) = asked;
        assert!(!differ, "C3: the nodes' states differ: {found}");
    }

    /// Index of some running node that is not the leader.
    #[track_caller]
    pub fn a_follower(&self) -> usize {
        let leader = self.wait_leader();
        (0..self.nodes.len())
            .find(|index| *index != leader && self.nodes[*index].answers())
            .expect("a cluster of three has a follower")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint!("{}", self.diagnosis());
        }
        for node in &mut self.nodes {
            node.kill();
        }
    }
}

/// What a plan says of a node's environment.
fn environment_of(plan: &Plan, index: usize, directory: &Path) -> Vec<(String, String)> {
    let own = plan.environment.iter();
    let own = own.filter(|(node, _, _)| *node == index);
    let mut all: Vec<(String, String)> = own
        .map(|(_, name, value)| (name.clone(), value.clone()))
        .collect();
    if plan.stalls {
        let file = node::stall_file(directory, index + 1);
        all.extend(stall::environment(directory, &file).unwrap_or_default());
    }
    all
}

/// The watchdog's end of a test: nobody unwinds the stack of a thread that hangs, so what the cluster's value would
/// have cleaned up is cleaned up here.
fn end_hanging_test(report: &str, processes: &Processes, directory: &Path) {
    // Not `eprintln!`, whose output the test's runner may keep for an end that never comes.
    let text = format!("this test hangs and is ended; what its nodes are doing:\n{report}");
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    let processes = processes.lock().expect("no holder of the lock panics");
    let pids = processes.iter().filter_map(|process| process.pid());
    for pid in pids.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    if std::env::var_os("QUORUMQ_KEEP").is_none() {
        let _ = std::fs::remove_dir_all(directory);
    }
    std::process::exit(101);
}
