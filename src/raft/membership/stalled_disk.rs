//! A leader whose disk stands still hands leadership over.
//!
//! Its entries are committed without its own disk as long as a majority of the others has them, and its heartbeats keep
//! it leader. But what it holds for its disk is bounded, so after some time it takes no further entry: one disk would
//! stop the whole cluster.
//!
//! Invariant: leadership is handed over only to those who have gone on, so disks that all stand still move nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;

use super::changes::Changes;
use crate::base::ids::NodeId;
use crate::raft::core::roster::Roster;
use crate::raft::core::state_machine::CoreRaft;
use crate::raft::types::Leadership;
use crate::storage::GroupLog;

/// Between two looks at the log.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long an append may wait for the disk: far longer than a busy disk takes, and no longer than clients are patient.
const STALLED: Duration = Duration::from_secs(2);

/// Between two attempts.
const RETRY: Duration = Duration::from_secs(10);

/// How far the disk has come, and since when it stands there.
#[derive(Default)]
struct Stall {
    durable: u64,
    since: Option<Instant>,
}

impl Stall {
    /// Looks at a log that is durable up to `durable` and ends before `next`: how long it has stood still with
    /// something to write.
    fn look(&mut self, durable: u64, next: u64, now: Instant) -> Duration {
        if durable.saturating_add(1) >= next {
            self.since = None;
        } else if self.since.is_none() || self.durable != durable {
            self.since = Some(now);
        }
        self.durable = durable;
        self.since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// Whether a majority of `voters` has entries beyond `durable` without node `own`.
fn majority_goes_on(
    own: u64,
    voters: &BTreeSet<u64>,
    matched: impl Iterator<Item = (u64, u64)>,
    durable: u64,
) -> bool {
    let beyond =
        matched.filter(|(node, index)| *node != own && voters.contains(node) && *index > durable);
    beyond.count() > voters.len() / 2
}

/// What is looked at.
pub struct Watched {
    pub own: NodeId,
    pub core: CoreRaft,
    pub log: GroupLog,
    pub roster: Roster,
    pub changes: Arc<Changes>,
    pub leadership: watch::Receiver<Leadership>,
}

/// Starts the task. It runs until the log is closed.
pub fn watch(watched: Watched) {
    tokio::spawn(async move {
        let mut stall = Stall::default();
        let mut tried: Option<Instant> = None;
        while !watched.log.is_closed() {
            tokio::time::sleep(INTERVAL).await;
            let now = Instant::now();
            let (durable, next) = watched.log.durable();
            let lasts = stall.look(durable, next, now);
            let is_early = tried.is_some_and(|tried| now.duration_since(tried) < RETRY);
            if lasts < STALLED || is_early || !watched.should_hand_over(durable) {
                continue;
            }
            tried = Some(now);
            tracing::error!(
                stalled_ms = lasts.as_millis(),
                durable,
                next,
                "the disk of the log stands still, others go on: leadership is handed over"
            );
            if let Err(error) = watched.changes.hand_over().await {
                tracing::warn!(%error, "leadership was not handed over");
            }
        }
    });
}

impl Watched {
    fn should_hand_over(&self, durable: u64) -> bool {
        if !self.leadership.borrow().is_leader {
            return false;
        }
        let voters = self.roster.voters();
        let metrics = self.core.data_metrics();
        let metrics = metrics.borrow_watched();
        let all = metrics.replication.iter().flatten();
        let matched = all.map(|(node, matched)| (*node, matched.map_or(0, |id| id.index)));
        majority_goes_on(self.own.0, &voters, matched, durable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_stands_still_when_something_waits_and_nothing_is_written() {
        let (mut stall, start) = (Stall::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(stall.look(9, 10, after(0)), Duration::ZERO);
        assert_eq!(stall.look(9, 12, after(5_000)), Duration::ZERO, "just now");
        let lasts = stall.look(9, 40, after(7_500));
        assert_eq!(lasts, Duration::from_millis(2_500));
        assert!(lasts >= STALLED);
        assert_eq!(stall.look(11, 40, after(8_000)), Duration::ZERO, "slow");
        assert_eq!(stall.look(39, 40, after(12_000)), Duration::ZERO, "done");
    }

    #[test]
    fn leadership_goes_only_where_a_majority_goes_on() {
        let voters = BTreeSet::from([1, 2, 3]);
        let goes_on =
            |matched: &[(u64, u64)]| majority_goes_on(1, &voters, matched.iter().copied(), 9);
        assert!(goes_on(&[(1, 40), (2, 12), (3, 10)]));
        assert!(!goes_on(&[(1, 40), (2, 12), (3, 9)]), "one of them only");
        assert!(!goes_on(&[(2, 12), (4, 12)]), "a learner does not count");
        let alone = BTreeSet::from([1]);
        assert!(!majority_goes_on(1, &alone, [(1, 40)].into_iter(), 9));
    }
}
