//! A running node and its end, in order: leadership is handed over, clients are told to go elsewhere, HTTP requests are
//! answered, all that was asked for is committed, the other nodes are told, and the files are closed.
//!
//! What needs a majority is not waited for when there is none, because all nodes of a cluster may be stopped at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::base::proto::command;
use crate::connection::broker::Broker;
use crate::mailbox::{End, Item};
use crate::raft::Raft;
use crate::replica::share::Share;
use crate::storage::Space;

/// How often it is checked whether everything is drained.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How often the quorum is probed.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// How long a probe of the quorum may take: longer than an election is by default. A node that is this far behind with
/// applying would not see that what it has proposed is committed, either.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1_200);

/// What is kept of `shutdown.drain_s` to tell the other nodes, or half of what is left of it: a commit, and an election
/// before it.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// How long clients may take at the very end to read that the node stops.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(200);

/// What is left of the time until then for what comes before the other nodes are told.
fn before_goodbye(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left - GOODBYE_TIMEOUT.min(left / 2)
}

/// Tells the HTTP ports to end, and until when changes are carried out. It is closed when they have ended.
pub(super) type StopHttp = watch::Sender<Option<Instant>>;

/// Waits until HTTP has to end, and returns until when changes are carried out.
pub(super) async fn http_ends(mut stopped: watch::Receiver<Option<Instant>>) -> Instant {
    // A sender that is gone says so, too.
    let end = stopped.wait_for(Option::is_some).await;
    let end = end.ok().and_then(|end| *end);
    end.unwrap_or_else(Instant::now)
}

/// A running node.
pub(super) struct Node {
    pub(super) broker: Arc<Broker>,
    pub(super) raft: Raft,
    /// `shutdown.drain_s`.
    drain: Duration,
    stop_http: StopHttp,
    /// The disk guard's last word.
    disk_full: oneshot::Receiver<Space>,
}

impl Node {
    pub(super) fn new(
        broker: Arc<Broker>,
        raft: Raft,
        drain: Duration,
        stop_http: StopHttp,
        disk_full: oneshot::Receiver<Space>,
    ) -> Node {
        Node {
            broker,
            raft,
            drain,
            stop_http,
            disk_full,
        }
    }

    /// Waits until the disk is so full that the node must stop.
    pub(super) async fn disk_full(&mut self) -> Space {
        match (&mut self.disk_full).await {
            Ok(space) => space,
            // The guard runs as long as the node.
            Err(_) => std::future::pending().await,
        }
    }

    /// Takes the node down. That takes `shutdown.drain_s` at most, and a little to close the files.
    pub(super) async fn shutdown(self) {
        tracing::info!("shutting down");
        let deadline = Instant::now() + self.drain;
        self.broker.state.start_draining();
        let drained = async {
            self.hand_over().await;
            self.broker
                .services
                .router
                .post_to_all(|| Item::End(End::ShuttingDown));
            // A client that takes nothing keeps nobody from what comes afterwards.
            let gone = self.until(|node| node.connections() == 0);
            let _ = tokio::time::timeout(before_goodbye(deadline), gone).await;
            self.end_http(before_goodbye(deadline)).await;
            self.until(|node| node.is_drained() || node.has_ended())
                .await;
            self.end_incarnation().await;
        };
        tokio::select! {
            () = drained => {}
            () = self.majority_is_lost() => {
                tracing::warn!("no majority is left to commit what is under way, or this node is behind: its requests are not \
                     answered");
            }
            () = tokio::time::sleep_until(deadline) => {
                tracing::warn!("not everything was drained in shutdown.drain_s");
            }
        }
        // Whatever ended the drain, clients are told, and have a moment to read it.
        self.broker
            .services
            .router
            .post_to_all(|| Item::End(End::ShuttingDown));
        let gone = self.until(|node| node.connections() == 0);
        let _ = tokio::time::timeout(NOTICE_TIMEOUT, gone).await;
        self.http_ends_within(NOTICE_TIMEOUT).await;
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

    /// Waits until it is so.
    async fn until(&self, is_so: impl Fn(&Node) -> bool) {
        while !is_so(self) {
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    /// Ends HTTP while the node may still propose what was asked for by it.
    async fn end_http(&self, within: Duration) {
        if !self.http_ends_within(within).await {
            tracing::warn!("HTTP requests are under way for which shutdown.drain_s leaves no time");
        }
    }

    /// Ends HTTP, and tells whether that took no longer.
    async fn http_ends_within(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        let _ = self.stop_http.send(Some(end));
        tokio::time::timeout_at(end, self.stop_http.closed())
            .await
            .is_ok()
    }

    /// Open connections of clients.
    fn connections(&self) -> usize {
        self.broker.services.router.connections()
    }

    /// Whether every command that was proposed for clients is applied.
    fn is_drained(&self) -> bool {
        let depth = self.broker.services.proposer.depth();
        depth.queued + depth.in_flight == 0
    }

    /// Whether this node's incarnation was registered and has ended: nothing more of it is applied, and nobody waits
    /// for its lease.
    fn has_ended(&self) -> bool {
        let (services, node) = (&self.broker.services, self.broker.settings.node);
        let present = services.proposer.incarnation();
        let known = services.view.known_incarnation();
        known >= present && !services.view.live_nodes().contains(&(node, present))
    }

    /// Ends this node's incarnation, so that the others need not wait for its lease: a SUBACK anywhere waits for every
    /// live node.
    async fn end_incarnation(&self) {
        if self.has_ended() {
            return;
        }
        let proposer = &self.broker.services.proposer;
        let down = command::command::Kind::NodeDown(command::NodeDown {
            node: self.broker.settings.node.0,
            incarnation: proposer.incarnation().0,
        });
        tokio::select! {
            biased;
            told = proposer.propose(Share::Administration, down) => if told.is_err() {
                tracing::info!(
                    "the other nodes were not told that this node stops: its lease has to run out"
                );
            },
            // Another one may have ended it meanwhile.
            () = self.until(Node::has_ended) => {}
        }
    }

    /// Returns when the quorum does not answer.
    async fn majority_is_lost(&self) {
        loop {
            let answer = tokio::time::timeout(PROBE_TIMEOUT, self.raft.read_barrier());
            if !matches!(answer.await, Ok(Ok(_))) {
                return;
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }
}
