//! The cluster listener, and everything that talks to other nodes; and how a node becomes a member of its cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::contact::Contact;
use super::event_settings::{self, EventSettings};
use super::hub::HubSettings;
use super::incarnation::IncarnationTask;
use super::leases::NodeLeases;
use super::peer_server::peer_server;
use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::cluster::cluster_server::ClusterServer;
use crate::config::Config;
use crate::connection::broker::Broker;
use crate::forward::last_seen::LastSeen;
use crate::forward::outbox::Outboxes;
use crate::forward::service::ClusterService;
use crate::forward::stream::PeerStreams;
use crate::peers::{self, Trust};
use crate::raft::{ChangeError, Peer, Raft};
use crate::replica::applier::IncarnationEvent;
use crate::replica::clock::Clock;
use crate::replica::forwarder::ProposalForwarder;
use crate::replica::sequencer::{Due, Sequencer};
use crate::webhook::{Declared, Files, Supervisor};

/// Between two attempts to join.
const JOIN_RETRY: Duration = Duration::from_millis(500);

/// What the tasks between nodes need.
pub(super) struct ClusterTasks {
    pub(super) raft: Raft,
    pub(super) broker: Arc<Broker>,
    pub(super) outboxes: Arc<Outboxes>,
    pub(super) due: Arc<Due>,
    pub(super) clock: Arc<Clock>,
    pub(super) incarnation_events: mpsc::UnboundedReceiver<IncarnationEvent>,
    pub(super) config: Arc<Config>,
    pub(super) trust: Trust,
}

impl ClusterTasks {
    /// Starts them. Replication runs on `replication`; what touches clients runs on the runtime of the caller.
    pub(super) fn start(self, listener: TcpListener, replication: &Handle) {
        let raft = self.raft.clone();
        let local = self.broker.settings.node;
        let metrics = self.broker.metrics.clone();
        let clock = self.clock.clone();
        let (sequencer, sequence) =
            Sequencer::new(local, raft.clone(), self.due.clone(), clock, metrics);
        replication.spawn(sequence);
        let webhooks = self.webhooks(sequencer.clone());
        tokio::spawn(self.event_settings(sequencer.clone()).run());
        let forwarder = ProposalForwarder {
            local,
            proposer: self.broker.services.proposer.clone(),
            sequencer: sequencer.clone(),
            raft: raft.clone(),
            leadership: raft.leadership(),
        };
        replication.spawn(forwarder.run());
        let inboxes = self.outboxes.inboxes().clone();
        let streams = PeerStreams {
            local,
            raft: raft.clone(),
            proposer: self.broker.services.proposer.clone(),
            outboxes: self.outboxes,
            metrics: self.broker.metrics.clone(),
        };
        tokio::spawn(Arc::new(streams).run());
        let hub = self.broker.services.hub.as_ref();
        let hub_digest = hub.map_or(0, |hub| hub.credentials.digest());
        let last_seen = Arc::new(LastSeen::default());
        let leases = NodeLeases {
            broker: self.broker.clone(),
            raft: raft.clone(),
            last_seen: last_seen.clone(),
            sequencer: sequencer.clone(),
            lease: Duration::from_millis(self.config.cluster.node_lease_ms),
        };
        tokio::spawn(leases.run());
        tokio::spawn(webhooks.run());
        let contact = Contact {
            local,
            raft: raft.clone(),
            proposer: self.broker.services.proposer.clone(),
            clock: self.clock.clone(),
            hub: HubSettings::new(hub_digest, self.broker.metrics.clone()),
        };
        let incarnation = IncarnationTask::new(
            self.broker.clone(),
            contact,
            self.incarnation_events,
            Duration::from_millis(self.config.cluster.give_up_ms),
        );
        tokio::spawn(incarnation.run());
        let service = ClusterService {
            raft: raft.clone(),
            sequencer,
            leadership: raft.leadership(),
            applied: raft.applied(),
            router: self.broker.services.router.clone(),
            last_seen,
            clock: self.clock.clone(),
            hub_digest,
            hand_overs: self.broker.services.hand_overs.clone(),
            inboxes,
            clients: Handle::current(),
        };
        // What reads files and certificates anew takes no time from replication.
        tokio::spawn(self.trust.clone().keep_current());
        replication.spawn(serve(listener, self.trust, raft, service));
    }
}

impl ClusterTasks {
    /// What has this node's settings of events replicated while it leads.
    fn event_settings(&self, sequencer: Sequencer) -> EventSettings {
        EventSettings {
            broker: self.broker.clone(),
            raft: self.raft.clone(),
            sequencer,
            command: event_settings::command(&self.config),
        }
    }

    /// What sends events to endpoints.
    fn webhooks(&self, sequencer: Sequencer) -> Supervisor {
        Supervisor {
            raft: self.raft.clone(),
            sequencer,
            clock: self.clock.clone(),
            changes: self.broker.services.view.event_changes(),
            files: Files::new(&self.config),
            metrics: self.broker.metrics.clone(),
            declared: Declared::new(&self.config),
        }
    }
}

/// Serves the other nodes' calls until the node stops.
async fn serve(listener: TcpListener, trust: Trust, raft: Raft, service: ClusterService) {
    let server = peer_server().add_service(raft.service()).add_service(
        ClusterServer::new(service)
            .max_decoding_message_size(limits::CLUSTER_MESSAGE_BYTES)
            .max_encoding_message_size(limits::CLUSTER_MESSAGE_BYTES),
    );
    let incoming = peers::incoming(listener, trust);
    if let Err(error) = server.serve_with_incoming(incoming).await {
        tracing::error!(%error, "the cluster listener has ended");
    }
}

/// Joins a cluster, if the configuration says so; or creates one, from the member with the lowest id.
pub(super) fn bootstrap(raft: Raft, config: &Config) {
    if !config.cluster.join.is_empty() {
        let via = config.cluster.join.iter().map(ToString::to_string);
        tokio::spawn(join(raft, via.collect()));
        return;
    }
    let local = NodeId(config.node.id);
    let own = Peer {
        node: local,
        address: config.advertised().to_string(),
    };
    let mut members: Vec<Peer> = config
        .cluster
        .members
        .iter()
        .map(|member| Peer {
            node: NodeId(member.id),
            address: member.address.to_string(),
        })
        .collect();
    if members.is_empty() {
        members.push(own);
    }
    if members.iter().map(|member| member.node).min() != Some(local) {
        return;
    }
    tokio::spawn(async move {
        if let Err(error) = raft.bootstrap(members).await {
            tracing::error!(%error, "the cluster was not created");
        }
    });
}

/// Asks one node after the other to add this node, until one has, or until that can't succeed.
async fn join(raft: Raft, via: Vec<String>) {
    // What was said of each address last.
    let mut said: BTreeMap<&str, String> = BTreeMap::new();
    for address in via.iter().cycle() {
        match raft.join(address).await {
            Ok(()) => {
                tracing::info!(address, "this node is a member of the cluster");
                return;
            }
            Err(ChangeError::Stopped) => return,
            Err(error @ ChangeError::OtherDataDirectory { .. }) => {
                tracing::error!(address, %error, "the cluster was not joined");
                return;
            }
            Err(error) => {
                let text = error.to_string();
                if said.get(address.as_str()) != Some(&text) {
                    tracing::warn!(address, %error, "the cluster is not joined yet");
                    said.insert(address, text);
                }
            }
        }
        tokio::time::sleep(JOIN_RETRY).await;
    }
}
