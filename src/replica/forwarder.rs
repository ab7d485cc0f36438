//! Forwards this node's proposals to the leader: straight into the sequencer when this node leads, over one ordered
//! gRPC stream otherwise.
//!
//! Invariant: proposals leave in the order of their sequence. Whenever the leader changes or the stream breaks,
//! everything that is not applied yet is sent again, beginning with the oldest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::base::ids::{LogIndex, NodeId};
use crate::base::proto::cluster::ProposeRequest;
use crate::raft::{Leadership, Raft};
use crate::replica::progress::Reached;
use crate::replica::proposer::{Cursor, Proposer};
use crate::replica::sequencer::Sequencer;

/// How often the leader is told how far this node has applied the log, so that it holds back for one that does not keep
/// up (see [`super::progress`]).
const HEARTBEAT: Duration = Duration::from_millis(100);

/// How soon it is told that again when the node has applied more.
const TOLD_EVERY: Duration = Duration::from_millis(20);

/// A proposal that is not applied after this time is sent again; the machine skips the copy. A cluster that is slow
/// because it has much to do must not get more to do by that, so each time that did not help doubles the wait.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest such wait.
const APPLY_TIMEOUT_MAX: Duration = Duration::from_secs(32);

/// Before a failed stream is opened again.
const RETRY: Duration = Duration::from_millis(50);

/// Proposals that may wait in one stream.
const STREAM_QUEUE: usize = 16;

/// When to send again what is not applied.
struct Overdue {
    /// Since when the oldest proposal is on its way.
    oldest: Option<Instant>,
    /// When it was sent last.
    sent: Instant,
    /// How long to wait after that.
    wait: Duration,
}

impl Overdue {
    /// Everything is sent now.
    fn new(now: Instant) -> Overdue {
        Overdue {
            oldest: None,
            sent: now,
            wait: APPLY_TIMEOUT,
        }
    }

    /// Whether to send again, now, what has been on its way since `oldest`. The answer "yes" counts as done.
    fn is_due(&mut self, oldest: Option<Instant>, now: Instant) -> bool {
        let Some(since) = oldest else {
            return false;
        };
        if self.oldest != oldest {
            // Something was applied.
            self.oldest = oldest;
            self.sent = self.sent.max(since);
            self.wait = APPLY_TIMEOUT;
        }
        if now.saturating_duration_since(self.sent) < self.wait {
            return false;
        }
        self.sent = now;
        self.wait = (self.wait * 2).min(APPLY_TIMEOUT_MAX);
        true
    }

    /// Has what is not applied be sent again when that is due.
    fn check(&mut self, proposer: &Proposer) {
        if self.is_due(proposer.oldest(), Instant::now()) {
            proposer.resend();
        }
    }
}

/// What the leader was told last of how far this node is.
#[derive(Clone, Copy)]
struct Told {
    reached: Reached,
    at: tokio::time::Instant,
}

impl Told {
    /// When to tell it that this node has `applied` so much; `None` while it knows.
    fn is_due(self, applied: LogIndex) -> Option<tokio::time::Instant> {
        (applied != self.reached.applied).then(|| self.at + TOLD_EVERY)
    }
}

/// The forwarder of one node.
pub struct ProposalForwarder {
    /// This node.
    pub local: NodeId,
    /// What is to be sent.
    pub proposer: Arc<Proposer>,
    /// Where proposals go when this node leads.
    pub sequencer: Sequencer,
    /// The way to the leader.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
}

