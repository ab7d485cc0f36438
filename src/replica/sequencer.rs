//! The leader's side of proposing: collects the proposals of all nodes into batches, stamps each with its time, and
//! appends it to the log.
//!
//! Everything that waits when the previous batch has been appended becomes one log entry. When a timer is due and
//! nothing is proposed, an empty batch moves log time on. When more is due than one batch does, further empty batches
//! follow, and between them is time: the leader does not see at once how far the others' apply is behind its own, and
//! what their clients wait for stands behind those batches. When it sees that one of them does not keep up
//! ([`Progress`]), it holds back: empty batches wait for that node, and others come some at a time.
//!
//! Invariant: the proposals of a node are appended in the order in which they were submitted. A follower drops them;
//! their nodes send them again to the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::base::ids::{CLUSTER, Incarnation, LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::command;
use crate::base::time::Millis;
use crate::raft::Raft;
use crate::replica::admission;
use crate::replica::clock::Clock;
use crate::replica::progress::{Committed, Progress, Reached};
use crate::replica::proposer::SequencedProposal;
use crate::telemetry::metrics::Metrics;

/// How long an empty batch is given to be applied before another one is proposed.
const TICK_TIMEOUT: Duration = Duration::from_millis(100);

/// How much time there is from one empty batch to the next, in times of what this one took: a replica whose apply is a
/// third as fast as the leader's keeps up. What messages wait for is not held back by it.
const TICK_SPACING: u32 = 3;

/// How long a timer is due before an empty batch is proposed although commands wait: under a load that does not end,
/// batches with commands might never come to what is due.
const OVERDUE_MS: u64 = 1_000;

/// How long an entry waits for those before it to be committed, and handed over to apply.
const COMMIT_TIMEOUT: Duration = Duration::from_millis(50);

/// How long what waits is held back for a node whose apply does not keep up: what comes meanwhile shares its entry, and
/// what a batch may do. Commands of the leader itself are not held back, unless they come together with others.
const HELD_BACK: Duration = Duration::from_millis(50);

/// The same for an empty batch, unless much is due: nobody's command waits for that.
const TICK_HELD_BACK: Duration = Duration::from_secs(1);

/// How often a leader that waits for apply looks whether it still leads.
const APPLY_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How often a leader that does not know log time yet looks again.
const STAMP_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// When the earliest timer of the machine is due; written by apply.
#[derive(Debug)]
pub struct Due {
    /// Log time, `u64::MAX` when there is no timer.
    deadline_ms: AtomicU64,
    /// Whether something is due that messages wait for.
    is_pressing: AtomicBool,
    changed: Notify,
}

impl Default for Due {
    fn default() -> Self {
        Due {
            deadline_ms: AtomicU64::new(u64::MAX),
            is_pressing: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }
}

impl Due {
    /// Publishes the machine's earliest deadline, and whether something is due that messages wait for.
    pub fn set(&self, deadline: Millis, is_pressing: bool) {
        let was_pressing = self.is_pressing.swap(is_pressing, Ordering::AcqRel);
        let was_due = self.deadline_ms.swap(deadline.0, Ordering::AcqRel);
        if (was_due, was_pressing) != (deadline.0, is_pressing) {
            self.changed.notify_one();
        }
    }

    fn get(&self) -> u64 {
        self.deadline_ms.load(Ordering::Acquire)
    }

    fn is_pressing(&self) -> bool {
        self.is_pressing.load(Ordering::Acquire)
    }
}

/// What waits to be appended.
enum Waiting {
    /// A proposal of a node.
    Proposed(NodeId, SequencedProposal),
    /// A command of the leader itself.
    Own {
        /// The term in which it was decided; it is dropped in another one.
        term: u64,
        command: Bytes,
        /// Told that term when the command is appended; dropped with the command.
        appended: oneshot::Sender<u64>,
    },
}

/// The handle of the sequencer.
#[derive(Clone)]
pub struct Sequencer {
    sender: mpsc::Sender<Waiting>,
    progress: Arc<Progress>,
}

impl Sequencer {
    /// The handle, and the loop that is to be spawned, of the node `own`.
    pub fn new(
        own: NodeId,
        raft: Raft,
        due: Arc<Due>,
        clock: Arc<Clock>,
        metrics: Arc<Metrics>,
    ) -> (Sequencer, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(limits::SEQUENCER_QUEUE);
        let progress = Arc::<Progress>::default();
        (
            Sequencer {
                sender,
                progress: progress.clone(),
            },
            Loop {
                receiver,
                progress,
                committed: Committed::new(own),
                raft,
                due,
                clock,
                metrics,
                bytes: 0,
                uncommitted_bytes: 0,
                unchecked: 0,
            }
            .run(),
        )
    }

