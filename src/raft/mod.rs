//! Raft: one replicated log of batches, applied by every replica in the same order.
//!
//! Only this module names the Raft library. Above it a batch is opaque bytes, a member is a [`Member`], and the
//! replicated state machine is an [`Apply`]. It never looks into a batch.
//!
//! The way of a batch: [`Raft::propose`] → `log_store` (readable at once) → the log's flush thread (durable) and
//! `network` (followers do the same) → committed → `applier` (its own thread: [`Apply::apply`], one atomic write
//! for all that is ready, [`Apply::committed`]).

mod applier;
mod config;
mod leadership;
mod log_store;
mod members;
pub mod metrics;
mod network;
mod peers;
mod read;
mod retention;
mod service;
mod snapshot_receive;
mod snapshot_send;
mod state_machine;
mod status;
mod succession;
#[cfg(test)]
mod suite_tests;
mod type_config;
mod types;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::base::ids::{GROUP_ZERO, LogIndex, NodeId};
use crate::base::proto::raft::change_request::Change;
use crate::base::proto::raft::raft_server::RaftServer;
use crate::machine::tables::{Backing, Tables};
use crate::storage::{DataDir, GroupLog, LogDb, OpenError, Snapshots, State};
use applier::Applier;
use members::Members;
use peers::{Identity, Peers};
use read::Reads;
use state_machine::StateMachine;
use type_config::{Batch, CoreRaft, Term};

pub use config::{RaftConfig, Retention, Timing};
pub use metrics::Metrics;
pub use service::Service;
pub use types::{
    ChangeError, Leadership, Member, NOTHING, NotLeader, Peer, ReadError, Role, StartError, Status,
};

/// Log filter for the Raft library. It repeats the same line while a peer is away, and the handle of a core that has
/// stopped repeats it for each message that it cannot take; this node's own lines say both once.
pub const LOG_FILTER: &str = "openraft=error,openraft::raft::raft_inner=off";

/// Longest wait for a snapshot asked for by hand.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(300);
/// Entries the state may lag behind the log before proposals wait: Raft itself blocks, and loses its leases, when
/// its own queue to the state is full.
const APPLY_LAG: u64 = 8192;
/// The same in bytes of entries held in memory beyond the cache.
const APPLY_LAG_BYTES: usize = 256 << 20;

/// The replicated state machine as Raft sees it; implemented above.
///
/// Called from one thread, in log order. The same entries may come again after a restart: state that was not
/// written when the process died is applied anew from the log.
pub trait Apply: Send + 'static {
    /// Runs one committed batch. Reads and writes go through `tables`; outputs (replies, effects) are kept
    /// until [`Apply::committed`]. An error of a command is a reply: this can't fail.
    fn apply(&mut self, index: LogIndex, batch: Bytes, tables: &mut Tables<'_>);

    /// Everything applied up to and including `last` is written to `state/` in one atomic batch: release its
    /// outputs.
    fn committed(&mut self, last: LogIndex);

    /// The state was opened, or replaced by a snapshot, and holds everything up to `last`: rebuild what is
    /// kept in memory from it and drop outputs that were not released.
    fn restored(&mut self, backing: &dyn Backing, last: LogIndex);
}

/// A replica. Cheap to clone; all clones are the same replica.
#[derive(Clone)]
pub struct Raft {
    inner: Arc<Inner>,
}

struct Inner {
    config: RaftConfig,
    core: CoreRaft,
    members: Arc<Members>,
    service: Service,
    reads: Reads,
    leadership: watch::Receiver<Leadership>,
    committed: watch::Receiver<LogIndex>,
    applied: watch::Receiver<LogIndex>,
    applier: Applier,
    state: Arc<State>,
    log: GroupLog,
    log_db: LogDb,
    metrics: Arc<Metrics>,
    /// Held until the replica is shut down.
    data: Mutex<Option<DataDir>>,
}

fn core_config(config: &RaftConfig) -> Result<openraft::Config, StartError> {
    let timing = config.timing;
    let core = openraft::Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_min_ms,
        election_timeout_max: timing.election_max_ms,
        enable_pre_vote: Some(true),
        // The state is not synced when applied and the commit mark lags: a restarted leader must be elected.
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(false),
        // Acknowledged entries are signs of life too.
        heartbeat_min_interval: Some(timing.heartbeat_ms),
        // A leader that hears nobody falls silent now and then, so that those who still hear it may elect another.
        quorum_loss_probe_interval: Some(
            timing.election_max_ms.saturating_mul(2).saturating_add(200),
        ),
        // Snapshots and purges are `retention`'s business.
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: u64::MAX,
        install_snapshot_timeout: 60_000,
        // Deep enough never to block the core while `propose` holds back.
        state_machine_channel_size: Some(64 * 1024),
        max_payload_entries: 1024,
        backoff: "20ms 50ms 100ms ..300ms".to_owned(),
        ..openraft::Config::default()
    };
    core.validate()
        .map_err(|error| StartError::Config(error.to_string()))
}

