//! The leader's side of proposing: stamps what all nodes propose with its time, and appends it to the log.
//!
//! Everything that waits when the previous batch has been appended becomes one log entry. When a timer is due and
//! nothing is proposed, an empty batch moves the log time on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::{Notify, mpsc};

use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::command;
use crate::base::time::Millis;
use crate::raft::Raft;
use crate::replica::clock::Clock;
use crate::replica::proposer::SequencedProposal;

/// How long a tick is given to be applied before another one is proposed.
const TICK_AGAIN: Duration = Duration::from_millis(100);

/// How long an entry waits for those before it to be committed.
const COMMIT_PATIENCE: Duration = Duration::from_millis(50);

/// When the earliest timer of the machine is due; written by apply.
#[derive(Debug)]
pub struct Due {
    deadline_ms: AtomicU64,
    changed: Notify,
}

impl Default for Due {
    fn default() -> Self {
        Due {
            deadline_ms: AtomicU64::new(u64::MAX),
            changed: Notify::new(),
        }
    }
}

impl Due {
    /// Publishes the machine's earliest deadline.
    pub fn set(&self, deadline: Millis) {
        if self.deadline_ms.swap(deadline.0, Ordering::AcqRel) != deadline.0 {
            self.changed.notify_one();
        }
    }

    fn get(&self) -> u64 {
        self.deadline_ms.load(Ordering::Acquire)
    }
}

/// Where proposals for this node's log go in; they are dropped while it does not lead, and their nodes send them again.
#[derive(Clone)]
pub struct Sequencer {
    sender: mpsc::Sender<(NodeId, SequencedProposal)>,
}

impl Sequencer {
    /// The handle, and the loop to be spawned.
    pub fn new(
        raft: Raft,
        due: Arc<Due>,
        clock: Arc<Clock>,
    ) -> (Sequencer, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(limits::SEQUENCER_QUEUE);
        (
            Sequencer { sender },
            Loop {
                receiver,
                raft,
                due,
                clock,
                bytes: 0,
                on_their_way: 0,
                unchecked: 0,
            }
            .run(),
        )
    }

    /// Hands a proposal in; waits while too many are waiting.
    pub async fn submit(&self, node: NodeId, proposal: SequencedProposal) {
        // The loop ends only with the node.
        let _ = self.sender.send((node, proposal)).await;
    }
}

struct Loop {
    receiver: mpsc::Receiver<(NodeId, SequencedProposal)>,
    raft: Raft,
    due: Arc<Due>,
    clock: Arc<Clock>,
    bytes: usize,
    /// Bytes appended since all was committed.
    on_their_way: usize,
    /// Entries appended since apply was last looked at.
    unchecked: u64,
}

impl Loop {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        let mut ticked_at: Option<tokio::time::Instant> = None;
        loop {
            let due = self.due.get();
            let tick = async {
                if due == u64::MAX {
                    return std::future::pending().await;
                }
                tokio::time::sleep(Duration::from_millis(
                    due.saturating_sub(self.clock.now().0),
                ))
                .await;
                if let Some(at) = ticked_at {
                    tokio::time::sleep_until(at + TICK_AGAIN).await;
                }
            };
            tokio::select! {
                biased;
                received = self.receiver.recv_many(&mut waiting, limits::SEQUENCER_QUEUE) => {
                    if received == 0 {
                        return;
                    }
                }
                () = self.due.changed.notified() => {
                    ticked_at = None;
                    continue;
                }
                () = tick => ticked_at = Some(tokio::time::Instant::now()),
            }
            self.wait_for_commit().await;
            while waiting.len() < limits::SEQUENCER_QUEUE
                && let Ok(more) = self.receiver.try_recv()
            {
                waiting.push(more);
            }
            self.append(&mut waiting).await;
        }
    }

    /// While much is on its way to a majority, what comes meanwhile shares one entry: an entry costs every node a sync,
    /// and messages to and from it, whatever its size.
    async fn wait_for_commit(&mut self) {
        if self.on_their_way < limits::PIPELINED_BYTES {
            return;
        }
        let last = self.raft.last_index();
        let mut committed = self.raft.committed();
        let all = committed.wait_for(|committed| *committed >= last);
        // A leader that hears no majority any more has more to do than to wait.
        let _ = tokio::time::timeout(COMMIT_PATIENCE, all).await;
        self.on_their_way = 0;
    }

    /// Appends what waits as one entry, or several when it is large.
    async fn append(&mut self, waiting: &mut Vec<(NodeId, SequencedProposal)>) {
        let mut proposals = Vec::with_capacity(waiting.len());
        for (node, proposal) in waiting.drain(..) {
            self.bytes += proposal.commands.len();
            proposals.push(command::Proposal {
                node: node.0,
                incarnation: proposal.incarnation.0,
                sequence: proposal.sequence,
                commands: proposal.commands,
            });
            if self.bytes >= limits::BATCH_BYTES {
                self.append_batch(std::mem::take(&mut proposals)).await;
            }
        }
        if !proposals.is_empty() || self.bytes == 0 {
            self.append_batch(proposals).await;
        }
    }

    async fn append_batch(&mut self, proposals: Vec<command::Proposal>) {
        self.on_their_way += self.bytes;
        self.bytes = 0;
        if !self.raft.leadership().borrow().is_leader {
            return;
        }
        self.wait_for_apply().await;
        let batch = command::Batch {
            stamp_ms: self.clock.now().0,
            proposals,
        };
        // Not the leader any more: the proposing nodes see the new one and send again.
        let _ = self.raft.propose(batch.encode_to_vec().into()).await;
    }

    /// Holds back while apply is too far behind what was appended.
    async fn wait_for_apply(&mut self) {
        self.unchecked += 1;
        if self.unchecked < limits::ENTRIES_AHEAD_OF_APPLY / 2 {
            return;
        }
        self.unchecked = 0;
        let mut applied = self.raft.applied();
        loop {
            let ahead = self
                .raft
                .status()
                .last_log
                .saturating_sub(applied.borrow_and_update().0);
            if ahead < limits::ENTRIES_AHEAD_OF_APPLY / 2
                || !self.raft.leadership().borrow().is_leader
            {
                return;
            }
            if tokio::time::timeout(Duration::from_millis(50), applied.changed())
                .await
                .is_ok_and(|ended| ended.is_err())
            {
                return;
            }
        }
    }
}
