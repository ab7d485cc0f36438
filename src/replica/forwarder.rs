//! The way of this node's proposals to the leader: straight into the sequencer when this node leads, over one ordered
//! gRPC stream otherwise. Whenever the leader changes or the stream breaks, everything that is not applied is sent again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::base::ids::NodeId;
use crate::base::proto::cluster::ProposeRequest;
use crate::raft::Leadership;
use crate::replica::peers::Peers;
use crate::replica::proposer::{Cursor, Proposer};
use crate::replica::sequencer::Sequencer;

/// How often a node tells the leader that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// A proposal that is not applied after this long is sent again; the machine passes over the copy.
const STALLED: Duration = Duration::from_secs(2);

/// Before a failed stream is opened again.
const RETRY: Duration = Duration::from_millis(50);

/// The link of one node.
pub struct ProposalForwarder {
    /// This node.
    pub local: NodeId,
    /// What is to be sent.
    pub proposer: Arc<Proposer>,
    /// The log, when this node leads.
    pub sequencer: Sequencer,
    /// The way to other nodes.
    pub peers: Arc<Peers>,
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
                        self.feed_sequencer().await;
                    } else if self.leadership.changed().await.is_err() {
                        return;
                    }
                }
                Some(leader) => {
                    self.feed_stream(leader).await;
                    let again = tokio::time::sleep(RETRY);
                    tokio::select! {
                        changed = self.leadership.changed() => if changed.is_err() { return },
                        () = again => {}
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

    fn resend_if_stalled(&self) {
        if self
            .proposer
            .oldest()
            .is_some_and(|since| since.elapsed() > STALLED)
        {
            self.proposer.resend();
        }
    }

    /// Until the leadership changes.
    async fn feed_sequencer(&mut self) {
        let mut cursor = Cursor::default();
        let mut life = tokio::time::interval(SIGN_OF_LIFE);
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
                _ = life.tick() => self.resend_if_stalled(),
            }
        }
    }

    /// Until the leadership changes or the stream ends.
    async fn feed_stream(&mut self, leader: NodeId) {
        let Some(mut client) = self.peers.client(leader) else {
            return;
        };
        let (sender, receiver) = mpsc::channel(16);
        let call = client.propose(ReceiverStream::new(receiver));
        tokio::pin!(call);
        let mut cursor = Cursor::default();
        let mut life = tokio::time::interval(SIGN_OF_LIFE);
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
                _ = life.tick() => {
                    self.resend_if_stalled();
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
