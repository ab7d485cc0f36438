//! Log time on this replica: what a leader stamps batches with, and what the other nodes know of it.
//!
//! Log time advances like elapsed time. Leaders hand it on: every node asks the leader for contact several times a
//! second and is told log time with the answer, so a new leader goes on where the former one stopped. A leader draws it
//! towards the time that a majority of the voters' wall clocks agrees on, slowly. Only when no reachable node knows it,
//! because all processes were down, it is set from those wall clocks at once.
//!
//! Invariant: no expiry is early by more than a thousandth of its time and 0.2 s, also over changes of leaders and with
//! wrong or stepping wall clocks (P8; `docs/spec/replication.md`, Log time). The exceptions are named there.
//! Invariant: an estimate is late rather than early: what is heard was true when it was sent.

use std::time::Duration;

use parking_lot::Mutex;

use super::wall_clocks::{Highest, WallClocks, micros};
use crate::base::ids::NodeId;
use crate::base::time::{Elapsed, Millis, elapsed_now, wall_now};

/// Log time that is behind runs faster than elapsed time by at most one part in this number: as much as the worst
/// oscillator that the kernel corrects (500 ppm) runs slower than real time.
const SLEW_FORWARD: i64 = 2_000;

/// Log time that is ahead runs slower by at most one part in this number. That makes expiry late, never early. In two
/// times [`TOLD_WINDOW`] it is less than 0.1 s, by which a follower takes log time for higher than it is.
const SLEW_BACK: i64 = 50;

/// Log time that is behind by more than [`FAR_BEHIND_US`] runs faster by at most one part in this number.
const CATCH_UP: i64 = 20;

/// Half of what a request's timestamp may be ahead of the store's clock: farther behind, clients whose clocks are right
/// are about to be refused.
const FAR_BEHIND_US: i64 = 30_000_000;

/// How often the correction becomes the new reference. One correction is never for a longer time, so one that is due
/// suddenly is not made at once.
const REBASE: Duration = Duration::from_millis(100);

/// How long what was told is as good as new. A node that was told nothing for longer was cut off.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// The highest of what was told within one to two of these counts: some answers are late.
const TOLD_WINDOW: Duration = Duration::from_secs(2);

/// How long a leader that does not know log time waits for the voters it has not heard.
const WAIT_FOR_ALL: Duration = Duration::from_millis(500);

/// How long it waits for a majority that agrees.
const WAIT_FOR_MAJORITY: Duration = Duration::from_secs(3);

/// A wall clock that differs by more from what a majority agrees on is named.
pub const WRONG_BY_MS: u64 = 5_000;

/// A point from which log time is counted on.
#[derive(Clone, Copy, Debug)]
struct Reference {
    at: Elapsed,
    log_us: i64,
}

impl Reference {
    fn estimate(self, at: Elapsed) -> i64 {
        self.log_us.saturating_add(micros(at) - micros(self.at))
    }
}

/// Why log time cannot be moved forward here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatchUpError {
    /// This replica does not lead, or has stamped nothing yet.
    #[error("this node does not lead")]
    NotLeading,
    /// What the voters' wall clocks show does not tell what time it is.
    #[error("the wall clocks of no majority of the voters agree")]
    NoMajority,
}

/// Log time as one replica knows it. It reads no clock.
#[derive(Debug, Default)]
pub(super) struct LogTime {
    /// The newest log time applied.
    applied_us: i64,
    /// Log time minus elapsed time, as leaders told it.
    told: Option<Highest>,
    /// The term of the leader that told it.
    told_in: Option<u64>,
    /// When somebody told it last who knew it without a gap; the beginning of what this process knows without one.
    told_at: Option<Elapsed>,
    /// What this leader counts from, and the term that it leads.
    led: Option<(u64, Reference)>,
    /// The term in which this leader waits for the others' clocks, and since when.
    waits: Option<(u64, Elapsed)>,
    clocks: WallClocks,
    /// How far this node's wall clock is ahead, as the leader says.
    own_ahead_ms: Option<i64>,
    /// The time that a majority's wall clocks agreed on when it was known last, minus elapsed time.
    agreed: Option<i64>,
    /// The last stamp.
    stamped_us: i64,
}

