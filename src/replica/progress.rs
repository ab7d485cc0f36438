//! How far the other nodes have applied the log, as they tell the leader several times a second; and whether the leader
//! is to hold back because one of them does not keep up.
//!
//! The leader's own apply tells nothing of the others': they may have more connections, or less of their machine. A
//! node that falls further and further behind leaves its clients waiting, and lets them go when it can't confirm any
//! more that it has applied what was committed.
//!
//! Invariant: a node holds nobody up that tells nothing, that has yet to catch up, or that is so far behind that it
//! can't serve.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::base::ids::{LogIndex, NodeId};

/// How old what a node has not applied must be for the leader to hold back.
const BEHIND: Duration = Duration::from_millis(300);

/// How old that is where the node is no longer waited for: by then it has let its clients go.
const LOST: Duration = Duration::from_secs(3);

/// A node that has told nothing for so long is not waited for. This is less than [`BEHIND`], so one that stands still
/// is passed over before it counts as behind.
const SILENT: Duration = Duration::from_millis(250);

const _: () = assert!(SILENT.as_millis() < BEHIND.as_millis());

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
    /// It has kept up since it was looked at last.
    keeps_up: bool,
}

impl Progress {
    /// A node says how far it has applied the log.
    pub fn heard(&self, node: NodeId, applied: LogIndex, now: Instant) {
        let mut nodes = self.nodes.lock();
        let keeps_up = nodes.get(&node).is_some_and(|told| told.keeps_up);
        let told = Told {
            applied,
            at: now,
            keeps_up,
        };
        nodes.insert(node, told);
        drop(nodes);
        self.changed.notify_one();
    }

    /// Waits while a node does not keep up with what was appended, and no longer than `most`. Tells whether it waited.
    pub async fn wait(&self, appended: &Appended, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut has_waited = false;
        while self.is_behind(appended, Instant::now()) {
            has_waited = true;
            let changed = tokio::time::timeout_at(until.into(), self.changed.notified());
            if changed.await.is_err() {
                break;
            }
        }
        has_waited
    }

    /// Whether a node does not keep up with what was appended.
    fn is_behind(&self, appended: &Appended, now: Instant) -> bool {
        let mut nodes = self.nodes.lock();
        nodes.retain(|_, told| now.saturating_duration_since(told.at) < LOST);
        let mut is_behind = false;
        for told in nodes.values_mut() {
            if now.saturating_duration_since(told.at) >= SILENT {
                continue;
            }
            if appended.before(BEHIND, now) <= told.applied {
                told.keeps_up = true;
            } else if appended.before(LOST, now) > told.applied {
                told.keeps_up = false;
            }
            is_behind |= told.keeps_up && appended.before(BEHIND, now) > told.applied;
        }
        is_behind
    }
}

/// What the leader has appended lately, and when.
#[derive(Debug, Default)]
pub struct Appended(VecDeque<(Instant, LogIndex)>);

impl Appended {
    /// The last entry has this index.
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

    /// The last entry that was appended so long ago or earlier, as far as it is known.
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

    /// A leader that appends an entry every ten milliseconds.
    struct Leader {
        began: Instant,
        progress: Progress,
        appended: Appended,
    }

    impl Leader {
        fn new() -> Leader {
            Leader {
                began: Instant::now(),
                progress: Progress::default(),
                appended: Appended::default(),
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
                    self.appended.note(LogIndex(ms / 10), now);
                    if ms % 100 == 0
                        && let Some(applied) = applied(ms)
                    {
                        self.progress.heard(NodeId(2), LogIndex(applied), now);
                    }
                    self.progress.is_behind(&self.appended, now)
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

    #[tokio::test]
    async fn a_node_is_waited_for_until_it_has_caught_up_and_no_longer_than_said() {
        let mut leader = Leader::new();
        let ago = |ms| Instant::now().checked_sub(Duration::from_millis(ms));
        let ago = |ms| ago(ms).expect("the machine runs for longer");
        for (index, ms) in [(1, 1_000), (2, 500)] {
            leader.appended.note(LogIndex(index), ago(ms));
        }
        let (progress, appended) = (&leader.progress, &leader.appended);
        let tell = |applied| progress.heard(NodeId(2), LogIndex(applied), Instant::now());
        let short = Duration::from_millis(20);
        tell(2);
        assert!(!progress.wait(appended, short).await, "it keeps up");
        tell(1);
        assert!(progress.wait(appended, short).await, "it does not");
        tell(1);
        let caught_up = async {
            tokio::task::yield_now().await;
            tell(2);
        };
        let (has_waited, ()) = tokio::join!(progress.wait(appended, LOST), caught_up);
        assert!(has_waited);
        assert!(!progress.wait(appended, short).await, "it has caught up");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut leader = Leader::new();
        leader.run(0..60_000, |ms| Some(ms / 10));
        let most = LOST.as_millis() / REMEMBERED_EVERY.as_millis() + 2;
        assert!(leader.appended.0.len() <= most as usize);
    }
}
