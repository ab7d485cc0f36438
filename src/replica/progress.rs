//! How far the other nodes have applied the log, as they tell the leader several times a second; and whether the leader
//! is to hold back because one of them does not keep up.
//!
//! The leader's own apply tells nothing of the others': they may have more connections, or less of their machine. A
//! node that falls further and further behind leaves its clients waiting, and lets them go when it can't confirm any
//! more that it has applied what was committed.
//!
//! Invariant: a node holds nobody up that tells nothing, that has yet to catch up, that is so far behind that it can't
//! serve, or that has not caught up for [`MOST`] although it was waited for. What is not committed yet, such as with
//! slow disks, leaves nobody behind.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::base::ids::{LogIndex, NodeId};

/// A node is behind when it has not applied what the leader had applied so long ago.
const BEHIND: Duration = Duration::from_millis(300);

/// The same for a node that is no longer waited for: by then it has let its clients go.
const LOST: Duration = Duration::from_secs(3);

/// A node that has told nothing for so long is not waited for. This is less than [`BEHIND`], so one that stands still
/// is passed over before it counts as behind.
const SILENT: Duration = Duration::from_millis(250);

const _: () = assert!(SILENT.as_millis() < BEHIND.as_millis());

/// How long a node may be behind all the time. One that does not catch up by then takes more than holding back gives.
const MOST: Duration = Duration::from_secs(30);

/// Between two indexes that the leader remembers with their time.
const REMEMBERED_EVERY: Duration = Duration::from_millis(20);

/// What the other nodes have told.
#[derive(Debug, Default)]
pub struct Progress {
    nodes: Mutex<FxHashMap<NodeId, Told>>,
    /// Somebody has told something new.
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    applied: LogIndex,
    at: Instant,
    /// It is waited for: it has kept up since it began, or was given up.
    keeps_up: bool,
    /// Since when it is behind, as far as it was looked at.
    behind_since: Option<Instant>,
}

impl Progress {
    /// A node says how far it has applied the log.
    pub fn heard(&self, node: NodeId, applied: LogIndex, now: Instant) {
        let mut nodes = self.nodes.lock();
        let told = nodes.entry(node).or_insert(Told {
            applied,
            at: now,
            keeps_up: false,
            behind_since: None,
        });
        told.applied = applied;
        told.at = now;
        drop(nodes);
        self.changed.notify_one();
    }

    /// Waits while a node does not keep up with what this one has `applied`, and no longer than `most`. Tells whether
    /// it waited.
    pub async fn wait(&self, applied: &Applied, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut has_waited = false;
        while self.is_behind(applied, Instant::now()) {
            has_waited = true;
            let changed = tokio::time::timeout_at(until.into(), self.changed.notified());
            if changed.await.is_err() {
                break;
            }
        }
        has_waited
    }

    /// Whether a node does not keep up with what this one has applied.
    fn is_behind(&self, applied: &Applied, now: Instant) -> bool {
        let mut nodes = self.nodes.lock();
        nodes.retain(|_, told| now.saturating_duration_since(told.at) < LOST);
        let (behind, lost) = (applied.before(BEHIND, now), applied.before(LOST, now));
        let mut is_behind = false;
        for (node, told) in nodes.iter_mut() {
            if now.saturating_duration_since(told.at) >= SILENT {
                continue;
            }
            if behind <= told.applied {
                told.keeps_up = true;
                told.behind_since = None;
                continue;
            }
            let since = *told.behind_since.get_or_insert(now);
            let is_given_up = lost > told.applied || now.saturating_duration_since(since) >= MOST;
            if told.keeps_up && is_given_up {
                tracing::warn!(
                    node = node.0,
                    "a node does not keep up with applying the log: it is waited for no longer"
                );
                told.keeps_up = false;
            }
            is_behind |= told.keeps_up;
        }
        is_behind
    }
}

/// How far the leader itself has applied the log lately, and when.
#[derive(Debug, Default)]
pub struct Applied(VecDeque<(Instant, LogIndex)>);

impl Applied {
    /// It has applied the log up to this index.
    pub fn note(&mut self, last: LogIndex, now: Instant) {
        let is_new =
            |(at, _): &(Instant, LogIndex)| now.saturating_duration_since(*at) >= REMEMBERED_EVERY;
        if self.0.back().is_none_or(is_new) {
            self.0.push_back((now, last));
        }
        // The first one is what was there so long ago.
        while self.0.len() > 1 && now.saturating_duration_since(self.0[1].0) >= LOST {
            self.0.pop_front();
        }
    }

