//! Forwards this node's proposals to the leader: straight into the sequencer when this node leads, over one ordered
//! gRPC stream otherwise.
//!
//! Invariant: proposals leave in the order of their sequence. Whenever the leader changes or the stream breaks,
//! everything that is not applied yet is sent again, beginning with the oldest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::base::ids::NodeId;
use crate::base::proto::cluster::ProposeRequest;
use crate::raft::{Leadership, Raft};
use crate::replica::proposer::{Cursor, Proposer};
use crate::replica::sequencer::Sequencer;

/// How often the leader gets a sign of life.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A proposal that is not applied after this time is sent again; the machine skips the copy.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Before a failed stream is opened again.
const RETRY: Duration = Duration::from_millis(50);

/// Proposals that may wait in one stream.
const STREAM_QUEUE: usize = 16;

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

    fn resend_if_overdue(&self) {
        let oldest = self.proposer.oldest();
        if oldest.is_some_and(|since| since.elapsed() > APPLY_TIMEOUT) {
            self.proposer.resend();
        }
    }

    /// Submits proposals to this node's sequencer until the leadership changes.
    async fn submit_all(&mut self) {
        let mut cursor = Cursor::default();
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
                _ = heartbeat.tick() => self.resend_if_overdue(),
            }
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
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        loop {
            while let Ok(permit) = sender.try_reserve()
                && let Some(proposal) = self.proposer.next(&mut cursor)
            {
                permit.send(ProposeRequest {
                    node: self.local.0,
                    incarnation: proposal.incarnation.0,
                    sequence: proposal.sequence,
                    commands: proposal.commands,
                });
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
                    self.resend_if_overdue();
                    let incarnation = self.proposer.incarnation().0;
                    let _ = sender.try_send(ProposeRequest {
                        node: self.local.0,
                        incarnation,
                        sequence: 0,
                        commands: bytes::Bytes::new(),
                    });
                }
            }
        }
    }
}
