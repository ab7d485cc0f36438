//! How far the nodes have applied the log, as the others tell the leader several times a second; and whether the leader
//! is to hold back because one of them, or its own apply, does not keep up.
//!
//! One node's apply tells nothing of the others': they may have more connections, or less of their machine. A node that
//! falls further and further behind leaves its clients waiting, and lets them go when it can't confirm any more that it
//! has applied what was committed.
//!
//! Invariant: a node holds nobody up that tells nothing, that has yet to catch up, that is so far behind that it can't
//! serve, or that has been behind for [`MOST`] lately. What is not committed yet leaves nobody behind and burdens
//! nobody, nor, for long, does what another node can't apply yet, as with slow disks: holding back would not help. Nor
//! is a node behind for what its disk does not have yet; but it may apply that, so it burdens the node.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::base::ids::{LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::ProposeRequest;
use crate::base::proto::command;

/// A node is behind when it has not applied what was committed, and in its log, so long before it told. How long ago it
/// told does not matter: what it tells may be late.
const BEHIND: Duration = Duration::from_millis(150);

/// The same for the leader itself, which knows at once.
const OWN_BEHIND: Duration = Duration::from_millis(100);

/// The same for a node that is no longer waited for: by then it has let its clients go.
const LOST: Duration = Duration::from_secs(3);

/// A node is burdened while what is committed, and it has yet to apply, counts more than this beyond its bytes: it has
/// some tens of milliseconds to do, however little time the leader took to append it.
const MUCH_WEIGHT: u64 = 4 * limits::PROPOSAL_BYTES as u64;

/// What a proposal counts at most, whatever its node says of it: a last command comes to a proposal that is full.
const MOST_WEIGHT: u64 = 64 * limits::PROPOSAL_BYTES as u64;

/// A node that has told nothing for so long is not waited for: perhaps it stands still.
const SILENT: Duration = Duration::from_millis(250);

/// How long a node may be behind, times in which it keeps up taken off at a tenth. Holding back does not help one that
/// is behind for longer, and it is not waited for until half of that is taken off. That a node is burdened does not
/// count: a load that lasts burdens the nodes for as long as it lasts.
const MOST: Duration = Duration::from_secs(30);

/// Of two looks at a node that are further apart, nobody knows how it was in between.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(500);

/// What is known of a node that has told nothing, or was not looked at, for so long is forgotten.
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

/// How far a node is.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// The last entry that it has applied.
    pub applied: LogIndex,
    /// The last one that it may apply: it has it, and knows that it is committed.
    pub committed: LogIndex,
}

impl Reached {
    /// What another node tells with a proposal, or without one.
    pub fn told_in(request: &ProposeRequest) -> Reached {
        Reached {
            applied: LogIndex(request.applied),
            committed: LogIndex(request.committed),
        }
    }
}

/// What another node has told.
#[derive(Clone, Copy, Debug)]
struct Told {
    reached: Reached,
    at: Instant,
    keeping_up: KeepingUp,
}

/// Whether a node is waited for.
#[derive(Clone, Copy, Debug, Default)]
struct KeepingUp {
    /// The term in which it was last looked at.
    term: u64,
    /// It has kept up in that term, and has not been lost since.
    is_waited_for: bool,
    looked_at: Option<Instant>,
    /// For how long it was behind, see [`MOST`].
    behind_for: Duration,
    is_given_up: bool,
}

