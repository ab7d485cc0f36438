//! A node: every room put together, from the data directory to the listeners, and taken apart again in order.

pub mod authentication;
pub mod certificates;
mod clocks;
mod cluster;
mod contact;
mod disk;
mod error;
mod event_pace;
mod event_pull;
mod event_settings;
mod events;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod hostile_wire_tests;
mod http_ports;
mod hub;
mod hub_port;
#[cfg(test)]
mod hub_tests;
mod identity;
mod incarnation;
mod leases;
mod listen;
mod metrics;
mod one_run;
mod peer_server;
mod process;
mod replica;
#[cfg(test)]
mod right_tests;
mod rules;
mod sessions;
mod shutdown;
mod state_hash;
mod status;
mod tokens;
mod user_import;
mod users;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::acl::RuleBook;
use crate::base::ids::NodeId;
use crate::config::{Config, Transport};
use crate::connection::broker::{Broker, Services, Settings};
use crate::connection::{listener, memory_guard, sys};
use crate::forward::hand_over::HandOvers;
use crate::forward::outbox::Outboxes;
use crate::http;
use crate::login::Background;
use crate::peers::{self, Trust};
use crate::raft::Raft;
use crate::replica::reader::Reader;
use crate::storage;
use crate::telemetry::audit;
use crate::telemetry::metrics::Metrics;
use crate::transport::{self, Listening};
use crate::webhook::keep_gauges;
use cluster::ClusterTasks;
use disk::{DiskGuard, Level};
use http_ports::HttpPorts;
use identity::Identities;
use listen::bind;
use process::{keep_files_private, on, on_hang_up, raise_descriptor_limit, signalled, threads};
use replica::Replica;
use rules::RulesObserver;
use shutdown::{Node, StopHttp};
use state_hash::StateComparison;
use status::NodeStatus;
use tokens::TokenObserver;
use watchdog::StuckThreads;

pub use error::RunError;

/// How long the threads that still use a database at the end may take.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Threads that answer HTTP.
const HTTP_THREADS: usize = 2;

/// The runtimes beside that of clients.
struct Runtimes<'a> {
    replication: &'a Handle,
    http: &'a Handle,
}

/// Runs a node until SIGTERM or Ctrl-C, then takes it down in order.
///
/// # Errors
/// When it can't start.
pub fn run(config: Config) -> Result<(), RunError> {
    raise_descriptor_limit();
    keep_files_private();
    let data_dir = config.node.data_dir.clone();
    let replication = threads("replication", 1)?;
    let http = threads("http", HTTP_THREADS)?;
    let clients = threads("clients", config.runtime.threads())?;
    let runtimes = Runtimes {
        replication: replication.handle(),
        http: http.handle(),
    };
    let ended = clients.block_on(async {
        let mut node = start(config, &runtimes).await?;
        let full = tokio::select! {
            () = signalled() => None,
            space = node.disk_full() => Some(space),
        };
        node.shutdown().await;
        full.map_or(Ok(()), |space| Err(RunError::DiskFull(space.free_bytes)))
    });
    http.shutdown_timeout(Duration::from_secs(1));
    clients.shutdown_timeout(Duration::from_secs(1));
    replication.shutdown_timeout(Duration::from_secs(1));
    // Whatever was under way is dropped now, and recorded.
    audit::flush();
    if !storage::wait_closed(&data_dir, CLOSED_WITHIN) {
        tracing::warn!(
            "the databases are still in use; what was acknowledged is on disk all the same"
        );
    }
    ended
}

