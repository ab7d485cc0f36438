//! What a deliverer needs of the replica: rows, the proof that this node leads, and the log.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prost::Message as _;
use tokio::sync::watch;

use crate::base::proto::command;
use crate::base::time::Millis;
use crate::machine::tables::Backing;
use crate::raft::Raft;
use crate::replica::clock::Clock;
use crate::replica::sequencer::Sequencer;

/// How long an account may take to be applied, before rows are looked at again.
const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// The replica, as a deliverer sees it while this node leads.
pub(crate) trait Leader: Send + Sync + 'static {
    /// The rows.
    fn backing(&self) -> Arc<dyn Backing>;

    /// Whether a majority confirms that this node leads. The rows are up to date then.
    fn confirm(&self) -> BoxFuture<'_, bool>;

    /// Proposes a command of the leader's own, and waits until it is applied. `false`: it is not, or that is not known.
    fn account(&self, command: command::command::Kind) -> BoxFuture<'_, bool>;

    /// Log time as it goes on.
    fn log_time(&self) -> Millis;

    /// Wall time as a majority of the nodes has it: endpoints judge signatures by theirs.
    fn wall_time(&self) -> Millis;

    /// Tells that rows of events have changed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// This node's replica in one term in which it leads.
pub(crate) struct Term {
    /// The term.
    pub(crate) term: u64,
    /// The replica.
    pub(crate) raft: Raft,
    /// The leader proposes straight to its own log: an account that is not committed ends with its leadership.
    pub(crate) sequencer: Sequencer,
    /// For log time.
    pub(crate) clock: Arc<Clock>,
    /// Changes of rows of events.
    pub(crate) changes: watch::Receiver<u64>,
}

impl Term {
    /// Waits until this node has applied an index. `false`: it does not lead this term any more.
    async fn applied(&self, index: crate::base::ids::LogIndex) -> bool {
        let mut applied = self.raft.applied();
        let mut leadership = self.raft.leadership();
        tokio::select! {
            reached = applied.wait_for(|applied| *applied >= index) => reached.is_ok(),
            _ = leadership.wait_for(|now| !now.is_leader || now.term != self.term) => false,
        }
    }

    fn leads(&self) -> bool {
        let leadership = *self.raft.leadership().borrow();
        leadership.is_leader && leadership.term == self.term
    }
}

impl Leader for Term {
    fn backing(&self) -> Arc<dyn Backing> {
        self.raft.backing()
    }

    fn confirm(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            if !self.leads() {
                return false;
            }
            match self.raft.confirm_leadership().await {
                Ok(index) => self.applied(index).await && self.leads(),
                Err(_) => false,
            }
        })
    }

    fn account(&self, command: command::command::Kind) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let command = command::Command {
                kind: Some(command),
            };
            let command = command.encode_length_delimited_to_vec();
            let appended = self.sequencer.submit_own(self.term, command.into()).await;
            let done = async {
                let is_appended = appended.await.is_ok();
                is_appended && self.applied(self.raft.last_index()).await
            };
            let done = tokio::time::timeout(ACCOUNT_TIMEOUT, done).await;
            done.unwrap_or(false)
        })
    }

    fn log_time(&self) -> Millis {
        self.clock.now()
    }

    fn wall_time(&self) -> Millis {
        self.clock.wall()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }
}