impl KeepingUp {
    /// Takes in how far a node is now. Tells whether it is behind or burdened, and waited for; says so when that ends.
    fn is_behind(
        &mut self,
        node: NodeId,
        reached: Reached,
        committed: &Committed,
        age: Duration,
        now: Instant,
    ) -> bool {
        let former = self.looked_at.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(former);
        if passed >= FORGOTTEN {
            (self.behind_for, self.is_given_up) = (Duration::ZERO, false);
        }
        let passed = passed.min(LOOKED_AT_EVERY);
        if self.term != committed.term {
            // Others may have to catch up with what another leader has committed.
            self.is_waited_for = node == committed.own;
            self.term = committed.term;
        }
        let has_applied = |due| due <= reached.applied;
        let all = &committed.all;
        if !all.before(LOST, now).is_none_or(has_applied) {
            self.is_waited_for = false;
        }
        let due = all.before(age, now);
        // What its log lacks is not due, but only who has applied all that is committed keeps up.
        if due.is_some_and(has_applied) {
            self.is_waited_for = true;
            self.behind_for = self.behind_for.saturating_sub(passed / 10);
            self.is_given_up &= self.behind_for > MOST / 2;
        }
        if !self.is_waited_for || self.is_given_up {
            return false;
        }
        let log = committed.logs.get(&node);
        let in_log = log.and_then(|log| log.before(age, now));
        if due.is_none_or(has_applied) || in_log.is_none_or(has_applied) {
            // More is on its way to a node, unless that takes long.
            let is_late = due.is_some_and(|due| due > reached.committed);
            let last = match is_late {
                true => reached.committed,
                false => committed.last,
            };
            return committed.weights.between(reached.applied, last) > MUCH_WEIGHT;
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
    /// A node says how far it is.
    pub fn heard(&self, node: NodeId, reached: Reached, now: Instant) {
        let mut others = self.others.lock();
        let told = others.entry(node).or_insert(Told {
            reached,
            at: now,
            keeping_up: KeepingUp::default(),
        });
        // It has started again, or was away, and catches up.
        let was_there = now.saturating_duration_since(told.at) < LOST;
        told.keeping_up.is_waited_for &= was_there && reached.applied >= told.reached.applied;
        told.reached = reached;
        told.at = now;
        drop(others);
        self.changed.notify_one();
    }

    /// Waits while a node, or this one with what it has `applied`, does not keep up with what is `committed`, up to the
    /// `last` entry at each time, and no longer than `most`. Tells whether it waited.
    pub async fn wait(
        &self,
        committed: &mut Committed,
        last: impl Fn() -> LogIndex,
        applied: &mut watch::Receiver<LogIndex>,
        most: Duration,
    ) -> bool {
        let until = Instant::now() + most;
        let mut has_waited = false;
        loop {
            let now = Instant::now();
            committed.last = last();
            let own = Reached {
                applied: *applied.borrow_and_update(),
                committed: committed.last,
            };
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
                () = tokio::time::sleep_until(until) => break,
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
            let told_before = now.saturating_duration_since(told.at);
            if told_before < SILENT {
                let (reached, age) = (told.reached, BEHIND + told_before);
                is_behind |= told
                    .keeping_up
                    .is_behind(*node, reached, committed, age, now);
            }
        }
        is_behind
    }
}

/// How far the log is committed, and how much of that the nodes' logs have.
type Known = (LogIndex, Vec<(NodeId, LogIndex)>);

/// How far the log was committed lately, and each node's log, and when, while this node leads a term.
#[derive(Debug)]
pub struct Committed {
    own: NodeId,
    term: u64,
    /// The last entry that is committed now, as far as who waits knows.
    last: LogIndex,
    all: Noted,
    logs: FxHashMap<NodeId, Noted>,
    /// The highest incarnation and sequence of each node's proposals.
    proposed: FxHashMap<NodeId, (u64, u64)>,
    /// What the proposals of the next entry count.
    collected: u64,
    weights: Weights,
}

impl Committed {
    /// Nothing is known.
    pub fn new(own: NodeId) -> Committed {
        Committed {
            own,
            term: 0,
            last: LogIndex::default(),
            all: Noted::default(),
            logs: FxHashMap::default(),
            proposed: FxHashMap::default(),
            collected: 0,
            weights: Weights::default(),
        }
    }

    /// This node leads this term. What was before another leader tells nothing of now.
    pub fn set_term(&mut self, term: u64) {
        if term != self.term {
            *self = Committed {
                term,
                ..Committed::new(self.own)
            };
        }
    }

    /// A proposal becomes part of the next entry. What it counts beyond its bytes is what its node says, within bounds;
    /// nothing if it was refused, or is a copy, which the machine skips.
    pub fn collected(&mut self, proposal: &command::Proposal, weight: u64) {
        let number = (proposal.incarnation, proposal.sequence);
        let last = self.proposed.entry(NodeId(proposal.node)).or_default();
        let is_copy = number <= *last;
        *last = number.max(*last);
        if !is_copy && !proposal.refused {
            self.collected += weight.min(MOST_WEIGHT);
        }
    }

    /// This node has appended the next entry.
    pub fn appended(&mut self, index: LogIndex, now: Instant) {
        let weight = std::mem::take(&mut self.collected);
        self.weights.note(index, weight, now);
    }

    /// So much is known now. It is remembered if the last time is a while ago.
    pub fn note(&mut self, (all, logs): Known, now: Instant) {
        let is_new = |at| now.saturating_duration_since(at) >= REMEMBERED_EVERY;
        if !self.all.last_at().is_none_or(is_new) {
            return;
        }
        self.all.note(all, now);
        for (node, last) in logs {
            self.logs.entry(node).or_default().note(last, now);
        }
        // Others are no members any more, or have told this leader nothing of their logs yet.
        self.logs.retain(|_, log| log.last_at() == Some(now));
        self.proposed.retain(|node, _| self.logs.contains_key(node));
    }
}

/// What the entries of this term count beyond their bytes.
#[derive(Debug, Default)]
struct Weights {
    /// When entries were appended, and what all up to each of them count.
    entries: VecDeque<(Instant, LogIndex, u64)>,
    /// What all count that were appended before those. They are [`LOST`] old, and count as applied.
    former: u64,
    all: u64,
}

impl Weights {
    fn note(&mut self, index: LogIndex, weight: u64, now: Instant) {
        if weight > 0 {
            self.all += weight;
            self.entries.push_back((now, index, self.all));
        }
        let is_old = |(at, ..): &mut (Instant, _, _)| now.saturating_duration_since(*at) >= LOST;
        while let Some((_, _, former)) = self.entries.pop_front_if(is_old) {
            self.former = former;
        }
    }

    /// What those behind the first one count, up to the last one.
    fn between(&self, first: LogIndex, last: LogIndex) -> u64 {
        self.up_to(last).saturating_sub(self.up_to(first))
    }

    fn up_to(&self, index: LogIndex) -> u64 {
        let later = self.entries.partition_point(|(_, at, _)| *at <= index);
        let last = later.checked_sub(1).map(|last| self.entries[last].2);
        last.unwrap_or(self.former)
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
#[path = "progress_tests.rs"]
mod tests;
