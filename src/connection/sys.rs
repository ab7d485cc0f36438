//! The topics below `$SYS/`: `$SYS/broker/…` in Mosquitto's names for this node, `$SYS/cluster/…` for what all nodes share.
//!
//! They are this node's own: nothing of them is replicated, and each node tells its own clients. A new subscriber gets
//! the current values as retained messages, everybody else what has changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::codec::QoS;
use crate::connection::broker::Broker;
use crate::mailbox::WakeList;
use crate::router::Message;
use crate::telemetry::cells::{Counter, Label};
use crate::topic::matches;

/// Topics below this are the broker's own.
pub const PREFIX: &str = "$SYS/";

/// What the node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The leader it knows of.
    pub leader: Option<u64>,
    /// Its Raft term.
    pub term: u64,
    /// Index of the last entry it has applied.
    pub applied: u64,
    /// Members, those that do not vote included.
    pub members: u64,
}

/// The current values by topic.
#[derive(Debug, Default)]
pub struct Sys {
    values: Mutex<BTreeMap<&'static str, String>>,
}

impl Sys {
    /// Current values whose topics match the filter.
    pub fn matching(&self, filter: &str) -> Vec<(&'static str, String)> {
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

    /// Takes new values in; gives those that are not what they were.
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

/// Keeps the values current until the node stops; `cluster` tells what Raft knows.
pub async fn run(broker: Arc<Broker>, cluster: impl Fn() -> ClusterView) {
    let seconds = broker.config.sys_interval_s;
    if seconds == 0 {
        return;
    }
    let started = Instant::now();
    let mut most_clients = 0;
    // The first values are those of a node that has found its cluster.
    tokio::time::sleep(Duration::from_secs(1)).await;
    loop {
        let values = values(&broker, &cluster(), started, &mut most_clients);
        let mut wake = WakeList::default();
        for (topic, value) in broker.sys.update(values) {
            broker
                .router
                .deliver_local(&message(topic, &value), &mut wake);
        }
        drop(wake);
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    }
}

/// A value as it is sent.
pub fn message<'a>(topic: &'a str, value: &'a str) -> Message<'a> {
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

fn values(
    broker: &Broker,
    cluster: &ClusterView,
    started: Instant,
    most_clients: &mut u64,
) -> BTreeMap<&'static str, String> {
    use crate::telemetry::labels::{DropReason, Qos};
    let metrics = &broker.metrics;
    let (sessions, subscriptions) = broker.router.subscriptions().counts();
    let connected = u64::try_from(metrics.connections.get()).unwrap_or(0);
    *most_clients = (*most_clients).max(connected);
    let queues = broker.view.queue_usage();
    let store = broker.view.store_usage();
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
    BTreeMap::from([
        (
            "$SYS/broker/version",
            concat!("quorumq ", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
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
        ("$SYS/cluster/node", broker.node.to_string()),
        (
            "$SYS/cluster/leader",
            cluster.leader.map_or_else(String::new, |id| id.to_string()),
        ),
        ("$SYS/cluster/term", cluster.term.to_string()),
        ("$SYS/cluster/applied", cluster.applied.to_string()),
        ("$SYS/cluster/members", cluster.members.to_string()),
        (
            "$SYS/cluster/nodes/live",
            broker.view.live_nodes().len().to_string(),
        ),
        ("$SYS/cluster/sessions/count", sessions.to_string()),
        ("$SYS/cluster/store/keys", store.keys.to_string()),
        ("$SYS/cluster/store/bytes", store.bytes.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_told_and_only_below_sys() {
        let sys = Sys::default();
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