fn us(time: Millis) -> i64 {
    i64::try_from(time.0.saturating_mul(1000)).unwrap_or(i64::MAX)
}

fn millis(us: i64) -> Millis {
    Millis(u64::try_from(us / 1000).unwrap_or(0))
}

impl LogTime {
    /// A batch with this log time was applied.
    pub(super) fn applied(&mut self, log_time: Millis, at: Elapsed) {
        let log_us = us(log_time);
        self.applied_us = self.applied_us.max(log_us);
        if let Some((_, reference)) = &mut self.led
            && reference.estimate(at) < log_us
        {
            *reference = Reference { at, log_us };
        }
    }

    fn add_told(&mut self, log_us: i64, at: Elapsed) {
        let offset = log_us.saturating_sub(micros(at));
        match &mut self.told {
            Some(told) => told.add(offset, at),
            None => self.told = Some(Highest::new(TOLD_WINDOW, offset, at)),
        }
    }

    /// The leader of `term` told log time. From then on it counts, and not what this replica went on with when it led,
    /// was told by former leaders, or has applied again: that may be higher than the present leader's log time, and
    /// this replica would move it on by that much if it led next.
    pub(super) fn follow(&mut self, term: u64, log_time: Millis, at: Elapsed) {
        self.led = None;
        if self.told_in != Some(term) {
            self.told = None;
        }
        self.told_in = Some(term);
        self.add_told(us(log_time), at);
        self.told_at = Some(at);
    }

    /// Whether this replica knows log time well: it leads, or was told it lately.
    fn is_live(&self, at: Elapsed) -> bool {
        let known_at = match &self.led {
            Some((_, reference)) => Some(reference.at),
            None => self.told_at,
        };
        known_at.is_some_and(|known_at| at.since(known_at) <= KNOWN_FOR)
    }

    /// Another node showed its wall clock, and log time, if it knows it without a gap.
    pub(super) fn heard(&mut self, node: NodeId, wall: Millis, log: Option<Millis>, at: Elapsed) {
        self.clocks.note(node, us(wall), at);
        if let Some(log) = log
            && !self.is_live(at)
        {
            // Not as a leader of any term.
            self.follow(0, log, at);
        }
    }

    /// Log time at `at`, as far as this replica knows it.
    pub(super) fn estimate(&self, at: Elapsed) -> i64 {
        let known = match (&self.led, &self.told) {
            (Some((_, reference)), _) => reference.estimate(at),
            (None, Some(told)) => told.get().saturating_add(micros(at)),
            (None, None) => 0,
        };
        known.max(self.applied_us).max(self.stamped_us)
    }

    /// Log time, if this replica knows it well.
    pub(super) fn live(&self, at: Elapsed) -> Option<Millis> {
        self.is_live(at).then(|| millis(self.estimate(at)))
    }

    /// What the leader of `term`, which is `node`, stamps a batch with; `None` as long as it has to find out.
    pub(super) fn stamp(
        &mut self,
        node: NodeId,
        term: u64,
        wall: Millis,
        at: Elapsed,
    ) -> Option<Millis> {
        self.clocks.note_own(node, us(wall), at);
        let reference = match self.led {
            Some((led, reference)) if led == term => reference,
            _ if self.is_live(at) => self.go_on(at),
            _ => self.ask_others(term, at)?,
        };
        let reference = self.correct(reference, at);
        self.led = Some((term, reference));
        self.stamped_us = self.stamped_us.max(reference.estimate(at));
        Some(millis(self.stamped_us))
    }

    /// Goes on with what this replica knows.
    fn go_on(&self, at: Elapsed) -> Reference {
        let log_us = self.estimate(at);
        Reference { at, log_us }
    }

