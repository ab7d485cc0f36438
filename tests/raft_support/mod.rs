//! A cluster of replicas in one process over real gRPC on loopback, with a toy state machine.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use quorumq::base::ids::{LogIndex, NodeId};
use quorumq::testing::{
    Apply, DataDir, OpenError, Peer, Raft, RaftConfig, StartError, incoming, wait_closed,
};
use quorumq::testing::{Backing, Tables};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::directory::Directory;

pub const CLUSTER: &str = "7d3a5a0e-55a3-4d3f-9d6b-4a4f2a0f3c11";

/// What one replica's machine saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Batches whose outputs were released, in order.
    pub released: Vec<(u64, Bytes)>,
    pub restored: Vec<u64>,
}

/// Applies `key=value` batches: writes the row and counts how often each key was written.
#[derive(Default)]
pub struct Rows {
    pub seen: Arc<Mutex<Seen>>,
    pending: Vec<(u64, Bytes)>,
}

impl Apply for Rows {
    fn apply(&mut self, index: LogIndex, batch: Bytes, tables: &mut Tables<'_>) {
        let at = batch
            .iter()
            .position(|byte| *byte == b'=')
            .unwrap_or(batch.len());
        let mut key = b"k".to_vec();
        key.extend_from_slice(&batch[..at]);
        let value = batch.slice((at + 1).min(batch.len())..);
        let mut counter = key.clone();
        counter[0] = b'n';
        let count = tables
            .get_bytes(&counter)
            .and_then(|bytes| Some(u64::from_be_bytes(bytes[..].try_into().ok()?)))
            .unwrap_or(0);
        tables.put_bytes(counter, (count + 1).to_be_bytes().to_vec());
        if value.is_empty() {
            tables.delete_bytes(key);
        } else {
            tables.put_bytes(key, value);
        }
        self.pending.push((index.0, batch));
    }

    fn committed(&mut self, _last: LogIndex) {
        self.seen.lock().released.append(&mut self.pending);
    }

    fn restored(&mut self, _backing: &dyn Backing, last: LogIndex) {
        self.pending.clear();
        self.seen.lock().restored.push(last.0);
    }
}

pub fn row(backing: &dyn Backing, key: &str) -> Option<Bytes> {
    backing.get(format!("k{key}").as_bytes())
}

pub fn times_written(backing: &dyn Backing, key: &str) -> u64 {
    let count = backing.get(format!("n{key}").as_bytes());
    count.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
}

/// A running replica and its server, on a runtime of their own so that they can be killed as one.
pub struct Node {
    pub id: NodeId,
    pub address: SocketAddr,
    pub raft: Raft,
    pub seen: Arc<Mutex<Seen>>,
    runtime: Option<Runtime>,
}

pub fn config(id: u64, address: SocketAddr) -> RaftConfig {
    RaftConfig::new(NodeId(id), CLUSTER.into(), address.to_string())
}

