//! What the wall clocks of the members say, and the time that a majority of them agrees on.
//!
//! A clock is kept as its *offset*: its reading minus this machine's elapsed time, in microseconds. Readings of other
//! machines come late, so of those that came lately the highest offset is the best for log time. Where a clock that was
//! set back is to be seen at once, the newest one is: it is too low by as much as it came late.
//!
//! Invariant: as long as a majority of the voters' clocks is right, the time that is agreed on is right, whatever the
//! others show.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::ids::NodeId;
use crate::base::time::Elapsed;

/// Clocks that are this close agree. The offset of a clock that is heard late is too low by as much.
const AGREEMENT_US: i64 = 2_000_000;

/// A clock that was not heard for longer does not count.
const FRESH: Duration = Duration::from_secs(10);

/// The highest offset of a wall clock that came within one to two of these counts.
const WINDOW: Duration = Duration::from_secs(10);

/// The highest of the values that came within one to two windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Highest {
    window: Duration,
    began: Elapsed,
    former: i64,
    present: i64,
}

impl Highest {
    /// The first value.
    pub(super) fn new(window: Duration, value: i64, at: Elapsed) -> Highest {
        Highest {
            window,
            began: at,
            former: value,
            present: value,
        }
    }

    /// Another value.
    pub(super) fn add(&mut self, value: i64, at: Elapsed) {
        let lasted = at.since(self.began);
        if lasted < self.window {
            self.present = self.present.max(value);
            return;
        }
        let is_recent = lasted < self.window * 2;
        self.former = if is_recent { self.present } else { value };
        self.present = value;
        self.began = at;
    }

    /// The highest.
    pub(super) fn get(&self) -> i64 {
        self.former.max(self.present)
    }
}

#[derive(Debug)]
struct Known {
    offset: Highest,
    newest: i64,
    heard: Elapsed,
}

/// The wall clocks of all members.
#[derive(Debug, Default)]
pub(super) struct WallClocks {
    clocks: BTreeMap<NodeId, Known>,
    voters: Vec<NodeId>,
}

impl WallClocks {
    /// Sets whose clocks count.
    pub(super) fn set_voters(&mut self, voters: Vec<NodeId>) {
        self.voters = voters;
    }

    /// The wall clock of `node` showed this, as far as is known at `at`.
    pub(super) fn note(&mut self, node: NodeId, wall_us: i64, at: Elapsed) {
        let offset = wall_us.saturating_sub(micros(at));
        let known = self.clocks.entry(node).or_insert_with(|| Known {
            offset: Highest::new(WINDOW, offset, at),
            newest: offset,
            heard: at,
        });
        known.offset.add(offset, at);
        known.newest = offset;
        known.heard = at;
    }

    /// The wall clock of this node itself, which is `node`, shows this: it does not come late.
    pub(super) fn note_own(&mut self, node: NodeId, wall_us: i64, at: Elapsed) {
        self.clocks.remove(&node);
        self.note(node, wall_us, at);
    }

    /// Offsets of the voters that were heard lately, in order.
    fn offsets(&self, now: Elapsed) -> Vec<i64> {
        self.offsets_by(now, |known| known.offset.get())
    }

    fn offsets_by(&self, now: Elapsed, offset: impl Fn(&Known) -> i64) -> Vec<i64> {
        let fresh = self
            .voters
            .iter()
            .filter_map(|node| self.clocks.get(node))
            .filter(|known| now.since(known.heard) <= FRESH);
        let mut offsets: Vec<i64> = fresh.map(offset).collect();
        offsets.sort_unstable();
        offsets
    }

    /// Whether every voter was heard lately.
    pub(super) fn are_complete(&self, now: Elapsed) -> bool {
        !self.voters.is_empty() && self.offsets(now).len() == self.voters.len()
    }

    /// The offset that a majority agrees on: the middle of the largest set of clocks that agree, if it is a majority;
    /// else the middle of all, if all are known, because right clocks are then on both sides of it or in it. `None`
    /// when neither is.
    pub(super) fn agreed(&self, now: Elapsed) -> Option<i64> {
        self.of_majority(now).or_else(|| {
            let offsets = self.offsets(now);
            let all_known = offsets.len() == self.voters.len();
            all_known.then(|| middle(&offsets)).flatten()
        })
    }

