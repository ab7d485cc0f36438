//! A leader whose entries weigh much, and how far another node is with them.

use std::cell::Cell;

use super::*;

pub(super) fn proposal(node: u64, incarnation: u64, sequence: u64) -> command::Proposal {
    command::Proposal {
        node,
        incarnation,
        sequence,
        ..command::Proposal::default()
    }
}

impl Leader {
    /// Appends entries of so much weight, behind a hundred others, each a proposal of its own.
    fn append(&mut self, weights: &[u64], now: Instant) {
        self.append_from(101, weights, now);
    }

    fn append_from(&mut self, first: u64, weights: &[u64], now: Instant) {
        for (index, weight) in (first..).zip(weights) {
            self.committed.collected(&proposal(3, 1, index), *weight);
            self.committed.appended(LogIndex(index), now);
        }
    }

    /// So much is committed, and the logs of this node and the other have so much of it.
    fn knows(&mut self, committed: u64, own: u64, other: u64, now: Instant) {
        let logs = [(NodeId(1), LogIndex(own)), (NodeId(2), LogIndex(other))];
        self.committed.last = LogIndex(committed);
        self.committed
            .note((self.committed.last, logs.to_vec()), now);
    }

    /// Whether the other node holds it up that has applied so much, and may apply all that is committed.
    fn waits_for(&self, applied: u64, now: Instant) -> bool {
        self.waits_for_one_that_may(applied, self.committed.last.0, now)
    }

    /// The same for one that may apply so much.
    fn waits_for_one_that_may(&self, applied: u64, committed: u64, now: Instant) -> bool {
        let reached = Reached {
            applied: LogIndex(applied),
            committed: LogIndex(committed),
        };
        self.progress.heard(NodeId(2), reached, now);
        self.progress.is_behind(&self.committed, now)
    }
}

const HALF: u64 = MUCH_WEIGHT / 2;

/// Much work fits into few bytes, and into the time in which a node that has not applied it is not behind yet.
#[test]
fn p12_work_that_is_appended_at_once_is_waited_for() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    let mut own = KeepingUp::default();
    let now = leader.at(1_000);
    leader.append(&[HALF, HALF, 1], now);
    for index in 101..=103 {
        leader.knows(index, index, index, now);
        let mut is_behind = |applied| {
            let it = leader.waits_for(applied, now);
            let reached = Reached {
                applied: LogIndex(applied),
                committed: LogIndex(index),
            };
            let itself = own.is_behind(NodeId(1), reached, &leader.committed, OWN_BEHIND, now);
            (it, itself)
        };
        let is_much = index == 103;
        assert_eq!(is_behind(100), (is_much, is_much), "{index}");
        assert_eq!(is_behind(101), (false, false), "{index}");
    }
}

#[test]
fn work_that_is_not_committed_does_not_count() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    let now = leader.at(1_000);
    leader.append(&[HALF, HALF, 1], now);
    leader.knows(102, 102, 102, now);
    assert!(!leader.waits_for(100, now));
    leader.knows(103, 103, 103, now);
    assert!(leader.waits_for(100, now));
}

/// A node applies what its disk does not have yet, and so does the leader. A disk may take any time for it.
#[test]
fn work_counts_whatever_the_disk_of_the_node_has() {
    let mut leader = Leader::new();
    let confirmed = |ms: u64| ms.saturating_sub(300) / 10;
    leader.run_with(0..1_000, confirmed, |ms| Some(ms / 10));
    leader.append(&[HALF, HALF, 1], leader.at(1_000));
    let mut own = KeepingUp::default();
    for ms in (1_000..1_300).step_by(10) {
        let now = leader.at(ms);
        leader.knows(103, confirmed(ms), confirmed(ms), now);
        assert!(leader.waits_for(100, now), "{ms}");
        let mut is_behind = |applied| {
            let reached = Reached {
                applied: LogIndex(applied),
                committed: LogIndex(103),
            };
            own.is_behind(NodeId(1), reached, &leader.committed, OWN_BEHIND, now)
        };
        assert!(is_behind(100) && !is_behind(101), "{ms}");
    }
    let now = leader.at(1_300);
    assert!(!leader.waits_for(101, now));
    let keeping_up = leader.progress.others.lock()[&NodeId(2)].keeping_up;
    assert_eq!(keeping_up.behind_for, Duration::ZERO, "it was not behind");
}

