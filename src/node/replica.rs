//! The replica of a node: its log and state, and what proposes, stamps, applies and routes.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::RunError;
use super::identity::Identities;
use super::process::on;
use crate::base::ids::NodeId;
use crate::config::Config;
use crate::forward::directory::Directory;
use crate::forward::outbox::Outboxes;
use crate::machine::Machine;
use crate::machine::subscriptions::SubscriptionIndex;
use crate::peers::Trust;
use crate::raft::{self, Raft};
use crate::replica::applier::{Applier, IncarnationEvent};
use crate::replica::clock::Clock;
use crate::replica::proposer::Proposer;
use crate::replica::sequencer::Due;
use crate::replica::view::View;
use crate::router::Router;
use crate::storage::{DataDir, Space};
use crate::telemetry::metrics::Metrics;

/// The replica with what drives it.
pub(super) struct Replica {
    pub(super) raft: Raft,
    pub(super) proposer: Arc<Proposer>,
    pub(super) router: Arc<Router>,
    pub(super) outboxes: Arc<Outboxes>,
    pub(super) view: Arc<View>,
    pub(super) due: Arc<Due>,
    pub(super) clock: Arc<Clock>,
    pub(super) incarnation_events: mpsc::UnboundedReceiver<IncarnationEvent>,
}

impl Replica {
    pub(super) async fn start(
        config: &Config,
        trust: Trust,
        metrics: Arc<Metrics>,
        replication: &Handle,
    ) -> Result<Replica, RunError> {
        let local = NodeId(config.node.id);
        let cluster = config.cluster.identity().to_string();
        let data = DataDir::open(&config.node.data_dir, local, &cluster)?;
        let subscriptions = Arc::new(SubscriptionIndex::default());
        let machine = Machine::new(local, subscriptions.clone(), config.store.metadata_cache());
        let proposer = Arc::new(Proposer::default());
        let outboxes = Arc::new(Outboxes::new(metrics.clone()));
        let router = Router::new(local, subscriptions, outboxes.clone());
        let due = Arc::new(Due::default());
        let clock = Arc::new(Clock::new(local));
        let (mut applier, view, incarnation_events) = Applier::new(
            local,
            machine,
            proposer.clone(),
            router.clone(),
            due.clone(),
            clock.clone(),
            metrics,
        );
        applier.keep_pace_with(Handle::current());
        let mut settings = raft::RaftConfig::new(local, cluster, config.advertised().to_string());
        settings.trust = trust;
        settings.named = config
            .cluster
            .join
            .iter()
            .map(ToString::to_string)
            .collect();
        settings.timing = raft::Timing {
            heartbeat_ms: config.cluster.heartbeat_ms,
            election_min_ms: config.cluster.election_min_ms,
            election_max_ms: config.cluster.election_max_ms,
        };
        settings.retention.snapshot_bytes = config.raft.snapshot_log_bytes;
        settings.retention.keep_ms = config.raft.keep_log_s * 1000;
        if let Ok(volume) = Space::of(&config.node.data_dir) {
            settings.retention = settings.retention.on_volume(volume.total_bytes);
        }
        let raft = on(replication, async {
            Ok(Raft::start(settings, data, Box::new(applier)).await?)
        })
        .await?;
        Ok(Replica {
            raft,
            proposer,
            router,
            outboxes,
            view,
            due,
            clock,
            incarnation_events,
        })
    }

    /// What follows from the directory for who may connect.
    pub(super) fn identities(&self, config: &Config) -> Identities {
        let directory = Directory::new(
            NodeId(config.node.id),
            self.proposer.clone(),
            self.view.clone(),
            self.outboxes.clone(),
        );
        let (view, router) = (&self.view, self.router.clone());
        Identities::start(config, directory, view, router, &self.raft.backing())
    }
}