#[cfg(test)]
impl<'a> Runtimes<'a> {
    /// Everything in one.
    fn one(runtime: &'a Handle) -> Runtimes<'a> {
        Runtimes {
            replication: runtime,
            http: runtime,
        }
    }
}

/// The open listeners.
struct Listeners {
    cluster: TcpListener,
    mqtt: Vec<Listening>,
    http: HttpPorts,
}

impl Listeners {
    async fn open(
        config: &Arc<Config>,
        metrics: &Arc<Metrics>,
        runtimes: &Runtimes<'_>,
    ) -> Result<Listeners, RunError> {
        let address = config.cluster.listen.clone();
        let cluster = on(runtimes.replication, async move {
            bind("cluster.listen", &address).await
        });
        let cluster = cluster.await?;
        let mqtt = listen::open(config, metrics).await?;
        let http = HttpPorts::open(config, runtimes.http).await?;
        Ok(Listeners {
            cluster,
            mqtt,
            http,
        })
    }
}

async fn start(config: Config, runtimes: &Runtimes<'_>) -> Result<Node, RunError> {
    let (config, replication) = (Arc::new(config), runtimes.replication);
    authentication::check(&config).map_err(RunError::Users)?;
    hub::load(&config).map_err(RunError::Users)?;
    authentication::announce(&config.auth);
    let trust = Trust::new(peers::Settings::of(&config))?;
    check_disk(&config)?;
    let metrics = start_audit(&config)?;
    // Listeners first: a port in use is found before anything is written.
    let listeners = Listeners::open(&config, &metrics, runtimes).await?;
    let replica = Replica::start(&config, trust.clone(), metrics.clone(), replication).await?;
    let raft = replica.raft.clone();
    let reader = Arc::new(Reader::default());
    let identities = Arc::new(replica.identities(&config));
    let rules = listeners.http.gate.rules().clone();
    let (broker, background) = new_broker(
        &config,
        &replica,
        &identities,
        reader.clone(),
        rules,
        metrics,
    )?;
    tokio::spawn(reader.run(
        raft.clone(),
        replica.proposer.clone(),
        replica.clock.clone(),
    ));
    observe_rules(&broker);
    let tasks = ClusterTasks {
        raft: raft.clone(),
        broker: broker.clone(),
        outboxes: replica.outboxes.clone(),
        due: replica.due,
        clock: replica.clock,
        incarnation_events: replica.incarnation_events,
        config: config.clone(),
        trust,
    };
    background
        .into_iter()
        .for_each(|work| drop(tokio::spawn(work)));
    tasks.start(listeners.cluster, replication);
    cluster::bootstrap(raft.clone(), &config);
    spawn_watchers(&broker, &raft, replica.outboxes);
    let stuck = watch_threads(&config, &broker, runtimes)?;
    let status = Arc::new(NodeStatus {
        config: config.clone(),
        raft: raft.clone(),
        broker: broker.clone(),
        identities,
        stuck,
        gate: listeners.http.gate.clone(),
        comparison: compare_states(&config, &broker, &raft),
    });
    let stop_http = serve_http(listeners.http, &config, status, &broker);
    serve_clients(listeners.mqtt, &broker);
    announce(&config, &broker);
    let (full, disk_full) = oneshot::channel();
    let guard = DiskGuard {
        config: config.disk.clone(),
        source: disk::volume(config.node.data_dir.clone()),
        broker: broker.clone(),
        raft: raft.clone(),
    };
    tokio::spawn(guard.run(full));
    let drain = Duration::from_secs(config.shutdown.drain_s);
    Ok(Node::new(broker, raft, drain, stop_http, disk_full))
}

/// Has every change of the rules reach the rule book.
fn observe_rules(broker: &Broker) {
    let services = &broker.services;
    let observer = RulesObserver {
        book: services.rules.clone(),
        router: services.router.clone(),
    };
    let directory = services.view.directory();
    directory.add(Arc::new(observer), &*services.backing);
}

/// Has the threads watched that have to come round.
fn watch_threads(
    config: &Config,
    broker: &Broker,
    runtimes: &Runtimes<'_>,
) -> Result<StuckThreads, RunError> {
    let runtimes = [
        ("replication runtime", runtimes.replication.clone()),
        ("http runtime", runtimes.http.clone()),
        ("clients runtime", Handle::current()),
    ];
    let bound = Duration::from_secs(config.node.stuck_s);
    watchdog::start(bound, broker.metrics.clone(), &runtimes).map_err(RunError::Runtime)
}

/// Starts what looks after the node as long as it runs.
fn spawn_watchers(broker: &Arc<Broker>, raft: &Raft, outboxes: Arc<Outboxes>) {
    tokio::spawn(clocks::run(broker.clone(), raft.clone()));
    tokio::spawn(metrics::run(broker.clone(), outboxes, raft.clone()));
    tokio::spawn(memory_guard::run(broker.clone()));
    let (backing, clock) = (
        broker.services.backing.clone(),
        broker.services.clock.clone(),
    );
    tokio::spawn(keep_gauges(backing, clock, broker.metrics.clone()));
    let status = raft.clone();
    tokio::spawn(broker.sys_publisher().run(move || cluster_view(&status)));
}

/// The metrics of the node, and its audit log, which counts in them.
fn start_audit(config: &Config) -> Result<Arc<Metrics>, RunError> {
    let metrics = Arc::new(Metrics::default());
    let Some(path) = &config.audit.file else {
        return Ok(metrics);
    };
    audit::start(config.node.id, &config.audit, metrics.clone()).map_err(|error| {
        RunError::Audit {
            path: path.clone(),
            error,
        }
    })?;
    on_hang_up(audit::reopen);
    Ok(metrics)
}

/// A node whose disk is full can't start: RocksDB would have to write before anything could be removed.
fn check_disk(config: &Config) -> Result<(), RunError> {
    let path = &config.node.data_dir;
    match storage::Space::of(path) {
        Ok(space) if disk::judge(&config.disk, Level::Fine, &space) == Level::Full => {
            Err(RunError::DiskFull(space.free_bytes))
        }
        // Before the first start there is no directory.
        _ => Ok(()),
    }
}

/// The broker, and what has to go on for its methods of authentication.
fn new_broker(
    config: &Config,
    replica: &Replica,
    identities: &Identities,
    reader: Arc<Reader>,
    rules: Arc<RuleBook>,
    metrics: Arc<Metrics>,
) -> Result<(Arc<Broker>, Vec<Background>), RunError> {
    let chains = authentication::chains(config, Some(identities));
    let mut made = chains.map_err(RunError::Users)?;
    let services = Services {
        hub: hub::load(config).map_err(RunError::Users)?,
        directory: identities.directory.clone(),
        identity: identities.identity.clone(),
        proposer: replica.proposer.clone(),
        reader,
        router: replica.router.clone(),
        backing: replica.raft.backing(),
        clock: replica.clock.clone(),
        view: replica.view.clone(),
        hand_overs: Arc::new(HandOvers::new(
            NodeId(config.node.id),
            replica.router.clone(),
            replica.proposer.clone(),
            Some(replica.raft.clone()),
        )),
        rules,
    };
    let settings = Settings::new(config, &metrics);
    let broker = Broker::new(settings, services, made.chains, metrics);
    identities.attach(&broker);
    let certified = broker.certified.clone();
    made.background.push(Box::pin(async move {
        loop {
            made.withdrawn.notified().await;
            certified.judge_again();
        }
    }));
    let watched = certificates::watch_service(
        config.auth.clone(),
        broker.metrics.clone(),
        certificates::LOOK_INTERVAL,
    );
    made.background.push(Box::pin(watched));
    Ok((broker, made.background))
}

fn serve_http(
    mut ports: HttpPorts,
    config: &Config,
    status: Arc<NodeStatus>,
    broker: &Broker,
) -> StopHttp {
    let services = &broker.services;
    let tokens = TokenObserver(ports.gate.tokens().clone());
    let observers = services.view.directory();
    observers.add(Arc::new(tokens), &*services.backing);
    let hub = ports.hub.take();
    let endpoints = http::Endpoints {
        readiness: status.clone(),
        admin: status.clone(),
        sessions: status.clone(),
        users: status.clone(),
        rules: status.clone(),
        events: status.clone(),
        event_subscriptions: status.clone(),
        tokens: status.clone(),
        currency: status.clone(),
        metrics: broker.metrics.clone(),
    };
    let stop = ports.serve(config, &endpoints);
    if let Some(hub) = hub {
        hub.serve(&status, &broker.metrics, stop.subscribe());
    }
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

/// Compares the nodes' states from time to time, and when an operator asks for it.
fn compare_states(config: &Config, broker: &Arc<Broker>, raft: &Raft) -> Arc<StateComparison> {
    let comparison = StateComparison::new(broker.clone(), raft.clone());
    let interval = Duration::from_secs(config.raft.state_hash_interval_s);
    tokio::spawn(comparison.clone().run(interval));
    comparison
}

/// Accepts clients, and keeps the certificates of TLS current.
fn serve_clients(listeners: Vec<Listening>, broker: &Arc<Broker>) {
    if let Some(hub) = &broker.services.hub {
        let (credentials, metrics) = (hub.credentials.clone(), broker.metrics.clone());
        tokio::spawn(hub::keep_current(credentials, metrics));
    }
    for listening in listeners {
        if let Some(tls) = &listening.listener().tls {
            let certified = broker.certified.clone();
            let changed = move || certified.judge_again();
            let watched = transport::tls::watch(tls.clone(), broker.metrics.clone(), changed);
            tokio::spawn(watched);
        }
        tokio::spawn(listener::run(listening, broker.clone()));
    }
}

/// One line that says what listens where, and one more when nodes do not prove who they are although others reach them.
fn announce(config: &Arc<Config>, broker: &Arc<Broker>) {
    tokio::spawn(listen::announce(config.clone(), broker.clone()));
    if config.cluster.insecure && !config.cluster.listen.is_loopback() {
        tracing::warn!(
            listen = %config.cluster.listen,
            "cluster.insecure: nodes do not prove who they are; whoever reaches the cluster port can read and change everything"
        );
    }
    let listeners = config.listeners();
    let mqtt = listeners.iter().map(|listener| {
        let (transport, address) = (listener.transport, &listener.address);
        match transport {
            Transport::Tcp => address.to_string(),
            transport => format!("{transport}://{address}"),
        }
    });
    let http = config
        .http
        .listen
        .as_ref()
        .map_or_else(|| "off".to_owned(), ToString::to_string);
    http_ports::announce(config);
    hub::announce(config);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        mqtt = mqtt.collect::<Vec<_>>().join(","),
        cluster = %config.cluster.listen,
        http,
        data = %config.node.data_dir.display(),
        "listening"
    );
}
