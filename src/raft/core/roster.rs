//! The membership in force, and the leader, as Raft publishes them.

use std::collections::BTreeSet;

use openraft::async_runtime::WatchReceiver;

use super::state_machine::CoreRaft;
use super::type_config::{LogId, NodeInfo};
use crate::base::ids::NodeId;

/// A view of the membership. Clones show the same one.
#[derive(Clone)]
pub struct Roster {
    core: CoreRaft,
}

impl Roster {
    /// The membership that `core` has in force at the moment of each call.
    pub fn new(core: CoreRaft) -> Roster {
        Roster { core }
    }

    /// Address and data directory of `node`, when it is a member.
    pub fn node(&self, node: u64) -> Option<NodeInfo> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&node).cloned()
    }

    /// Whether `node` is a member.
    pub fn contains(&self, node: u64) -> bool {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&node).is_some()
    }

    /// Whether a node is a member, or there is none yet. It does not keep the replica from ending.
    pub fn admits(&self) -> impl Fn(NodeId) -> bool + Send + Sync + 'static {
        let metrics = self.core.server_metrics();
        move |node| {
            let metrics = metrics.borrow_watched();
            let membership = metrics.membership_config.membership();
            membership.get_node(&node.0).is_some() || membership.nodes().next().is_none()
        }
    }

    /// The entry that put the membership in force.
    pub fn membership_id(&self) -> Option<LogId> {
        let metrics = self.core.server_metrics();
        *metrics.borrow_watched().membership_config.log_id()
    }

    /// The data directory that `node` is known with, when it is a member and that is known.
    pub fn directory_of(&self, node: u64) -> Option<String> {
        let directory = self.node(node)?.directory;
        (!directory.is_empty()).then_some(directory)
    }

    /// Whether `node` votes. Asked for each message of a leader, so it allocates nothing.
    pub fn is_voter(&self, node: u64) -> bool {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        let configs = metrics.membership_config.membership().get_joint_config();
        configs.iter().any(|voters| voters.contains(&node))
    }

    /// Whether there is a voter at all: this node is or was a member of a cluster.
    pub fn has_voters(&self) -> bool {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        let configs = metrics.membership_config.membership().get_joint_config();
        configs.iter().any(|voters| !voters.is_empty())
    }

    /// Whether `node` votes, and nobody else does.
    pub fn is_only_voter(&self, node: u64) -> bool {
        let voters = self.voters();
        voters.len() == 1 && voters.contains(&node)
    }

    /// The highest term that this node has seen.
    pub fn term(&self) -> u64 {
        self.core
            .server_metrics()
            .borrow_watched()
            .vote
            .leader_id
            .term
    }

    /// The voters.
    pub fn voters(&self) -> BTreeSet<u64> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.voter_ids().collect()
    }

    /// The leader, when one is known that is a member.
    pub fn leader(&self) -> Option<(u64, NodeInfo)> {
        let leader = self.core.server_metrics().borrow_watched().current_leader?;
        Some((leader, self.node(leader)?))
    }
}
