//! Who leads, for the rooms above.
//!
//! Invariant: `is_leader` only once the blank entry of the leader's term is applied. An applied entry of that term
//! proves it, because the blank one comes first and a term has one leader.

use std::sync::Arc;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::Fatal;
use tokio::sync::watch;

use super::state_machine::CoreRaft;
use crate::base::ids::NodeId;
use crate::raft::metrics::{self, Metrics};
use crate::raft::types::Leadership;
use crate::storage::fatal;

/// Keeps `leadership` up to date until Raft ends. Ends the process when Raft ends with an error: a node without its
/// replica would only look alive. `term` is the term of the last applied entry.
pub fn watch_leader(
    core: CoreRaft,
    mut term: watch::Receiver<u64>,
    leadership: watch::Sender<Leadership>,
    counters: Arc<Metrics>,
) {
    let mut server = core.server_metrics();
    tokio::spawn(async move {
        loop {
            let now = {
                let server = server.borrow_and_update();
                let current = server.vote.leader_id.term;
                Leadership {
                    term: current,
                    leader: server.current_leader.map(NodeId),
                    is_leader: server.state == ServerState::Leader
                        && server.current_leader == Some(server.id)
                        && *term.borrow_and_update() == current,
                }
            };
            let changed = leadership.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
            if changed {
                metrics::add(&counters.leader_changes, 1);
                tracing::info!(
                    term = now.term,
                    leader = now.leader.map(|leader| leader.0),
                    leads = now.is_leader,
                    "leadership"
                );
            }
            tokio::select! {
                changed = server.changed() => if changed.is_err() { break },
                changed = term.changed() => if changed.is_err() { break },
            }
        }
        leadership.send_modify(|known| {
            known.leader = None;
            known.is_leader = false;
        });
        let end = core.metrics().borrow_watched().running_state.clone();
        if let Err(error @ (Fatal::StorageError(_) | Fatal::Panicked)) = end {
            fatal("running Raft", &error);
        }
    });
}
