//! A shorter pause when the leader's process dies: its connections break at once, while a leader that is only slow, or
//! cut off, keeps them.
//!
//! A follower waits for the leader's lease to end and then for its own draw, so that followers do not stand at the same
//! time. When the leader's stream of entries broke and nothing was heard from it since, the draw is replaced by an
//! order: the voter with the lowest id stands when the lease has ended, the next one a little later. It stands by
//! Pre-Vote, so nothing happens when others still hear the leader; and when it does not work out, the draws do.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::type_config::CoreRaft;

/// Beyond the end of the lease: both sides must see it ended, and signs of life reach followers at different moments.
const MARGIN: Duration = Duration::from_millis(5);
/// Between one voter's first attempt and the next one's: several round trips and syncs of an election.
const STAGGER: Duration = Duration::from_millis(60);
/// Between two attempts of one voter. Others may have heard the leader up to a heartbeat later.
const AGAIN: Duration = Duration::from_millis(30);
/// Attempts after one broken stream.
const ATTEMPTS: u32 = 3;
/// Broken streams that wait to be looked at; one more is no news.
const QUEUE: usize = 4;

/// What is known of the leader's life.
pub(super) struct Succession {
    /// The node last heard as leader, and when.
    heard: Mutex<Option<(u64, Instant)>>,
    broken: mpsc::Sender<u64>,
}

impl Succession {
    /// Starts looking after broken streams; `lease` is the leader's lease.
    pub fn start(own: u64, core: CoreRaft, lease: Duration) -> Arc<Succession> {
        let (broken, queue) = mpsc::channel(QUEUE);
        let succession = Arc::new(Succession {
            heard: Mutex::new(None),
            broken,
        });
        let watch = Watch {
            own,
            core,
            lease,
            succession: Arc::downgrade(&succession),
        };
        tokio::spawn(watch.run(queue));
        succession
    }

    /// `leader` gave a sign of life.
    pub fn heard(&self, leader: u64) {
        *self.heard.lock() = Some((leader, Instant::now()));
    }

    /// A guard for a stream of entries from `leader`; dropping it says that the stream has ended.
    pub fn stream(self: &Arc<Self>, leader: u64) -> StreamEnd {
        StreamEnd {
            succession: Arc::clone(self),
            leader,
        }
    }

    fn last_sign(&self, leader: u64) -> Option<Instant> {
        let heard = *self.heard.lock();
        heard.filter(|(node, _)| *node == leader).map(|(_, at)| at)
    }
}

/// See [`Succession::stream`].
pub(super) struct StreamEnd {
    succession: Arc<Succession>,
    leader: u64,
}

impl StreamEnd {
    /// Entries came in.
    pub fn heard(&self) {
        self.succession.heard(self.leader);
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        // Full: others wait to be looked at already. Closed: the replica has ended.
        let _ = self.succession.broken.try_send(self.leader);
    }
}

struct Watch {
    own: u64,
    core: CoreRaft,
    lease: Duration,
    succession: std::sync::Weak<Succession>,
}

impl Watch {
    async fn run(self, mut queue: mpsc::Receiver<u64>) {
        while let Some(leader) = queue.recv().await {
            self.stand(leader).await;
        }
    }

    /// How many voters stand before this one when `leader` is gone; `None` when this is no voter, or another one leads.
    fn turn(&self, leader: u64) -> Option<u32> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        if metrics.current_leader != Some(leader) || leader == self.own {
            return None;
        }
        let voters = metrics.membership_config.voter_ids();
        let mut voters: Vec<u64> = voters.filter(|id| *id != leader).collect();
        voters.sort_unstable();
        voters.dedup();
        let turn = voters.iter().position(|id| *id == self.own)?;
        u32::try_from(turn).ok()
    }

    async fn stand(&self, leader: u64) {
        let last_sign = || self.succession.upgrade()?.last_sign(leader);
        let Some(last) = last_sign() else {
            return;
        };
        for attempt in 0..ATTEMPTS {
            let Some(turn) = self.turn(leader) else {
                return;
            };
            let end = last + self.lease + MARGIN;
            tokio::time::sleep_until(end + STAGGER * turn + AGAIN * attempt).await;
            // Heard from since, or somebody else was faster.
            if last_sign() != Some(last) || self.turn(leader).is_none() {
                return;
            }
            tracing::debug!(leader, attempt, "the leader is gone: standing for election");
            if self.core.trigger().elect(true).await.is_err() {
                return;
            }
        }
    }
}
