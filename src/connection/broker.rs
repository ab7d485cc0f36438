//! What all connections of a node share: its services, its settings, and its state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::bounds::ClientBounds;
use super::certified::Certified;
use super::hub::shared::Hub;
use super::origin::Origin;
use super::places::PrincipalPlaces;
use super::rate::TokenBucket;
use super::refusal_lines::RefusalLines;
use super::routing_lease::RoutingLease;
use super::sys::{SysPublisher, SysTopics};
use super::unfinished::Unfinished;
use crate::acl::{Limits, RuleBook};
use crate::auth::Chain;
use crate::base::ids::{ConnectionId, NodeId};
use crate::base::lease::Lease;
use crate::base::limits;
use crate::base::time::{Elapsed, elapsed_now};
use crate::config::{Config, MqttConfig, bounds};
use crate::forward::directory::Directory;
use crate::forward::hand_over::HandOvers;
use crate::identity::Identity;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::memory::NodeMemory;
use crate::replica::clock::Clock;
use crate::replica::proposer::Proposer;
use crate::replica::reader::Reader;
use crate::replica::view::View;
use crate::router::Router;
use crate::store::Quota;
use crate::store::scan::PageBudget;
use crate::telemetry::metrics::Metrics;
use crate::transport::Accepted;

/// Handles of the node's other parts.
pub(crate) struct Services {
    /// The way into the log.
    pub(crate) proposer: Arc<Proposer>,
    /// Linearizable reads.
    pub(crate) reader: Arc<Reader>,
    /// Where messages go.
    pub(crate) router: Arc<Router>,
    /// The applied state.
    pub(crate) backing: Arc<dyn Backing>,
    /// Log time.
    pub(crate) clock: Arc<Clock>,
    /// Figures of the applied state.
    pub(crate) view: Arc<View>,
    /// For sessions that other connections own.
    pub(crate) hand_overs: Arc<HandOvers>,
    /// What clients may do.
    pub(crate) rules: Arc<RuleBook>,
    /// The way to change what operators keep in the cluster.
    pub(crate) directory: Arc<Directory>,
    /// Who may connect.
    pub(crate) identity: Arc<Identity>,
    /// The hub that devices and modules connect to, if there is one.
    pub(crate) hub: Option<Arc<Hub>>,
}

/// What the operator configured.
pub(crate) struct Settings {
    /// This node.
    pub(crate) node: NodeId,
    /// Limits and announcements of MQTT.
    pub(crate) mqtt: MqttConfig,
    /// What a page of a SCAN may cost.
    pub(crate) scan_page: PageBudget,
    /// What the state store may hold.
    pub(crate) store_quota: Quota,
    /// Keys that a client may watch.
    pub(crate) max_watches: u64,
    /// Bytes that those of all clients may count.
    pub(crate) watched_max_bytes: u64,
    /// What may wait for one client.
    pub(crate) outbox: Arc<OutboxLimits>,
    /// The memory of clients whose sessions are not open.
    pub(crate) handshake_memory: Arc<NodeMemory>,
    /// Events of the life of clients are published.
    pub(super) events_over_mqtt: bool,
    /// Places of connections that write much at once.
    pub(super) bulk_turns: Semaphore,
}

