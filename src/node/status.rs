//! The answers to probes, and the administration of the cluster.

use std::sync::Arc;

use super::identity::Identities;
use super::state_hash::StateComparison;
use super::watchdog::StuckThreads;
use crate::base::ids::NodeId;
use crate::base::proto::command::{self, command::Kind};
use crate::base::time::{Millis, wall_now};
use crate::config::Config;
use crate::connection::broker::Broker;
use crate::http::{
    Admin, AdminError, AdminFuture, Check, ClusterStatus, Gate, JoinRequest, LeaveRequest,
    MemberStatus, NotReady, Readiness, TransferRequest, VerifyAnswer,
};
use crate::machine;
use crate::machine::state_hash::{Verdict, verdict};
use crate::peers::Reach;
use crate::raft::{ChangeError, Peer, Raft, Role, Status};
use crate::replica::share::Share;

/// Entries a replica may be behind and still count as caught up.
const CAUGHT_UP: u64 = 1_000;

/// Answers probes and administration requests.
pub struct NodeStatus {
    /// For the cluster's name and id.
    pub config: Arc<Config>,
    /// The replica.
    pub raft: Raft,
    /// The node's connections.
    pub broker: Arc<Broker>,
    /// Users and bans.
    pub(super) identities: Arc<Identities>,
    /// The threads that do not come round.
    pub(super) stuck: StuckThreads,
    /// Who may ask.
    pub(super) gate: Arc<Gate>,
    /// Compares the nodes' states.
    pub(super) comparison: Arc<StateComparison>,
}

impl NodeStatus {
    /// The time: that of the log, which a majority of the nodes' clocks agrees on, or what this node's clock shows.
    pub(super) fn now(&self) -> Millis {
        let log_time = self.broker.services.clock.live();
        log_time.unwrap_or_else(wall_now)
    }

    fn clock_ahead_ms(&self, node: NodeId, leader: Option<u64>) -> Option<i64> {
        let services = &self.broker.services;
        let local = self.broker.settings.node;
        if leader == Some(local.0) {
            return services.clock.ahead_ms(node);
        }
        (node == local)
            .then(|| services.clock.own_ahead_ms())
            .flatten()
    }
}

impl Readiness for NodeStatus {
    fn stuck(&self) -> Vec<String> {
        self.stuck.lock().clone()
    }

    fn checks(&self) -> Vec<Check> {
        let status = self.raft.status();
        let state = &self.broker.state;
        let check = |holds: bool, why: NotReady| if holds { Ok(()) } else { Err(why) };
        let joined = status.member(NodeId(status.node)).is_some();
        let entries = status.apply_lag();
        let caught_up = entries <= CAUGHT_UP;
        vec![
            ("joined", check(joined, NotReady::NotJoined)),
            (
                "has_leader",
                check(status.leader.is_some(), NotReady::NoLeader),
            ),
            ("caught_up", check(caught_up, NotReady::Behind { entries })),
            ("serving", check(state.is_serving(), NotReady::NotServing)),
            ("disk", check(!state.is_disk_low(), NotReady::DiskLow)),
            (
                "not_draining",
                check(!state.is_draining(), NotReady::Draining),
            ),
        ]
    }
}

impl From<ChangeError> for AdminError {
    fn from(error: ChangeError) -> AdminError {
        let text = error.to_string();
        match error {
            ChangeError::NotLeader(_) => AdminError::NoLeader(text),
            ChangeError::UnknownNode(_) => AdminError::Invalid(text),
            ChangeError::Stopped => AdminError::Internal(text),
            _ => AdminError::Conflict(text),
        }
    }
}