    /// What was applied so long ago or earlier, as far as it is known.
    fn before(&self, age: Duration, now: Instant) -> LogIndex {
        let is_old = |(at, _): &(Instant, LogIndex)| now.saturating_duration_since(*at) >= age;
        let older = self.0.partition_point(is_old);
        match older.checked_sub(1) {
            Some(last) => self.0[last].1,
            None => LogIndex::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that applies an entry every ten milliseconds.
    struct Leader {
        began: Instant,
        progress: Progress,
        applied: Applied,
    }

    impl Leader {
        fn new() -> Leader {
            Leader {
                began: Instant::now(),
                progress: Progress::default(),
                applied: Applied::default(),
            }
        }

        fn at(&self, ms: u64) -> Instant {
            self.began + Duration::from_millis(ms)
        }

        /// From one time to another a node tells how far it is, which is told it; whether it is behind at each time.
        fn run(
            &mut self,
            ms: std::ops::Range<u64>,
            applied: impl Fn(u64) -> Option<u64>,
        ) -> Vec<bool> {
            let times = ms.step_by(10);
            times
                .map(|ms| {
                    let now = self.at(ms);
                    self.applied.note(LogIndex(ms / 10), now);
                    if ms % 100 == 0
                        && let Some(applied) = applied(ms)
                    {
                        self.progress.heard(NodeId(2), LogIndex(applied), now);
                    }
                    self.progress.is_behind(&self.applied, now)
                })
                .collect()
        }
    }

    fn all(seen: &[bool], expected: bool) -> bool {
        !seen.is_empty() && seen.iter().all(|seen| *seen == expected)
    }

    #[test]
    fn a_node_that_keeps_up_holds_nobody_up() {
        let mut leader = Leader::new();
        assert!(all(&leader.run(0..10_000, |ms| Some(ms / 10)), false));
        let a_little_behind = |ms: u64| Some(ms.saturating_sub(150) / 10);
        assert!(all(&leader.run(10_000..20_000, a_little_behind), false));
    }

    #[test]
    fn a_node_that_falls_behind_is_waited_for_until_it_has_caught_up() {
        let mut leader = Leader::new();
        leader.run(0..1_000, |ms| Some(ms / 10));
        // Half as fast as the leader.
        let seen = leader.run(1_000..3_000, |ms| Some((1_000 + (ms - 1_000) / 2) / 10));
        assert!(all(&seen[..30], false) && all(&seen[100..], true));
        assert!(all(&leader.run(3_000..4_000, |ms| Some(ms / 10)), false));
    }

    #[test]
    fn a_node_that_stands_still_is_never_waited_for() {
        let mut leader = Leader::new();
        leader.run(0..1_000, |ms| Some(ms / 10));
        assert!(all(&leader.run(1_000..20_000, |_| None), false));
        // It goes on where it was, and catches up: nobody waits for that.
        let seen = leader.run(20_000..22_000, |ms| Some(100 + (ms - 20_000) / 2));
        assert!(all(&seen, false));
        leader.run(22_000..23_000, |ms| Some(ms / 10));
        let seen = leader.run(23_000..24_500, |_| Some(2_300));
        assert!(seen.last() == Some(&true), "it counts again");
    }

    #[test]
    fn a_node_that_is_lost_is_waited_for_no_more() {
        let mut leader = Leader::new();
        leader.run(0..1_000, |ms| Some(ms / 10));
        let seen = leader.run(1_000..10_000, |_| Some(100));
        assert!(seen[100], "it is behind");
        assert!(all(&seen[350..], false), "for so long and no longer");
        let new = |ms: u64| Some((ms - 10_000) / 10);
        assert!(
            all(&leader.run(10_000..20_000, new), false),
            "another one begins"
        );
    }

    #[test]
    fn a_node_that_never_catches_up_is_not_waited_for_for_ever() {
        let mut leader = Leader::new();
        leader.run(0..1_000, |ms| Some(ms / 10));
        // Whatever happens, it says that it is a second behind.
        let late = |ms: u64| Some((ms - 1_000) / 10);
        let seen = leader.run(1_000..60_000, late);
        let most = MOST.as_millis() as usize / 10;
        assert!(all(&seen[150..most], true) && all(&seen[most + 150..], false));
        leader.run(60_000..61_000, |ms| Some(ms / 10));
        let seen = leader.run(61_000..63_000, late);
        assert!(seen.last() == Some(&true), "it has kept up meanwhile");
    }

    #[tokio::test]
    async fn a_node_is_waited_for_until_it_has_caught_up_and_no_longer_than_said() {
        let mut leader = Leader::new();
        let ago = |ms| Instant::now().checked_sub(Duration::from_millis(ms));
        let ago = |ms| ago(ms).expect("the machine runs for longer");
        for (index, ms) in [(1, 1_000), (2, 500)] {
            leader.applied.note(LogIndex(index), ago(ms));
        }
        let (progress, own) = (&leader.progress, &leader.applied);
        let tell = |applied| progress.heard(NodeId(2), LogIndex(applied), Instant::now());
        let short = Duration::from_millis(20);
        tell(2);
        assert!(!progress.wait(own, short).await, "it keeps up");
        tell(1);
        assert!(progress.wait(own, short).await, "it does not");
        tell(1);
        let caught_up = async {
            tokio::task::yield_now().await;
            tell(2);
        };
        let (has_waited, ()) = tokio::join!(progress.wait(own, LOST), caught_up);
        assert!(has_waited);
        assert!(!progress.wait(own, short).await, "it has caught up");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut leader = Leader::new();
        leader.run(0..60_000, |ms| Some(ms / 10));
        let most = LOST.as_millis() / REMEMBERED_EVERY.as_millis() + 2;
        assert!(leader.applied.0.len() <= most as usize);
    }
}
