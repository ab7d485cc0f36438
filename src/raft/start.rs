//! Starts a replica: opens its databases, then starts its parts, lowest first.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::core::applier::{self, StateMachineApplier, Target};
use super::core::apply::Apply;
use super::core::config::RaftConfig;
use super::core::fast_election::FastElection;
use super::core::log_store::LogStore;
use super::core::removed::Removed;
use super::core::retention::Overdue;
use super::core::roster::Roster;
use super::core::state_machine::{CoreRaft, StateMachine, meta_of};
use super::core::{leadership, machine_version, retention};
use super::membership::changes::Changes;
use super::membership::joining::Joining;
use super::membership::stalled_disk::{self, Watched};
use super::membership::transfer::LeadershipTransfer;
use super::metrics::{LogMetrics, Metrics};
use super::replica::{Inner, Raft, Stores};
use super::service::{self, Service};
use super::transport::channels::ChannelPool;
use super::transport::identity::Identity;
use super::transport::identity_check::IdentityCheck;
use super::transport::network::Network;
use super::transport::read_rounds::{ReadRounds, Rounds};
use super::transport::rights::Rights;
use super::transport::snapshot_receive::{SnapshotReceiver, install_in};
use super::transport::vouching::Vouching;
use super::types::{Leadership, NOTHING, StartError};
use crate::base::ids::{GROUP_ZERO, LogIndex};
use crate::storage::{DataDir, NodeLog, Snapshots, StateDb};

/// Linearizable reads wait this many election time-outs through an election.
const READ_TIMEOUT_ELECTIONS: u64 = 8;
/// A voter that was silent for this many heartbeats, and for [`TRANSFER_SILENCE_MIN_MS`], gets no leadership.
const TRANSFER_SILENCE_HEARTBEATS: u64 = 3;
const TRANSFER_SILENCE_MIN_MS: u64 = 500;

