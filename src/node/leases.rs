//! The leases of the nodes: the leader ends the incarnation of each node that it has not heard from for
//! `cluster.node_lease_ms`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use rustc_hash::FxHashMap;

use crate::base::ids::{CLUSTER, Incarnation, NodeId};
use crate::base::proto::command;
use crate::connection::broker::Broker;
use crate::forward::last_seen::LastSeen;
use crate::raft::Raft;
use crate::replica::proposer::SequencedProposal;
use crate::replica::sequencer::Sequencer;

/// How often the leases are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long a declaration is given to be committed before it is proposed again.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Ends the leases of silent nodes while this node leads.
pub(super) struct NodeLeases {
    /// For the nodes that are live.
    pub(super) broker: Arc<Broker>,
    /// For the leadership.
    pub(super) raft: Raft,
    /// When each node was last heard from.
    pub(super) last_seen: Arc<LastSeen>,
    /// The leader proposes straight to its own log: a decision that is not committed ends with its leadership.
    pub(super) sequencer: Sequencer,
    /// `cluster.node_lease_ms`.
    pub(super) lease: Duration,
}

impl NodeLeases {
    /// Runs until the node stops.
    pub(super) async fn run(self) {
        let mut led = false;
        let mut declared: FxHashMap<(NodeId, Incarnation), Instant> = FxHashMap::default();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let leads = self.raft.leadership().borrow().is_leader;
            if leads != led {
                self.last_seen.forget();
                declared.clear();
            }
            led = leads;
            if !leads {
                continue;
            }
            let live = self.broker.services.view.live_nodes();
            declared.retain(|node, _| live.contains(node));
            for (node, incarnation) in live {
                let silent = self.last_seen.last(node, incarnation).elapsed();
                if node == self.broker.settings.node || silent <= self.lease {
                    continue;
                }
                let last = declared.get(&(node, incarnation)).copied();
                if last.is_none() {
                    tracing::warn!(
                        node = node.0,
                        %incarnation,
                        "the node was not heard from within its lease: its clients' connections are ended"
                    );
                }
                if last.is_none_or(|last| last.elapsed() > COMMIT_TIMEOUT) {
                    declared.insert((node, incarnation), Instant::now());
                    self.declare_down(node, incarnation).await;
                }
            }
        }
    }

    async fn declare_down(&self, node: NodeId, incarnation: Incarnation) {
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
