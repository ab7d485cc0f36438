//! Linearizable reads on every replica, by ReadIndex, shared by all readers that wait.
//!
//! One round is under way at a time: it asks the leader (this replica, or by a call to the one that leads) for
//! an index a majority has confirmed. Readers that come meanwhile share the next round, never the one under
//! way: it may have been confirmed before they came. Leases are not used; a suspended leader trusts its clock.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::metrics::Metrics;
use super::peers::Peers;
use super::type_config::{CoreRaft, NodeInfo};
use super::types::ReadError;
use crate::base::ids::{GroupId, LogIndex};
use crate::base::proto::raft as pb;

/// Readers that may wait for a round.
const QUEUE: usize = 16 * 1024;
/// Pause before a round that failed is tried again.
const PAUSE: Duration = Duration::from_millis(10);

type Answer = oneshot::Sender<Result<u64, ReadError>>;

/// Handle of the task that runs the rounds.
#[derive(Clone)]
pub(super) struct Reads {
    asks: mpsc::Sender<Answer>,
    applied: watch::Receiver<LogIndex>,
    patience: Duration,
}

impl Reads {
    /// `patience` is how long a reader waits through an election before it is told no.
    pub fn start(
        core: CoreRaft,
        group: GroupId,
        peers: Arc<Peers>,
        applied: watch::Receiver<LogIndex>,
        metrics: Arc<Metrics>,
        patience: Duration,
    ) -> Reads {
        let (asks, queue) = mpsc::channel(QUEUE);
        let rounds = Rounds {
            core,
            group,
            peers,
            metrics,
            patience,
        };
        tokio::spawn(rounds.run(queue));
        Reads {
            asks,
            applied,
            patience,
        }
    }

    /// Returns once this replica has applied everything acknowledged before the call.
    pub async fn barrier(&self) -> Result<LogIndex, ReadError> {
        let (answer, index) = oneshot::channel();
        self.asks
            .send(answer)
            .await
            .map_err(|_| ReadError::Stopped)?;
        let index = index.await.map_err(|_| ReadError::Stopped)??;
        if self.applied.borrow().0 >= index {
            return Ok(LogIndex(index));
        }
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|applied| applied.0 >= index);
        match tokio::time::timeout(self.patience, reached).await {
            Ok(Ok(_)) => Ok(LogIndex(index)),
            Ok(Err(_)) => Err(ReadError::Stopped),
            Err(_) => Err(ReadError::Lagging),
        }
    }
}

struct Rounds {
    core: CoreRaft,
    group: GroupId,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    patience: Duration,
}

impl Rounds {
    async fn run(self, mut queue: mpsc::Receiver<Answer>) {
        while let Some(first) = queue.recv().await {
            let mut waiting = vec![first];
            while let Ok(more) = queue.try_recv() {
                waiting.push(more);
            }
            self.metrics.read_rounds.fetch_add(1, Relaxed);
            self.metrics.reads.fetch_add(waiting.len() as u64, Relaxed);
            let answer = self.round().await;
            for reader in waiting {
                // A reader that gave up needs no answer.
                let _ = reader.send(answer.clone());
            }
            if matches!(answer, Err(ReadError::Stopped)) {
                return;
            }
        }
    }

    async fn round(&self) -> Result<u64, ReadError> {
        let deadline = Instant::now() + self.patience;
        loop {
            let error = match self.attempt().await {
                Ok(index) => return Ok(index),
                Err(error @ (ReadError::Stopped | ReadError::Refused(_))) => return Err(error),
                Err(error) => error,
            };
            if Instant::now() + PAUSE >= deadline {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn attempt(&self) -> Result<u64, ReadError> {
        let leader = match local(&self.core).await {
            Ok(index) => return Ok(index),
            Err(LocalError::Elsewhere(leader)) => leader,
            Err(LocalError::Failed(error)) => return Err(error),
        };
        let (node, info) = leader.ok_or(ReadError::NoLeader)?;
        let unconfirmed = |text: String| ReadError::Unconfirmed(text);
        let mut client = self.peers.main(node, &info).map_err(unconfirmed)?;
        let mut request = tonic::Request::new(pb::ReadIndexRequest {
            group: self.group.0,
        });
        request.set_timeout(self.patience);
        // A paused leader neither answers nor closes: once another one leads, it is asked instead.
        tokio::select! {
            reply = client.read_index(request) => match reply {
                Ok(reply) => Ok(reply.into_inner().index),
                Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                    Err(ReadError::Refused(status.message().to_owned()))
                }
                Err(status) => Err(unconfirmed(status.message().to_owned())),
            },
            () = self.leads_no_more(node) => Err(unconfirmed("the leader has changed".to_owned())),
        }
    }

    async fn leads_no_more(&self, node: u64) {
        let mut metrics = self.core.server_metrics();
        while metrics.borrow_watched().current_leader == Some(node) {
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Why this replica itself could not confirm a read.
pub(super) enum LocalError {
    /// Another one leads, when known.
    Elsewhere(Option<(u64, NodeInfo)>),
    Failed(ReadError),
}

/// An index confirmed by this replica as leader.
pub(super) async fn local(core: &CoreRaft) -> Result<u64, LocalError> {
    match core.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => Err(
            LocalError::Elsewhere(forward.leader_id.zip(forward.leader_node)),
        ),
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(missing))) => Err(
            LocalError::Failed(ReadError::Unconfirmed(missing.to_string())),
        ),
        Err(RaftError::Fatal(_)) => Err(LocalError::Failed(ReadError::Stopped)),
    }
}
