//! A node: every layer put together, from the data directory to the listeners, and taken apart again in order.

pub mod authentication;
mod life;
mod listen;
mod metrics;
mod process;
mod sessions;
mod shutdown;
mod status;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tonic::transport::server::TcpIncoming;

use crate::base::ids::NodeId;
use crate::base::proto::cluster::cluster_server::ClusterServer;
use crate::config::Config;
use crate::connection::broker::{Broker, Services, Settings};
use crate::connection::{listener, sys};
use crate::forward::inbox::Received;
use crate::forward::service::{ClusterService, LastSeen};
use crate::http;
use crate::machine::Machine;
use crate::machine::subscriptions::SubscriptionIndex;
use crate::raft::{self, ChangeError, Peer, Raft};
use crate::replica::applier::{Applier, LifeEvent, View};
use crate::replica::clock::Clock;
use crate::replica::forwarder::ProposalForwarder;
use crate::replica::peers::{ClusterId, Peers};
use crate::replica::proposer::Proposer;
use crate::replica::reader::Reader;
use crate::replica::sequencer::{Due, Sequencer};
use crate::router::Router;
use crate::storage::{self, DataDir, OpenError};
use crate::telemetry::metrics::Metrics;
use listen::bind;
use process::{on, raise_descriptor_limit, signalled, threads};
use status::NodeStatus;

