//! Forwards this node's proposals to the leader: straight into the sequencer when this node leads, over one ordered
//! gRPC stream otherwise.
//!
//! Invariant: proposals leave in the order of their sequence. Whenever the leader changes or the stream breaks,
//! everything that is not applied yet is sent again, beginning with the oldest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::base::ids::NodeId;
use crate::base::proto::cluster::ProposeRequest;
use crate::raft::{Leadership, Raft};
use crate::replica::proposer::{Cursor, Proposer};
use crate::replica::sequencer::Sequencer;

/// How often the leader is told how far this node has applied the log, so that it holds back for one that does not keep
/// up (see [`super::progress`]).
const HEARTBEAT: Duration = Duration::from_millis(100);

/// How often it is told that while the node applies something.
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

    fn resend_if_overdue(&self, overdue: &mut Overdue) {
        if overdue.is_due(self.proposer.oldest(), Instant::now()) {
            self.proposer.resend();
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
                _ = heartbeat.tick() => self.resend_if_overdue(&mut overdue),
            }
        }
    }

    /// How far this node is, without a proposal.
    fn progress(&self) -> ProposeRequest {
        ProposeRequest {
            node: self.local.0,
            incarnation: self.proposer.incarnation().0,
            applied: self.raft.applied().borrow().0,
            ..ProposeRequest::default()
        }
    }

    /// Sends proposals to `leader` until the leadership changes or the stream ends.
    async fn stream_to(&mut self, leader: NodeId) {
        let Some(mut client) = self.raft.proposal_client(leader) else {
            return;
        };
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
        let call = client.propose(ReceiverStream::new(receiver));
        tokio::pin!(call);
        let mut cursor = Cursor::default();
        let mut overdue = Overdue::new(Instant::now());
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        let mut applied = self.raft.applied();
        let mut told = Instant::now();
        loop {
            while let Ok(permit) = sender.try_reserve()
                && let Some(proposal) = self.proposer.next(&mut cursor)
            {
                permit.send(ProposeRequest {
                    node: self.local.0,
                    incarnation: proposal.incarnation.0,
                    sequence: proposal.sequence,
                    commands: proposal.commands,
                    applied: applied.borrow().0,
                    weight: proposal.weight,
                });
                told = Instant::now();
            }
            tokio::select! {
                biased;
                _ = self.leadership.changed() => {
                    self.leadership.mark_changed();
                    return;
                }
                ended = &mut call => {
                    if let Err(status) = ended {
                        tracing::debug!(leader = leader.0, %status, "the stream of proposals ended");
                    }
                    return;
                }
                () = self.proposer.changed() => {}
                _ = heartbeat.tick() => {
                    // What has not even left yet needs no copy.
                    if sender.capacity() == STREAM_QUEUE {
                        self.resend_if_overdue(&mut overdue);
                    }
                    let _ = sender.try_send(self.progress());
                    told = Instant::now();
                }
                Ok(()) = applied.changed() => {
                    if told.elapsed() >= TOLD_EVERY {
                        let _ = sender.try_send(self.progress());
                        told = Instant::now();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