    /// A new leader that does not know log time, or has not been told it for long, waits for a node that knows it well,
    /// which [`LogTime::heard`] takes over. If there is none, it goes on with what it knew. If it knows nothing, the
    /// processes of all voters that can be reached were down: log time moves on by the time that has passed.
    fn ask_others(&mut self, term: u64, at: Elapsed) -> Option<Reference> {
        let since = match self.waits {
            Some((waiting, since)) if waiting == term => since,
            _ => {
                self.waits = Some((term, at));
                at
            }
        };
        let waited = at.since(since);
        let all_heard = waited >= WAIT_FOR_ALL || self.clocks.are_complete(at);
        if self.told_at.is_some() || self.led.is_some() {
            return all_heard.then(|| self.go_on(at));
        }
        let offset = match self.clocks.agreed(at) {
            Some(agreed) if all_heard => agreed,
            None if waited >= WAIT_FOR_MAJORITY => {
                tracing::error!(
                    "no majority of the nodes' wall clocks agrees: log time goes on by the middle one of those known"
                );
                self.clocks.guess(at)?
            }
            _ => return None,
        };
        let wall_us = offset.saturating_add(micros(at));
        if self.applied_us > 0 {
            let stopped_ms = (wall_us - self.applied_us).max(0) / 1000;
            tracing::info!(
                stopped_ms,
                "the whole cluster was stopped: log time moves on by the time that has passed"
            );
        }
        let log_us = wall_us.max(self.applied_us);
        Some(Reference { at, log_us })
    }

    /// Draws log time towards what a majority agrees on.
    fn correct(&self, reference: Reference, at: Elapsed) -> Reference {
        let passed = at.since(reference.at);
        if passed < REBASE {
            return reference;
        }
        let log_us = reference.estimate(at);
        let error = match self.clocks.agreed(at) {
            Some(agreed) => agreed.saturating_add(micros(at)).saturating_sub(log_us),
            None => 0,
        };
        let passed_us = i64::try_from(passed.min(REBASE * 5).as_micros()).unwrap_or(0);
        let forward = match error > FAR_BEHIND_US {
            true => passed_us / CATCH_UP,
            false => passed_us / SLEW_FORWARD,
        };
        let log_us = log_us + error.clamp(-(passed_us / SLEW_BACK), forward);
        Reference { at, log_us }
    }

    /// Moves what the leader of `term` stamps forward to what a majority's wall clocks agree on, and returns by how
    /// much. An operator has asked for it: expiries come early by as much.
    pub(super) fn catch_up(&mut self, term: u64, at: Elapsed) -> Result<Duration, CatchUpError> {
        let reference = match self.led {
            Some((led, reference)) if led == term => reference,
            _ => return Err(CatchUpError::NotLeading),
        };
        // Where clocks differ, drawing log time to their middle can be taken back; a jump can't.
        let agreed = self
            .clocks
            .of_majority(at)
            .ok_or(CatchUpError::NoMajority)?;
        let present_us = reference.estimate(at);
        let log_us = agreed.saturating_add(micros(at)).max(present_us);
        self.led = Some((term, Reference { at, log_us }));
        let moved_us = u64::try_from(log_us - present_us).unwrap_or(0);
        Ok(Duration::from_micros(moved_us))
    }

    /// How far the wall clock of `node` is ahead of what a majority agrees on, ms.
    pub(super) fn ahead_ms(&self, node: NodeId, at: Elapsed) -> Option<i64> {
        let agreed = self.clocks.agreed(at)?;
        Some(self.clocks.ahead(node, agreed, at)? / 1000)
    }

    pub(super) fn set_voters(&mut self, voters: Vec<NodeId>) {
        self.clocks.set_voters(voters);
    }

    /// The leader told the wall time that a majority agrees on, if one does; whatever this node's own clock shows.
    pub(super) fn told_wall(&mut self, wall: Option<Millis>, at: Elapsed) {
        let offset = wall.map(|wall| us(wall).saturating_sub(micros(at)));
        self.agreed = offset.or(self.agreed);
    }

    /// The wall time that a majority of the clocks that this leader hears agrees on.
    pub(super) fn agreed_wall(&self, at: Elapsed) -> Option<Millis> {
        let offset = self.clocks.agreed_by_newest(at)?;
        Some(millis(offset.saturating_add(micros(at))))
    }

    /// The leader, which is `node`, looks at the clocks itself.
    pub(super) fn compare(&mut self, node: NodeId, at: Elapsed) {
        self.own_ahead_ms = self.ahead_ms(node, at);
        self.agreed = self.clocks.agreed_by_newest(at).or(self.agreed);
    }

