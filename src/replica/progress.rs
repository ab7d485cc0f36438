//! How far the nodes have applied the log, as the others tell the leader several times a second; and whether the leader
//! is to hold back because one of them, or its own apply, does not keep up.
//!
//! One node's apply tells nothing of the others': they may have more connections, or less of their machine. A node that
//! falls further and further behind leaves its clients waiting, and lets them go when it can't confirm any more that it
//! has applied what was committed.
//!
//! Invariant: a node holds nobody up that tells nothing, that has yet to catch up, that is so far behind that it can't
//! serve, or that has been waited for for [`MOST`] lately. What is not committed yet, or not in a node's log yet, such
//! as with slow disks, leaves nobody behind: holding back would not help.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, watch};

use crate::base::ids::{LogIndex, NodeId};

/// A node is behind when it has not applied what was committed, and in its log, so long ago.
const BEHIND: Duration = Duration::from_millis(300);

/// The same for the leader itself, which knows at once.
const OWN_BEHIND: Duration = Duration::from_millis(100);

/// The same for a node that is no longer waited for: by then it has let its clients go.
const LOST: Duration = Duration::from_secs(3);

/// A node that has told nothing for so long is not waited for. This is less than [`BEHIND`], so one that stands still
/// is passed over before it counts as behind.
const SILENT: Duration = Duration::from_millis(250);

const _: () = assert!(SILENT.as_millis() < BEHIND.as_millis());

/// How long a node may be behind, times in which it keeps up taken off at a tenth. Holding back does not help one that
/// is behind for longer, and it is not waited for until half of that is taken off.
const MOST: Duration = Duration::from_secs(30);

/// Of two looks at a node that are further apart, nobody knows how it was in between.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(500);

/// What is known of a node that has told nothing for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Between two indexes that the leader remembers with their time.
const REMEMBERED_EVERY: Duration = Duration::from_millis(20);

/// How far the nodes are.
#[derive(Debug, Default)]
pub struct Progress {
    own: Mutex<KeepingUp>,
    others: Mutex<FxHashMap<NodeId, Told>>,
    /// Somebody has told something new.
    changed: Notify,
}

/// What another node has told.
#[derive(Clone, Copy, Debug)]
struct Told {
    applied: LogIndex,
    at: Instant,
    keeping_up: KeepingUp,
}

/// Whether a node is waited for.
#[derive(Clone, Copy, Debug, Default)]
struct KeepingUp {
    /// The term in which it was last looked at.
    term: u64,
    /// It has kept up in that term, and has not been lost or given up since.
    is_waited_for: bool,
    looked_at: Option<Instant>,
    /// For how long it was behind, see [`MOST`].
    behind_for: Duration,
    is_given_up: bool,
}

impl KeepingUp {
    /// Takes in how far a node is now. Tells whether it is behind and waited for; says so when that ends.
    fn is_behind(
        &mut self,
        node: NodeId,
        applied: LogIndex,
        committed: &Committed,
        age: Duration,
        now: Instant,
    ) -> bool {
        let former = self.looked_at.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(former).min(LOOKED_AT_EVERY);
        if self.term != committed.term {
            // Another node may have to catch up with what another leader has committed; the leader has done so.
            self.is_waited_for = node == committed.own;
            self.term = committed.term;
        }
        let has_applied = |due| due <= applied;
        let all = &committed.all;
        if !all.before(LOST, now).is_none_or(has_applied) {
            self.is_waited_for = false;
        }
        let Some(due) = all.before(age, now) else {
            return false;
        };
        // What its log lacks is not due, but only who has applied all that is committed keeps up.
        if has_applied(due) {
            self.is_waited_for = true;
            self.behind_for = self.behind_for.saturating_sub(passed / 10);
            self.is_given_up &= self.behind_for > MOST / 2;
            return false;
        }
        let log = committed.logs.get(&node);
        let in_log = log.and_then(|log| log.before(age, now));
        if !self.is_waited_for || self.is_given_up || in_log.is_none_or(has_applied) {
            return false;
        }
        self.behind_for += passed;
        self.is_given_up = self.behind_for >= MOST;
        if self.is_given_up {
            tracing::warn!(
                node = node.0,
                "a node does not keep up with applying the log: the leader does not hold back for it any more"
            );
        }
        !self.is_given_up
    }
}