impl Settings {
    /// The settings of a node; `metrics` counts what its outboxes drop.
    pub(crate) fn new(config: &Config, metrics: &Arc<Metrics>) -> Settings {
        let mqtt = config.mqtt.clone();
        let connection_bytes = match mqtt.connection_memory_bytes {
            0 => {
                let largest = mqtt
                    .outbox_max_bytes
                    .max(mqtt.max_packet_size_bytes as usize);
                (bounds::CONNECTION_MEMORY_OUTBOXES * largest)
                    .max(bounds::LEAST_CONNECTION_MEMORY_BYTES)
            }
            bytes => bytes,
        };
        let (memory, handshake_memory) = NodeMemory::shares(config.runtime.client_memory());
        let outbox = OutboxLimits {
            connection_bytes,
            memory,
            bytes: mqtt.outbox_max_bytes,
            stall: Duration::from_secs(mqtt.outbox_stall_s.into()),
            full: mqtt.outbox_full,
            metrics: metrics.clone(),
        };
        Settings {
            node: NodeId(config.node.id),
            mqtt,
            scan_page: PageBudget {
                max_keys: config.store.scan_page_keys,
                max_answer_bytes: config.mqtt.outbox_max_bytes / 2,
                ..PageBudget::default()
            },
            store_quota: Quota {
                max_keys: config.store.max_keys,
                max_bytes: config.store.max_bytes,
            },
            max_watches: config.store.max_watches_per_client,
            watched_max_bytes: config.store.watched_max_bytes,
            outbox: Arc::new(outbox),
            handshake_memory,
            events_over_mqtt: config.events.mqtt,
            bulk_turns: Semaphore::new(limits::BULK_TURNS_PER_THREAD * config.runtime.threads()),
        }
    }
}

/// Whether the node may serve clients, and how.
///
/// Invariant: the node serves only until a deadline that its last confirmed contact with the leader has set. Nobody has
/// to notice that it has passed: whoever serves asks for each turn.
#[derive(Debug)]
pub(crate) struct NodeState {
    /// The node's incarnation is registered.
    registered: AtomicBool,
    contact: Lease,
    draining: AtomicBool,
    disk_low: AtomicBool,
    refuses_writes: AtomicBool,
    routing_lease: RoutingLease,
    next_connection: AtomicU64,
    /// Paces new connections.
    pub(super) connection_rate: Mutex<TokenBucket>,
    /// Those whose clients have not proved yet who they are.
    pub(super) unfinished: Unfinished,
}

impl Default for NodeState {
    /// A node that does not serve yet.
    fn default() -> Self {
        NodeState {
            registered: AtomicBool::new(false),
            contact: Lease::default(),
            draining: AtomicBool::new(false),
            disk_low: AtomicBool::new(false),
            refuses_writes: AtomicBool::new(false),
            routing_lease: RoutingLease::default(),
            next_connection: AtomicU64::new(1),
            connection_rate: Mutex::default(),
            unfinished: Unfinished::default(),
        }
    }
}

impl NodeState {
    /// Whether the node's incarnation is registered, and its contact with the leader recent enough.
    pub(crate) fn is_serving(&self) -> bool {
        self.is_serving_at(elapsed_now())
    }

    /// The same at `now`.
    pub(crate) fn is_serving_at(&self, now: Elapsed) -> bool {
        self.registered.load(Ordering::Acquire) && self.contact.holds_at(now)
    }

    /// Sets whether the node's incarnation is registered.
    pub(crate) fn set_registered(&self, registered: bool) {
        self.registered.store(registered, Ordering::Release);
    }

    /// Until when the last contact lets the node serve.
    pub(crate) fn contact(&self) -> &Lease {
        &self.contact
    }

    /// Whether the node is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The node shuts down: it takes no more clients.
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether new sessions may be opened.
    pub(crate) fn accepts_clients(&self) -> bool {
        self.is_serving() && !self.is_draining()
    }

    /// Whether this node's disk is nearly full.
    pub(crate) fn is_disk_low(&self) -> bool {
        self.disk_low.load(Ordering::Relaxed)
    }

    /// Sets what [`NodeState::is_disk_low`] tells.
    pub(crate) fn set_disk_low(&self, low: bool) {
        self.disk_low.store(low, Ordering::Relaxed);
    }

    /// Whether what would be stored is refused, because disks are nearly full. What only removes, or replaces what a
    /// client has acknowledged, is not.
    pub(crate) fn refuses_writes(&self) -> bool {
        self.refuses_writes.load(Ordering::Relaxed)
    }

    /// Sets what [`NodeState::refuses_writes`] tells; returns what it told before.
    pub(crate) fn set_refuses_writes(&self, refused: bool) -> bool {
        self.refuses_writes.swap(refused, Ordering::Relaxed)
    }