    /// The same for who tells wall time, by what each clock showed last.
    pub(super) fn agreed_by_newest(&self, now: Elapsed) -> Option<i64> {
        let newest = self.offsets_by(now, |known| known.newest);
        self.majority_of(&newest).or_else(|| self.agreed(now))
    }

    /// The middle of the largest set of clocks that agree, if it is a majority.
    pub(super) fn of_majority(&self, now: Elapsed) -> Option<i64> {
        self.majority_of(&self.offsets(now))
    }

    fn majority_of(&self, offsets: &[i64]) -> Option<i64> {
        let majority = self.voters.len() / 2 + 1;
        let mut largest: &[i64] = &[];
        for (first, lowest) in offsets.iter().enumerate() {
            let rest = &offsets[first..];
            let agreeing = rest.partition_point(|offset| offset - lowest <= AGREEMENT_US);
            if agreeing > largest.len() {
                largest = &rest[..agreeing];
            }
        }
        let is_majority = !self.voters.is_empty() && largest.len() >= majority;
        is_majority.then(|| middle(largest)).flatten()
    }

    /// The best guess without a majority: the middle of what is known.
    pub(super) fn guess(&self, now: Elapsed) -> Option<i64> {
        middle(&self.offsets(now))
    }

    /// How far the clock of `node` is ahead of `agreed`, microseconds.
    pub(super) fn ahead(&self, node: NodeId, agreed: i64, now: Elapsed) -> Option<i64> {
        let known = self.clocks.get(&node)?;
        (now.since(known.heard) <= FRESH).then(|| known.offset.get().saturating_sub(agreed))
    }
}

/// The middle of sorted offsets, the lower one of two: log time that is late makes no expiry early.
fn middle(offsets: &[i64]) -> Option<i64> {
    let last = offsets.len().checked_sub(1)?;
    offsets.get(last / 2).copied()
}

/// Microseconds of elapsed time, signed.
pub(super) fn micros(at: Elapsed) -> i64 {
    i64::try_from(at.micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Elapsed = Elapsed::from_duration(Duration::from_secs(1_000));

    fn clocks(voters: u64, offsets_s: &[i64]) -> WallClocks {
        let mut clocks = WallClocks::default();
        clocks.set_voters((1..=voters).map(NodeId).collect());
        for (node, offset) in (1..).zip(offsets_s) {
            clocks.note(NodeId(node), micros(NOW) + offset * 1_000_000, NOW);
        }
        clocks
    }

    #[test]
    fn a_majority_of_right_clocks_decides() {
        for offsets in [
            &[0, 0, 300][..],
            &[-300, 0, 0],
            &[0, 300, -300],
            &[0, 40_000, 0],
            &[0, 0],
        ] {
            assert_eq!(clocks(3, offsets).agreed(NOW), Some(0), "{offsets:?}");
        }
        assert_eq!(clocks(5, &[0, 0, 0, 300, 300]).agreed(NOW), Some(0));
        assert_eq!(clocks(1, &[7]).agreed(NOW), Some(7_000_000));
    }

    #[test]
    fn two_of_three_that_differ_say_nothing() {
        assert_eq!(clocks(3, &[0, 300]).agreed(NOW), None);
        assert_eq!(clocks(3, &[0, 300]).guess(NOW), Some(0));
        assert_eq!(clocks(3, &[0]).agreed(NOW), None);
        assert_eq!(clocks(0, &[]).agreed(NOW), None);
    }

    #[test]
    fn a_clock_that_is_not_heard_any_more_does_not_count() {
        let later = NOW.plus(FRESH + Duration::from_secs(1));
        let mut clocks = clocks(3, &[0, 0, 300]);
        assert!(clocks.are_complete(NOW));
        assert_eq!(clocks.agreed(later), None);
        clocks.note(NodeId(3), micros(later) + 300_000_000, later);
        assert_eq!(clocks.guess(later), Some(300_000_000));
        assert_eq!(clocks.ahead(NodeId(3), 0, later), Some(300_000_000));
        assert_eq!(clocks.ahead(NodeId(1), 0, later), None);
    }

    #[test]
    fn a_late_reading_is_passed_over_and_a_step_back_is_seen_after_a_while() {
        let mut offset = Highest::new(WINDOW, 100, NOW);
        offset.add(20, NOW.plus(Duration::from_secs(5)));
        assert_eq!(offset.get(), 100);
        for second in 10..40 {
            offset.add(20, NOW.plus(Duration::from_secs(second)));
        }
        assert_eq!(offset.get(), 20);
    }
}
