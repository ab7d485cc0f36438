//! The one definition of every metric: name, type, labels, unit and meaning. `docs/metrics.md` is generated from it.

use std::fmt;
use std::fmt::Write;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::cells::{By, Cell, Counter, Gauge, Grouped, Labels, Latency};
use super::expiries::Expiries;
use super::labels::{
    Action, Delivery, DisconnectReason, DropReason, EventDrop, HubOperation, HubRefusal,
    IdentityKind, Outcome, Qos, Queue, TlsHandshake, TwinNotification, Verb,
};
use crate::events::answer::DeathReason;
use crate::events::standing::Standing;
use crate::events::{DisconnectionReason, Kind as EventKind};

/// Media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric, as the reference page sees it.
pub struct Documented {
    /// Name as it is scraped, with the suffix of its type.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Names of its labels.
    pub labels: Vec<&'static str>,
    /// What it counts, and what to look for.
    pub doc: &'static str,
}

fn kind(of: MetricType) -> &'static str {
    match of {
        MetricType::Counter => "counter",
        MetricType::Histogram => "histogram",
        _ => "gauge",
    }
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $field:ident: $type:ty;)+) => {
        /// Every metric of a node. Shared by all layers; updating one is a relaxed atomic addition.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl Collector for Metrics {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
                $({
                    let name = concat!("quorumq_", stringify!($field));
                    let help = concat!($($doc),+);
                    let mut metric = encoder.encode_descriptor(name, help.trim(), None, <$type as Cell>::TYPE)?;
                    self.$field.write(&mut metric, &mut Labels::new())?;
                })+
                process(&mut encoder)
            }
        }

        fn defined() -> Vec<Documented> {
            vec![$({
                let suffix = match <$type as Cell>::TYPE {
                    MetricType::Counter => "_total",
                    _ => "",
                };
                Documented {
                    name: format!("quorumq_{}{suffix}", stringify!($field)),
                    kind: kind(<$type as Cell>::TYPE),
                    labels: <$type as Cell>::labels(),
                    doc: concat!($($doc),+).trim(),
                }
            },)+]
        }
    };
}