/// The databases of a replica.
struct Stores {
    log_db: LogDb,
    log: GroupLog,
    state: Arc<State>,
    snapshots: Arc<Snapshots>,
    metrics: Arc<Metrics>,
}

fn open_stores(config: &RaftConfig, data: &DataDir) -> Result<Stores, OpenError> {
    let counters = Arc::new(metrics::LogMetrics::default());
    let log_db = LogDb::open(
        &data.path().join("log"),
        Arc::clone(&counters),
        config.before_sync.clone(),
    )?;
    let log = log_db.group(GROUP_ZERO, config.cache_bytes)?;
    let state = Arc::new(State::open(data.path())?);
    let snapshots = Arc::new(Snapshots::open(data.path())?);
    Ok(Stores {
        log_db,
        log,
        state,
        snapshots,
        metrics: Arc::new(Metrics::new(counters)),
    })
}

async fn start_core(
    config: &RaftConfig,
    stores: &Stores,
    applier: &Applier,
    peers: &Arc<Peers>,
    committed: watch::Sender<LogIndex>,
) -> Result<CoreRaft, StartError> {
    let network = network::Network {
        group: GROUP_ZERO,
        peers: Arc::clone(peers),
        metrics: Arc::clone(&stores.metrics),
    };
    let machine = StateMachine::new(
        applier.clone(),
        Arc::clone(&stores.state),
        Arc::clone(&stores.snapshots),
        config.apply_bytes,
        committed,
    );
    let log = log_store::LogStore::new(stores.log.clone());
    let settings = Arc::new(core_config(config)?);
    let core = CoreRaft::new(config.node.0, settings, network, log, machine).await;
    core.map_err(|error| StartError::Core(error.to_string()))
}

fn serve(
    config: &RaftConfig,
    core: &CoreRaft,
    members: &Arc<Members>,
    peers: &Peers,
    stores: &Stores,
) -> Service {
    let receiver = snapshot_receive::Receiver {
        core: core.clone(),
        snapshots: Arc::clone(&stores.snapshots),
        metrics: Arc::clone(&stores.metrics),
        turn: tokio::sync::Mutex::new(()),
    };
    Service {
        inner: Arc::new(service::Inner {
            group: GROUP_ZERO,
            core: core.clone(),
            identity: peers.identity().clone(),
            members: Arc::clone(members),
            receiver: Arc::new(receiver),
            metrics: Arc::clone(&stores.metrics),
            succession: succession::Succession::start(config.node.0, core.clone(), config.timing),
        }),
    }
}

impl Raft {
    /// Opens what `data` holds, replays what was committed but not written, and starts taking part.
    ///
    /// A replica that was never a member waits to be added or bootstrapped.
    ///
    /// # Errors
    /// When a setting is wrong or the data directory can't be used.
    pub async fn start(
        config: RaftConfig,
        data: DataDir,
        apply: Box<dyn Apply>,
    ) -> Result<Raft, StartError> {
        config.check()?;
        let (stores, data, config) = tokio::task::spawn_blocking(move || {
            open_stores(&config, &data).map(|stores| (stores, data, config))
        })
        .await
        .map_err(|error| StartError::Core(error.to_string()))??;
        let (applied_tx, applied) = watch::channel(NOTHING);
        let (term_tx, term) = watch::channel(0);
        let applier = Applier::start(
            apply,
            Arc::clone(&stores.state),
            Arc::clone(&stores.snapshots),
            stores.log.clone(),
            Arc::clone(&stores.metrics),
            applied_tx,
            term_tx,
        )
        .map_err(|error| StartError::Core(error.to_string()))?;
        let peers = Peers::new(Identity {
            node: config.node,
            cluster: config.cluster.clone(),
            directory: data.uuid().to_owned(),
            address: config.address.clone(),
        });
        let (committed_tx, committed) = watch::channel(NOTHING);
        let core = start_core(&config, &stores, &applier, &peers, committed_tx).await?;
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let metrics = || Arc::clone(&stores.metrics);
        leadership::watch_leader(core.clone(), term, leadership_tx, metrics());
        retention::keep(
            core.clone(),
            stores.log.clone(),
            metrics(),
            config.retention,
        );
        let reads = Reads::start(
            core.clone(),
            GROUP_ZERO,
            Arc::clone(&peers),
            applied.clone(),
            metrics(),
            Duration::from_millis(config.timing.election_max_ms.saturating_mul(8)),
        );
        let members = Members::new(
            GROUP_ZERO,
            core.clone(),
            Arc::clone(&peers),
            leadership.clone(),
            Duration::from_millis(config.timing.heartbeat_ms.saturating_mul(3).max(500)),
        );
        let service = serve(&config, &core, &members, &peers, &stores);
        Ok(Raft {
            inner: Arc::new(Inner {
                config,
                core,
                members,
                service,
                reads,
                leadership,
                committed,
                applied,
                applier,
                state: stores.state,
                log: stores.log,
                log_db: stores.log_db,
                metrics: stores.metrics,
                data: Mutex::new(Some(data)),
            }),
        })
    }