    /// Submits a proposal of `node`. Waits while too many are waiting.
    pub async fn submit(&self, node: NodeId, proposal: SequencedProposal) {
        // Sending fails only when the node stops, because the loop runs as long as the node.
        let _ = self.sender.send(Waiting::Proposed(node, proposal)).await;
    }

    /// Another node says how far it is.
    pub fn heard(&self, node: NodeId, reached: Reached) {
        self.progress.heard(node, reached, Instant::now());
    }

    /// Submits a command of the leader itself, which was decided in `term` and is not appended in another one. The
    /// answer is that term, once the command is appended: as long as the term lasts, the command may yet take effect.
    /// There is none when the command was dropped.
    pub async fn submit_own(&self, term: u64, command: Bytes) -> oneshot::Receiver<u64> {
        let (appended, answer) = oneshot::channel();
        let own = Waiting::Own {
            term,
            command,
            appended,
        };
        let _ = self.sender.send(own).await;
        answer
    }
}

/// A batch that was appended because a timer was due.
#[derive(Clone, Copy)]
struct Tick {
    index: LogIndex,
    at: Instant,
    /// When the next one may follow; known when this one is applied.
    next: Option<Instant>,
}

impl Tick {
    fn of(index: LogIndex) -> Tick {
        Tick {
            index,
            at: Instant::now(),
            next: None,
        }
    }

    /// Notes when the next one may follow, if this one is applied, or has had its time for that.
    fn note(&mut self, applied: LogIndex) {
        let took = self.at.elapsed().min(TICK_TIMEOUT);
        if self.next.is_none() && (applied >= self.index || took == TICK_TIMEOUT) {
            self.next = Some(self.at + took * TICK_SPACING);
        }
    }