/// What an operator must know, one text each.
fn problems(status: &Status, low_disks: &[NodeId], verdict: &Verdict) -> Vec<String> {
    let refused = status.other_versions.iter();
    let refused = refused.map(|(from, why)| format!("node {from} is refused: {why}"));
    let low_disks = low_disks.iter();
    let low_disks = low_disks.map(|node| format!("the disk of node {node} is nearly full"));
    let differ = verdict.odd.iter().map(|odd| odd.node);
    let differ = differ.map(|node| format!("the state of node {node} differs: it has stopped"));
    let disputed = (!verdict.disputed.is_empty())
        .then(|| "the nodes' states differ, and no majority has the same one".to_owned());
    let differ = differ.chain(disputed);
    refused.chain(low_disks).chain(differ).collect()
}

impl Admin for NodeStatus {
    fn status(&self) -> AdminFuture<'_, ClusterStatus> {
        let status = self.raft.status();
        let view = &self.broker.services.view;
        let round = view.hash_round();
        let verdict = round.map(|(_, round)| verdict(&round)).unwrap_or_default();
        let members = status
            .members
            .iter()
            .map(|member| MemberStatus {
                id: member.node,
                address: member.address.clone(),
                voter: member.role == Role::Voter,
                matched_index: member.matched,
                last_seen_ms: member.silent_ms,
                clock_ahead_ms: self.clock_ahead_ms(NodeId(member.node), status.leader),
            })
            .collect();
        let answer = ClusterStatus {
            name: self.config.cluster.name.as_str().to_owned(),
            cluster_id: self.config.cluster.identity().to_string(),
            node: status.node,
            leader: status.leader,
            term: status.term,
            last_log_index: status.last_log,
            committed_index: status.committed,
            applied_index: status.applied,
            members,
            machine_version: machine::VERSION,
            problems: problems(&status, &view.low_disks(), &verdict),
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn join(&self, request: JoinRequest) -> AdminFuture<'_, ()> {
        Box::pin(async move {
            Reach::of(&self.config)
                .check(&request.address)
                .await
                .map_err(|error| AdminError::Invalid(error.to_string()))?;
            let peer = Peer {
                node: NodeId(request.id),
                address: request.address,
            };
            // The task goes on when the caller does not wait any longer.
            let raft = self.raft.clone();
            let added = tokio::spawn(async move { raft.add(peer).await });
            added
                .await
                .map_err(|error| AdminError::Internal(error.to_string()))??;
            Ok(())
        })
    }

    fn leave(&self, request: LeaveRequest) -> AdminFuture<'_, ()> {
        Box::pin(async move { Ok(self.raft.remove(NodeId(request.id)).await?) })
    }

    fn transfer(&self, request: TransferRequest) -> AdminFuture<'_, u64> {
        Box::pin(async move { Ok(self.raft.transfer_leader(request.to.map(NodeId)).await?.0) })
    }

    fn catch_up_log_time(&self) -> AdminFuture<'_, u64> {
        let status = self.raft.status();
        let clock = &self.broker.services.clock;
        let moved = clock.catch_up(status.term).map_err(|error| {
            let leads = status.leader.filter(|leader| *leader != status.node);
            let hint = leads.map(|leader| format!(": node {leader} leads, ask it"));
            AdminError::Conflict(format!("{error}{}", hint.unwrap_or_default()))
        });
        Box::pin(async move {
            let moved = u64::try_from(moved?.as_millis()).unwrap_or(u64::MAX);
            // An entry that this leader stamps takes it to all replicas.
            let nothing = Kind::Nothing(command::Nothing {});
            let proposer = &self.broker.services.proposer;
            proposer.propose(Share::Administration, nothing).await?;
            if self.raft.status().term != status.term {
                let text = "the leader has changed meanwhile: ask again";
                return Err(AdminError::NoLeader(text.to_owned()));
            }
            tracing::warn!(
                moved_ms = moved,
                "log time moved forward to the nodes' wall clocks, as it was asked for"
            );
            Ok(moved)
        })
    }

    fn verify(&self) -> AdminFuture<'_, VerifyAnswer> {
        Box::pin(self.comparison.verify())
    }
}