metrics! {
    /// Node id of the leader this node knows of, 0 when it knows none. All nodes should agree.
    raft_leader: Grouped<Gauge>;
    /// 1 when this node is the leader. The sum over the cluster should be 1.
    raft_is_leader: Grouped<Gauge>;
    /// Current Raft term. Rises with every election; more than one an hour is a reason to look at disks and network.
    raft_term: Grouped<Gauge>;
    /// Times this node saw the leader change.
    raft_leader_changes: Grouped<Counter>;
    /// Index of the last entry in this node's log.
    raft_last_log_index: Grouped<Gauge>;
    /// Index of the last entry this node knows to be committed.
    raft_committed_index: Grouped<Gauge>;
    /// Index of the last entry applied here. How far it is behind the committed index is the apply backlog.
    raft_applied_index: Grouped<Gauge>;
    /// Index of the last entry that was removed from the log because a snapshot holds it.
    raft_purged_index: Grouped<Gauge>;
    /// Voters of the cluster, from the applied membership.
    raft_voters: Grouped<Gauge>;
    /// Commands proposed by this node that were applied.
    raft_proposals: Grouped<Counter>;
    /// Time from the proposal of a command on this node to its application on this node.
    raft_commit_seconds: Grouped<Latency>;
    /// Time to apply one batch of entries, with the write to the state's tables.
    raft_apply_seconds: Grouped<Latency>;
    /// Log entries that this node, as leader, held back for a moment because a node did not keep up with applying the
    /// log, or had much to apply at once, such as notifications for very many watchers. When it rises for minutes, one
    /// node is slower than the others or has much more to do, or clients ask for more than the nodes can apply.
    raft_held_back: Grouped<Counter>;
    /// Proposals that this node, as leader, did not put into the log because no replica could decode them. Always 0,
    /// unless a node is broken.
    proposals_refused: Counter;
    /// Entries and commands of the log that no replica can decode, passed over alike on all. Always 0, unless a leader
    /// was broken.
    log_skipped: Counter;
    /// Times that this node hashed its state, so that the nodes' states can be compared.
    state_hashes: Counter;
    /// Bytes of keys and rows that were hashed for it.
    state_hashed_bytes: Counter;
    /// Nodes whose state was found to differ from that of a majority. Above 0 the log names them, and the tables; they
    /// have stopped.
    state_differences: Counter;
    /// 1 while the nodes' states differ and no majority has the same one. The log names the tables.
    state_disputed: Gauge;
    /// Snapshots built here.
    raft_snapshots_built: Grouped<Counter>;
    /// Snapshots received from the leader and installed here.
    raft_snapshots_installed: Grouped<Counter>;
    /// Log entries written to this node's disk.
    log_entries: Counter;
    /// Bytes by which the log on this node's disk has grown, with what frames entries and fills sectors up.
    log_bytes: Counter;
    /// Time of one synced write of the log. Above the heartbeat interval the cluster gets slow, above the election
    /// time-out unstable.
    log_fsync_seconds: Latency;
    /// Calls of other nodes that were refused: of another cluster, format or machine, from another data directory, or
    /// such as the caller has no right to. The log names the callers.
    cluster_calls_refused: Counter;
    /// Connections between nodes, of both directions, that ended because one side did not prove which node it is.
    cluster_handshakes_failed: Counter;
    /// Connections to the cluster port that were closed at once, because there were too many.
    cluster_connections_turned_away: Counter;
    /// Connections between nodes that ended because trust was withdrawn, or newer ones of the same node came.
    cluster_connections_ended: Counter;
    /// Times that the files of this node's identity (`cluster.certificate` and so on) had changed and were used.
    cluster_identity_reloads: Counter;
    /// Times that they had changed and could not be used. The log says why; the former ones stay in use.
    cluster_identity_reload_failures: Counter;
    /// Seconds until `cluster.certificate` expires, 0 when it has, or when there is none. A week is time to act.
    cluster_certificate_expiry_seconds: Gauge;
    /// Open connections of clients.
    connections: Gauge;
    /// Connections accepted since the start.
    connections_opened: Counter;
    /// TLS handshakes of clients, by how they ended.
    tls_handshakes: By<TlsHandshake, Counter>;
    /// Times that changed files of certificates were read and used.
    certificates_loaded: Counter;
    /// Times that they could not be used: those that were read before stay in use, and the log says why.
    certificates_failed: Counter;
    /// Seconds until the first certificate of a file expires, negative when it has. A day is time to act.
    certificate_expiry_seconds: Expiries;
    /// Memory that is kept for clients, in bytes; `runtime.client_memory_bytes` bounds it.
    client_memory_bytes: Gauge;
    /// Connections that ended, by the reason that is also in the log.
    disconnects: By<DisconnectReason, Counter>;
    /// Log-ins, at CONNECT and later, of clients that did not prove who they are. The log has the reason of each.
    logins_refused: Counter;
    /// PUBLISH packets received from clients.
    messages_received: By<Qos, Counter>;
    /// PUBLISH packets sent to clients.
    messages_sent: By<Qos, Counter>;
    /// Bytes received from clients.
    bytes_received: Counter;
    /// Bytes sent to clients.
    bytes_sent: Counter;
    /// Messages that a subscriber should have got and did not, by the reason.
    messages_dropped: By<DropReason, Counter>;
    /// What clients, and callers of the HTTP port, have asked for and the rules do not let them do, by action.
    not_authorized: By<Action, Counter>;
    /// Messages handed to other nodes for their clients.
    messages_forwarded: Counter;
    /// PUBACKs and PUBRECs that were deferred because a subscriber reads slowly.
    acknowledgements_deferred: Counter;
    /// Times that a subscriber read so little that publishers stopped waiting for it; see `mqtt.outbox_stall_s`.
    subscribers_stalled: Counter;
    /// Subscriptions of the whole cluster in this node's index.
    subscriptions: Gauge;
    /// Sessions of the whole cluster.
    sessions: Gauge;
    /// Messages in the queues of sessions and of shared subscriptions, whole cluster; one in two queues counts twice.
    queued_messages: Gauge;
    /// Bytes of topic, payload and properties of the queued messages.
    queued_bytes: Gauge;
    /// Acknowledged messages that are still to go into queues, whole cluster: a message for many sessions and shared
    /// subscriptions goes into some of them at once and into the others while the cluster goes on. When it stays above
    /// 0, more is published to many than the cluster can store; with too many of them, further ones are refused (0x97).
    fan_outs: Gauge;
    /// Bytes of topic, payload and properties of these messages.
    fan_out_bytes: Gauge;
    /// Age of the oldest of them, seconds: so late are messages for many.
    fan_out_age_seconds: Gauge;
    /// Retained messages of the whole cluster; `mqtt.retained_max` bounds it.
    retained_messages: Gauge;
    /// State store commands answered by this node.
    store_commands: By<Verb, By<Outcome, Counter>>;
    /// Keys in the state store.
    store_keys: Gauge;
    /// Bytes of keys and values in the state store; `store.max_bytes` bounds it.
    store_bytes: Gauge;
    /// Keys watched in the whole cluster (KEYNOTIFY).
    store_watches: Gauge;
    /// Replies to writes that are remembered, in the whole cluster, for clients that ask again.
    store_remembered_replies: Gauge;
    /// Notifications sent to clients of this node.
    store_notifications: Counter;
    /// Identities of the hub, in the whole cluster.
    identities: By<IdentityKind, Gauge>;
    /// Bytes of tags, desired and reported properties as they are stored, of all twins of the cluster.
    twin_bytes: Gauge;
    /// Requests to the hub answered by this node.
    hub_requests: By<HubOperation, By<Outcome, Counter>>;
    /// Time from the arrival of such a request to its answer.
    hub_request_seconds: Latency;
    /// Twins that queries of this node have looked at. Many more than they answer: a condition names no device.
    hub_query_rows: Counter;
    /// CONNECTs of devices and modules that this node has refused, by the true reason, which the client is not told.
    hub_refused: By<HubRefusal, Counter>;
    /// Changes of desired properties that connected devices and modules of this node were to hear of.
    twin_notifications: By<TwinNotification, Counter>;
    /// Events of the life of clients that were recorded, by type. Each is counted on one node: add them up.
    events: By<EventKind, Counter>;
    /// Ends of connections that were recorded, by the reason that their event has.
    events_disconnected: By<DisconnectionReason, Counter>;
    /// Events that the outbox holds, whole cluster; `events.outbox_max_events` bounds it.
    events_outbox: Gauge;
    /// Bytes of events that the outbox holds; `events.outbox_max_bytes` bounds it.
    events_outbox_bytes: Gauge;
    /// Events that were dropped before everybody who asks for them had them. Above 0 an endpoint is down or too slow.
    events_dropped: By<EventDrop, Counter>;
    /// Events that are delivered apart from the others because they were refused, of all event subscriptions.
    events_parked: Gauge;
    /// Requests with events to endpoints, by how they have ended; only the leader makes them.
    event_deliveries: By<Delivery, Counter>;
    /// Time of such a request, from its beginning to the end of its answer.
    event_delivery_seconds: Latency;
    /// Age of the oldest event that some event subscription still waits for. Above a minute an endpoint is down or
    /// slow; after `events.ttl_min` the event is given up.
    event_lag_seconds: Gauge;
    /// Event subscriptions, by how they stand; those in another state than `active` need a look.
    event_subscriptions: By<Standing, Gauge>;
    /// Events that were given up, by the reason. Counted by the leader.
    events_dead_lettered: By<DeathReason, Counter>;
    /// Events that were given up and wait for an operator, of all event subscriptions.
    event_dead_letters: Gauge;
    /// Pairs of authentication name and client id whose connections are numbered; `events.sequences_max` bounds it.
    event_sequences: Gauge;
    /// Milliseconds between this node's wall clock and what a majority of the nodes' clocks agrees on, as the leader
    /// sees it. Above 5,000 the log names the node; its clock is not believed.
    clock_off_ms: Gauge;
    /// On the leader: nodes whose wall clock is off by more than five seconds.
    clocks_wrong: Gauge;
    /// 1 while this node's hub has other names, policies or bounds than the leader's; the log says so.
    hub_differs: Gauge;
    /// Bytes that may still be written to the volume of the data directory.
    disk_free_bytes: Gauge;
    /// 1 while less than the reserve is free on this node's disk; see `disk.reserve_percent`. `/readyz` is 503 then.
    disk_low: Gauge;
    /// 1 while this node refuses what would be stored, because its own disk or those of other voters are low.
    writes_refused_now: Gauge;
    /// Requests that were refused for that reason.
    writes_refused: Counter;
    /// Threads that have not come round for five seconds; the log names them, and what they were doing. Above 0 the
    /// process ends after `node.stuck_s`, unless they wait for the disk.
    threads_stuck: Gauge;
    /// Lines written to the audit log.
    audit_lines: Counter;
    /// Events that are not in the audit log: its disk is full or slow, or within a second clients caused more than a
    /// thousand refusals, or logged in more than five thousand times. Above 0 the audit log is not complete.
    audit_dropped: Counter;
    /// Entries in the bounded queues of this node; bytes for `peer_bytes`.
    queue_depth: By<Queue, Gauge>;
}

