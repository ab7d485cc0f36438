//! Whether this node may serve: it has registered its present life, and it is in touch with a majority.
//!
//! A node that is cut off gives up before the leader's lease runs out: it stops serving and disconnects its clients, so
//! that a session never has two live owners. A life that was declared dead is followed by a new one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;

use crate::base::ids::{CLUSTER, Incarnation, LogIndex, NodeId};
use crate::base::proto::command;
use crate::base::time::wall_now;
use crate::connection::broker::Broker;
use crate::mailbox::{End, Item};
use crate::node::cluster_service::LastSeen;
use crate::raft::{Raft, ReadError};
use crate::replica::applier::LifeEvent;
use crate::replica::proposer::SequencedProposal;
use crate::replica::sequencer::Sequencer;

/// How often touch with the majority, and the other nodes' leases, are checked.
const CHECK: Duration = Duration::from_millis(250);

/// Keeps [`NodeState::is_serving`](crate::connection::broker::NodeState::is_serving) right.
pub struct Life {
    /// The node's connections.
    pub broker: Arc<Broker>,
    /// For the proof of touch.
    pub raft: Raft,
    /// What apply says of this node's life.
    pub events: mpsc::UnboundedReceiver<LifeEvent>,
    /// `cluster.give_up_ms`.
    pub give_up: Duration,
}

impl Life {
    /// Runs until the node stops.
    pub async fn run(mut self) {
        let mut registered = false;
        let mut in_touch = Some(Instant::now());
        self.begin();
        loop {
            let proof = tokio::time::timeout(self.give_up, self.raft.read_barrier());
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(LifeEvent::Registered(incarnation)) => {
                        registered |= incarnation == self.broker.services.proposer.incarnation();
                    }
                    // Ended by itself, for good.
                    Some(LifeEvent::Ended(_)) if self.broker.state.is_draining() => return,
                    Some(LifeEvent::Ended(incarnation)) if incarnation == self.broker.services.proposer.incarnation() => {
                        tracing::warn!(%incarnation, "this node's life was ended by the cluster; it begins a new one");
                        registered = false;
                        self.stop_serving();
                        self.begin();
                    }
                    Some(LifeEvent::Ended(_)) => {}
                    None => return,
                },
                (asked, proven) = async {
                    tokio::time::sleep(CHECK).await;
                    let asked = Instant::now();
                    (asked, proof.await)
                } => match proven {
                    Ok(Ok(_)) => {
                        in_touch = Some(asked);
                        self.broker.state.routing_lease().renew(asked);
                    }
                    failed => if in_touch.is_some_and(|since| self.is_cut_off(&failed, since)) {
                        in_touch = None;
                        let why = match failed {
                            Ok(Err(error)) => error.to_string(),
                            _ => "no answer".to_owned(),
                        };
                        tracing::warn!(why, "out of touch with the cluster's majority: clients are disconnected");
                        self.stop_serving();
                    }
                },
            }
            let serving = registered && in_touch.is_some();
            if serving != self.broker.state.set_serving(serving) {
                tracing::info!(
                    serving,
                    incarnation = self.broker.services.proposer.incarnation().0,
                    "serving clients"
                );
            }
        }
    }

    /// Whether to give up, when touch was last proven at `since`: after a while without proof, or at once when the leader
    /// says that this node is no member.
    fn is_cut_off(
        &self,
        failed: &Result<Result<LogIndex, ReadError>, Elapsed>,
        since: Instant,
    ) -> bool {
        matches!(failed, Ok(Err(ReadError::Refused(_)))) || since.elapsed() > self.give_up
    }

    fn begin(&self) {
        let after = self
            .broker
            .view
            .known_incarnation()
            .0
            .max(self.broker.services.proposer.incarnation().0);
        self.broker
            .proposer
            .begin(Incarnation(wall_now().0.max(after + 1)));
    }

    fn stop_serving(&self) {
        self.broker.state.set_serving(false);
        self.broker
            .router
            .post_to_all(|| Item::End(End::Unavailable));
    }
}

/// How long a declaration is given to be committed before it is proposed again.
const DECLARED: Duration = Duration::from_secs(2);

/// The leader declares nodes dead that it has not heard from for the lease.
pub struct Leases {
    /// For the nodes that are live.
    pub broker: Arc<Broker>,
    /// For the leadership.
    pub raft: Raft,
    /// When each node was last heard of.
    pub heard: Arc<LastSeen>,
    /// Where the leader proposes on its own account: what it decides is lost with its leadership, as it must be.
    pub sequencer: Sequencer,
    /// `cluster.node_lease_ms`.
    pub lease: Duration,
}

impl Leases {
    /// Runs until the node stops.
    pub async fn run(self) {
        let mut led = false;
        let mut declared: FxHashMap<(NodeId, Incarnation), Instant> = FxHashMap::default();
        loop {
            tokio::time::sleep(CHECK).await;
            let leads = self.raft.leadership().borrow().is_leader;
            if leads != led {
                self.heard.forget();
                declared.clear();
            }
            led = leads;
            if !leads {
                continue;
            }
            let live = self.broker.services.view.live_nodes();
            declared.retain(|node, _| live.contains(node));
            for (node, incarnation) in live {
                let silent = self.heard.last(node, incarnation).elapsed();
                if node == self.broker.settings.node || silent <= self.lease {
                    continue;
                }
                let last = declared.get(&(node, incarnation)).copied();
                if last.is_none() {
                    tracing::warn!(node = node.0, %incarnation, "not heard from within the lease: its clients' connections are ended");
                }
                if last.is_none_or(|last| last.elapsed() > DECLARED) {
                    declared.insert((node, incarnation), Instant::now());
                    self.declare_dead(node, incarnation).await;
                }
            }
        }
    }

    async fn declare_dead(&self, node: NodeId, incarnation: Incarnation) {
        let command = command::Command {
            kind: Some(command::command::Kind::NodeDown(command::NodeDown {
                node: node.0,
                incarnation: incarnation.0,
            })),
        };
        let proposal = SequencedProposal {
            incarnation: Incarnation::default(),
            sequence: 0,
            commands: command.encode_length_delimited_to_vec().into(),
        };
        self.sequencer.submit(CLUSTER, proposal).await;
    }
}