fn core_config(config: &RaftConfig) -> Result<openraft::Config, StartError> {
    let timing = config.timing;
    let core = openraft::Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_min_ms,
        election_timeout_max: timing.election_max_ms,
        enable_pre_vote: Some(true),
        // The state is not synced when applied and the committed log id lags: a restarted leader must be elected.
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(false),
        // Acknowledged entries count as heartbeats, too.
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

pub(super) fn open_stores(config: &RaftConfig, data: &mut DataDir) -> Result<Stores, StartError> {
    let counters = Arc::new(LogMetrics::default());
    data.take_over_log()?;
    let path = data.path().join("log");
    let (metrics, before_sync) = (Arc::clone(&counters), config.before_sync.clone());
    let node_log = match data.has_log() {
        true => {
            NodeLog::open_existing(&path, metrics, before_sync)?.ok_or_else(|| data.log_lost())?
        }
        false => NodeLog::open(&path, metrics, before_sync)?,
    };
    // Before the first vote, and before the state is made: see `DataDir`.
    data.note_log()?;
    let log = node_log.group(GROUP_ZERO, config.cache_bytes);
    let durable = log.clone();
    let barrier = Box::new(move || durable.sync_blocking());
    let state = Arc::new(StateDb::open_behind(data.path(), barrier)?);
    let snapshots = Arc::new(Snapshots::open(data.path())?);
    machine_version::take_over(&state, &log, &snapshots, config.machine)?;
    Ok(Stores {
        node_log,
        log,
        state,
        snapshots,
        metrics: Arc::new(Metrics::new(counters)),
        overdue: Overdue::default(),
    })
}

/// Takes a snapshot when the newest one does not reach to where the log begins, so that this replica can bring others
/// up to date. That is so after a crash between the installation of a received snapshot and the copy that is kept of
/// it.
pub(super) async fn cover_purged(
    stores: &Stores,
    applier: &StateMachineApplier,
) -> Result<(), StartError> {
    let (applied, _) = applier::stored(&stores.state).map_err(failed)?;
    let applied = applied.map_or(0, |id| id.index);
    // A log that ends before what is applied is purged up to there when Raft starts.
    let begin = match stores.log.next() {
        next if next <= applied => applied + 1,
        _ => stores.log.bounds().start,
    };
    let covered = match stores.snapshots.current() {
        Some(snapshot) => meta_of(&snapshot).map_err(failed)?.last_log_id,
        None => None,
    };
    if begin > covered.map_or(0, |id| id.index + 1) {
        let taken = applier::take_snapshot(applier, &stores.snapshots).await;
        taken.map_err(failed)?;
    }
    Ok(())
}

/// Starts the thread that applies; it says who is removed.
async fn start_applier(
    apply: Box<dyn Apply>,
    stores: &Stores,
    applied: watch::Sender<LogIndex>,
    term: watch::Sender<u64>,
) -> Result<(StateMachineApplier, Removed), StartError> {
    let removed = Removed::default();
    let target = Target {
        state: Arc::clone(&stores.state),
        snapshots: Arc::clone(&stores.snapshots),
        log: stores.log.clone(),
        metrics: Arc::clone(&stores.metrics),
        applied,
        term,
        removed: removed.clone(),
    };
    let applier = StateMachineApplier::start(apply, target).map_err(failed)?;
    if let Err(error) = cover_purged(stores, &applier).await {
        // It holds the state open.
        applier.stop().await;
        return Err(error);
    }
    Ok((applier, removed))
}

pub(super) async fn start_core(
    config: &RaftConfig,
    stores: &Stores,
    applier: &StateMachineApplier,
    channels: &Arc<ChannelPool>,
    committed: watch::Sender<LogIndex>,
) -> Result<CoreRaft, StartError> {
    let network = Network {
        group: GROUP_ZERO,
        channels: Arc::clone(channels),
        metrics: Arc::clone(&stores.metrics),
        overdue: stores.overdue.clone(),
    };
    let machine = StateMachine::new(
        applier.clone(),
        Arc::clone(&stores.state),
        Arc::clone(&stores.snapshots),
        config.apply_bytes,
        committed,
    );
    let log = LogStore::new(stores.log.clone());
    let settings = Arc::new(core_config(config)?);
    let core = CoreRaft::new(config.node.0, settings, network, log, machine).await;
    if core.is_err() {
        applier.stop().await;
    }
    core.map_err(failed)
}

fn keep_log(config: &RaftConfig, core: &CoreRaft, stores: &Stores) {
    let (metrics, overdue) = (Arc::clone(&stores.metrics), stores.overdue.clone());
    retention::keep(
        core.clone(),
        stores.log.clone(),
        metrics,
        config.retention,
        overdue,
    );
}

fn start_reads(
    config: &RaftConfig,
    core: &CoreRaft,
    channels: &Arc<ChannelPool>,
    applied: watch::Receiver<LogIndex>,
    metrics: &Arc<Metrics>,
) -> ReadRounds {
    let timeout_ms = config.timing.election_max_ms;
    let rounds = Rounds {
        core: core.clone(),
        group: GROUP_ZERO,
        channels: Arc::clone(channels),
        metrics: Arc::clone(metrics),
        timeout: Duration::from_millis(timeout_ms.saturating_mul(READ_TIMEOUT_ELECTIONS)),
    };
    ReadRounds::start(rounds, applied)
}

fn make_changes(
    config: &RaftConfig,
    core: &CoreRaft,
    roster: &Roster,
    channels: &Arc<ChannelPool>,
    leadership: watch::Receiver<Leadership>,
    removed: Removed,
    applied: watch::Receiver<LogIndex>,
) -> Arc<Changes> {
    let heartbeats_ms = config
        .timing
        .heartbeat_ms
        .saturating_mul(TRANSFER_SILENCE_HEARTBEATS);
    let transfer = LeadershipTransfer::new(
        config.node,
        core.clone(),
        roster.clone(),
        leadership,
        Duration::from_millis(heartbeats_ms.max(TRANSFER_SILENCE_MIN_MS)),
    );
    Changes::new(
        GROUP_ZERO,
        core.clone(),
        roster.clone(),
        Arc::clone(channels),
        transfer,
        removed,
        applied,
    )
}

fn make_vouching(
    config: &RaftConfig,
    roster: &Roster,
    channels: &Arc<ChannelPool>,
    removed: &Removed,
) -> Arc<Vouching> {
    let (roster, named) = (roster.clone(), config.named.clone());
    Vouching::new(
        GROUP_ZERO,
        roster,
        Arc::clone(channels),
        named,
        removed.clone(),
    )
}

fn serve(
    config: &RaftConfig,
    core: &CoreRaft,
    vouching: Arc<Vouching>,
    roster: &Roster,
    identity_check: &Arc<IdentityCheck>,
    changes: &Arc<Changes>,
    stores: &Stores,
) -> Service {
    let fast_election = FastElection::start(config.node.0, core.clone(), config.timing);
    let rights = Arc::new(Rights {
        own: config.node.0,
        core: core.clone(),
        roster: roster.clone(),
        election: Arc::clone(&fast_election),
        vouching,
        lease: Duration::from_millis(config.timing.election_max_ms),
    });
    let receiver = SnapshotReceiver::new(
        install_in(core.clone()),
        Arc::clone(&stores.snapshots),
        Arc::clone(&stores.metrics),
    );
    Service::new(service::Inner {
        group: GROUP_ZERO,
        core: core.clone(),
        roster: roster.clone(),
        identity_check: Arc::clone(identity_check),
        rights,
        changes: Arc::clone(changes),
        log: stores.log.clone(),
        receiver,
        fast_election,
    })
}

fn watch_disk(
    config: &RaftConfig,
    core: &CoreRaft,
    stores: &Stores,
    roster: &Roster,
    changes: &Arc<Changes>,
    leadership: &watch::Receiver<Leadership>,
) {
    stalled_disk::watch(Watched {
        own: config.node,
        core: core.clone(),
        log: stores.log.clone(),
        roster: roster.clone(),
        changes: Arc::clone(changes),
        leadership: leadership.clone(),
    });
}

fn failed(error: impl std::fmt::Display) -> StartError {
    StartError::Core(error.to_string())
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
        mut data: DataDir,
        apply: Box<dyn Apply>,
    ) -> Result<Raft, StartError> {
        config.check()?;
        let opened = tokio::task::spawn_blocking(move || {
            open_stores(&config, &mut data).map(|stores| (data, config, stores))
        });
        // Dropped the other way round when the start fails: the directory is free only when nothing works in it.
        let (data, config, stores) = opened.await.map_err(failed)??;
        let (applied_tx, applied) = watch::channel(NOTHING);
        let (term_tx, term) = watch::channel(0);
        let (applier, removed) = start_applier(apply, &stores, applied_tx, term_tx).await?;
        let identity = Identity {
            node: config.node,
            cluster: config.cluster.clone(),
            directory: data.uuid().to_owned(),
            address: config.address.clone(),
            machine: config.machine,
        };
        let channels = ChannelPool::new(identity.clone(), config.trust.clone());
        let (committed_tx, committed) = watch::channel(NOTHING);
        let core = start_core(&config, &stores, &applier, &channels, committed_tx).await?;
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let metrics = &stores.metrics;
        leadership::watch_leader(core.clone(), term, leadership_tx, Arc::clone(metrics));
        keep_log(&config, &core, &stores);
        let roster = Roster::new(core.clone());
        config.trust.set_members(roster.admits());
        let (leads, reached) = (leadership.clone(), applied.clone());
        let vouching = make_vouching(&config, &roster, &channels, &removed);
        let changes = make_changes(&config, &core, &roster, &channels, leads, removed, reached);
        watch_disk(&config, &core, &stores, &roster, &changes, &leadership);
        let prove = config.trust.is_proved();
        let checked = Arc::clone(metrics);
        let identity_check = IdentityCheck::new(identity, prove, roster.clone(), checked);
        let service = serve(
            &config,
            &core,
            vouching,
            &roster,
            &identity_check,
            &changes,
            &stores,
        );
        Ok(Raft::new(Inner {
            reads: start_reads(&config, &core, &channels, applied.clone(), metrics),
            joining: Joining::new(
                GROUP_ZERO,
                core.clone(),
                roster.clone(),
                &channels,
                &changes,
            ),
            identity_check,
            service,
            core,
            roster,
            channels,
            changes,
            leadership,
            committed,
            applied,
            applier,
            stores,
            config,
            data: Mutex::new(Some(data)),
        }))
    }
}
