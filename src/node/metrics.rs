//! Copies what the layers count on their own into the node's metrics.

use std::sync::Arc;
use std::time::Duration;

use crate::mqtt::broker::Broker;
use crate::raft::Raft;
use crate::telemetry::labels::Queue;

/// How old a gauge may be.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs until the node stops.
pub async fn run(broker: Arc<Broker>, raft: Raft) {
    let metrics = &broker.metrics;
    let mut leader = None;
    loop {
        let status = raft.status();
        let leadership = *raft.leadership().borrow();
        metrics.raft_leader.set(status.leader.unwrap_or(0));
        metrics.raft_is_leader.set(u64::from(leadership.is_leader));
        metrics.raft_term.set(status.term);
        if status.leader.is_some() && status.leader != leader {
            metrics.raft_leader_changes.add(u64::from(leader.is_some()));
            leader = status.leader;
        }
        metrics.raft_last_log_index.set(status.last_log);
        metrics.raft_committed_index.set(status.committed);
        metrics.raft_applied_index.set(status.applied);
        metrics.raft_purged_index.set(status.purged.unwrap_or(0));
        metrics.raft_voters.set(status.members.len() as u64);
        let (sessions, subscriptions) = broker.router.subscriptions().counts();
        metrics.sessions.set(sessions as u64);
        metrics.subscriptions.set(subscriptions as u64);
        let (keys, bytes) = broker.view.store_usage();
        metrics.store_keys.set(keys);
        metrics.store_bytes.set(bytes);
        metrics
            .queue_depth
            .of(Queue::Proposals)
            .set(broker.proposer.backlog_bytes() as u64);
        metrics
            .queue_depth
            .of(Queue::Unapplied)
            .set(status.apply_lag());
        tokio::time::sleep(INTERVAL).await;
    }
}