    /// Waits until this one is applied; when that takes too long, no more.
    async fn wait_applied(&mut self, applied: &mut watch::Receiver<LogIndex>) {
        if self.next.is_none() {
            let is_applied = applied.wait_for(|applied| *applied >= self.index);
            let _ = tokio::time::timeout_at(self.at + TICK_TIMEOUT, is_applied).await;
            self.note(LogIndex(u64::MAX));
        }
    }
}

/// Whether another empty batch may follow now.
fn is_next(ticked: &mut Option<Tick>, applied: LogIndex) -> bool {
    ticked.as_mut().is_none_or(|ticked| {
        ticked.note(applied);
        ticked.next.is_some_and(|next| next <= Instant::now())
    })
}

struct Loop {
    receiver: mpsc::Receiver<Waiting>,
    /// How far the nodes have applied the log, and how far it was committed when.
    progress: Arc<Progress>,
    committed: Committed,
    raft: Raft,
    due: Arc<Due>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    /// Bytes of commands in the batch that is being collected.
    bytes: usize,
    /// Bytes of commands appended since everything was committed.
    uncommitted_bytes: usize,
    /// Entries appended since the progress of apply was checked.
    unchecked: u64,
}

impl Loop {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        let mut applied = self.raft.applied();
        let mut leadership = self.raft.leadership();
        let mut ticked: Option<Tick> = None;
        loop {
            let due = self.due.get();
            let is_leader = leadership.borrow_and_update().is_leader;
            self.note_term();
            if is_leader && self.is_overdue(due) && is_next(&mut ticked, *applied.borrow()) {
                self.append(&mut waiting).await;
                ticked = Some(Tick::of(self.raft.last_index()));
            }
            let tick = async {
                // What a node that does not lead would append is dropped, and the timer stays due.
                if due == u64::MAX || !is_leader {
                    return std::future::pending().await;
                }
                // One at a time: apply may leave timers due.
                if let Some(ticked) = &mut ticked {
                    ticked.wait_applied(&mut applied).await;
                }
                let left = due.saturating_sub(self.clock.now().0);
                tokio::time::sleep(Duration::from_millis(left)).await;
                if let Some(next) = ticked.and_then(|ticked| ticked.next)
                    && !self.due.is_pressing()
                {
                    tokio::time::sleep_until(next).await;
                }
                let most = match self.due.is_pressing() {
                    true => HELD_BACK,
                    false => TICK_HELD_BACK,
                };
                let last = || self.raft.last_committed();
                let (progress, committed) = (&self.progress, &mut self.committed);
                progress.wait(committed, last, &mut applied, most).await;
            };
            let mut is_tick = false;
            tokio::select! {
                biased;
                received = self.receiver.recv_many(&mut waiting, limits::SEQUENCER_QUEUE) => {
                    if received == 0 {
                        return;
                    }
                }
                () = self.due.changed.notified() => continue,
                Ok(()) = leadership.changed() => continue,
                () = tick => is_tick = true,
            }
            self.wait_for_commit().await;
            self.hold_back(&waiting).await;
            while waiting.len() < limits::SEQUENCER_QUEUE
                && let Ok(more) = self.receiver.try_recv()
            {
                waiting.push(more);
            }
            self.append(&mut waiting).await;
            if is_tick {
                ticked = Some(Tick::of(self.raft.last_index()));
            }
        }
    }

    /// What was noted of the log in another term counts no more.
    fn note_term(&mut self) {
        let leadership = *self.raft.leadership().borrow();
        if leadership.is_leader {
            self.committed.set_term(leadership.term);
        }
    }

    /// Whether a timer has been due for so long that it gets a batch of its own beside whatever is proposed.
    fn is_overdue(&self, due: u64) -> bool {
        due != u64::MAX && due.saturating_add(OVERDUE_MS) < self.clock.now().0
    }

    /// Waits until what was appended, if that is much, is committed and handed over to apply: what comes meanwhile
    /// shares one entry. An entry costs every node a sync, and messages to and from it, whatever its size.
    async fn wait_for_commit(&mut self) {
        if self.uncommitted_bytes < limits::PIPELINED_BYTES {
            return;
        }
        let last = self.raft.last_index();
        let mut committed = self.raft.committed();
        let all = committed.wait_for(|committed| *committed >= last);
        // The wait is bounded: a leader that has lost the majority must not stop here.
        let _ = tokio::time::timeout(COMMIT_TIMEOUT, all).await;
        self.uncommitted_bytes = 0;
    }

    /// Waits a moment for a node that does not keep up with applying the log, this one included, if clients' commands
    /// wait.
    async fn hold_back(&mut self, waiting: &[Waiting]) {
        let is_proposed = |waiting: &Waiting| matches!(waiting, Waiting::Proposed(..));
        if waiting.iter().any(is_proposed) && self.raft.leadership().borrow().is_leader {
            self.note_term();
            let last = || self.raft.last_committed();
            let (committed, applied) = (&mut self.committed, &mut self.raft.applied());
            let held_back = self.progress.wait(committed, last, applied, HELD_BACK);
            if held_back.await {
                self.metrics.raft_held_back.increment();
            }
        }
    }