    /// The wall time that a majority's clocks agree on, or agreed on when they did last: none of them, set wrong
    /// meanwhile, changes it. Without it log time, which follows it slowly, and `wall`, which this node's clock shows,
    /// where that is not known either.
    pub(super) fn wall(&self, wall: Millis, at: Elapsed) -> Millis {
        match self.agreed {
            Some(offset) => millis(offset.saturating_add(micros(at))),
            None => self.live(at).unwrap_or(wall),
        }
    }
}

/// This replica's idea of log time, with the clocks of this machine.
#[derive(Debug)]
pub struct Clock {
    local: NodeId,
    log_time: Mutex<LogTime>,
}

impl Clock {
    /// The clock of `local`, which knows nothing yet.
    pub fn new(local: NodeId) -> Clock {
        Clock {
            local,
            log_time: Mutex::default(),
        }
    }

    /// A batch with this log time was applied.
    pub fn observe(&self, log_time: Millis) {
        self.log_time.lock().applied(log_time, elapsed_now());
    }

    /// Sets whose wall clocks count.
    pub fn set_voters(&self, voters: Vec<NodeId>) {
        self.log_time.lock().set_voters(voters);
    }

    /// The leader of `term` told log time, and how far this node's wall clock is ahead.
    pub fn follow(&self, term: u64, log_time: Option<Millis>, ahead_ms: Option<i64>) {
        let mut state = self.log_time.lock();
        let at = elapsed_now();
        if let Some(log_time) = log_time {
            state.follow(term, log_time, at);
        }
        state.own_ahead_ms = ahead_ms;
    }

    /// The leader told the wall time that a majority agrees on, if one does.
    pub fn told_wall(&self, wall: Option<Millis>) {
        self.log_time.lock().told_wall(wall, elapsed_now());
    }

    /// The wall time that a majority agrees on now, as this leader sees it.
    pub fn agreed_wall(&self) -> Option<Millis> {
        self.log_time.lock().agreed_wall(elapsed_now())
    }

    /// Another node told this leader its wall clock, and log time, if it knows it.
    pub fn heard(&self, node: NodeId, wall: Millis, log: Option<Millis>) {
        self.log_time.lock().heard(node, wall, log, elapsed_now());
    }

    /// Log time, as far as it is known here.
    pub fn now(&self) -> Millis {
        millis(self.log_time.lock().estimate(elapsed_now()))
    }

    /// Log time, if this process has known it without a gap since a leader told it.
    pub fn live(&self) -> Option<Millis> {
        self.log_time.lock().live(elapsed_now())
    }

    /// What this node, the leader of `term`, stamps a batch with. `None` as long as it has to find out: it knows log
    /// time from nobody, and has not heard enough clocks.
    pub fn stamp(&self, term: u64) -> Option<Millis> {
        let mut state = self.log_time.lock();
        state.stamp(self.local, term, wall_now(), elapsed_now())
    }

    /// Draws log time on while nothing is stamped; several times a second while this node leads `term`.
    pub fn tick(&self, term: u64) {
        let mut state = self.log_time.lock();
        let at = elapsed_now();
        let _ = state.stamp(self.local, term, wall_now(), at);
        state.compare(self.local, at);
    }

    /// Moves log time of this node, the leader of `term`, forward at once to what a majority's wall clocks agree on.
    ///
    /// # Errors
    ///
    /// When this node does not lead, or no majority agrees.
    pub fn catch_up(&self, term: u64) -> Result<Duration, CatchUpError> {
        self.log_time.lock().catch_up(term, elapsed_now())
    }

    /// How far the wall clock of `node` is ahead of what a majority agrees on, as this leader sees it.
    pub fn ahead_ms(&self, node: NodeId) -> Option<i64> {
        self.log_time.lock().ahead_ms(node, elapsed_now())
    }

    /// The wall time that a majority of the voters' clocks agrees on, as far as this process knows it.
    pub fn wall(&self) -> Millis {
        self.log_time.lock().wall(wall_now(), elapsed_now())
    }

    /// How far this node's own wall clock is ahead, as the leader sees it.
    pub fn own_ahead_ms(&self) -> Option<i64> {
        self.log_time.lock().own_ahead_ms
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