/// How long the threads that still use a database at the end may take.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Why a node could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runtime's threads could not be started.
    #[error("the threads could not be started: {0}")]
    Runtime(std::io::Error),
    /// The file of users can't be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Users(Vec<authentication::UsersProblem>),
    /// The data directory can't be used.
    #[error("{0}")]
    Storage(#[from] OpenError),
    /// The replica could not start.
    #[error("{0}")]
    Raft(#[from] raft::StartError),
    /// A listener could not be opened.
    #[error("{what} can't listen on {address}: {error}")]
    Listen {
        /// The configuration key.
        what: &'static str,
        /// The address it names.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The cluster's id can't be sent.
    #[error("the cluster's id is not usable: {0}")]
    ClusterId(String),
}

/// Runs a node until SIGTERM or Ctrl-C, then takes it down in order.
///
/// # Errors
/// When it can't start.
pub fn run(config: Config) -> Result<(), RunError> {
    raise_descriptor_limit();
    let data_dir = config.node.data_dir.clone();
    let replication = threads("replication", 1)?;
    let clients = threads("clients", config.runtime.threads())?;
    let ended = clients.block_on(async {
        let node = Node::start(config, replication.handle()).await?;
        signalled().await;
        node.shutdown().await;
        Ok(())
    });
    clients.shutdown_timeout(Duration::from_secs(1));
    replication.shutdown_timeout(Duration::from_secs(1));
    if !storage::wait_closed(&data_dir, CLOSED_WITHIN) {
        tracing::warn!(
            "the databases are still in use; what was acknowledged is on disk all the same"
        );
    }
    ended
}

struct Node {
    broker: Arc<Broker>,
    raft: Raft,
    drain: Duration,
    stop_http: Option<oneshot::Sender<()>>,
}

/// The replica with what drives it.
struct Replica {
    raft: Raft,
    proposer: Arc<Proposer>,
    router: Arc<Router>,
    view: Arc<View>,
    due: Arc<Due>,
    clock: Arc<Clock>,
    life: mpsc::UnboundedReceiver<LifeEvent>,
}

async fn start_replica(
    config: &Config,
    metrics: Arc<Metrics>,
    replication: &Handle,
) -> Result<Replica, RunError> {
    let local = NodeId(config.node.id);
    let cluster = config.cluster.identity().to_string();
    let data = DataDir::open(&config.node.data_dir, local, &cluster)?;
    let subscriptions = Arc::new(SubscriptionIndex::default());
    let machine = Machine::new(local, subscriptions.clone());
    let proposer = Arc::new(Proposer::default());
    let router = Router::new(local, subscriptions);
    let due = Arc::new(Due::default());
    let clock = Arc::new(Clock::default());
    let (applier, view, life) = Applier::new(
        local,
        machine,
        proposer.clone(),
        router.clone(),
        due.clone(),
        clock.clone(),
        metrics,
    );
    let mut settings = raft::RaftConfig::new(local, cluster, config.advertised().to_string());
    settings.timing = raft::Timing {
        heartbeat_ms: config.cluster.heartbeat_ms,
        election_min_ms: config.cluster.election_min_ms,
        election_max_ms: config.cluster.election_max_ms,
    };
    settings.retention.snapshot_bytes = config.raft.snapshot_log_bytes;
    settings.retention.keep_ms = config.raft.keep_log_s * 1000;
    let raft = on(replication, async {
        Ok(Raft::start(settings, data, Box::new(applier)).await?)
    })
    .await?;
    Ok(Replica {
        raft,
        proposer,
        router,
        view,
        due,
        clock,
        life,
    })
}

impl Node {
    async fn start(config: Config, replication: &Handle) -> Result<Node, RunError> {
        let config = Arc::new(config);
        let authenticator = authentication::authenticator(&config.auth).map_err(RunError::Users)?;
        authentication::announce(&config.auth);
        let cluster = ClusterId::new(&config.cluster.identity().to_string())
            .map_err(|error| RunError::ClusterId(error.to_string()))?;
        // Listeners first: a port in use is found before anything is written.
        let cluster_listener = on(replication, {
            let address = config.cluster.listen.clone();
            async move { bind("cluster.listen", &address).await }
        })
        .await?;
        let mut mqtt_listeners = Vec::new();
        for address in &config.mqtt.listen {
            mqtt_listeners.push(bind("mqtt.listen", address).await?);
        }
        let http_listener = match &config.http.listen {
            Some(address) => Some(bind("http.listen", address).await?),
            None => None,
        };
        let metrics = Arc::new(Metrics::default());
        let replica = start_replica(&config, metrics.clone(), replication).await?;
        let raft = replica.raft.clone();
        let reader = Arc::new(Reader::default());
        let services = Services {
            proposer: replica.proposer.clone(),
            reader: reader.clone(),
            router: replica.router.clone(),
            backing: raft.backing(),
            clock: replica.clock.clone(),
            view: replica.view.clone(),
        };
        let settings = Settings::new(&config, &metrics);
        let broker = Broker::new(settings, services, authenticator, metrics);
        tokio::spawn(reader.run(
            raft.clone(),
            replica.proposer.clone(),
            replica.clock.clone(),
        ));
        serve_cluster(
            cluster_listener,
            cluster,
            replica,
            &broker,
            &config,
            replication,
        );
        bootstrap(raft.clone(), &config);
        tokio::spawn(metrics::run(broker.clone(), raft.clone()));
        let status = raft.clone();
        tokio::spawn(broker.sys_publisher().run(move || cluster_view(&status)));
        let status = Arc::new(NodeStatus {
            config: config.clone(),
            raft: raft.clone(),
            broker: broker.clone(),
        });
        let stop_http = http_listener.map(|listener| serve_http(listener, status, &broker));
        for mqtt_listener in mqtt_listeners {
            tokio::spawn(listener::run(mqtt_listener, broker.clone()));
        }
        announce(&config);
        Ok(Node {
            broker,
            raft,
            drain: Duration::from_secs(config.shutdown.drain_s),
            stop_http,
        })
    }
}

/// The cluster listener, and everything that talks to other nodes.
fn serve_cluster(
    listener: TcpListener,
    cluster: ClusterId,
    replica: Replica,
    broker: &Arc<Broker>,
    config: &Config,
    replication: &Handle,
) {
    let raft = replica.raft;
    let local = NodeId(config.node.id);
    let (sequencer, sequence) = Sequencer::new(raft.clone(), replica.due, replica.clock);
    replication.spawn(sequence);
    // Connections of their own: proposals do not queue behind messages.
    let peers = || Arc::new(Peers::new(raft.clone(), cluster.clone()));
    let link = ProposalForwarder {
        local,
        proposer: replica.proposer.clone(),
        sequencer: sequencer.clone(),
        peers: peers(),
        leadership: raft.leadership(),
    };
    replication.spawn(link.run());
    let deliver = crate::forward::stream::PeerStreams {
        local,
        raft: raft.clone(),
        peers: peers(),
        proposer: replica.proposer,
        router: replica.router.clone(),
    };
    tokio::spawn(Arc::new(deliver).run());
    let heard = Arc::new(LastSeen::default());
    let lease = Duration::from_millis(config.cluster.node_lease_ms);
    let leases = life::Leases {
        broker: broker.clone(),
        raft: raft.clone(),
        heard: heard.clone(),
        sequencer: sequencer.clone(),
        lease,
    };
    tokio::spawn(leases.run());
    let life = life::Life {
        broker: broker.clone(),
        raft: raft.clone(),
        events: replica.life,
        give_up: Duration::from_millis(config.cluster.give_up_ms),
    };
    tokio::spawn(life.run());
    let service = ClusterService {
        cluster,
        raft: raft.clone(),
        sequencer,
        leadership: raft.leadership(),
        applied: raft.applied(),
        router: replica.router,
        heard,
        received: Arc::new(Received::default()),
        clients: Handle::current(),
    };
    let server = tonic::transport::Server::builder()
        // A peer whose calls time out on a starved machine resets streams; that is no attack.
        .http2_max_pending_accept_reset_streams(Some(4096))
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(4)))
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(raft.service())
        .add_service(
            ClusterServer::new(service)
                .max_decoding_message_size(crate::base::limits::CLUSTER_MESSAGE_BYTES)
                .max_encoding_message_size(crate::base::limits::CLUSTER_MESSAGE_BYTES),
        );
    replication.spawn(async move {
        if let Err(error) = server
            // The server's own setting is for listeners it opens itself: without this, answers wait some 40 ms for
            // the acknowledgement of the packet before them.
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
        {
            tracing::error!(%error, "the cluster listener has ended");
        }
    });
}

