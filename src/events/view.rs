//! What is known of an event subscription when it is decided what to do next: its rows, and the clocks.

use super::answer::DeathReason;
use super::options::State;
use super::standing::rate;
use crate::base::limits;
use crate::base::proto::command::{DeadEvent, EventProgress};
use crate::base::proto::state::{Event, EventSubscription, EventSubscriptionOptions, ParkedEvent};
use crate::base::time::Millis;

/// A minute.
pub(super) const MINUTE_MS: u64 = 60_000;

/// The clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Milliseconds that nobody sets, from anywhere.
    pub ticks: u64,
    /// Log time.
    pub log: Millis,
}

/// A parked event with its key.
#[derive(Clone, Debug)]
pub struct Parked {
    /// When it is due, log time.
    pub due_ms: u64,
    /// Its number.
    pub number: u64,
    /// Its row.
    pub row: ParkedEvent,
}

/// What the rows say of a subscription.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its row.
    pub row: &'a EventSubscription,
    /// What an operator has asked for.
    pub options: &'a EventSubscriptionOptions,
    /// It is done with the events up to this one, or does not want them.
    pub skipped: u64,
    /// The first new event that it wants.
    pub first: Option<(u64, &'a Event)>,
    /// Another new event that it wants, if it was [looked for](super::next::Course::seeks); `None`: there is none.
    pub another: Option<(u64, &'a Event)>,
    /// The newest event, wanted or not.
    pub newest: u64,
    /// The parked event that is due first.
    pub parked: Option<&'a Parked>,
}

/// Nothing has changed yet.
pub fn no_progress(name: &str, row: &EventSubscription) -> EventProgress {
    EventProgress {
        name: name.to_owned(),
        revision: row.revision,
        ..EventProgress::default()
    }
}

/// Whether it says something.
pub fn is_progress(progress: &EventProgress) -> bool {
    let nothing = EventProgress {
        name: progress.name.clone(),
        revision: progress.revision,
        ..EventProgress::default()
    };
    *progress != nothing
}

impl View<'_> {
    pub(super) fn state(&self) -> State {
        State::of(self.row.state)
    }

    pub(super) fn is_over_age(&self, since_ms: u64, now: Now) -> bool {
        let age = now.log.since(Millis(since_ms));
        age >= u64::from(self.options.ttl_min) * MINUTE_MS
    }

    /// When an event will be too old.
    pub(super) fn ticks_of_end(&self, since_ms: u64, now: Now) -> u64 {
        let age = now.log.since(Millis(since_ms));
        let longest = u64::from(self.options.ttl_min) * MINUTE_MS;
        now.ticks.saturating_add(longest.saturating_sub(age))
    }

    /// Requests per minute that may be made.
    pub(super) fn rate(&self, now: Now) -> u32 {
        rate(self.row, self.options, now.log)
    }

    pub(super) fn no_progress(&self) -> EventProgress {
        no_progress(self.name, self.row)
    }

    /// Whether no further event is to be parked.
    pub(super) fn is_parking_full(&self) -> bool {
        self.row.parked >= limits::EVENTS_PARKED
            || self.row.parked_bytes >= limits::EVENTS_PARKED_BYTES
    }

    /// A dead letter out of a parked event.
    pub fn buried(&self, parked: &Parked, reason: DeathReason) -> EventProgress {
        EventProgress {
            dead: vec![DeadEvent {
                number: parked.number,
                was_due_ms: parked.due_ms,
                reason: reason.number(),
                attempts: parked.row.attempts,
                outcome: parked.row.outcome,
                attempted_ms: parked.row.attempted_ms,
            }],
            ..self.no_progress()
        }
    }
}

/// Says what went wrong last, if that is something else than before.
pub(super) fn set_error(progress: &mut EventProgress, view: &View<'_>, error: &str) {
    if view.row.last_error != error {
        progress.last_error = Some(error.to_owned());
    }
}