impl Progress {
    /// A node says how far it has applied the log.
    pub fn heard(&self, node: NodeId, applied: LogIndex, now: Instant) {
        let mut others = self.others.lock();
        let told = others.entry(node).or_insert(Told {
            applied,
            at: now,
            keeping_up: KeepingUp::default(),
        });
        // It has started again, or was away, and catches up.
        let was_there = now.saturating_duration_since(told.at) < LOST;
        told.keeping_up.is_waited_for &= was_there && applied >= told.applied;
        told.applied = applied;
        told.at = now;
        drop(others);
        self.changed.notify_one();
    }

    /// Waits while a node, or this one with what it has `applied`, does not keep up with what is `committed`, and no
    /// longer than `most`. Tells whether it waited.
    pub async fn wait(
        &self,
        committed: &Committed,
        applied: &mut watch::Receiver<LogIndex>,
        most: Duration,
    ) -> bool {
        let until = Instant::now() + most;
        let mut has_waited = false;
        loop {
            let (own, now) = (*applied.borrow_and_update(), Instant::now());
            let mut keeping_up = *self.own.lock();
            let is_behind = keeping_up.is_behind(committed.own, own, committed, OWN_BEHIND, now);
            *self.own.lock() = keeping_up;
            if !is_behind && !self.is_behind(committed, now) {
                break;
            }
            has_waited = true;
            tokio::select! {
                () = self.changed.notified() => {}
                Ok(()) = applied.changed() => {}
                () = tokio::time::sleep_until(until.into()) => break,
            }
        }
        has_waited
    }

    /// Whether another node does not keep up with what is committed.
    fn is_behind(&self, committed: &Committed, now: Instant) -> bool {
        let mut others = self.others.lock();
        others.retain(|_, told| now.saturating_duration_since(told.at) < FORGOTTEN);
        let mut is_behind = false;
        for (node, told) in others.iter_mut() {
            if now.saturating_duration_since(told.at) < SILENT {
                let applied = told.applied;
                is_behind |= told
                    .keeping_up
                    .is_behind(*node, applied, committed, BEHIND, now);
            }
        }
        is_behind
    }
}

/// How far the log was committed lately, and each node's log, and when, while this node leads.
#[derive(Debug)]
pub struct Committed {
    own: NodeId,
    term: u64,
    all: Noted,
    logs: FxHashMap<NodeId, Noted>,
}

impl Committed {
    /// Nothing is known.
    pub fn new(own: NodeId) -> Committed {
        Committed {
            own,
            term: 0,
            all: Noted::default(),
            logs: FxHashMap::default(),
        }
    }

    /// `known` tells how far the log is committed, and how much of that the nodes' logs have, in a term in which this
    /// node leads. It is asked when the last time is a while ago.
    pub fn note(
        &mut self,
        term: u64,
        known: impl FnOnce() -> (LogIndex, Vec<(NodeId, LogIndex)>),
        now: Instant,
    ) {
        // What was before another leader tells nothing of now.
        if term != self.term {
            *self = Committed {
                term,
                ..Committed::new(self.own)
            };
        }
        let is_new = |at| now.saturating_duration_since(at) >= REMEMBERED_EVERY;
        if !self.all.last_at().is_none_or(is_new) {
            return;
        }
        let (all, logs) = known();
        self.all.note(all, now);
        for (node, last) in logs {
            self.logs.entry(node).or_default().note(last, now);
        }
        // Others are no members any more.
        self.logs.retain(|_, log| log.last_at() == Some(now));
    }
}

/// Indexes, and when they were known.
#[derive(Debug, Default)]
struct Noted(VecDeque<(Instant, LogIndex)>);

impl Noted {
    fn note(&mut self, last: LogIndex, now: Instant) {
        self.0.push_back((now, last));
        // The first one is what was there so long ago.
        while self.0.len() > 1 && now.saturating_duration_since(self.0[1].0) >= LOST {
            self.0.pop_front();
        }
    }

    fn last_at(&self) -> Option<Instant> {
        self.0.back().map(|(at, _)| *at)
    }