/// Makes the cluster once, from the node with the lowest id; or joins one.
fn bootstrap(raft: Raft, config: &Config) {
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
            tracing::error!(%error, "the cluster was not made");
        }
    });
}

/// Between two attempts to join.
const JOIN_AGAIN: Duration = Duration::from_millis(500);

/// Asks one node after the other to be added, until it is done or can't be.
async fn join(raft: Raft, via: Vec<String>) {
    let mut said = String::new();
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
                if text != said {
                    tracing::warn!(address, %error, "the cluster is not joined yet");
                    said = text;
                }
            }
        }
        tokio::time::sleep(JOIN_AGAIN).await;
    }
}

fn serve_http(
    listener: TcpListener,
    status: Arc<NodeStatus>,
    broker: &Arc<Broker>,
) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    let endpoints = http::Endpoints {
        readiness: status.clone(),
        admin: status.clone(),
        sessions: status,
        metrics: broker.metrics.clone(),
    };
    tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        if let Err(error) = http::serve(listener, endpoints, stopped).await {
            tracing::error!(%error, "the HTTP listener has ended");
        }
    });
    stop
}

fn cluster_view(raft: &Raft) -> sys::ClusterView {
    let status = raft.status();
    sys::ClusterView {
        leader: status.leader,
        term: status.term,
        applied: status.applied,
        members: status.members.len() as u64,
    }
}

/// One line that says what listens where.
fn announce(config: &Config) {
    let mqtt: Vec<String> = config.mqtt.listen.iter().map(ToString::to_string).collect();
    let http = config
        .http
        .listen
        .as_ref()
        .map_or_else(|| "off".to_owned(), ToString::to_string);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        mqtt = mqtt.join(","),
        cluster = %config.cluster.listen,
        http,
        data = %config.node.data_dir.display(),
        "listening"
    );
}