    /// Whether messages may go past the log.
    pub(crate) fn routing_lease(&self) -> &RoutingLease {
        &self.routing_lease
    }

    /// A connection id that was not used before in this process.
    pub(crate) fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }
}

/// What each listener asks of its clients.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    named: BTreeMap<Box<str>, Arc<Chain>>,
    other: Arc<Chain>,
}

impl Chains {
    /// `named` listeners, and what is asked at every other one.
    pub(crate) fn new(named: BTreeMap<Box<str>, Arc<Chain>>, other: Arc<Chain>) -> Chains {
        Chains { named, other }
    }

    fn of(&self, listener: &str) -> Arc<Chain> {
        self.named.get(listener).unwrap_or(&self.other).clone()
    }
}

/// What all connections of a node share.
pub(crate) struct Broker {
    /// What the operator configured.
    pub(crate) settings: Settings,
    /// Handles of the node's other parts.
    pub(crate) services: Services,
    /// Whether the node may serve clients.
    pub(crate) state: NodeState,
    /// The topics below `$SYS/`.
    pub(crate) sys: Arc<SysTopics>,
    /// The bounds of most clients: of those for whom the rules have none.
    pub(super) bounds: Arc<ClientBounds>,
    /// The connections of principals that have a bound.
    pub(super) places: Arc<PrincipalPlaces>,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// Connections whose clients have shown a certificate.
    pub(crate) certified: Arc<Certified>,
    /// Lines of the log about clients that are refused.
    pub(super) refusal_lines: RefusalLines,
    chains: Chains,
}

impl Broker {
    /// The broker of a node that does not serve yet.
    pub(crate) fn new(
        settings: Settings,
        services: Services,
        chains: Chains,
        metrics: Arc<Metrics>,
    ) -> Arc<Broker> {
        Arc::new(Broker {
            services,
            state: NodeState::default(),
            sys: Arc::default(),
            bounds: Arc::new(ClientBounds::new(&settings.mqtt, &Limits::default())),
            settings,
            places: Arc::default(),
            metrics,
            certified: Arc::default(),
            refusal_lines: RefusalLines::default(),
            chains,
        })
    }

    /// Whether everybody is let in at a listener now.
    pub(crate) fn lets_everybody_in(&self, listener: &str) -> bool {
        self.chains.of(listener).is_open()
    }

    /// Where a connection comes from, and what is asked of it there. `method` is the Authentication Method that its
    /// CONNECT names.
    pub(super) fn origin(&self, accepted: &Accepted, method: Option<&str>) -> Arc<Origin> {
        Arc::new(Origin {
            method: method.map(Into::into),
            peer: accepted.peer.clone(),
            listener: accepted.listener.clone(),
            chain: self.chains.of(&accepted.listener.config.name),
        })
    }

    /// A connection has ended, or its session was not opened: nothing more is for it.
    pub(super) fn unregister(&self, connection: ConnectionId) {
        self.services.router.unregister(connection);
        self.services.identity.unregister(connection);
    }

    /// What keeps the topics below `$SYS/` current.
    pub(crate) fn sys_publisher(&self) -> SysPublisher {
        SysPublisher {
            interval: Duration::from_secs(self.settings.mqtt.sys_interval_s.into()),
            node: self.settings.node,
            topics: self.sys.clone(),
            router: self.services.router.clone(),
            view: self.services.view.clone(),
            metrics: self.metrics.clone(),
        }
    }

    /// If a connection owns the session of this client, has it propose what the client has sent there. Another
    /// principal's session is left alone: apply will refuse it.
    pub(crate) async fn hand_over(&self, client_id: &str, principal: &str) {
        let services = &self.services;
        let session = read::session(&*services.backing, client_id);
        let session = session.filter(|row| row.principal.is_empty() || row.principal == principal);
        if let Some(owner) = session.as_ref().and_then(read::owner) {
            services.hand_overs.ask(owner).await;
        }
    }
}