impl ProposalForwarder {
    /// Runs until the node stops.
    pub async fn run(mut self) {
        loop {
            let leadership = *self.leadership.borrow_and_update();
            match leadership.leader {
                Some(leader) if leader == self.local => {
                    if leadership.is_leader {
                        self.submit_all().await;
                    } else if self.leadership.changed().await.is_err() {
                        return;
                    }
                }
                Some(leader) => {
                    self.stream_to(leader).await;
                    tokio::select! {
                        changed = self.leadership.changed() => if changed.is_err() { return },
                        () = tokio::time::sleep(RETRY) => {}
                    }
                }
                None => {
                    if self.leadership.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Submits proposals to this node's sequencer until the leadership changes.
    async fn submit_all(&mut self) {
        let mut cursor = Cursor::default();
        let mut overdue = Overdue::new(Instant::now());
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        loop {
            while let Some(proposal) = self.proposer.next(&mut cursor) {
                self.sequencer.submit(self.local, proposal).await;
            }
            tokio::select! {
                biased;
                _ = self.leadership.changed() => {
                    self.leadership.mark_changed();
                    return;
                }
                () = self.proposer.changed() => {}
                _ = heartbeat.tick() => overdue.check(&self.proposer),
            }
        }
    }

    /// Sends proposals to `leader` until the leadership changes or the stream ends.
    async fn stream_to(&mut self, leader: NodeId) {
        let Some(mut client) = self.raft.proposal_client(leader) else {
            return;
        };
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
        let feed = Feed {
            local: self.local,
            proposer: &self.proposer,
            applied: self.raft.applied(),
            committed: &|| self.raft.last_committed(),
            sender,
        };
        tokio::select! {
            biased;
            _ = self.leadership.changed() => self.leadership.mark_changed(),
            ended = client.propose(ReceiverStream::new(receiver)) => {
                if let Err(status) = ended {
                    tracing::debug!(leader = leader.0, %status, "the stream of proposals ended");
                }
            }
            () = feed.run() => {}
        }
    }
}

/// What goes to the leader in one stream.
struct Feed<'a> {
    local: NodeId,
    proposer: &'a Proposer,
    applied: watch::Receiver<LogIndex>,
    /// See [`Reached::committed`].
    committed: &'a (dyn Fn() -> LogIndex + Sync),
    sender: mpsc::Sender<ProposeRequest>,
}

impl Feed<'_> {
    /// Sends proposals, and how far this node is, until it is dropped.
    async fn run(mut self) {
        let mut cursor = Cursor::default();
        let mut overdue = Overdue::new(Instant::now());
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        // Those that were missed tell nothing.
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut told = self.told();
        loop {
            while let Ok(permit) = self.sender.try_reserve()
                && let Some(proposal) = self.proposer.next(&mut cursor)
            {
                told = self.told();
                permit.send(ProposeRequest {
                    node: self.local.0,
                    incarnation: proposal.incarnation.0,
                    sequence: proposal.sequence,
                    commands: proposal.commands,
                    applied: told.reached.applied.0,
                    committed: told.reached.committed.0,
                    weight: proposal.weight,
                });
            }
            let due = told.is_due(*self.applied.borrow_and_update());
            let is_due = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.proposer.changed() => {}
                _ = heartbeat.tick() => {
                    // What has not even left yet needs no copy.
                    if self.has_left() {
                        overdue.check(self.proposer);
                    }
                    self.tell(&mut told);
                }
                // Behind what waits to leave it would come late.
                () = is_due => match self.has_left() {
                    true => self.tell(&mut told),
                    false => told.at = tokio::time::Instant::now(),
                },
                Ok(()) = self.applied.changed(), if due.is_none() => {}
            }
        }
    }

    /// Whether everything has left.
    fn has_left(&self) -> bool {
        self.sender.capacity() == STREAM_QUEUE
    }

    /// What is told now.
    fn told(&self) -> Told {
        Told {
            reached: Reached {
                applied: *self.applied.borrow(),
                committed: (self.committed)(),
            },
            at: tokio::time::Instant::now(),
        }
    }

    /// Tells, without a proposal, how far this node is, unless the stream is full.
    fn tell(&self, told: &mut Told) {
        let now = self.told();
        told.at = now.at;
        let sent = self.sender.try_send(ProposeRequest {
            node: self.local.0,
            incarnation: self.proposer.incarnation().0,
            applied: now.reached.applied.0,
            committed: now.reached.committed.0,
            ..ProposeRequest::default()
        });
        if sent.is_ok() {
            *told = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Incarnation;
    use crate::base::proto::command::Nothing;
    use crate::base::proto::command::command::Kind;
    use crate::replica::reply_to::ReplyTo;

    /// Runs a feed with a clock of its own, and what it sends beside it.
    async fn feed<F: Future<Output = ()>>(
        seen: impl FnOnce(Arc<Proposer>, watch::Sender<LogIndex>, mpsc::Receiver<ProposeRequest>) -> F,
    ) {
        tokio::time::pause();
        let proposer = Arc::new(Proposer::default());
        let (applies, applied) = watch::channel(LogIndex(1));
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
        let feed = Feed {
            local: NodeId(2),
            proposer: &proposer,
            applied,
            committed: &|| LogIndex(1_000),
            sender,
        };
        tokio::select! {
            () = feed.run() => unreachable!("it runs until it is dropped"),
            () = seen(proposer.clone(), applies, receiver) => {}
        }
    }

    /// Sequence and index of what comes next, if it comes in time.
    async fn next(
        receiver: &mut mpsc::Receiver<ProposeRequest>,
        most: Duration,
    ) -> Option<(u64, u64)> {
        let rounded = most + Duration::from_millis(2);
        let next = tokio::time::timeout(rounded, receiver.recv()).await.ok()?;
        next.map(|next| {
            let reached = Reached::told_in(&next);
            assert_eq!(reached.committed, LogIndex(1_000));
            (next.sequence, reached.applied.0)
        })
    }

    /// Whenever it changes, such as just after a proposal that told what was before.
    #[tokio::test]
    async fn what_is_applied_is_told_soon() {
        feed(async |proposer, applies, mut receiver| {
            let receiver = &mut receiver;
            assert_eq!(next(receiver, Duration::ZERO).await, Some((0, 1)));
            for index in 2..5 {
                applies.send_replace(LogIndex(index));
                assert_eq!(next(receiver, TOLD_EVERY).await, Some((0, index)));
            }
            tokio::time::sleep(TOLD_EVERY / 2).await;
            proposer.begin(Incarnation(7));
            assert_eq!(next(receiver, Duration::ZERO).await, Some((1, 4)));
            proposer.applied(Incarnation(7), 1);
            applies.send_replace(LogIndex(5));
            tokio::time::sleep(TOLD_EVERY / 2).await;
            applies.send_replace(LogIndex(6));
            assert_eq!(next(receiver, TOLD_EVERY / 2).await, Some((0, 6)), "once");
            assert_eq!(next(receiver, HEARTBEAT).await, Some((0, 6)), "a heartbeat");
            assert_eq!(next(receiver, HEARTBEAT / 2).await, None, "nothing new");
        })
        .await;
    }

    #[tokio::test]
    async fn what_waits_to_leave_is_not_made_more() {
        feed(async |_, applies, mut receiver| {
            for index in 1..=STREAM_QUEUE as u64 {
                applies.send_replace(LogIndex(index));
                tokio::time::sleep(TOLD_EVERY + Duration::from_millis(1)).await;
            }
            let mut told = Vec::new();
            while let Ok(next) = receiver.try_recv() {
                told.push(next.applied);
            }
            // The heartbeats.
            assert_eq!(told.len(), 4, "heartbeats: {told:?}");
            // What was held for that is told as soon as may be.
            let applied = STREAM_QUEUE as u64;
            assert_eq!(next(&mut receiver, TOLD_EVERY).await, Some((0, applied)));
        })
        .await;
    }

    /// It is told when there is room, and not a heartbeat later.
    #[tokio::test]
    async fn what_a_full_stream_refuses_is_not_told() {
        feed(async |_, applies, mut receiver| {
            let heartbeats = STREAM_QUEUE as u32;
            tokio::time::sleep(HEARTBEAT * heartbeats + TOLD_EVERY / 2).await;
            applies.send_replace(LogIndex(2));
            tokio::time::sleep(HEARTBEAT + TOLD_EVERY / 2).await;
            for _ in 0..heartbeats {
                let told = receiver.try_recv().expect("the stream is full");
                assert_eq!(told.applied, 1);
            }
            assert_eq!(next(&mut receiver, TOLD_EVERY).await, Some((0, 2)));
        })
        .await;
    }

    #[tokio::test]
    async fn a_proposal_tells_what_it_weighs() {
        feed(async |proposer, _applies, mut receiver| {
            proposer.begin(Incarnation(7));
            proposer.submit_always(Kind::Nothing(Nothing {}), ReplyTo::Nobody, 5);
            let weights = async {
                let mut weights = Vec::new();
                while weights.len() < 2 {
                    let next = receiver.recv().await.expect("the feed runs");
                    if next.sequence > 0 {
                        weights.push(next.weight);
                    }
                }
                weights
            };
            assert_eq!(weights.await, [0, 5]);
        })
        .await;
    }

    #[test]
    fn copies_of_a_proposal_that_is_not_applied_become_rarer() {
        let start = Instant::now();
        let mut overdue = Overdue::new(start);
        let mut times = |oldest, seconds: std::ops::Range<u64>| {
            let due = seconds.filter(|second| {
                overdue.is_due(oldest, start + Duration::from_millis(second * 1000 + 1))
            });
            due.collect::<Vec<u64>>()
        };
        assert_eq!(times(None, 0..10), [0; 0], "nothing is on its way");
        let oldest = Some(start + Duration::from_secs(10));
        assert_eq!(times(oldest, 10..120), [12, 16, 24, 40, 72, 104]);
        let newer = Some(start + Duration::from_secs(119));
        assert_eq!(times(newer, 120..130), [121, 125], "the first was applied");
    }
}