    /// What there was so long ago or earlier, as far as it is known.
    fn before(&self, age: Duration, now: Instant) -> Option<LogIndex> {
        let is_old = |(at, _): &(Instant, LogIndex)| now.saturating_duration_since(*at) >= age;
        let older = self.0.partition_point(is_old);
        older.checked_sub(1).map(|last| self.0[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that commits an entry every ten milliseconds.
    struct Leader {
        began: Instant,
        progress: Progress,
        committed: Committed,
    }

    impl Leader {
        fn new() -> Leader {
            Leader {
                began: Instant::now(),
                progress: Progress::default(),
                committed: Committed::new(NodeId(1)),
            }
        }

        fn at(&self, ms: u64) -> Instant {
            self.began + Duration::from_millis(ms)
        }

        /// From one time to another a node tells how far it is, which is told it; whether it is behind at each time.
        /// Its log has everything that is committed.
        fn run(
            &mut self,
            ms: std::ops::Range<u64>,
            applied: impl Fn(u64) -> Option<u64>,
        ) -> Vec<bool> {
            self.run_with(ms, |ms| ms / 10, applied)
        }

        /// The same with the last entry of its log.
        fn run_with(
            &mut self,
            ms: std::ops::Range<u64>,
            log: impl Fn(u64) -> u64,
            applied: impl Fn(u64) -> Option<u64>,
        ) -> Vec<bool> {
            let times = ms.step_by(10);
            times
                .map(|ms| {
                    let now = self.at(ms);
                    let log = LogIndex(log(ms));
                    let known = || (LogIndex(ms / 10), vec![(NodeId(2), log)]);
                    self.committed.note(1, known, now);
                    if ms % 100 == 0
                        && let Some(applied) = applied(ms)
                    {
                        self.progress.heard(NodeId(2), LogIndex(applied), now);
                    }
                    self.progress.is_behind(&self.committed, now)
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
        let late = |from: u64| move |ms: u64| Some((ms - 1_000).max(from) / 10);
        let seen = leader.run(1_000..60_000, late(1_000));
        let most = MOST.as_millis() as usize / 10;
        assert!(all(&seen[150..most], true) && all(&seen[most + 150..], false));
        // One moment in which it keeps up does not count.
        leader.run(60_000..61_000, |ms| Some(ms / 10));
        assert!(all(&leader.run(61_000..63_000, late(61_000)), false));
        // Nor does that it was away.
        leader.run(63_000..67_000, |_| None);
        leader.run(67_000..68_000, |ms| Some(ms / 10));
        assert!(all(&leader.run(68_000..69_000, late(68_000)), false));
        leader.run(69_000..69_000 + 6 * 30_000, |ms| Some(ms / 10));
        let again = 69_000 + 6 * 30_000;
        let seen = leader.run(again..again + 2_000, late(again));
        assert!(seen.last() == Some(&true), "it has kept up for long");
    }

    /// As one whose disk stalls every other second does.
    #[test]
    fn a_node_that_falls_behind_again_and_again_costs_no_more() {
        let mut leader = Leader::new();
        let waited = (0..300).map(|number| {
            let (from, to) = (number * 2_000, number * 2_000 + 1_000);
            let seen = leader.run(from..to, |ms| Some(ms / 10));
            assert!(seen.last() == Some(&false));
            let seen = leader.run(to..to + 1_000, |_| Some(to / 10));
            seen.iter().filter(|seen| **seen).count() as u32
        });
        let waited = Duration::from_millis(10) * waited.sum::<u32>();
        assert!(
            waited >= MOST && waited < 4 * MOST,
            "{waited:?} of ten minutes"
        );
    }

    /// Such as one whose disk stands still: it applies nothing, and then much at once.
    #[test]
    fn a_node_is_not_waited_for_because_of_what_its_log_lacks() {
        let mut leader = Leader::new();
        leader.run(0..1_000, |ms| Some(ms / 10));
        for from in (1_000..20_000).step_by(4_000) {
            let to = from + 2_000;
            let seen = leader.run_with(from..to, |_| from / 10, |_| Some(from / 10));
            assert!(all(&seen, false), "its disk stands still");
            let told = |ms: u64| Some(if ms < to + 200 { from } else { ms } / 10);
            let seen = leader.run(to..to + 2_000, told);
            assert!(all(&seen, false), "it goes on");
        }
        // Once its log has them, applying them is due.
        leader.run_with(21_000..23_000, |_| 2_100, |_| Some(2_100));
        let seen = leader.run(23_000..23_900, |_| Some(2_100));
        assert!(all(&seen[..30], false) && all(&seen[31..], true));
    }

    #[test]
    fn a_node_that_gets_its_log_back_is_not_waited_for_before_it_has_caught_up() {
        let mut leader = Leader::new();
        leader.run(0..1_000, |ms| Some(ms / 10));
        let seen = leader.run_with(1_000..11_000, |_| 100, |_| Some(100));
        assert!(all(&seen, false), "its log lacks what is committed");
        // Its log comes at once, and it applies as fast again as the leader commits.
        let seen = leader.run(11_000..20_000, |ms| Some(100 + (ms - 11_000) / 5));
        assert!(all(&seen, false), "it catches up");
        leader.run(21_000..22_000, |ms| Some(ms / 10));
        let seen = leader.run(22_000..23_000, |_| Some(2_200));
        assert!(seen.last() == Some(&true), "it counts again");
    }

    /// It knows nothing of who has kept up before it led.
    #[test]
    fn a_new_leader_waits_for_nobody_who_catches_up() {
        let mut leader = Leader::new();
        assert!(all(
            &leader.run(100_000..110_000, |ms| Some(ms / 20)),
            false
        ));
        leader.run(110_000..111_000, |ms| Some(ms / 10));
        // Another one has led meanwhile, and the node has started again.
        for ms in (120_000..125_000).step_by(10) {
            let now = leader.at(ms);
            // At first the leader knows nothing of the node's log.
            let log = LogIndex(if ms < 120_400 { 0 } else { ms / 10 });
            let known = || (LogIndex(ms / 10), vec![(NodeId(2), log)]);
            leader.committed.note(3, known, now);
            let applied = LogIndex(11_200 + (ms - 120_000) / 20);
            leader.progress.heard(NodeId(2), applied, now);
            assert!(!leader.progress.is_behind(&leader.committed, now));
        }
    }

    #[tokio::test]
    async fn a_node_is_waited_for_until_it_has_caught_up_and_no_longer_than_said() {
        let mut leader = Leader::new();
        let ago = |ms| Instant::now().checked_sub(Duration::from_millis(ms));
        let ago = |ms| ago(ms).expect("the machine runs for longer");
        let (_own, applied) = watch::channel(LogIndex(2));
        let applied = &mut applied.clone();
        let short = Duration::from_millis(20);
        let (progress, committed) = (&leader.progress, &mut leader.committed);
        let note = |committed: &mut Committed, last, at| {
            let logs = [NodeId(1), NodeId(2)].map(|node| (node, LogIndex(last)));
            committed.note(1, || (LogIndex(last), logs.to_vec()), at);
        };
        let tell = |applied| progress.heard(NodeId(2), LogIndex(applied), Instant::now());
        tell(1);
        note(committed, 1, ago(1_000));
        let has_waited = progress.wait(committed, applied, short).await;
        assert!(!has_waited, "it keeps up");
        note(committed, 2, ago(500));
        let has_waited = progress.wait(committed, applied, short).await;
        assert!(has_waited, "it does not");
        tell(1);
        let caught_up = async {
            tokio::task::yield_now().await;
            tell(2);
        };
        let (has_waited, ()) = tokio::join!(progress.wait(committed, applied, LOST), caught_up);
        assert!(has_waited);
        let has_waited = progress.wait(committed, applied, short).await;
        assert!(!has_waited, "it has caught up");
        // This node itself is behind.
        note(committed, 3, ago(150));
        let has_waited = progress.wait(committed, applied, short).await;
        assert!(has_waited);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut leader = Leader::new();
        leader.run(0..60_000, |ms| Some(ms / 10));
        let most = LOST.as_millis() / REMEMBERED_EVERY.as_millis() + 2;
        assert!(leader.committed.all.0.len() <= most as usize);
        assert!(leader.committed.logs[&NodeId(2)].0.len() <= most as usize);
        // It is no member any more.
        let (nobody, now) = (|| (LogIndex(1), Vec::new()), leader.at(60_000));
        leader.committed.note(1, nobody, now);
        assert!(leader.committed.logs.is_empty());
    }
}