/// Its log may fill up while its disk stands still: then holding back would not help it.
#[test]
fn work_that_a_node_has_not_got_for_long_does_not_count() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    leader.append(&[MUCH_WEIGHT, 1, MUCH_WEIGHT, 1], leader.at(1_000));
    let late = 1_000 + BEHIND.as_millis() as u64;
    for ms in (1_000..late + 100).step_by(10) {
        let now = leader.at(ms);
        leader.knows(104, 104, 100, now);
        let is_late = ms >= late;
        let waits_for = |applied, committed| leader.waits_for_one_that_may(applied, committed, now);
        assert_eq!(waits_for(100, 100), !is_late, "{ms}: it is on its way");
        assert_eq!(waits_for(100, 101), !is_late, "{ms}: nor much of it");
        assert!(waits_for(100, 102), "{ms}: it has much of it");
        assert!(waits_for(100, 104), "{ms}: it has all");
    }
    assert!(
        !leader.waits_for(103, leader.at(late + 100)),
        "it has done most of it"
    );
    let keeping_up = leader.progress.others.lock()[&NodeId(2)].keeping_up;
    assert_eq!(keeping_up.behind_for, Duration::ZERO, "it was not behind");
}

/// It has stood still, and nothing is appended that it could be late with.
#[test]
fn work_of_a_node_that_tells_nothing_does_not_count() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    leader.append(&[MUCH_WEIGHT, 1], leader.at(1_000));
    leader.knows(102, 102, 102, leader.at(1_000));
    assert!(leader.waits_for(100, leader.at(1_000)));
    let (progress, committed) = (&leader.progress, &leader.committed);
    let silent = leader.at(1_000) + SILENT;
    assert!(!progress.is_behind(committed, silent));
}

/// A node that has yet to catch up, or was given up, holds nobody up, whatever there is to do.
#[test]
fn work_of_a_node_that_is_not_waited_for_does_not_count() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 100));
    let now = leader.at(1_000);
    leader.append(&[MUCH_WEIGHT, 1], now);
    leader.knows(102, 102, 102, now);
    assert!(!leader.waits_for(10, now), "it catches up");
    assert!(leader.waits_for(100, now), "it has caught up");
    let mut others = leader.progress.others.lock();
    let keeping_up = &mut others.get_mut(&NodeId(2)).expect("it has told").keeping_up;
    (keeping_up.is_given_up, keeping_up.behind_for) = (true, MOST);
    drop(others);
    assert!(!leader.waits_for(100, now), "it is given up");
}

/// A load that does not end burdens the nodes for as long as it lasts.
#[test]
fn a_node_that_gets_done_with_its_work_is_not_given_up() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    let most = MOST.as_millis() as u64 / 10;
    for index in 101..101 + 2 * most {
        let now = leader.at(index * 10);
        let committed = &mut leader.committed;
        committed.collected(&proposal(3, 1, index), MUCH_WEIGHT + 1);
        committed.appended(LogIndex(index), now);
        leader.knows(index, index, index, now);
        assert!(leader.waits_for(index - 1, now), "{index}");
        assert!(!leader.waits_for(index, now), "{index}");
    }
}

/// What another leader appended tells nothing: this one may have all of that applied.
#[test]
fn work_of_another_term_does_not_count() {
    let mut leader = Leader::new();
    leader.run(0..1_000, |ms| Some(ms / 10));
    let now = leader.at(1_000);
    leader.append(&[MUCH_WEIGHT, 1], now);
    leader.committed.collected(&proposal(3, 1, 103), 1);
    leader.committed.set_term(1);
    leader.knows(102, 102, 102, now);
    assert!(leader.waits_for(100, now), "the same term");
    leader.committed.set_term(2);
    leader.committed.appended(LogIndex(103), now);
    assert_eq!(leader.committed.weights.all, 0, "nor what was collected");
    // What it had not committed comes again.
    leader.committed.collected(&proposal(3, 1, 103), 1);
    leader.committed.appended(LogIndex(103), now);
    assert_eq!(leader.committed.weights.all, 1);
}