    /// The gRPC service peers connect to, to be added to the node's cluster server. That server should set
    /// TCP_NODELAY and HTTP/2 keep-alive.
    pub fn service(&self) -> RaftServer<Service> {
        RaftServer::new(self.inner.service.clone())
            .max_decoding_message_size(peers::MAX_MESSAGE)
            .max_encoding_message_size(peers::MAX_MESSAGE)
    }

    /// Appends `batch` to the leader's log without waiting for its commit. Batches proposed one after the
    /// other are appended in that order; within one term those accepted before a loss of leadership are a
    /// prefix of those proposed. Whether a batch was committed is seen when it is applied, or never.
    ///
    /// Waits while the state lags far behind the log.
    ///
    /// # Errors
    /// When this replica does not lead; nothing was appended then.
    pub async fn propose(&self, batch: Bytes) -> Result<(), NotLeader> {
        let inner = &self.inner;
        let now = *inner.leadership.borrow();
        if !now.is_leader {
            return Err(NotLeader { leader: now.leader });
        }
        if self.lags() {
            let mut applied = inner.applied.clone();
            while self.lags() && inner.leadership.borrow().is_leader {
                if applied.changed().await.is_err() {
                    return Err(NotLeader { leader: None });
                }
            }
        }
        // The core drops it if it has ceased to lead this term.
        let write = inner
            .core
            .write(Batch(batch))
            .with_leader(Term::new(now.term));
        write.await.map_err(|_| NotLeader { leader: None })
    }

    fn lags(&self) -> bool {
        let inner = &self.inner;
        let applied = inner.applied.borrow().0;
        inner.log.next().saturating_sub(applied) > APPLY_LAG
            || inner.log.bytes_in_memory() > inner.config.cache_bytes + APPLY_LAG_BYTES
    }

    /// Who leads; changes are signalled.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// Confirms that everything acknowledged anywhere before this call is applied here once it returns
    /// (ReadIndex), on any replica. Callers that come while a round is under way share the next one.
    ///
    /// # Errors
    /// When no majority confirmed a leader in time; a minority never passes.
    pub async fn read_barrier(&self) -> Result<LogIndex, ReadError> {
        self.inner.reads.barrier().await
    }

    /// The highest index handed over to be applied; changes are signalled.
    pub fn committed(&self) -> watch::Receiver<LogIndex> {
        self.inner.committed.clone()
    }

