//! Contact with the leader: the question whether this node may go on serving.
//!
//! Invariant: a question counts only when four things hold. The leader has noted it as a sign of life; a majority has
//! confirmed after that that it leads; this node has applied everything that was committed by then, so it would know if
//! its incarnation had been ended; and this node knows log time: who serves judges by it what has expired.

use std::sync::Arc;

use super::hub::HubSettings;
use crate::base::ids::{LogIndex, NodeId};
use crate::base::proto::cluster::ContactRequest;
use crate::base::time::{Millis, wall_now};
use crate::raft::{Raft, ReadError};
use crate::replica::clock::Clock;
use crate::replica::proposer::Proposer;

/// Why a question was not confirmed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContactError {
    /// No leader is known.
    #[error("no leader is known")]
    NoLeader,
    /// The leader does not confirm: it can't, or it is declaring this node down.
    #[error("the leader does not confirm: {0}")]
    Unconfirmed(String),
    /// The leader does not take this node for a member.
    #[error("{0}")]
    Refused(String),
    /// Neither the leader nor this node knows log time yet.
    #[error("log time is not known yet")]
    NoLogTime,
    /// There was no answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

impl From<ReadError> for ContactError {
    fn from(error: ReadError) -> ContactError {
        match error {
            ReadError::NoLeader => ContactError::NoLeader,
            ReadError::Refused(_) => ContactError::Refused(error.to_string()),
            ReadError::Stopped => ContactError::Stopped,
            ReadError::Unconfirmed(_) | ReadError::Lagging => {
                ContactError::Unconfirmed(error.to_string())
            }
        }
    }
}

impl From<tonic::Status> for ContactError {
    fn from(status: tonic::Status) -> ContactError {
        let text = status.message().to_owned();
        match status.code() {
            tonic::Code::PermissionDenied => ContactError::Refused(text),
            _ => ContactError::Unconfirmed(text),
        }
    }
}

/// What a question needs.
#[derive(Clone)]
pub(super) struct Contact {
    pub(super) local: NodeId,
    pub(super) raft: Raft,
    pub(super) proposer: Arc<Proposer>,
    /// Wall clocks are compared, and log time is told, with each question.
    pub(super) clock: Arc<Clock>,
    /// Hubs are compared with each question.
    pub(super) hub: Arc<HubSettings>,
}

impl Contact {
    /// Asks. The read barrier beside it finds out whether the leader knows this replica, and its data directory.
    pub(super) async fn ask(&self) -> Result<(), ContactError> {
        self.clock.set_voters(self.raft.voters());
        let barrier = async { self.raft.read_barrier().await.map_err(ContactError::from) };
        let (index, _) = tokio::try_join!(self.ask_leader(), barrier)?;
        let mut applied = self.raft.applied();
        let reached = applied.wait_for(|applied| *applied >= index).await;
        reached.map(drop).map_err(|_| ContactError::Stopped)?;
        knows_log_time(&self.clock)
    }

    async fn ask_leader(&self) -> Result<LogIndex, ContactError> {
        let leader = self.raft.leadership().borrow().leader;
        let leader = leader.ok_or(ContactError::NoLeader)?;
        if leader == self.local {
            let leadership = *self.raft.leadership().borrow();
            if leadership.is_leader {
                self.clock.tick(leadership.term);
                self.hub.agrees();
            }
            // A leader declares itself down never; another one does, from its election on.
            return Ok(self.raft.confirm_leadership().await?);
        }
        let client = self.raft.contact_client(leader);
        let mut client = client.ok_or(ContactError::NoLeader)?;
        let request = ContactRequest {
            node: self.local.0,
            incarnation: self.proposer.incarnation().0,
            wall_ms: wall_now().0,
            log_ms: self.clock.live().map(|log_time| log_time.0),
        };
        let mut leadership = self.raft.leadership();
        // A paused leader neither answers nor closes: once another one leads, that one is asked instead.
        tokio::select! {
            answer = client.contact(request) => {
                let answer = answer?.into_inner();
                let log_time = answer.log_ms.map(Millis);
                self.clock.follow(answer.term, log_time, answer.wall_ahead_ms);
                self.clock.told_wall(answer.wall_ms.map(Millis));
                self.hub.compare(answer.hub_digest);
                Ok(LogIndex(answer.index))
            }
            _ = leadership.wait_for(|now| now.leader != Some(leader)) => {
                Err(ContactError::Unconfirmed("the leader has changed".to_owned()))
            }
        }
    }
}

/// What was applied is no log time: the last entry may be a day old.
fn knows_log_time(clock: &Clock) -> Result<(), ContactError> {
    clock.live().map(drop).ok_or(ContactError::NoLogTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_told_no_log_time_does_not_serve() {
        let clock = Clock::new(NodeId(2));
        let counts = || knows_log_time(&clock).is_ok();
        clock.observe(Millis(wall_now().0 - 86_400_000));
        // A leader that does not know it yet answers, too.
        clock.follow(1, None, None);
        assert!(!counts(), "an expired token would pass");
        clock.follow(1, Some(wall_now()), None);
        assert!(counts());
    }
}
