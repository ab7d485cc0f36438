//! The hand-over of a session from one connection to the next, before the log knows of it.
//!
//! A client that connects anew may have sent packets on its former connection that the log does not know: a PUBACK that
//! waits to share a proposal, or a DISCONNECT that is still in the socket's buffer. Before the new connection proposes
//! to open the session, the former one is asked to read what its socket has and to propose what follows. So the client
//! does not get again what it has acknowledged, and its will is not published after its DISCONNECT `[MQTT-3.14.4-3]`.
//!
//! The hand-over is an effort, no condition: what the network has not delivered can't be known, and a node that does
//! not answer within [`limits::HAND_OVER_TIMEOUT`] is not waited for.
//!
//! Invariant: at most [`limits::HAND_OVERS_AT_ONCE`] are asked for at once, and a node that did not answer is asked
//! again only after [`ASK_AGAIN_AFTER`]. So the clients of a node that died connect elsewhere without waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Semaphore, oneshot};

use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner};
use crate::base::limits;
use crate::base::proto::cluster::HandOverRequest;
use crate::raft::Raft;
use crate::replica::proposer::Proposer;
use crate::router::Router;

/// How long a node that did not answer is left alone.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Both sides of hand-overs.
pub struct HandOvers {
    local: NodeId,
    router: Arc<Router>,
    proposer: Arc<Proposer>,
    /// The way to the other nodes; `None` on a node that is alone.
    raft: Option<Raft>,
    slots: Semaphore,
    /// Nodes that did not answer, and when.
    silent: Mutex<FxHashMap<NodeId, Instant>>,
}

impl HandOvers {
    /// The hand-overs of node `local`.
    pub fn new(
        local: NodeId,
        router: Arc<Router>,
        proposer: Arc<Proposer>,
        raft: Option<Raft>,
    ) -> HandOvers {
        HandOvers {
            local,
            router,
            proposer,
            raft,
            slots: Semaphore::new(limits::HAND_OVERS_AT_ONCE),
            silent: Mutex::default(),
        }
    }

    /// Has the connection that owns a session propose what its client has sent. Returns when that is applied, or when
    /// it is not worth waiting for any longer.
    pub async fn ask(&self, owner: Owner) {
        let Ok(_slot) = self.slots.try_acquire() else {
            return;
        };
        if owner.node == self.local {
            self.carry_out(owner).await;
        } else if self.is_worth_asking(owner.node) && !self.ask_remote(owner).await {
            self.silent.lock().insert(owner.node, Instant::now());
        }
    }

    fn is_worth_asking(&self, node: NodeId) -> bool {
        let mut silent = self.silent.lock();
        match silent.get(&node) {
            Some(since) if since.elapsed() < ASK_AGAIN_AFTER => false,
            Some(_) => {
                // One asks, the others of this moment do not wait with it.
                silent.insert(node, Instant::now());
                true
            }
            None => true,
        }
    }

    /// Asks another node; tells whether it answered.
    async fn ask_remote(&self, owner: Owner) -> bool {
        let Some(raft) = &self.raft else {
            return true;
        };
        // A node that is no member any more has no connections.
        let Some(mut client) = raft.message_client(owner.node) else {
            return true;
        };
        let request = HandOverRequest {
            incarnation: owner.incarnation.0,
            connection: owner.connection.0,
        };
        let answer = tokio::time::timeout(limits::HAND_OVER_TIMEOUT, client.hand_over(request));
        let answered = matches!(answer.await, Ok(Ok(_)));
        if answered {
            self.silent.lock().remove(&owner.node);
        }
        answered
    }

    /// Another node asks for a connection of this one.
    pub async fn answer(&self, request: HandOverRequest) {
        let owner = Owner {
            node: self.local,
            incarnation: Incarnation(request.incarnation),
            connection: ConnectionId(request.connection),
        };
        self.carry_out(owner).await;
    }

    async fn carry_out(&self, owner: Owner) {
        // Numbers of connections begin anew with each process, incarnations do not.
        if owner.incarnation != self.proposer.incarnation() {
            return;
        }
        let hand_over = async {
            let (done, is_done) = oneshot::channel();
            self.router.ask_for_hand_over(owner.connection, done);
            // It is dropped unanswered when the connection has ended; then its end is proposed.
            let _ = is_done.await;
            // Proposals are applied in order: what the connection has proposed is applied before this.
            self.proposer.pass().await;
        };
        // A node that is merely slow answers before it counts as silent.
        let _ = tokio::time::timeout(limits::HAND_OVER_ANSWERED_WITHIN, hand_over).await;
    }
}