#[test]
fn a_proposal_counts_once_and_within_bounds() {
    let mut committed = Committed::new(NodeId(1));
    let mut counts = |proposals: &[command::Proposal], weight| {
        for proposal in proposals {
            committed.collected(proposal, weight);
        }
        std::mem::take(&mut committed.collected)
    };
    assert_eq!(counts(&[proposal(2, 7, 1), proposal(3, 7, 1)], 5), 10);
    assert_eq!(counts(&[proposal(2, 7, 2), proposal(2, 7, 3)], 5), 10);
    let copies = [proposal(2, 7, 1), proposal(2, 7, 2), proposal(2, 7, 3)];
    assert_eq!(counts(&copies, 5), 0, "copies");
    assert_eq!(counts(&[proposal(2, 8, 1)], 5), 5, "another incarnation");
    let late = [proposal(2, 7, 4), proposal(2, 8, 1)];
    assert_eq!(counts(&late, 5), 0, "the former one, and a copy");
    let refused = command::Proposal {
        refused: true,
        ..proposal(3, 7, 2)
    };
    assert_eq!(counts(&[refused], 5), 0, "it does nothing");
    // A node may say what it likes.
    assert_eq!(counts(&[proposal(2, 8, 2)], u64::MAX), MOST_WEIGHT);
}

/// Not the time in which what comes gathers, but the one that the node needs.
#[tokio::test(start_paused = true)]
async fn a_burdened_node_is_waited_for_until_it_has_told_that_it_is_done() {
    let mut leader = Leader::new();
    let (_own, mut applied) = watch::channel(LogIndex(102));
    leader.append(&[MUCH_WEIGHT, 1], ago(10));
    leader.committed.note(both(100), ago(500));
    let (progress, committed) = (&leader.progress, &mut leader.committed);
    let tell = |applied| progress.heard(NodeId(2), all_of(applied), Instant::now());
    tell(100);
    // At first nothing of it is committed, as far as the leader knows.
    let known = Cell::new(LogIndex(100));
    let last = || known.get();
    let short = Duration::from_millis(20);
    let has_waited = progress.wait(committed, last, &mut applied, short).await;
    assert!(!has_waited);
    known.set(LogIndex(102));
    let began = Instant::now();
    let done = async {
        tokio::task::yield_now().await;
        tell(101);
    };
    let (has_waited, ()) = tokio::join!(progress.wait(committed, last, &mut applied, LOST), done);
    assert!(has_waited && began.elapsed().is_zero(), "it is woken");
    let has_waited = progress.wait(committed, last, &mut applied, short).await;
    assert!(!has_waited);
    // What is committed while it waits burdens the node for longer.
    leader.append_from(103, &[MUCH_WEIGHT, MUCH_WEIGHT], ago(0));
    let (progress, committed) = (&leader.progress, &mut leader.committed);
    known.set(LogIndex(103));
    let more = async {
        tokio::task::yield_now().await;
        known.set(LogIndex(104));
        progress.heard(NodeId(2), all_of(102), Instant::now());
    };
    let began = Instant::now();
    let (_own, mut applied) = watch::channel(LogIndex(104));
    let (has_waited, ()) = tokio::join!(progress.wait(committed, last, &mut applied, short), more);
    assert!(has_waited && began.elapsed() >= short);
}

#[test]
fn weights_that_are_remembered_are_bounded_and_nothing_of_them_is_lost() {
    let (mut weights, began) = (Weights::default(), Instant::now());
    for index in 1..=10_000 {
        let now = began + Duration::from_millis(index);
        weights.note(LogIndex(index), index % 2, now);
        assert!(weights.entries.len() as u128 <= LOST.as_millis());
    }
    let after = |index| weights.between(LogIndex(index), LogIndex(10_000));
    assert_eq!((after(10_000), after(9_000), after(10_001)), (0, 500, 0));
    let remembered = weights.entries.len() as u64;
    assert_eq!(after(0), remembered);
    assert_eq!(weights.between(LogIndex(0), LogIndex(100)), 0, "long ago");
}
