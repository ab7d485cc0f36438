//! The replica's state for people and probes, put together from what Raft publishes.

use openraft::{Instant, RaftMetrics, ServerState};

use super::type_config::{LogId, TypeConfig};
use crate::base::ids::{LogIndex, NodeId};
use crate::raft::types::{ReplicaStatus, Role, Status};

fn index(id: &Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index)
}

/// The highest index that the replica knows to be committed.
fn committed(metrics: &RaftMetrics<TypeConfig>) -> LogIndex {
    LogIndex(index(&metrics.local_committed).max(index(&metrics.cluster_committed)))
}

/// The highest index that the replica knows to be committed and has in its log.
pub fn local_committed(metrics: &RaftMetrics<TypeConfig>) -> LogIndex {
    LogIndex(index(&metrics.local_committed))
}

/// How far the log is committed, and how much of that each node's log has, as the leader knows it.
pub fn committed_logs(metrics: &RaftMetrics<TypeConfig>) -> (LogIndex, Vec<(NodeId, LogIndex)>) {
    let all = committed(metrics);
    let logs = metrics.replication.iter().flatten();
    let logs = logs.filter_map(|(node, matched)| {
        let matched = matched.as_ref()?;
        Some((NodeId(*node), all.min(LogIndex(matched.index))))
    });
    (all, logs.collect())
}

fn milliseconds(elapsed: std::time::Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// The status at this moment. `applied` is what is written, which may be ahead of what Raft has been told.
pub fn status(
    metrics: &RaftMetrics<TypeConfig>,
    applied: LogIndex,
    directory_mismatch: Option<String>,
    other_versions: Vec<(String, String)>,
) -> Status {
    let last_log = metrics.last_log_index.unwrap_or_default();
    let membership = metrics.membership_config.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    let members = membership.nodes().map(|(id, node)| {
        let progress = metrics.replication.as_ref().and_then(|all| all.get(id));
        let matched = if *id == metrics.id && metrics.replication.is_some() {
            Some(last_log)
        } else {
            progress.map(index)
        };
        let heard = metrics
            .heartbeat
            .as_ref()
            .and_then(|all| all.get(id).copied());
        ReplicaStatus {
            node: *id,
            address: node.address.clone(),
            data_directory: node.directory.clone(),
            role: if voters.contains(id) {
                Role::Voter
            } else {
                Role::Learner
            },
            matched,
            lag: matched.map(|matched| last_log.saturating_sub(matched)),
            silent_ms: heard.flatten().map(|at| milliseconds(at.elapsed())),
        }
    });
    Status {
        node: metrics.id,
        term: metrics.current_term,
        leader: metrics.current_leader,
        state: match metrics.state {
            ServerState::Leader => "leader",
            ServerState::Follower => "follower",
            ServerState::Candidate => "candidate",
            ServerState::Learner => "learner",
            _ => "shutdown",
        },
        last_log,
        committed: committed(metrics).0,
        applied: applied.0,
        snapshot: metrics.snapshot.map(|id| id.index),
        purged: metrics.purged.map(|id| id.index),
        members: members.collect(),
        joint: membership.get_joint_config().len() > 1,
        majority_ms: metrics
            .last_quorum_acked
            .map(|at| milliseconds(at.elapsed())),
        directory_mismatch,
        other_versions,
        stopped: metrics
            .running_state
            .as_ref()
            .err()
            .map(ToString::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::log_id;
    use super::*;

    #[test]
    fn a_log_has_what_is_committed_and_has_reached_it() {
        let mut metrics = RaftMetrics::<TypeConfig>::new_initial(1);
        assert_eq!(committed_logs(&metrics), (LogIndex(0), Vec::new()));
        metrics.cluster_committed = Some(log_id(2, 7));
        let matched = [(1, Some(9)), (2, Some(5)), (3, None)];
        let matched = matched.map(|(node, index)| (node, index.map(|index| log_id(2, index))));
        metrics.replication = Some(matched.into());
        // Nothing is known of the third one.
        let logs = [(NodeId(1), LogIndex(7)), (NodeId(2), LogIndex(5))];
        assert_eq!(committed_logs(&metrics), (LogIndex(7), logs.to_vec()));
    }
}