async fn open(config: RaftConfig, dir: PathBuf, seen: Arc<Mutex<Seen>>) -> Raft {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let data = DataDir::open(&dir, config.node, &config.cluster);
        let rows = Rows {
            seen: Arc::clone(&seen),
            pending: Vec::new(),
        };
        let started = match data {
            Ok(data) => Raft::start(config.clone(), data, Box::new(rows)).await,
            Err(error) => Err(error.into()),
        };
        // A killed node's last thread may still hold its files: one process plays many.
        let error = match started {
            Ok(raft) => return raft,
            Err(StartError::Storage(OpenError::Database { reason, .. }))
                if reason.contains("lock hold by current process") =>
            {
                reason
            }
            Err(StartError::Storage(OpenError::InUse { path, .. })) => path.display().to_string(),
            Err(error) => panic!("node {}: {error}", config.node),
        };
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Node {
    pub async fn start(id: u64, dir: &Path, listener: TcpListener) -> Node {
        let address = listener.local_addr().unwrap();
        Node::start_with(config(id, address), dir, listener).await
    }

    pub async fn start_with(config: RaftConfig, dir: &Path, listener: TcpListener) -> Node {
        let address = listener.local_addr().unwrap();
        let (id, trust) = (config.node, config.trust.clone());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = listener.into_std().unwrap();
        let started = runtime.spawn(open(config, dir.to_owned(), Arc::clone(&seen)));
        let raft = started.await.unwrap();
        let service = raft.service();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let server = tonic::transport::Server::builder().add_service(service);
            let incoming = incoming(listener, trust);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Node {
            id,
            address,
            raft,
            seen,
            runtime: Some(runtime),
        }
    }

    /// Ends everything at once: sockets close, nothing is flushed or handed over.
    pub fn kill(self) {}

    pub async fn shutdown(self) {
        let raft = self.raft.clone();
        raft.shutdown().await;
    }

    pub fn leads(&self) -> bool {
        self.raft.leadership().borrow().is_leader
    }
}

/// Other settings of the node with an id.
pub type Settings = Arc<dyn Fn(u64, &mut RaftConfig) + Send + Sync>;

/// Nodes by id, each with its directory and address, running or not.
pub struct Cluster {
    /// Of every node that is started.
    pub settings: Settings,
    pub nodes: BTreeMap<u64, Node>,
    pub addresses: BTreeMap<u64, SocketAddr>,
    /// The last to be dropped.
    pub root: Directory,
}

pub async fn listen(address: Option<SocketAddr>) -> TcpListener {
    let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if Instant::now() > deadline => panic!("{address}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

impl Cluster {
    /// `size` nodes, bootstrapped, with a leader.
    pub async fn start(size: u64) -> Cluster {
        Cluster::start_with(size, Arc::new(|_, _| {})).await
    }

    /// As [`Cluster::start`], with other settings.
    pub async fn start_with(size: u64, settings: Settings) -> Cluster {
        // A second test of the same process finds the subscriber set.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .try_init();
        let mut cluster = Cluster {
            settings,
            root: Directory::new(),
            nodes: BTreeMap::new(),
            addresses: BTreeMap::new(),
        };
        for id in 1..=size {
            cluster.run(id).await;
        }
        let members = cluster.peers();
        cluster.nodes[&1].raft.bootstrap(members).await.unwrap();
        cluster.leader().await;
        cluster
    }

    pub fn peers(&self) -> Vec<Peer> {
        let peers = self.addresses.iter().map(|(id, address)| Peer {
            node: NodeId(*id),
            address: address.to_string(),
        });
        peers.collect()
    }

    pub fn dir(&self, id: u64) -> PathBuf {
        self.root.path().join(id.to_string())
    }

    /// Starts node `id`, at its former address when it had one.
    pub async fn run(&mut self, id: u64) {
        self.run_with(id, |_| {}).await;
    }

    /// Starts node `id` with other settings.
    pub async fn run_with(&mut self, id: u64, change: impl FnOnce(&mut RaftConfig)) {
        let listener = listen(self.addresses.get(&id).copied()).await;
        let address = listener.local_addr().unwrap();
        self.addresses.insert(id, address);
        let mut config = config(id, address);
        (self.settings)(id, &mut config);
        change(&mut config);
        let node = Node::start_with(config, &self.dir(id), listener).await;
        self.nodes.insert(id, node);
    }

    /// Starts node `id` anew on an empty directory.
    pub async fn run_wiped(&mut self, id: u64) {
        std::fs::remove_dir_all(self.dir(id)).unwrap();
        self.run(id).await;
    }

    /// Returns when nothing of the node is left, as after a SIGKILL.
    pub async fn kill(&mut self, id: u64) {
        self.nodes.remove(&id).unwrap().kill();
        let dir = self.dir(id);
        let gone = tokio::task::spawn_blocking(move || wait_closed(&dir, Duration::from_secs(30)));
        assert!(gone.await.unwrap(), "node {id} still runs");
    }

    /// The id of the node that leads with a term's blank entry applied.
    pub async fn leader(&self) -> u64 {
        let leads = || {
            self.nodes
                .values()
                .find(|node| node.leads())
                .map(|node| node.id.0)
        };
        eventually("a leader", leads).await
    }

    /// Proposes until accepted somewhere and applied by that leader; may write twice across a leader change.
    pub async fn write(&self, key: &str, value: &str) -> u64 {
        let batch = Bytes::from(format!("{key}={value}"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let leader = self.leader().await;
            let node = &self.nodes[&leader];
            let mut applied = node.raft.applied();
            if node.raft.propose(batch.clone()).await.is_err() {
                continue;
            }
            let written = async {
                let wanted = (!value.is_empty()).then_some(value.as_bytes());
                while row(&*node.raft.backing(), key).as_deref() != wanted {
                    if applied.changed().await.is_err() {
                        break;
                    }
                }
            };
            if tokio::time::timeout(Duration::from_secs(2), written)
                .await
                .is_ok()
            {
                return leader;
            }
        }
        panic!("{key} was not written in time");
    }

    pub async fn everywhere(&self, key: &str, value: &str) {
        for node in self.nodes.values() {
            let there = || (row(&*node.raft.backing(), key)? == value).then_some(());
            eventually(&format!("{key}={value} on node {}", node.id), there).await;
        }
    }
}

/// Asks again for as long as an answer depends on who leads at the moment, for at most 30 s: an election may come
/// between on a busy machine.
pub async fn insist<T, E, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    E: std::fmt::Debug,
    F: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match ask().await {
            Ok(value) => return value,
            Err(error) if Instant::now() > deadline => panic!("{what}: {error:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Waits for a condition, for at most 30 s.
pub async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
