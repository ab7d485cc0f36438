//! Copies into the node's metrics what other rooms count on their own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::connection::broker::Broker;
use crate::forward::outbox::Outboxes;
use crate::raft::Raft;
use crate::raft::metrics::Histogram;
use crate::telemetry::cells::Latency;
use crate::telemetry::labels::{IdentityKind, Queue};
use crate::telemetry::metrics::Metrics;

/// How often values are copied.
const INTERVAL: Duration = Duration::from_millis(500);

/// Copies new observations of a histogram, each at the upper bound of the bucket that it was counted in.
#[derive(Default)]
struct CopiedHistogram {
    seen: Vec<u64>,
}

impl CopiedHistogram {
    fn copy(&mut self, from: &Histogram, to: &Latency) {
        let mut longest = 0;
        for (index, (bound, count)) in from.buckets().enumerate() {
            if self.seen.len() <= index {
                self.seen.push(0);
            }
            longest = if bound == u64::MAX { longest } else { bound };
            let new = count.saturating_sub(std::mem::replace(&mut self.seen[index], count));
            if new > 0 {
                to.observe_many(Duration::from_micros(longest), new);
            }
        }
    }
}

/// What was copied so far.
#[derive(Default)]
struct Copied {
    leader: Option<u64>,
    fsync: CopiedHistogram,
    apply: CopiedHistogram,
    log_bytes: u64,
    log_entries: u64,
    snapshots_built: u64,
    snapshots_installed: u64,
    calls_refused: u64,
    handshakes_failed: u64,
    turned_away: u64,
    ended: u64,
    reloads: u64,
    reloads_failed: u64,
}

/// How much a counter has grown since `seen`. Sets `seen` to its present value.
fn growth(now: u64, seen: &mut u64) -> u64 {
    now.saturating_sub(std::mem::replace(seen, now))
}

/// Runs until the node stops.
pub(super) async fn run(broker: Arc<Broker>, outboxes: Arc<Outboxes>, raft: Raft) {
    let mut copied = Copied::default();
    loop {
        copied.raft(&raft, &broker.metrics);
        copied.peers(&raft, &broker.metrics);
        node(&broker, &outboxes, &broker.metrics);
        tokio::time::sleep(INTERVAL).await;
    }
}

impl Copied {
    fn raft(&mut self, raft: &Raft, metrics: &Metrics) {
        let status = raft.status();
        metrics.raft_leader.set(status.leader.unwrap_or(0));
        metrics
            .raft_is_leader
            .set(u64::from(raft.leadership().borrow().is_leader));
        metrics.raft_term.set(status.term);
        if status.leader.is_some() && status.leader != self.leader {
            metrics
                .raft_leader_changes
                .add(u64::from(self.leader.is_some()));
            self.leader = status.leader;
        }
        metrics.raft_last_log_index.set(status.last_log);
        metrics.raft_committed_index.set(status.committed);
        metrics.raft_applied_index.set(status.applied);
        metrics.raft_purged_index.set(status.purged.unwrap_or(0));
        metrics.raft_voters.set(status.members.len() as u64);
        metrics.queue_depth.of(Queue::Apply).set(status.apply_lag());
        let counted = raft.metrics();
        self.apply
            .copy(&counted.apply_us, &metrics.raft_apply_seconds);
        self.fsync
            .copy(&counted.log.fsync_us, &metrics.log_fsync_seconds);
        let bytes = counted.log.append_bytes.load(Relaxed);
        metrics.log_bytes.add(growth(bytes, &mut self.log_bytes));
        let entries = counted.log.append_entries.sum();
        metrics
            .log_entries
            .add(growth(entries, &mut self.log_entries));
        let built = counted.snapshots_built.load(Relaxed);
        metrics
            .raft_snapshots_built
            .add(growth(built, &mut self.snapshots_built));
        let installed = counted.snapshots_installed.load(Relaxed);
        metrics
            .raft_snapshots_installed
            .add(growth(installed, &mut self.snapshots_installed));
    }
}

impl Copied {
    /// Connections between nodes.
    fn peers(&mut self, raft: &Raft, metrics: &Metrics) {
        let trust = raft.trust();
        let counted = trust.counters();
        let refused = raft.metrics().peers_refused.load(Relaxed);
        metrics
            .cluster_calls_refused
            .add(growth(refused, &mut self.calls_refused));
        for (counter, from, seen) in [
            (
                &metrics.cluster_handshakes_failed,
                &counted.handshakes_failed,
                &mut self.handshakes_failed,
            ),
            (
                &metrics.cluster_connections_turned_away,
                &counted.turned_away,
                &mut self.turned_away,
            ),
            (
                &metrics.cluster_connections_ended,
                &counted.ended,
                &mut self.ended,
            ),
            (
                &metrics.cluster_identity_reloads,
                &counted.reloads,
                &mut self.reloads,
            ),
            (
                &metrics.cluster_identity_reload_failures,
                &counted.reloads_failed,
                &mut self.reloads_failed,
            ),
        ] {
            counter.add(growth(from.load(Relaxed), seen));
        }
        metrics
            .cluster_certificate_expiry_seconds
            .set(trust.valid_for_s().unwrap_or(0));
    }
}

fn node(broker: &Broker, outboxes: &Outboxes, metrics: &Metrics) {
    let (sessions, subscriptions) = broker.services.router.subscriptions().counts();
    let settings = &broker.settings;
    let memory = settings.outbox.memory.used() + settings.handshake_memory.used();
    metrics.client_memory_bytes.set(memory as u64);
    metrics.sessions.set(sessions as u64);
    metrics.subscriptions.set(subscriptions as u64);
    let events = broker.services.view.event_usage();
    metrics.events_outbox.set(events.events);
    metrics.events_outbox_bytes.set(events.bytes);
    metrics.events_parked.set(events.parked);
    metrics.event_dead_letters.set(events.dead_letters);
    metrics.event_sequences.set(events.sequences);
    let queues = broker.services.view.queue_usage();
    metrics.queued_messages.set(queues.messages);
    metrics.queued_bytes.set(queues.bytes);
    metrics.retained_messages.set(queues.retained);
    let fan_outs = broker.services.view.fan_outs();
    metrics.fan_outs.set(fan_outs.messages);
    metrics.fan_out_bytes.set(fan_outs.bytes);
    let now = broker.services.clock.now();
    let age_ms = fan_outs.oldest.map_or(0, |oldest| now.since(oldest));
    metrics.fan_out_age_seconds.set(age_ms / 1_000);
    let usage = broker.services.view.store_usage();
    metrics.store_keys.set(usage.keys);
    metrics.store_bytes.set(usage.bytes);
    metrics.store_watches.set(broker.services.view.watches());
    let replies = broker.services.view.remembered_replies();
    metrics.store_remembered_replies.set(replies);
    let (devices, modules) = broker.services.view.identities();
    metrics.identities.of(IdentityKind::Device).set(devices);
    metrics.identities.of(IdentityKind::Module).set(modules);
    metrics.twin_bytes.set(broker.services.view.twin_bytes());
    let proposer = broker.services.proposer.depth();
    metrics
        .queue_depth
        .of(Queue::Proposals)
        .set(proposer.queued as u64);
    metrics
        .queue_depth
        .of(Queue::Unapplied)
        .set(proposer.in_flight as u64);
    metrics
        .queue_depth
        .of(Queue::Reads)
        .set(broker.services.reader.depth() as u64);
    metrics
        .queue_depth
        .of(Queue::Peers)
        .set(outboxes.depth_bytes() as u64);
}
