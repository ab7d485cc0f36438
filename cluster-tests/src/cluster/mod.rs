//! Real clusters of the real binary: started in temporary directories on free ports, killed, paused, wiped and
//! restarted, and ended with the value that holds them, panics included.
//!
//! One cluster runs at a time on a machine: the timing of faults would mean nothing otherwise. A lock file sees to it
//! across test processes.

mod network;
mod node;
mod ports;

pub use network::Network;
pub use node::{Entry, Node};

use crate::wait;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// How long a cluster may take to become ready.
pub const READY_WITHIN: Duration = Duration::from_secs(30);

/// The binary under test: `QUORUMQ_BIN`, or the release binary in cargo's target directory.
pub fn binary() -> PathBuf {
    if let Ok(path) = std::env::var("QUORUMQ_BIN") {
        return PathBuf::from(path);
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| {
        let home = std::env::var("HOME").expect("HOME is set");
        format!("{home}/.cache/quorumq/target")
    });
    let path = Path::new(&target).join("release/quorumq");
    assert!(
        path.exists(),
        "no binary at {}; run `make build`, or set QUORUMQ_BIN",
        path.display()
    );
    path
}

/// Nodes of one cluster.
pub struct Cluster {
    pub nodes: Vec<Node>,
    /// The network between them, when the plan asked for one that can be cut.
    network: Option<Network>,
    directory: TempDir,
    _machine: File,
}

/// What to start.
pub struct Plan {
    pub size: usize,
    /// TOML put at the end of every node's file.
    pub extra: String,
    /// Lines of its `[mqtt]` section.
    pub mqtt: String,
    /// Whether [`Cluster::network`] is wanted.
    pub network: bool,
    /// Environment of single nodes, by index.
    pub environment: Vec<(usize, String, String)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            size: 3,
            extra: String::new(),
            mqtt: String::new(),
            network: false,
            environment: Vec::new(),
        }
    }
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
        let machine = lock_machine();
        let mut directory =
            TempDir::with_prefix("quorumq-cluster-").expect("a temporary directory can be made");
        if std::env::var_os("QUORUMQ_KEEP").is_some() {
            directory.disable_cleanup(true);
            eprintln!("kept: {}", directory.path().display());
        }
        let ports = ports::free(plan.size * 4, &[]);
        let (inside, outside) = (&ports[..plan.size], &ports[3 * plan.size..]);
        let network = plan.network.then(|| Network::start(outside, inside));
        let seen = if plan.network { outside } else { inside };
        let members: Vec<(usize, SocketAddr)> = seen
            .iter()
            .copied()
            .enumerate()
            .map(|(index, address)| (index + 1, address))
            .collect();
        let nodes = (0..plan.size)
            .map(|index| {
                let environment = plan
                    .environment
                    .iter()
                    .filter(|(node, _, _)| *node == index)
                    .map(|(_, name, value)| (name.clone(), value.clone()))
                    .collect();
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
        Self {
            nodes,
            network,
            directory,
            _machine: machine,
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
        let ports = ports::free(3, &taken);
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
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The network between the nodes.
    #[track_caller]
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("the plan asked for a network")
    }

    /// Where the cluster's files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn mqtt(&self, index: usize) -> SocketAddr {
        self.nodes[index].mqtt()
    }

    /// MQTT addresses of all nodes.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::mqtt).collect()
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
        wait::until("a leader", READY_WITHIN, || self.leader())
    }

    /// Waits for a leader other than that node.
    #[track_caller]
    pub fn wait_leader_other_than(&self, index: usize) -> usize {
        wait::until("another leader", READY_WITHIN, || {
            self.leader().filter(|leader| *leader != index)
        })
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
        let failed = std::thread::panicking();
        for node in &mut self.nodes {
            if failed {
                node.print_tail();
            }
            node.end();
        }
    }
}

/// Waits until no other cluster runs on this machine.
fn lock_machine() -> File {
    let path = std::env::temp_dir().join("quorumq-cluster-tests.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .expect("the lock file can be opened");
    file.lock().expect("the lock file can be locked");
    file
}
