//! The leases of the nodes: the leader ends the incarnation of each node that it has not heard from for
//! `cluster.node_lease_ms`.
//!
//! Invariant: a node is declared down only when it may not serve any more, because it has got no confirmed contact for
//! longer than `cluster.give_up_ms`. The parts of it: [`LastSeen`] counts no sign of life of a node that is being
//! declared down; a declaration is appended only in the term in which it was decided; and under a new leader every node
//! has its full lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::command;
use crate::connection::broker::Broker;
use crate::forward::last_seen::LastSeen;
use crate::raft::Raft;
use crate::replica::sequencer::Sequencer;

/// How often the leases are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long a declaration is given to be committed before it is proposed again.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A sleep of [`CHECK_INTERVAL`] that takes this long means that this process was stopped, or starved: then it has heard
/// nobody, whoever was there. The checks themselves may take long when the log is slow.
const LATE_CHECK: Duration = Duration::from_secs(1);

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

/// What has become of a declaration.
enum Fate {
    /// It waits to be appended.
    Waiting(oneshot::Receiver<u64>),
    /// It was appended at the latest in this term, and can take effect as long as the term lasts. What a later term
    /// finds in the log is committed before any node's contact is confirmed in that term.
    Appended(u64),
    /// It was dropped.
    Dropped,
}

/// A node that is being declared down.
struct Declared {
    at: Instant,
    fate: Fate,
}

impl Declared {
    /// Whether the declaration can't take effect unnoticed any more in `term`.
    fn is_over(&mut self, term: u64) -> bool {
        if let Fate::Waiting(answer) = &mut self.fate {
            match answer.try_recv() {
                Ok(term) => self.fate = Fate::Appended(term),
                Err(TryRecvError::Closed) => self.fate = Fate::Dropped,
                Err(TryRecvError::Empty) => {}
            }
        }
        match self.fate {
            Fate::Waiting(_) => false,
            Fate::Appended(appended) => appended < term,
            Fate::Dropped => true,
        }
    }

    /// Whether it is to be proposed again.
    fn is_overdue(&self) -> bool {
        matches!(self.fate, Fate::Appended(_)) && self.at.elapsed() > COMMIT_TIMEOUT
    }
}

impl NodeLeases {
    /// Runs until the node stops.
    pub(super) async fn run(self) {
        let mut led = None;
        let mut declared = FxHashMap::default();
        loop {
            let slept_from = Instant::now();
            tokio::time::sleep(CHECK_INTERVAL).await;
            let is_late = slept_from.elapsed() > LATE_CHECK;
            let leadership = *self.raft.leadership().borrow();
            let leads = leadership.is_leader.then_some(leadership.term);
            if leads != led || is_late {
                self.last_seen.forget();
            }
            led = leads;
            self.settle(&mut declared, leadership.term);
            if let Some(term) = leads {
                self.check(&mut declared, term).await;
            }
        }
    }

    /// Lets signs of life count again where the declaration is settled.
    fn settle(&self, declared: &mut FxHashMap<(NodeId, Incarnation), Declared>, term: u64) {
        let live = self.broker.services.view.live_nodes();
        declared.retain(|key, declaration| {
            let is_over = declaration.is_over(term) || !live.contains(key);
            if is_over {
                self.last_seen.pardon(key.0, key.1);
            }
            !is_over
        });
    }

    async fn check(&self, declared: &mut FxHashMap<(NodeId, Incarnation), Declared>, term: u64) {
        // All are judged by the time right after the sleep: this process may be stopped while it declares one down.
        let now = Instant::now();
        for (node, incarnation) in self.broker.services.view.live_nodes() {
            if node == self.broker.settings.node {
                continue;
            }
            let key = (node, incarnation);
            match declared.get(&key) {
                Some(declaration) if !declaration.is_overdue() => continue,
                Some(_) => {}
                None => {
                    let last_seen = &self.last_seen;
                    if !last_seen.condemn_if_silent(node, incarnation, self.lease, now) {
                        continue;
                    }
                    tracing::warn!(
                        node = node.0,
                        %incarnation,
                        "the node was not heard from within its lease: its clients' connections are ended"
                    );
                }
            }
            let answer = self.declare_down(term, node, incarnation).await;
            let fate = Fate::Waiting(answer);
            let at = Instant::now();
            declared.insert(key, Declared { at, fate });
        }
    }

    async fn declare_down(
        &self,
        term: u64,
        node: NodeId,
        incarnation: Incarnation,
    ) -> oneshot::Receiver<u64> {
        let command = command::Command {
            kind: Some(command::command::Kind::NodeDown(command::NodeDown {
                node: node.0,
                incarnation: incarnation.0,
            })),
        };
        let command = command.encode_length_delimited_to_vec();
        self.sequencer.submit_own(term, command.into()).await
    }
}
