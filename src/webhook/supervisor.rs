//! Has the events of every event subscription delivered while this node leads, and tells the log what its configuration
//! says of events.
//!
//! Invariant: nothing is delivered by a node that does not lead: its requests under way are dropped when that is known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::declared::Declared;
use super::deliverer::Deliverer;
use super::files::Files;
use super::leader::{Leader, Term};
use crate::machine::read_events;
use crate::raft::Raft;
use crate::replica::clock::Clock;
use crate::replica::sequencer::Sequencer;
use crate::telemetry::metrics::Metrics;

/// How often it looks whether there are other event subscriptions, while events are recorded all the time.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// What deliverers need.
pub(crate) struct Supervisor {
    /// The replica.
    pub(crate) raft: Raft,
    /// For what the leader proposes on its own account.
    pub(crate) sequencer: Sequencer,
    /// For log time.
    pub(crate) clock: Arc<Clock>,
    /// Changes of rows of events.
    pub(crate) changes: watch::Receiver<u64>,
    /// What requests prove by who sends them.
    pub(crate) files: Files,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// What the configuration says.
    pub(crate) declared: Declared,
}

/// A task that ends with its handle.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Supervisor {
    /// Runs until the node stops.
    pub(crate) async fn run(self) {
        let mut leadership = self.raft.leadership();
        loop {
            let now = *leadership.borrow_and_update();
            if now.is_leader {
                let leader = Arc::new(Term {
                    term: now.term,
                    raft: self.raft.clone(),
                    sequencer: self.sequencer.clone(),
                    clock: self.clock.clone(),
                    changes: self.changes.clone(),
                });
                tokio::select! {
                    () = self.lead(leader) => {}
                    ended = leadership.wait_for(|next| !next.is_leader || next.term != now.term) => {
                        if ended.is_err() {
                            return;
                        }
                    }
                }
            } else if leadership.changed().await.is_err() {
                return;
            }
        }
    }

    /// Runs as long as this node leads. Others get their events also where the one that is declared can't be made.
    async fn lead(&self, leader: Arc<dyn Leader>) {
        tokio::join!(self.declared.keep(&*leader), self.deliver(leader.clone()));
    }

    async fn deliver(&self, leader: Arc<dyn Leader>) {
        let mut running: BTreeMap<String, Running> = BTreeMap::new();
        let mut changes = leader.changes();
        loop {
            changes.borrow_and_update();
            let backing = leader.backing();
            let read = move || read_events::subscriptions(&*backing);
            let rows = tokio::task::spawn_blocking(read).await.unwrap_or_default();
            running.retain(|_, task| !task.0.is_finished());
            for (name, row) in rows {
                if row.options.is_none() || running.contains_key(&name) {
                    continue;
                }
                let deliverer = Deliverer {
                    name: name.clone(),
                    leader: leader.clone(),
                    files: self.files.clone(),
                    metrics: self.metrics.clone(),
                };
                let task = tokio::spawn(deliverer.run());
                running.insert(name, Running(task.abort_handle()));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
