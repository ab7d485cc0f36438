//! An endpoint has got a request and has not answered: whether it is down, or an event is more than it can take.
//!
//! That can't be told from the request itself, but from what else is answered. An event is taken for the reason only
//! when another one, sent after it, has an answer, or a question where there is no other event; an endpoint that
//! answers nothing is down, and then nothing is parked and no attempt is counted, however long it takes.
//!
//! A question shows less than an event: something before the endpoint, or a part of it, may answer it while events get
//! no answer. So it decides only where nothing else waits, and only that the event is parked, which costs it nothing:
//! the cursor, and with it the outbox, does not stand still for one event that nothing follows.
//!
//! Invariant: the attempt of a parked event counts only between two requests that were answered. Invariant: events that
//! had no answer are due one after the other, [`APART_MS`] apart, so that each of them, which may cost the longest time
//! that a request takes, leaves time for others.

use std::collections::BTreeSet;

use super::answer::{DeathReason, End};
use super::schedule::parked_ms;
use super::view::{MINUTE_MS, Now, Parked, View};
use crate::base::limits;
use crate::base::proto::command::{DeadEvent, EventProgress, ParkEvent};

/// Requests with one event alone that end without an answer, after which another one is tried. An endpoint that
/// restarts has as many seconds as the first steps of its schedule.
const UNANSWERED_ALONE: u32 = 3;

/// Between two attempts to deliver events that had no answer, log time.
const APART_MS: u64 = MINUTE_MS;

/// For how long a parked event is put off that had no answer, while it is not known whether that is its own fault.
const PUT_OFF_MS: u64 = MINUTE_MS;

/// So many events have to go together until nothing is left of a doubt.
const MANY_TOGETHER: usize = 128;

/// What is remembered of requests without an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt {
    /// How many new events may go together; `None`: as many as a request takes.
    together: Option<usize>,
    /// An event was taken for the reason a short while ago. Its client, or another one, may have caused more of them.
    is_wary: bool,
    /// The endpoint has answered a question, and no event since.
    has_only_been_asked: bool,
    /// The last request was this parked event, and the one before it was answered.
    unanswered: Option<Unanswered>,
    /// When events without an answer are due, log time.
    due: BTreeSet<u64>,
}

/// A parked event that had no answer, and was put off.
#[derive(Clone, Debug)]
struct Unanswered {
    number: u64,
    due_ms: u64,
    attempts: u32,
    end: End,
    attempted_ms: u64,
}

impl Doubt {
    /// How many new events may go together.
    pub(super) fn together(&self) -> usize {
        self.together.unwrap_or(usize::MAX)
    }

    /// After so many requests with an event alone, none of them answered, another one is tried.
    pub(super) fn enough(&self) -> u32 {
        match self.is_wary {
            true => 1,
            false => UNANSWERED_ALONE,
        }
    }

    /// New events had no answer: they go alone now.
    pub(super) fn cut(&mut self) {
        self.together = Some(1);
    }

    /// New events are delivered: more of them go together.
    pub(super) fn delivered(&mut self) {
        let more = self.together.map(|together| together.saturating_mul(2));
        self.together = more.filter(|together| *together < MANY_TOGETHER);
        self.is_wary &= self.together.is_some();
    }

    /// An event is at fault: others may be, too.
    pub(super) fn beware(&mut self) {
        self.is_wary = true;
        self.together = Some(1);
    }

    /// A question was answered. That is no reason to count an attempt.
    pub(super) fn asked(&mut self) {
        self.has_only_been_asked = true;
        self.forget();
    }

    /// There is no answer to what came after a parked event: that was not its own fault, as far as one can know.
    pub(super) fn forget(&mut self) {
        self.unanswered = None;
    }

    /// A parked event has no answer. It is put off, so that those behind it get their turn.
    pub(super) fn put_off(
        &mut self,
        progress: &mut EventProgress,
        parked: &Parked,
        end: End,
        was_up: bool,
        now: Now,
    ) {
        let put_off = ParkEvent {
            number: parked.number,
            was_due_ms: parked.due_ms,
            due_ms: now.log.plus(PUT_OFF_MS).0,
            attempts: parked.row.attempts,
            outcome: end.outcome().number(),
            attempted_ms: now.log.0,
        };
        self.unanswered = (was_up && !self.has_only_been_asked).then_some(Unanswered {
            number: parked.number,
            due_ms: put_off.due_ms,
            attempts: parked.row.attempts.saturating_add(1),
            end,
            attempted_ms: now.log.0,
        });
        progress.parked.push(put_off);
    }

    /// A request was answered: the attempt of the parked event before it counts.
    pub(super) fn count(
        &mut self,
        progress: &mut EventProgress,
        view: &View<'_>,
        answered: Option<u64>,
        now: Now,
        random: u32,
    ) {
        self.has_only_been_asked = false;
        let unanswered = self.unanswered.take();
        let Some(found) = unanswered.filter(|found| Some(found.number) != answered) else {
            return;
        };
        let (number, was_due_ms) = (found.number, found.due_ms);
        let outcome = found.end.outcome().number();
        match found.attempts >= view.options.max_attempts.max(1) {
            true => progress.dead.push(DeadEvent {
                number,
                was_due_ms,
                reason: DeathReason::MaxDeliveryAttemptsExceeded.number(),
                attempts: found.attempts,
                outcome,
                attempted_ms: found.attempted_ms,
            }),
            false => progress.parked.push(ParkEvent {
                number,
                was_due_ms,
                due_ms: self.due(found.attempts, now, random),
                attempts: found.attempts,
                outcome,
                attempted_ms: found.attempted_ms,
            }),
        }
    }

    /// The endpoint has answered something else: the first new event is parked. What it was tried for counts for
    /// nothing: the endpoint may have been down just then.
    pub(super) fn park(
        &mut self,
        progress: &mut EventProgress,
        number: u64,
        (end, attempted_ms): (End, u64),
        now: Now,
        random: u32,
    ) {
        self.together = Some(1);
        progress.through = progress.through.max(number);
        progress.parked.push(ParkEvent {
            number,
            was_due_ms: 0,
            due_ms: self.due(1, now, random),
            attempts: 0,
            outcome: end.outcome().number(),
            attempted_ms,
        });
    }

    /// When an event without an answer is due: as its schedule says, or as soon after that as no other one is.
    fn due(&mut self, attempts: u32, now: Now, random: u32) -> u64 {
        self.due = self.due.split_off(&now.log.0);
        while self.due.len() as u64 >= limits::EVENTS_PARKED {
            self.due.pop_last();
        }
        let mut due = now.log.plus(parked_ms(attempts, random)).0;
        for other in self.due.range(due.saturating_sub(APART_MS - 1)..) {
            if *other >= due.saturating_add(APART_MS) {
                break;
            }
            due = other.saturating_add(APART_MS);
        }
        self.due.insert(due);
        due
    }
}