    /// The index of the log's last entry.
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.inner.log.next().saturating_sub(1))
    }

    /// The highest index whose effects are written; changes are signalled.
    pub fn applied(&self) -> watch::Receiver<LogIndex> {
        self.inner.applied.clone()
    }

    /// The applied state for reads. Stays valid, and current, when a snapshot replaces the state below.
    pub fn backing(&self) -> Arc<dyn Backing> {
        Arc::clone(&self.inner.state) as Arc<dyn Backing>
    }

    /// The replica's state at this moment.
    pub fn status(&self) -> Status {
        let disowned = self.inner.members.disowned.lock().clone();
        let applied = *self.inner.applied.borrow();
        status::status(
            &self.inner.core.metrics().borrow_watched(),
            applied,
            disowned,
        )
    }

    /// Whether this replica knows `node` as a member.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.inner.members.contains(node.0)
    }

    /// Counters of this replica.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.inner.metrics)
    }

    /// Address of the leader's cluster listener, when a leader is known.
    pub fn leader_address(&self) -> Option<(NodeId, String)> {
        let (id, node) = self.inner.members.leader()?;
        Some((NodeId(id), node.address))
    }

    /// Makes a new cluster of `members`, once, from the node with the lowest id. Waits until every member has
    /// answered with its data directory's UUID, which becomes part of the membership. Does nothing when this
    /// replica already belongs to a cluster.
    ///
    /// # Errors
    /// [`ChangeError::NotTheLowest`] on the other nodes of the list; [`ChangeError::AlreadyInitialised`] or
    /// [`ChangeError::OtherDataDirectory`] when a member belongs to a cluster already.
    pub async fn bootstrap(&self, members: Vec<Peer>) -> Result<(), ChangeError> {
        self.inner.members.bootstrap(members).await
    }

    /// Asks the cluster that the node at `via` belongs to, to add this node: first as learner, as voter once it
    /// has caught up. Also tells the cluster a changed address. Returns when it is done.
    ///
    /// # Errors
    /// [`ChangeError::OtherDataDirectory`] when the cluster knows this id with another data directory.
    pub async fn join(&self, via: &str) -> Result<(), ChangeError> {
        self.inner.members.join(via).await
    }

    /// Adds a node that runs with an empty data directory: first as learner, as voter once it has caught up. The
    /// leader is asked; waits until the node answers.
    ///
    /// # Errors
    /// When the node belongs to a cluster already, or its id does not match.
    pub async fn add(&self, member: Peer) -> Result<(), ChangeError> {
        self.inner.members.add_node(member).await
    }

    /// Removes `node` from the cluster; the leader is asked.
    ///
    /// # Errors
    /// When it is not a member, or the last voter.
    pub async fn remove(&self, node: NodeId) -> Result<(), ChangeError> {
        let change = Change::Remove(node.0);
        self.inner.members.change(change, false).await.map(|_| ())
    }

    /// Hands leadership to `to` (or to the most up-to-date voter); the leader is asked. Returns who leads then.
    ///
    /// # Errors
    /// When nobody took over in time.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<NodeId, ChangeError> {
        let change = Change::Transfer(to.map_or(0, |to| to.0));
        self.inner.members.change(change, false).await.map(NodeId)
    }

    /// Stands for election now.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn elect(&self) -> Result<(), ChangeError> {
        let elected = self.inner.core.trigger().elect(false).await;
        elected.map_err(|_| ChangeError::Stopped)
    }

    /// Takes a snapshot now and returns the index it covers, at least what is applied at the call.
    ///
    /// # Errors
    /// When it could not be taken in time.
    pub async fn snapshot(&self) -> Result<LogIndex, ChangeError> {
        let core = &self.inner.core;
        let wanted = self.inner.applied.borrow().0;
        let mut data = core.data_metrics();
        let asked = core.trigger().snapshot().await;
        asked.map_err(|_| ChangeError::Stopped)?;
        let taken = async {
            loop {
                let covered = data.borrow_and_update().snapshot.map_or(0, |id| id.index);
                if covered >= wanted {
                    return Ok(LogIndex(covered));
                }
                data.changed().await.map_err(|_| ChangeError::Stopped)?;
            }
        };
        let taken = tokio::time::timeout(SNAPSHOT_PATIENCE, taken).await;
        taken.unwrap_or_else(|_| Err(ChangeError::Failed("the snapshot took too long".to_owned())))
    }

    /// Removes entries up to `upto` from the log as far as a snapshot covers them.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn purge(&self, upto: LogIndex) -> Result<(), ChangeError> {
        let purged = self.inner.core.trigger().purge_log(upto.0).await;
        purged.map_err(|_| ChangeError::Stopped)
    }

    /// Hands leadership over if this node leads, stops taking part, flushes the state, and closes the files.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        if inner.leadership.borrow().leader == Some(inner.config.node) {
            // With nobody to hand over to, the others elect one among themselves.
            if let Err(error) = inner.members.transfer(0).await {
                tracing::info!(%error, "leadership was not handed over");
            }
        }
        if let Err(error) = inner.core.shutdown().await {
            tracing::warn!(%error, "the Raft core ended badly");
        }
        inner.applier.stop().await;
        let _ = inner.log.write_committed().await;
        inner.log_db.close().await;
        inner.data.lock().take();
    }
}
