//! A run: events that go one by one, each as soon as the endpoint has taken the one before, and of which one account
//! tells the log. An entry of the log for each of them would make its disk the pace of deliveries.
//!
//! Invariant: only deliveries wait for an account. Whatever else becomes of a request ends the run, and goes to the log
//! with what was delivered before it.
//! Invariant: a run has at most [`RUN_EVENTS`] events, and begins none later than [`RUN_MS`] after it began itself. So
//! many may come twice when the leader dies.
//! Invariant: no event but the first begins later than [`CONFIRMED_MS`] after a majority was asked who leads.

use super::next::{Course, Next};
use super::options::State;
use super::view::{Now, View};
use crate::base::proto::command::EventProgress;
use crate::base::proto::state::EventSubscription;

/// Most events of a run.
pub const RUN_EVENTS: u64 = 100;

/// How long after its beginning a run may begin another event.
pub const RUN_MS: u64 = 200;

/// For how long the word of a majority holds. With the default settings it grants nobody else the leadership before.
pub const CONFIRMED_MS: u64 = 100;

/// What is to be done in a run with the event that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is to be sent.
    Send,
    /// Nothing before these ticks, because of the rate.
    Pause(u64),
    /// A majority is to be asked once more who leads.
    Confirm,
    /// The run is over: the log is to be told.
    Tell,
}

/// What was delivered, and is not in the log.
#[derive(Clone, Debug)]
pub struct Run {
    ends: u64,
    confirmed_until: u64,
    progress: EventProgress,
}

impl Run {
    /// A run with nothing in it. `asked` is when a majority was asked who leads.
    pub fn new(view: &View<'_>, asked: u64, now: Now) -> Run {
        Run {
            ends: now.ticks.saturating_add(RUN_MS),
            confirmed_until: asked.saturating_add(CONFIRMED_MS),
            progress: view.no_progress(),
        }
    }

    /// A majority has confirmed that this node leads, which it was asked at these ticks.
    pub fn confirmed(&mut self, asked: u64) {
        self.confirmed_until = asked.saturating_add(CONFIRMED_MS);
    }

    /// Adds what became of a request. `false`: the run is over.
    #[must_use]
    pub fn add(&mut self, progress: EventProgress) -> bool {
        let was_delivered = EventProgress {
            name: progress.name.clone(),
            revision: progress.revision,
            through: progress.through,
            delivered: progress.delivered,
            ..EventProgress::default()
        };
        let goes_on = progress == was_delivered && progress.delivered > 0;
        self.progress = EventProgress {
            through: self.progress.through.max(progress.through),
            delivered: self.progress.delivered + progress.delivered,
            ..progress
        };
        goes_on && self.progress.delivered < RUN_EVENTS
    }

    /// The row as it will be when the log is told; `None` when something else than events has changed in it since, so
    /// that the run is over.
    pub fn ahead(
        &self,
        before: &EventSubscription,
        now: EventSubscription,
    ) -> Option<EventSubscription> {
        let has_changed = now.options.is_none()
            || (now.revision, now.state, now.parked)
                != (before.revision, before.state, before.parked)
            || now.consent != before.consent
            || now.last_error != before.last_error;
        (!has_changed).then(|| EventSubscription {
            through: now.through.max(self.progress.through),
            ..now
        })
    }

    /// What is to be done with the event that comes next, the first one of `view`.
    pub fn then(&self, course: &Course, view: &View<'_>, now: Now) -> Then {
        if now.ticks >= self.ends {
            return Then::Tell;
        }
        match course.next(view, now) {
            Next::SendNew(_) if now.ticks >= self.confirmed_until => Then::Confirm,
            Next::SendNew(_) => Then::Send,
            Next::Hold(until) if until < self.ends && view.state() == State::Active => {
                Then::Pause(until)
            }
            _ => Then::Tell,
        }
    }

    /// What the log is to be told.
    pub fn over(self) -> EventProgress {
        self.progress
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
