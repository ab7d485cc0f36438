//! Changes of members and leader: made by the leader, and passed on to it by whichever node is asked.
//!
//! Invariant: changes of the membership are made one at a time. Two at once could leave a joint configuration.
//! Invariant: a node id belongs to one data directory for as long as it is a member.
//! Invariant: who was removed is added again only when an operator asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::RaftError;
use tokio::sync::watch;

use super::call::{self, Asked, CHANGE_TIMEOUT};
use super::transfer::LeadershipTransfer;
use crate::base::ids::{GroupId, LogIndex, NodeId};
use crate::base::proto::raft::{self as pb, change_request::Change};
use crate::raft::core::removed::Removed;
use crate::raft::core::roster::Roster;
use crate::raft::core::state_machine::CoreRaft;
use crate::raft::core::type_config::{NodeInfo, TypeConfig};
use crate::raft::transport::channels::ChannelPool;
use crate::raft::types::{ChangeError, NotLeader};

/// Between two attempts to write a change while this leader takes none.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Longest pause in the progress of a node that catches up.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(120);
/// Entries a learner may be behind to become a voter: what a busy cluster writes in a few milliseconds.
const CAUGHT_UP: u64 = 100;
/// How often its progress is looked at.
const CATCH_UP_INTERVAL: Duration = Duration::from_millis(20);

/// Makes changes, or passes them on.
pub struct Changes {
    group: GroupId,
    core: CoreRaft,
    roster: Roster,
    channels: Arc<ChannelPool>,
    transfer: LeadershipTransfer,
    removed: Removed,
    applied: watch::Receiver<LogIndex>,
    /// Held while the membership changes.
    changing: tokio::sync::Mutex<()>,
}

impl Changes {
    /// For the replica `core` of `group`.
    pub fn new(
        group: GroupId,
        core: CoreRaft,
        roster: Roster,
        channels: Arc<ChannelPool>,
        transfer: LeadershipTransfer,
        removed: Removed,
        applied: watch::Receiver<LogIndex>,
    ) -> Arc<Changes> {
        Arc::new(Changes {
            group,
            core,
            roster,
            channels,
            transfer,
            removed,
            applied,
            changing: tokio::sync::Mutex::new(()),
        })
    }

    /// Makes a change here, or has the leader make it unless it was passed on already. Returns the node that the change
    /// was about, or that leads now.
    pub async fn change(&self, change: Change, asked: Asked) -> Result<u64, ChangeError> {
        let Some((leader, info)) = self.roster.leader() else {
            return Err(ChangeError::NotLeader(NotLeader { leader: None }));
        };
        if leader != self.own() {
            if asked.forwarded {
                return Err(ChangeError::NotLeader(NotLeader {
                    leader: Some(NodeId(leader)),
                }));
            }
            return self.pass_on(leader, &info, change, asked).await;
        }
        match change {
            Change::Join(node) => self.add(node, asked).await,
            // The node that is to leave hands over first: the others then need not wait for an election time-out.
            Change::Remove(node) if node == leader && self.roster.voters().len() > 1 => {
                let new_leader = self.transfer.run(None).await?;
                let unknown = || ChangeError::UnknownNode(NodeId(new_leader));
                let info = self.roster.node(new_leader).ok_or_else(unknown)?;
                self.pass_on(new_leader, &info, change, asked).await
            }
            Change::Remove(node) => self.remove(node).await,
            Change::Transfer(to) => self.transfer.run((to != 0).then_some(to)).await,
        }
    }

    /// Hands leadership to the most up-to-date voter, if this replica leads.
    pub async fn hand_over(&self) -> Result<u64, ChangeError> {
        self.transfer.run(None).await
    }

    /// Whether this replica takes itself for the leader.
    fn leads(&self) -> bool {
        let leader = self.roster.leader();
        leader.is_some_and(|(leader, _)| leader == self.own())
    }

    fn own(&self) -> u64 {
        self.channels.identity().node.0
    }

    async fn pass_on(
        &self,
        leader: u64,
        info: &NodeInfo,
        change: Change,
        asked: Asked,
    ) -> Result<u64, ChangeError> {
        let client = self.channels.raft(leader, info);
        let client = client.map_err(|error| ChangeError::Failed(error.to_string()))?;
        call::ask(client, self.group, change, asked.passed_on()).await
    }

