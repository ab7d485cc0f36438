//! A leader that commits at a steady rate, and what another node tells it.

use super::*;

#[path = "progress_weight_tests.rs"]
mod weight;

/// A leader that commits an entry every ten milliseconds.
struct Leader {
    began: Instant,
    progress: Progress,
    committed: Committed,
}

impl Leader {
    fn new() -> Leader {
        let mut committed = Committed::new(NodeId(1));
        committed.set_term(1);
        Leader {
            began: Instant::now(),
            progress: Progress::default(),
            committed,
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.began + Duration::from_millis(ms)
    }

    /// From one time to another a node tells how far it is, which is told it; whether it is behind at each time.
    /// Its log has everything that is committed.
    fn run(&mut self, ms: std::ops::Range<u64>, applied: impl Fn(u64) -> Option<u64>) -> Vec<bool> {
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
                let known = (LogIndex(ms / 10), vec![(NodeId(2), log)]);
                self.committed.note(known, now);
                if ms % 100 == 0
                    && let Some(applied) = applied(ms)
                {
                    let applied = LogIndex(applied);
                    let reached = Reached {
                        applied,
                        committed: applied.max(log),
                    };
                    self.progress.heard(NodeId(2), reached, now);
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

/// What it tells is as old as its way to the leader was long, and then the leader knows nothing newer for a while.
#[test]
fn a_node_is_not_behind_because_it_tells_seldom() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    let seldom = |ms: u64| ms.is_multiple_of(200).then(|| ms.saturating_sub(100) / 10);
    assert!(all(&leader.run(1_000..10_000, seldom), false));
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
    assert!(all(&seen[..20], false) && all(&seen[21..], true));
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
    leader.committed.set_term(3);
    for ms in (120_000..125_000).step_by(10) {
        let now = leader.at(ms);
        // At first the leader knows nothing of the node's log.
        let log = LogIndex(if ms < 120_400 { 0 } else { ms / 10 });
        let known = (LogIndex(ms / 10), vec![(NodeId(2), log)]);
        leader.committed.note(known, now);
        let applied = 11_200 + (ms - 120_000) / 20;
        leader.progress.heard(NodeId(2), all_of(applied), now);
        assert!(!leader.progress.is_behind(&leader.committed, now));
    }
}

fn ago(ms: u64) -> Instant {
    let ago = Instant::now().checked_sub(Duration::from_millis(ms));
    ago.expect("the machine runs for longer")
}

/// A node has applied all that it may.
fn all_of(last: u64) -> Reached {
    Reached {
        applied: LogIndex(last),
        committed: LogIndex(last),
    }
}

/// What was committed last.
fn last(index: u64) -> impl Fn() -> LogIndex {
    move || LogIndex(index)
}

/// The logs of two nodes have so much, and it is committed.
fn both(last: u64) -> Known {
    let logs = [NodeId(1), NodeId(2)].map(|node| (node, LogIndex(last)));
    (LogIndex(last), logs.to_vec())
}

#[tokio::test(start_paused = true)]
async fn a_node_is_waited_for_until_it_has_caught_up_and_no_longer_than_said() {
    let mut leader = Leader::new();
    let (_own, applied) = watch::channel(LogIndex(2));
    let applied = &mut applied.clone();
    let short = Duration::from_millis(20);
    let (progress, committed) = (&leader.progress, &mut leader.committed);
    let tell = |applied| progress.heard(NodeId(2), all_of(applied), Instant::now());
    tell(1);
    committed.note(both(1), ago(1_000));
    assert!(!progress.is_behind(committed, ago(600)), "it keeps up");
    committed.note(both(2), ago(500));
    let has_waited = progress.wait(committed, last(2), applied, short).await;
    assert!(has_waited, "it does not");
    tell(1);
    let caught_up = async {
        tokio::task::yield_now().await;
        tell(2);
    };
    let began = Instant::now();
    let waits = progress.wait(committed, last(2), applied, LOST);
    let (has_waited, ()) = tokio::join!(waits, caught_up);
    assert!(has_waited && began.elapsed().is_zero(), "it is woken");
    tell(2);
    let has_waited = progress.wait(committed, last(2), applied, short).await;
    assert!(!has_waited, "it has caught up");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_behind_itself_is_waited_for() {
    let mut leader = Leader::new();
    let (_own, mut applied) = watch::channel(LogIndex(2));
    leader.committed.note(both(2), ago(300));
    leader.committed.note(both(3), ago(150));
    let (short, committed) = (Duration::from_millis(20), &mut leader.committed);
    let progress = &leader.progress;
    let waits = progress.wait(committed, last(3), &mut applied, short);
    assert!(waits.await);
}

/// Otherwise ages would depend on who waits, and when.
#[tokio::test(start_paused = true)]
async fn what_is_known_is_remembered_when_the_leader_appends_and_not_when_it_waits() {
    let mut leader = Leader::new();
    let (_own, mut applied) = watch::channel(LogIndex(2));
    let committed = &mut leader.committed;
    committed.note(both(1), ago(100));
    let (all, log) = (
        committed.all.0.clone(),
        committed.logs[&NodeId(2)].0.clone(),
    );
    let waits = leader.progress.wait(committed, last(2), &mut applied, LOST);
    assert!(!waits.await);
    assert_eq!(committed.all.0, all);
    assert_eq!(committed.logs[&NodeId(2)].0, log);
    assert_eq!(committed.last, LogIndex(2));
}

/// It begins under what the nodes send again, and its own apply counts from the first entry on.
#[tokio::test(start_paused = true)]
async fn a_new_leader_holds_back_for_itself() {
    let (progress, mut committed) = (Progress::default(), Committed::new(NodeId(1)));
    let (_own, mut applied) = watch::channel(LogIndex(2));
    committed.set_term(1);
    committed.note(both(3), ago(200));
    let short = Duration::from_millis(20);
    let waits = progress.wait(&mut committed, last(3), &mut applied, short);
    assert!(waits.await);
}

/// It has led, did not keep up, and leads again much later.
#[test]
fn that_a_node_did_not_keep_up_is_forgotten() {
    let (mut leader, mut own) = (Leader::new(), KeepingUp::default());
    let mut look = |ms: u64| {
        let now = leader.at(ms);
        leader.committed.note(both(ms), now);
        let reached = all_of(ms.saturating_sub(1_000));
        own.is_behind(NodeId(1), reached, &leader.committed, OWN_BEHIND, now)
    };
    let seen: Vec<bool> = (0..60_000).step_by(100).map(&mut look).collect();
    assert!(all(&seen[20..200], true) && all(&seen[400..], false));
    let again = 60_000 + FORGOTTEN.as_millis() as u64;
    look(again);
    assert!(look(again + 200), "it is waited for");
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut leader = Leader::new();
    leader.run(0..60_000, |ms| Some(ms / 10));
    let most = LOST.as_millis() / REMEMBERED_EVERY.as_millis() + 2;
    let now = leader.at(60_000);
    let committed = &mut leader.committed;
    assert!(committed.all.0.len() <= most as usize);
    assert!(committed.logs[&NodeId(2)].0.len() <= most as usize);
    committed.collected(&weight::proposal(2, 1, 1), 0);
    // It is no member any more.
    committed.note((LogIndex(1), Vec::new()), now);
    assert!(committed.logs.is_empty() && committed.proposed.is_empty());
}
