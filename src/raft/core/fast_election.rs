//! A shorter election when the leader's process dies: its connections break at once, while a leader that is only slow,
//! or cut off, keeps them.
//!
//! A follower normally waits for the leader's lease to end and then for its own random draw, so that followers do not
//! campaign at the same time. When the leader's stream of entries broke and nothing was heard from it since, ranks
//! replace the draw: the voter with the lowest id campaigns when the lease has ended, the next one a little later.
//!
//! Invariant: a campaign begins with Pre-Vote, so nothing happens while others still hear the leader. When no campaign
//! by rank succeeds, those by random draw follow as ever.
//!
//! See `docs/adr/0007-fast-election-when-connections-break.md`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::config::Timing;
use super::state_machine::CoreRaft;

/// Time beyond the end of the lease: both sides must see it ended, and heartbeats reach followers at different moments.
const MARGIN: Duration = Duration::from_millis(5);
/// Campaigns after one broken stream, spread over two heartbeats: others may have heard the leader up to one later.
const ATTEMPTS: u32 = 4;
/// Broken streams that wait to be looked at; one more is no news.
const QUEUE: usize = 4;

/// Watches the leader's streams, and campaigns when they break.
pub struct FastElection {
    /// The node last heard as leader, and when.
    heard: Mutex<Option<(u64, Instant)>>,
    broken: mpsc::Sender<u64>,
    lease: Duration,
}

impl FastElection {
    /// Starts the task that looks after broken streams. It ends with the last handle.
    pub fn start(own: u64, core: CoreRaft, timing: Timing) -> Arc<FastElection> {
        let (broken, queue) = mpsc::channel(QUEUE);
        let election = Arc::new(FastElection {
            heard: Mutex::new(None),
            broken,
            lease: Duration::from_millis(timing.election_max_ms),
        });
        let watch = Watch {
            own,
            core,
            lease: election.lease,
            turn: Duration::from_millis(timing.heartbeat_ms.saturating_mul(2)),
            election: Arc::downgrade(&election),
        };
        tokio::spawn(watch.run(queue));
        election
    }

    /// Something came from `leader`.
    pub fn heard(&self, leader: u64) {
        *self.heard.lock() = Some((leader, Instant::now()));
    }

    /// Whether another leader than `node` was heard within a lease.
    pub fn hears_other_than(&self, node: u64) -> bool {
        let heard = *self.heard.lock();
        heard.is_some_and(|(leader, at)| leader != node && at.elapsed() < self.lease)
    }

    /// A guard for a stream of entries from `leader`; dropping it says that the stream has ended.
    pub fn stream(self: &Arc<Self>, leader: u64) -> StreamGuard {
        StreamGuard {
            election: Arc::clone(self),
            leader,
        }
    }

    fn last_heard(&self, leader: u64) -> Option<Instant> {
        let heard = *self.heard.lock();
        heard.filter(|(node, _)| *node == leader).map(|(_, at)| at)
    }
}

/// See [`FastElection::stream`].
pub struct StreamGuard {
    election: Arc<FastElection>,
    leader: u64,
}

impl StreamGuard {
    /// Entries came in.
    pub fn heard(&self) {
        self.election.heard(self.leader);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        // Full: others wait to be looked at already. Closed: the replica has ended.
        let _ = self.election.broken.try_send(self.leader);
    }
}

/// The task.
struct Watch {
    own: u64,
    core: CoreRaft,
    lease: Duration,
    /// The time that one voter has before the next one campaigns.
    turn: Duration,
    election: Weak<FastElection>,
}

impl Watch {
    async fn run(self, mut queue: mpsc::Receiver<u64>) {
        while let Some(leader) = queue.recv().await {
            self.campaign(leader).await;
        }
    }

    /// How many voters campaign before this one when `leader` is gone; `None` when this is no voter, or another one
    /// leads.
    fn rank(&self, leader: u64) -> Option<u32> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        if metrics.current_leader != Some(leader) || leader == self.own {
            return None;
        }
        let voters = metrics.membership_config.voter_ids();
        let mut voters: Vec<u64> = voters.filter(|id| *id != leader).collect();
        voters.sort_unstable();
        voters.dedup();
        let rank = voters.iter().position(|id| *id == self.own)?;
        u32::try_from(rank).ok()
    }

    async fn campaign(&self, leader: u64) {
        let last_heard = || self.election.upgrade()?.last_heard(leader);
        let Some(last) = last_heard() else {
            return;
        };
        for attempt in 0..ATTEMPTS {
            let Some(rank) = self.rank(leader) else {
                return;
            };
            let lease_end = last + self.lease + MARGIN;
            tokio::time::sleep_until(lease_end + self.turn * rank + self.turn * attempt / ATTEMPTS)
                .await;
            // The leader was heard since, or another voter was faster.
            if last_heard() != Some(last) || self.rank(leader).is_none() {
                return;
            }
            tracing::debug!(leader, attempt, "the leader is gone: campaigning");
            if self.core.trigger().elect(true).await.is_err() {
                return;
            }
        }
    }
}