    /// Appends what waits as one entry, or several when it is large.
    async fn append(&mut self, waiting: &mut Vec<Waiting>) {
        let mut proposals = Vec::with_capacity(waiting.len());
        let mut own = Vec::new();
        let is_tick = waiting.is_empty();
        self.note_term();
        for next in waiting.drain(..) {
            let (node, proposal) = match next {
                Waiting::Proposed(node, proposal) => (node, proposal),
                Waiting::Own {
                    term,
                    command,
                    appended,
                } => {
                    own.push((term, command, appended));
                    continue;
                }
            };
            self.bytes += proposal.commands.len();
            let weight = proposal.weight;
            let checked = admission::checked(node, proposal, &self.metrics);
            self.committed.collected(&checked, weight);
            proposals.push(checked);
            if self.bytes >= limits::BATCH_BYTES {
                self.append_batch(std::mem::take(&mut proposals), None)
                    .await;
            }
        }
        if !proposals.is_empty() || is_tick {
            self.append_batch(proposals, None).await;
        }
        for (term, command, appended) in own {
            self.append_own(term, command, appended).await;
        }
    }

    /// Appends a command of this leader as an entry of its own, if it still leads the term in which it was decided.
    async fn append_own(&mut self, term: u64, command: Bytes, appended: oneshot::Sender<u64>) {
        self.bytes += command.len();
        let proposal = command::Proposal {
            node: CLUSTER.0,
            incarnation: Incarnation::default().0,
            sequence: 0,
            commands: command,
            refused: false,
        };
        if self.append_batch(vec![proposal], Some(term)).await {
            let _ = appended.send(term);
        }
    }

    /// Appends one entry, and returns whether it did: in `term` only, if one is given.
    async fn append_batch(&mut self, proposals: Vec<command::Proposal>, term: Option<u64>) -> bool {
        self.uncommitted_bytes += self.bytes;
        self.bytes = 0;
        let leadership = *self.raft.leadership().borrow();
        if !leadership.is_leader || term.is_some_and(|term| term != leadership.term) {
            return false;
        }
        self.wait_for_apply().await;
        let Some(stamp) = self.stamp().await else {
            return false;
        };
        let batch = command::Batch {
            stamp_ms: stamp.0,
            proposals,
            term: leadership.term,
        };
        // Proposing fails when this node does not lead any more: the proposing nodes see the new leader and send again.
        let batch = batch.encode_to_vec().into();
        let proposed = match term {
            Some(term) => self.raft.propose_in(term, batch).await,
            None => self.raft.propose(batch).await,
        };
        let now = Instant::now();
        self.committed.note(self.raft.committed_logs(), now);
        self.committed.appended(self.raft.last_index(), now);
        proposed.is_ok()
    }

    /// What to stamp a batch with. A new leader that knows log time from nobody waits until it has heard enough clocks.
    /// `None` when this node does not lead any more.
    async fn stamp(&self) -> Option<Millis> {
        loop {
            let leadership = *self.raft.leadership().borrow();
            if !leadership.is_leader {
                return None;
            }
            if let Some(stamp) = self.clock.stamp(leadership.term) {
                return Some(stamp);
            }
            tokio::time::sleep(STAMP_CHECK_INTERVAL).await;
        }
    }

    /// Waits while apply is too far behind what was appended.
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
            if tokio::time::timeout(APPLY_CHECK_INTERVAL, applied.changed())
                .await
                .is_ok_and(|ended| ended.is_err())
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_empty_batch_follows_when_the_one_before_is_applied_and_after_a_while() {
        assert!(is_next(&mut None, LogIndex(0)), "the first one");
        let mut ticked = Some(Tick::of(LogIndex(5)));
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(!is_next(&mut ticked, LogIndex(4)), "it is not applied");
        assert!(!is_next(&mut ticked, LogIndex(5)), "it has just been");
        let tick = ticked.expect("it is there");
        let next = tick.next.expect("it is applied");
        assert!(next - tick.at >= Duration::from_millis(2) * TICK_SPACING);
        tokio::time::sleep_until(next).await;
        assert!(is_next(&mut ticked, LogIndex(5)));
    }

    #[tokio::test]
    async fn an_empty_batch_that_is_not_applied_stops_the_next_for_a_bounded_time() {
        let mut ticked = Tick::of(LogIndex(5));
        let (_applies, mut applied) = watch::channel(LogIndex(4));
        ticked.wait_applied(&mut applied).await;
        assert_eq!(ticked.next, Some(ticked.at + TICK_TIMEOUT * TICK_SPACING));
    }
}
