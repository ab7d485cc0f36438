//! What every connection of a node shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::auth::{self, Authenticator, Exchange};
use crate::base::ids::{ConnectionId, NodeId};
use crate::base::limits;
use crate::config::MqttConfig;
use crate::connection::sys::Sys;
use crate::machine::tables::Backing;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::replica::applier::View;
use crate::replica::clock::Clock;
use crate::replica::proposer::Proposer;
use crate::replica::reader::Reader;
use crate::router::Router;
use crate::store::Quota;
use crate::store::scan::PageBudget;
use crate::telemetry::metrics::Metrics;

/// How long this node may take its replica of the subscriptions for current: for [`limits::ROUTING_LEASE`] after it last began
/// to renew that it is in touch with a majority. Whoever subscribes waits that long for a node that is silent, so that no
/// message it accepts later passes the subscriber by (P6).
#[derive(Debug)]
pub struct RoutingLease {
    origin: Instant,
    /// Milliseconds after `origin`.
    until: AtomicU64,
}

impl Default for RoutingLease {
    fn default() -> Self {
        RoutingLease {
            origin: Instant::now(),
            until: AtomicU64::new(0),
        }
    }
}

impl RoutingLease {
    /// RoutingLease was proven by a question asked at `asked`.
    pub fn renew(&self, asked: Instant) {
        let until = asked + limits::ROUTING_LEASE - self.origin;
        self.until.store(
            u64::try_from(until.as_millis()).unwrap_or(u64::MAX),
            Ordering::Release,
        );
    }

    /// Whether that is recent enough.
    pub fn is_valid(&self) -> bool {
        self.origin.elapsed().as_millis() < u128::from(self.until.load(Ordering::Acquire))
    }
}

/// Handles of the node, and what the operator configured.
pub struct Broker {
    /// This node.
    pub node: NodeId,
    /// Limits and announcements.
    pub config: MqttConfig,
    /// What clients must show before they are let in.
    pub authenticator: Authenticator,
    /// What a page of a SCAN may cost.
    pub scan_page: PageBudget,
    /// What the state store may hold.
    pub store_quota: Quota,
    /// Where messages go.
    pub router: Arc<Router>,
    /// What may wait for one client.
    pub outbox: Arc<OutboxLimits>,
    /// The way into the log.
    pub proposer: Arc<Proposer>,
    /// Linearizable reads.
    pub reader: Arc<Reader>,
    /// The applied state.
    pub backing: Arc<dyn Backing>,
    /// Log time.
    pub clock: Arc<Clock>,
    /// What apply knows.
    pub view: Arc<View>,
    /// Topics below `$SYS/`.
    pub sys: Sys,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Whether this node may serve clients: its life is registered and it is in touch with a majority.
    pub serving: AtomicBool,
    /// Whether messages may go past the log.
    pub routing_lease: RoutingLease,
    /// Whether the node is shutting down.
    pub draining: AtomicBool,
    next_connection: AtomicU64,
}

impl Broker {
    /// Shared state of a node that does not serve yet.
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, where the node is put together"
    )]
    pub fn new(
        node: NodeId,
        config: MqttConfig,
        authenticator: Authenticator,
        scan_page: PageBudget,
        store_quota: Quota,
        router: Arc<Router>,
        proposer: Arc<Proposer>,
        reader: Arc<Reader>,
        backing: Arc<dyn Backing>,
        clock: Arc<Clock>,
        view: Arc<View>,
        metrics: Arc<Metrics>,
    ) -> Arc<Broker> {
        let outbox = OutboxLimits {
            bytes: config.outbox_max_bytes,
            stall: Duration::from_secs(config.outbox_stall_s.into()),
            full: config.outbox_full,
            metrics: metrics.clone(),
        };
        Arc::new(Broker {
            outbox: Arc::new(outbox),
            node,
            config,
            authenticator,
            scan_page,
            store_quota,
            router,
            proposer,
            reader,
            backing,
            clock,
            view,
            sys: Sys::default(),
            metrics,
            serving: AtomicBool::new(false),
            routing_lease: RoutingLease::default(),
            draining: AtomicBool::new(false),
            next_connection: AtomicU64::new(1),
        })
    }

    /// A connection id that was not used before in this process.
    pub fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Begins an exchange of a method with a client; `None` when there is no such method.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn begin_authentication(
        &self,
        method: &str,
        client_id: &str,
        user_name: Option<&str>,
    ) -> Result<Option<Exchange>, getrandom::Error> {
        let mut entropy = [0; auth::ENTROPY_BYTES];
        getrandom::fill(&mut entropy)?;
        let client = auth::Client {
            client_id,
            user_name,
            entropy,
        };
        Ok(self.authenticator.begin(method, &client))
    }

    /// Whether clients are accepted.
    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire) && !self.draining.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn touch_lasts_from_the_question_not_from_the_answer() {
        let lease = RoutingLease::default();
        assert!(!lease.is_valid());
        lease.renew(Instant::now());
        assert!(lease.is_valid());
        let lease = RoutingLease {
            origin: Instant::now() - limits::ROUTING_LEASE - Duration::from_secs(1),
            ..RoutingLease::default()
        };
        lease.renew(lease.origin + Duration::from_millis(900));
        assert!(!lease.is_valid(), "asked more than a second ago");
    }
}
