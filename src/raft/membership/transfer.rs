//! Handing over leadership (Raft thesis, section 3.10).

use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;

use crate::base::ids::NodeId;
use crate::raft::core::roster::Roster;
use crate::raft::core::state_machine::CoreRaft;
use crate::raft::types::{ChangeError, Leadership};

/// Longest wait for another node to lead after a transfer was asked for.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);

/// Hands over leadership of this replica.
pub struct LeadershipTransfer {
    own: NodeId,
    core: CoreRaft,
    roster: Roster,
    leadership: watch::Receiver<Leadership>,
    /// A node that was not heard of for longer is not a target.
    silence: Duration,
}

impl LeadershipTransfer {
    /// For node `own`. A node that was not heard of for `silence` is not chosen as target.
    pub fn new(
        own: NodeId,
        core: CoreRaft,
        roster: Roster,
        leadership: watch::Receiver<Leadership>,
        silence: Duration,
    ) -> LeadershipTransfer {
        LeadershipTransfer {
            own,
            core,
            roster,
            leadership,
            silence,
        }
    }

    /// Hands leadership to `to`, or to the most up-to-date voter when that is `None`, and returns who leads then.
    pub async fn run(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let own = self.own.0;
        let target = match to {
            Some(to) if to == own => return Ok(own),
            Some(to) if !self.roster.voters().contains(&to) => {
                return Err(ChangeError::UnknownNode(NodeId(to)));
            }
            Some(to) => to,
            None => {
                let nobody = || ChangeError::Failed("no other voter answers".to_owned());
                self.target().ok_or_else(nobody)?
            }
        };
        let mut leadership = self.leadership.clone();
        let asked = self.core.trigger().transfer_leader(target).await;
        asked.map_err(|_| ChangeError::Stopped)?;
        let other = leadership.wait_for(|now| now.leader.is_some_and(|leader| leader.0 != own));
        match tokio::time::timeout(TRANSFER_TIMEOUT, other).await {
            Ok(Ok(now)) => Ok(now.leader.map_or(target, |leader| leader.0)),
            Ok(Err(_)) => Err(ChangeError::Stopped),
            Err(_) => Err(ChangeError::Failed(format!(
                "node {target} did not take over"
            ))),
        }
    }

    /// The other voter whose log reaches furthest, of those that were heard from lately.
    fn target(&self) -> Option<u64> {
        let voters = self.roster.voters();
        let metrics = self.core.data_metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref()?;
        let heard = metrics.heartbeat.as_ref();
        let is_alive = |node: &u64| {
            let heard = heard.and_then(|all| all.get(node).copied().flatten());
            heard.is_some_and(|at| at.elapsed() < self.silence)
        };
        let others = matched
            .iter()
            .filter(|(node, _)| **node != self.own.0 && voters.contains(node) && is_alive(node));
        let furthest = others.max_by_key(|(_, matched)| matched.map(|id| id.index));
        furthest.map(|(node, _)| *node)
    }
}
