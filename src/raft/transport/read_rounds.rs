//! Linearizable reads on every replica, by ReadIndex, shared by all readers that wait.
//!
//! One round is under way at a time: it asks the leader (this replica, or by a call to the one that leads) for an index
//! that a majority has confirmed.
//!
//! Invariant: a reader never shares the round that was under way when it came, because that one may have been confirmed
//! before. Readers that come meanwhile share the next one. See `docs/spec/replication.md`, ReadIndex.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::channels::ChannelPool;
use crate::base::ids::{GroupId, LogIndex};
use crate::base::proto::raft as pb;
use crate::raft::core::read::{ReadIndexError, read_index};
use crate::raft::core::state_machine::CoreRaft;
use crate::raft::metrics::Metrics;
use crate::raft::types::ReadError;

/// Readers that may wait for a round.
const QUEUE: usize = 16 * 1024;
/// Pause before a round that failed is tried again.
const PAUSE: Duration = Duration::from_millis(10);

type Answer = oneshot::Sender<Result<u64, ReadError>>;

/// Handle of the task that runs the rounds.
#[derive(Clone)]
pub struct ReadRounds {
    asks: mpsc::Sender<Answer>,
    applied: watch::Receiver<LogIndex>,
    timeout: Duration,
}

/// What the rounds need.
pub struct Rounds {
    pub core: CoreRaft,
    pub group: GroupId,
    pub channels: Arc<ChannelPool>,
    pub metrics: Arc<Metrics>,
    /// How long a reader waits through an election before it is refused.
    pub timeout: Duration,
}

impl ReadRounds {
    /// Starts the task. `applied` tells how far this replica is.
    pub fn start(rounds: Rounds, applied: watch::Receiver<LogIndex>) -> ReadRounds {
        let (asks, queue) = mpsc::channel(QUEUE);
        let timeout = rounds.timeout;
        tokio::spawn(rounds.run(queue));
        ReadRounds {
            asks,
            applied,
            timeout,
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
        match tokio::time::timeout(self.timeout, reached).await {
            Ok(Ok(_)) => Ok(LogIndex(index)),
            Ok(Err(_)) => Err(ReadError::Stopped),
            Err(_) => Err(ReadError::Lagging),
        }
    }
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
        let deadline = Instant::now() + self.timeout;
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
        let leader = match read_index(&self.core).await {
            Ok(index) => return Ok(index),
            Err(ReadIndexError::NotLeader(leader)) => leader,
            Err(ReadIndexError::Failed(error)) => return Err(error),
        };
        let (node, info) = leader.ok_or(ReadError::NoLeader)?;
        let client = self.channels.raft(node, &info);
        let mut client = client.map_err(|error| ReadError::Unconfirmed(error.to_string()))?;
        let mut request = tonic::Request::new(pb::ReadIndexRequest {
            group: self.group.0,
        });
        request.set_timeout(self.timeout);
        // A paused leader neither answers nor closes: once another one leads, it is asked instead.
        tokio::select! {
            reply = client.read_index(request) => match reply {
                Ok(reply) => Ok(reply.into_inner().index),
                Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                    Err(ReadError::Refused(status.message().to_owned()))
                }
                Err(status) => Err(ReadError::Unconfirmed(status.message().to_owned())),
            },
            () = self.leads_no_more(node) => {
                Err(ReadError::Unconfirmed("the leader has changed".to_owned()))
            }
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
