//! The topics below `$SYS/`: `$SYS/broker/…` in Mosquitto's names for this node, `$SYS/cluster/…` for what all nodes
//! share.
//!
//! Each node computes them for its own clients; they are not replicated. A new subscriber gets the current values as
//! retained messages, and every subscriber gets the values that change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::ids::NodeId;
use crate::codec::QoS;
use crate::mailbox::WakeList;
use crate::replica::view::View;
use crate::router::{Message, Router};
use crate::telemetry::cells::{Counter, Label};
use crate::telemetry::labels::{DropReason, Qos};
use crate::telemetry::metrics::Metrics;
use crate::topic::matches;

/// Before the first values, so that the node has found its cluster.
const FIRST_AFTER: Duration = Duration::from_secs(1);

/// What Raft tells of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// The leader that this node knows of.
    pub(crate) leader: Option<u64>,
    /// Its Raft term.
    pub(crate) term: u64,
    /// Index of the last entry that this node has applied.
    pub(crate) applied: u64,
    /// Number of members, learners included.
    pub(crate) members: u64,
}

/// The current values by topic.
#[derive(Debug, Default)]
pub(crate) struct SysTopics {
    values: Mutex<BTreeMap<&'static str, String>>,
}

impl SysTopics {
    /// Current values whose topics match the filter.
    pub(super) fn matching(&self, filter: &str) -> Vec<(&'static str, String)> {
        if !filter.starts_with("$SYS") {
            return Vec::new();
        }
        self.values
            .lock()
            .iter()
            .filter(|(topic, _)| matches(filter, topic))
            .map(|(topic, value)| (*topic, value.clone()))
            .collect()
    }

    /// Replaces all values; returns those that have changed.
    fn update(&self, new: BTreeMap<&'static str, String>) -> Vec<(&'static str, String)> {
        let mut values = self.values.lock();
        let changed = new
            .iter()
            .filter(|(topic, value)| values.get(*topic) != Some(value))
            .map(|(topic, value)| (*topic, value.clone()))
            .collect();
        *values = new;
        changed
    }
}

/// Keeps the values current and sends those that change.
pub(crate) struct SysPublisher {
    /// Between two updates; zero turns `$SYS/` off.
    pub(super) interval: Duration,
    pub(super) node: NodeId,
    pub(super) topics: Arc<SysTopics>,
    pub(super) router: Arc<Router>,
    pub(super) view: Arc<View>,
    pub(super) metrics: Arc<Metrics>,
}

/// A value as it is sent.
pub(super) fn message<'a>(topic: &'a str, value: &'a str) -> Message<'a> {
    Message {
        publisher: None,
        qos: QoS::AtMostOnce,
        retain: true,
        topic,
        properties: &[],
        expiry: None,
        direct: true,
        payload: value.as_bytes(),
    }
}

impl SysPublisher {
    /// Runs until the node stops; `cluster` tells what Raft knows.
    pub(crate) async fn run(self, cluster: impl Fn() -> ClusterView) {
        if self.interval.is_zero() {
            return;
        }
        let started = Instant::now();
        let mut most_clients = 0;
        tokio::time::sleep(FIRST_AFTER).await;
        loop {
            let mut values = self.node_values(started, &mut most_clients);
            values.append(&mut self.cluster_values(&cluster()));
            let mut wake = WakeList::default();
            for (topic, value) in self.topics.update(values) {
                self.router
                    .deliver_local(&message(topic, &value), &mut wake);
            }
            drop(wake);
            tokio::time::sleep(self.interval).await;
        }
    }

    /// `$SYS/broker/…`
    fn node_values(
        &self,
        started: Instant,
        most_clients: &mut u64,
    ) -> BTreeMap<&'static str, String> {
        let metrics = &*self.metrics;
        let (_, subscriptions) = self.router.subscriptions().counts();
        let connected = u64::try_from(metrics.connections.get()).unwrap_or(0);
        *most_clients = (*most_clients).max(connected);
        let queues = self.view.queue_usage();
        let by_qos = |of: &dyn Fn(Qos) -> u64| -> u64 {
            [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]
                .map(of)
                .iter()
                .sum()
        };
        let received = by_qos(&|qos| metrics.messages_received.of(qos).get());
        let sent = by_qos(&|qos| metrics.messages_sent.of(qos).get());
        let dropped: u64 = DropReason::ALL
            .iter()
            .map(|reason| metrics.messages_dropped.of(*reason).get())
            .sum();
        let count = |counter: &Counter| counter.get().to_string();
        let uptime = format!("{} seconds", started.elapsed().as_secs());
        let version = concat!("quorumq ", env!("CARGO_PKG_VERSION"));
        BTreeMap::from([
            ("$SYS/broker/version", version.to_owned()),
            ("$SYS/broker/uptime", uptime),
            ("$SYS/broker/clients/connected", connected.to_string()),
            ("$SYS/broker/clients/maximum", most_clients.to_string()),
            ("$SYS/broker/bytes/received", count(&metrics.bytes_received)),
            ("$SYS/broker/bytes/sent", count(&metrics.bytes_sent)),
            (
                "$SYS/broker/publish/messages/received",
                received.to_string(),
            ),
            ("$SYS/broker/publish/messages/sent", sent.to_string()),
            ("$SYS/broker/publish/messages/dropped", dropped.to_string()),
            ("$SYS/broker/subscriptions/count", subscriptions.to_string()),
            (
                "$SYS/broker/retained messages/count",
                queues.retained.to_string(),
            ),
            (
                "$SYS/broker/store/messages/count",
                queues.messages.to_string(),
            ),
            ("$SYS/broker/store/messages/bytes", queues.bytes.to_string()),
        ])
    }

    /// `$SYS/cluster/…`
    fn cluster_values(&self, cluster: &ClusterView) -> BTreeMap<&'static str, String> {
        let (sessions, _) = self.router.subscriptions().counts();
        let store = self.view.store_usage();
        let leader = cluster.leader.map_or_else(String::new, |id| id.to_string());
        BTreeMap::from([
            ("$SYS/cluster/node", self.node.to_string()),
            ("$SYS/cluster/leader", leader),
            ("$SYS/cluster/term", cluster.term.to_string()),
            ("$SYS/cluster/applied", cluster.applied.to_string()),
            ("$SYS/cluster/members", cluster.members.to_string()),
            (
                "$SYS/cluster/nodes/live",
                self.view.live_nodes().len().to_string(),
            ),
            ("$SYS/cluster/sessions/count", sessions.to_string()),
            ("$SYS/cluster/store/keys", store.keys.to_string()),
            ("$SYS/cluster/store/bytes", store.bytes.to_string()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_sent_and_only_below_sys() {
        let sys = SysTopics::default();
        let values = |uptime: &str| {
            BTreeMap::from([("$SYS/a", "1".to_owned()), ("$SYS/b/c", uptime.to_owned())])
        };
        assert_eq!(sys.update(values("1")).len(), 2);
        assert_eq!(sys.update(values("2")), [("$SYS/b/c", "2".to_owned())]);
        assert_eq!(sys.matching("$SYS/#").len(), 2);
        assert_eq!(sys.matching("$SYS/+/c"), [("$SYS/b/c", "2".to_owned())]);
        assert!(sys.matching("#").is_empty(), "[MQTT-4.7.2-1]");
    }
}
