//! The end of a node, in order: leadership is handed over, clients are told to go elsewhere, what they still asked for is
//! committed, the other nodes are told, and the files are closed.
//!
//! What needs a majority is not waited for when there is none: all nodes of a cluster may be told to stop at once.

use std::time::{Duration, Instant};

use super::Node;
use crate::base::proto::command;
use crate::mailbox::{End, Item};

/// How often it is looked whether everything is settled.
const LOOK: Duration = Duration::from_millis(5);

/// How often a majority is asked for, and how long it may take to answer: longer than an election.
const PROBE: Duration = Duration::from_millis(200);
const PROBE_ANSWER: Duration = Duration::from_millis(1_200);

impl Node {
    /// Takes the node down; takes `shutdown.drain_s` at most, and a little to close the files.
    pub(super) async fn shutdown(mut self) {
        tracing::info!("shutting down");
        let deadline = tokio::time::Instant::now() + self.drain;
        self.broker.state.start_draining();
        let drained = async {
            self.hand_over().await;
            self.broker
                .services
                .router
                .post_to_all(|| Item::End(End::ShuttingDown));
            while !self.is_settled() {
                tokio::time::sleep(LOOK).await;
            }
            self.end_life().await;
        };
        tokio::select! {
            () = drained => {}
            () = self.majority_is_lost() => {
                tracing::warn!("no majority is left to commit what is under way: whoever asked for it does not hear of it");
            }
            () = tokio::time::sleep_until(deadline) => {
                tracing::warn!("not everything was settled in shutdown.drain_s");
            }
        }
        // However it came here, clients are told, and have a moment to read it.
        self.broker
            .services
            .router
            .post_to_all(|| Item::End(End::ShuttingDown));
        let told = Instant::now() + PROBE;
        while self.broker.services.router.connections() > 0 && Instant::now() < told {
            tokio::time::sleep(LOOK).await;
        }
        if let Some(stop) = self.stop_http.take() {
            let _ = stop.send(());
        }
        self.raft.shutdown().await;
        tracing::info!("stopped");
    }

    async fn hand_over(&self) {
        if !self.raft.leadership().borrow().is_leader || self.raft.status().members.len() < 2 {
            return;
        }
        match self.raft.transfer_leader(None).await {
            Ok(leader) => tracing::info!(leader = leader.0, "leadership is handed over"),
            Err(error) => tracing::warn!(%error, "leadership was not handed over"),
        }
    }

    /// Every client is gone, and whatever was proposed for them is applied.
    fn is_settled(&self) -> bool {
        let depth = self.broker.services.proposer.depth();
        self.broker.services.router.connections() == 0 && depth.gathering + depth.in_flight == 0
    }

    /// Declares this node's life over, so that the others need not wait for its lease: a subscription anywhere counts
    /// once every live node knows it.
    async fn end_life(&self) {
        let proposer = &self.broker.services.proposer;
        let down = command::command::Kind::NodeDown(command::NodeDown {
            node: self.broker.settings.node.0,
            incarnation: proposer.incarnation().0,
        });
        if proposer.propose(down).await.is_none() {
            tracing::info!("nobody was told that this node stops: the others find out");
        }
    }

    /// Returns when no majority answers.
    async fn majority_is_lost(&self) {
        loop {
            let answer = tokio::time::timeout(PROBE_ANSWER, self.raft.read_barrier());
            if !matches!(answer.await, Ok(Ok(_))) {
                return;
            }
            tokio::time::sleep(PROBE).await;
        }
    }
}
