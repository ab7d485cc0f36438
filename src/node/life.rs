//! Whether this node may serve: it has registered its present life, and it is in touch with a majority.
//!
//! A node that is cut off gives up before the leader's lease runs out: it stops serving and disconnects its clients, so
//! that a session never has two live owners. A life that was declared dead is followed by a new one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::ids::{Incarnation, NodeId};
use crate::mqtt::broker::Broker;
use crate::node::cluster_service::Heard;
use crate::proto::command;
use crate::raft::Raft;
use crate::replica::applier::LifeEvent;
use crate::replica::proposer::Waiter;
use crate::router::mailbox::{End, Item};
use crate::time::wall_now;

/// How often touch with the majority, and the other nodes' leases, are checked.
const CHECK: Duration = Duration::from_millis(250);

/// Keeps [`Broker::serving`] right.
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
                        registered |= incarnation == self.broker.proposer.incarnation();
                    }
                    Some(LifeEvent::Ended(incarnation)) if incarnation == self.broker.proposer.incarnation() => {
                        tracing::warn!(%incarnation, "this node's life was ended by the cluster; it begins a new one");
                        registered = false;
                        self.stop_serving();
                        self.begin();
                    }
                    Some(LifeEvent::Ended(_)) => {}
                    None => return,
                },
                proven = async {
                    tokio::time::sleep(CHECK).await;
                    proof.await
                } => match proven {
                    Ok(Ok(_)) => in_touch = Some(Instant::now()),
                    _ => if in_touch.is_some_and(|since| since.elapsed() > self.give_up) {
                        in_touch = None;
                        tracing::warn!("out of touch with the cluster's majority: clients are disconnected");
                        self.stop_serving();
                    }
                },
            }
            let serving = registered && in_touch.is_some();
            if serving != self.broker.serving.swap(serving, Ordering::AcqRel) {
                tracing::info!(
                    serving,
                    incarnation = self.broker.proposer.incarnation().0,
                    "serving clients"
                );
            }
        }
    }

    fn begin(&self) {
        let after = self
            .broker
            .view
            .known_incarnation()
            .0
            .max(self.broker.proposer.incarnation().0);
        self.broker
            .proposer
            .begin(Incarnation(wall_now().0.max(after + 1)));
    }

    fn stop_serving(&self) {
        self.broker.serving.store(false, Ordering::Release);
        self.broker
            .router
            .post_to_all(|| Item::End(End::Unavailable));
    }
}

/// The leader declares nodes dead that it has not heard from for the lease.
pub async fn watch_leases(broker: Arc<Broker>, raft: Raft, heard: Arc<Heard>, lease: Duration) {
    let mut led = false;
    loop {
        tokio::time::sleep(CHECK).await;
        let leads = raft.leadership().borrow().is_leader;
        if leads && !led {
            heard.forget();
        }
        led = leads;
        if !leads {
            continue;
        }
        for (node, incarnation) in broker.view.live_nodes() {
            if node != broker.node && heard.last(node, incarnation).elapsed() > lease {
                declare_dead(&broker, node, incarnation);
            }
        }
    }
}

fn declare_dead(broker: &Broker, node: NodeId, incarnation: Incarnation) {
    tracing::warn!(node = node.0, %incarnation, "not heard from within the lease: its clients' connections are ended");
    let command = command::NodeDown {
        node: node.0,
        incarnation: incarnation.0,
    };
    // When too much is waiting, the next check proposes it again.
    let _ = broker
        .proposer
        .submit(command::command::Kind::NodeDown(command), Waiter::Nobody);
}