    /// Commits a change of the membership; voters that are removed become learners if `retain`.
    async fn write(
        &self,
        change: ChangeMembers<u64, NodeInfo>,
        retain: bool,
    ) -> Result<(), ChangeError> {
        // A leader that was made just now takes changes once its first entry is committed; until then it names nobody.
        let changed = async {
            loop {
                match self.core.change_membership(change.clone(), retain).await {
                    Err(error) if self.leads() && error.forward_to_leader().is_some() => {
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                    other => return other,
                }
            }
        };
        match tokio::time::timeout(CHANGE_TIMEOUT, changed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(change_error(error)),
            Err(_) => Err(ChangeError::Failed("it took too long".to_owned())),
        }
    }

    /// Adds a learner, waits until it has caught up, and makes it a voter. Other changes may be made while it catches
    /// up, which takes as long as its disk and network need.
    async fn add(&self, node: pb::Node, asked: Asked) -> Result<u64, ChangeError> {
        let info = NodeInfo {
            address: node.address,
            directory: node.directory,
        };
        self.add_learner(node.id, info, asked).await?;
        if self.roster.voters().contains(&node.id) {
            return Ok(node.id);
        }
        self.caught_up(node.id).await?;
        let _one_at_a_time = self.changing.lock().await;
        let voter = BTreeSet::from([node.id]);
        self.write(ChangeMembers::AddVoterIds(voter), false).await?;
        Ok(node.id)
    }

    /// Makes `id` a member at that address; a voter stays one.
    async fn add_learner(&self, id: u64, info: NodeInfo, asked: Asked) -> Result<(), ChangeError> {
        let is_barred = || self.removed.contains(id) && !asked.by_operator;
        // Judged once more below; who is barred already does not have others wait.
        if self.roster.node(id).is_none() && is_barred() {
            return Err(ChangeError::Removed(NodeId(id)));
        }
        let _one_at_a_time = self.changing.lock().await;
        match self.roster.node(id) {
            Some(known) if !known.directory.is_empty() && known.directory != info.directory => {
                Err(ChangeError::OtherDataDirectory {
                    node: NodeId(id),
                    known: known.directory,
                })
            }
            Some(known) if known == info => Ok(()),
            Some(_) => {
                let nodes = BTreeMap::from([(id, info)]);
                self.write(ChangeMembers::SetNodes(nodes), false).await
            }
            None => {
                self.membership_applied().await?;
                if is_barred() {
                    return Err(ChangeError::Removed(NodeId(id)));
                }
                let nodes = BTreeMap::from([(id, info)]);
                self.write(ChangeMembers::AddNodes(nodes), false).await
            }
        }
    }

    /// Returns once the membership in force is applied: who was removed by it is known then.
    async fn membership_applied(&self) -> Result<(), ChangeError> {
        let wanted = self.roster.membership_id().map_or(0, |id| id.index);
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|applied| applied.0 >= wanted);
        match tokio::time::timeout(CHANGE_TIMEOUT, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ChangeError::Stopped),
            Err(_) => Err(ChangeError::Failed(
                "the last change is not committed".to_owned(),
            )),
        }
    }

    /// Returns once the log of learner `id` nearly reaches this leader's.
    async fn caught_up(&self, id: u64) -> Result<(), ChangeError> {
        let mut progress = (None, Instant::now());
        loop {
            let (matched, last) = self.progress(id)?;
            if matched.is_some_and(|matched| last.saturating_sub(matched) <= CAUGHT_UP) {
                return Ok(());
            }
            if matched != progress.0 {
                progress = (matched, Instant::now());
            } else if progress.1.elapsed() > CATCH_UP_TIMEOUT {
                return Err(ChangeError::Failed(format!(
                    "node {id} makes no progress; it stays a learner"
                )));
            }
            tokio::time::sleep(CATCH_UP_INTERVAL).await;
        }
    }

    /// The last index known to be durable on `id`, and the last one of this leader's log.
    fn progress(&self, id: u64) -> Result<(Option<u64>, u64), ChangeError> {
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.membership_config.get_node(&id).is_none() {
            return Err(ChangeError::Failed(format!(
                "node {id} was removed while it caught up"
            )));
        }
        let Some(replication) = &metrics.replication else {
            return Err(ChangeError::Failed(format!(
                "the leader changed while node {id} caught up; ask again"
            )));
        };
        let matched = replication.get(&id).copied().flatten();
        let last = metrics.last_log_index.unwrap_or(0);
        Ok((matched.map(|id| id.index), last))
    }

    async fn remove(&self, node: u64) -> Result<u64, ChangeError> {
        let _one_at_a_time = self.changing.lock().await;
        if self.roster.node(node).is_none() {
            return Err(ChangeError::UnknownNode(NodeId(node)));
        }
        let voters = self.roster.voters();
        let gone = BTreeSet::from([node]);
        if voters.contains(&node) {
            if voters.len() == 1 {
                return Err(ChangeError::LastVoter(NodeId(node)));
            }
            // A learner first, so that the node, if it is alive, learns that it campaigns no more.
            let change = ChangeMembers::RemoveVoters(gone.clone());
            self.write(change, true).await?;
        }
        self.write(ChangeMembers::RemoveNodes(gone), false).await?;
        Ok(node)
    }
}

/// The library's refusal of a change.
pub fn change_error<E>(error: RaftError<TypeConfig, E>) -> ChangeError
where
    E: std::fmt::Display + std::fmt::Debug,
{
    ChangeError::Failed(match error {
        RaftError::APIError(error) => error.to_string(),
        RaftError::Fatal(fatal) => fatal.to_string(),
    })
}