/// Metrics of the process, read when they are asked for.
fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for (name, help, value) in process_values() {
        let gauge = Gauge::default();
        gauge.set(value);
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge.write(&mut metric, &mut Labels::new())?;
    }
    Ok(())
}

/// Name, meaning and value of the process metrics; a value that cannot be read is zero.
fn process_values() -> [(&'static str, &'static str, u64); 2] {
    [
        (
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM, in bytes.",
            resident_bytes().unwrap_or_default(),
        ),
        (
            "process_open_fds",
            "Open file descriptors of the process.",
            open_descriptors().unwrap_or_default(),
        ),
    ]
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

fn open_descriptors() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    u64::try_from(entries.count()).ok()
}

impl Metrics {
    /// All metrics in the OpenMetrics text format.
    pub fn render(self: &Arc<Self>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(self)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing to a String does not fail");
        text
    }
}

/// Every metric, in the order of the reference page.
pub fn documented() -> Vec<Documented> {
    let process = process_values()
        .into_iter()
        .map(|(name, doc, _)| Documented {
            name: name.to_owned(),
            kind: "gauge",
            labels: Vec::new(),
            doc,
        });
    defined().into_iter().chain(process).collect()
}

/// The reference page.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Generated from `src/telemetry/metrics.rs`: `quorumq reference metrics > docs/metrics.md`. Do not edit by hand.\n\n\
         `GET /metrics` on `http.listen` answers in the OpenMetrics text format. Durations are seconds, sizes bytes.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in documented() {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            metric.name,
            metric.kind,
            metric.labels.join(", "),
            metric.doc
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_are_unique_and_documented() {
        let all = documented();
        let names: BTreeSet<_> = all.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(
            all.iter().all(|metric| metric.doc.ends_with('.')),
            "a meaning is a sentence"
        );
    }

    #[test]
    fn what_was_counted_is_rendered() {
        let metrics = Arc::new(Metrics::default());
        metrics.messages_received.of(Qos::AtLeastOnce).add(3);
        metrics
            .store_commands
            .of(Verb::Vdel)
            .of(Outcome::Refused)
            .increment();
        metrics.raft_term.set(7);
        metrics
            .raft_commit_seconds
            .observe(Duration::from_micros(250));
        metrics.raft_commit_seconds.observe(Duration::from_secs(60));
        let text = metrics.render();
        for line in [
            "quorumq_messages_received_total{qos=\"1\"} 3",
            "quorumq_store_commands_total{verb=\"vdel\",outcome=\"refused\"} 1",
            "quorumq_raft_term{group=\"0\"} 7",
            "quorumq_raft_commit_seconds_bucket{le=\"0.0002\",group=\"0\"} 0",
            "quorumq_raft_commit_seconds_bucket{le=\"0.0003\",group=\"0\"} 1",
            "quorumq_raft_commit_seconds_bucket{le=\"+Inf\",group=\"0\"} 2",
            "quorumq_raft_commit_seconds_count{group=\"0\"} 2",
            "# TYPE quorumq_messages_received counter",
            "# EOF",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        for metric in documented() {
            assert!(
                text.contains(&metric.name),
                "{} is not scraped",
                metric.name
            );
        }
    }

    #[test]
    fn the_reference_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/metrics.md is not current: quorumq reference metrics > docs/metrics.md"
        );
    }
}
