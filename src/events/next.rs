//! What is to be done next for an event subscription: a pure function of its rows, the clock, and how the last requests
//! have ended.
//!
//! [`Course`] is what the leader remembers of an endpoint. It is not replicated: a new leader tries at once.
//!
//! Invariant: an event leaves the outbox for a subscription in four ways only: delivered, parked, dead, or not wanted.
//! Invariant: new events are sent in the order of the outbox, and an event is parked, or dead, only alone. So one event
//! that an endpoint can't take does not hold up the others. Only to learn whether the endpoint answers anything, one is
//! sent before its turn; it may come again then.
//! Invariant: while an endpoint answers nothing, nothing is parked, and no attempt is counted. Where no further one may
//! be parked, an event that the endpoint does not take is given up if it takes others, and at no other time.
//! Invariant: whether it answers anything can be decided at any time: by another event, wherever in the outbox the next
//! one is that is wanted, and by a question where there is none.
//! Invariant: between the beginnings of two requests is the time that the rate asks for.

mod asked;

use bytes::Bytes;

use super::answer::{Consequence, DeathReason, End};
use super::doubt::Doubt;
use super::options::State;
use super::page::Looked;
use super::schedule::{endpoint_ms, parked_ms};
use super::search::Search;
use super::standing::has_consent;
pub use super::step::{Next, Sent};
use super::tried::Tried;
use super::view::{MINUTE_MS, set_error};
pub use super::view::{Now, Parked, View, is_progress, no_progress};
use crate::base::limits;
use crate::base::proto::command::{DeadEvent, EventProgress, ParkEvent, UnparkEvent};
use crate::base::proto::state::{Event, EventSubscription};
use crate::base::time::Millis;

/// How long it may take until the rows say that events are passed over.
const SKIP_MS: u64 = 1_000;

/// While nothing can be sent, how often it is looked which events were recorded meanwhile: those that are not wanted
/// are passed over all the same.
const LOOK_MS: u64 = 5_000;

/// What the leader remembers of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// Requests in a row that have found the endpoint down.
    failures: u32,
    /// Ticks before which nothing is sent, because the endpoint is down.
    not_before: u64,
    /// Ticks before which nothing is sent, because of the rate.
    next_request: u64,
    /// New events up to this one go alone: a request with all of them was refused.
    singly_through: u64,
    /// What is known of requests without an answer.
    doubt: Doubt,
    /// Where another event than the first new one is looked for.
    search: Search,
    /// A parked event has found the endpoint down. Perhaps it is the event, so new ones go first the next time.
    prefers_new: bool,
    /// Ticks from which events that were passed over are told.
    skip_at: u64,
    /// The rows have said that something is wrong with the endpoint.
    had_error: bool,
    /// The first new event, if it was sent in vain.
    tried: Tried,
}

impl Course {
    /// What is to be done next.
    pub fn next(&self, view: &View<'_>, now: Now) -> Next {
        if let Some((_, event)) = view.first
            && view.is_over_age(event.time_ms, now)
        {
            return Next::Expire;
        }
        let first_ends = view
            .first
            .map(|(_, event)| view.ticks_of_end(event.time_ms, now));
        if view.state() != State::Active {
            return self.hold_or_skip(view, now, first_ends);
        }
        let due = view.parked.filter(|parked| parked.due_ms <= now.log.0);
        if let Some(parked) = due {
            if parked.row.attempts >= view.options.max_attempts.max(1) {
                return Next::Bury(DeathReason::MaxDeliveryAttemptsExceeded);
            }
            if view.is_over_age(parked.row.since_ms, now) {
                return Next::Bury(DeathReason::TimeToLiveExceeded);
            }
        }
        let at = self.not_before.max(self.next_request);
        if at > now.ticks {
            let until = first_ends.map_or(at, |ends| at.min(ends));
            return self.hold_or_skip(view, now, Some(until));
        }
        let first = view.first;
        if first.is_none() && due.is_none() {
            let until_due = view.parked.map(|parked| {
                let until_due = Millis(parked.due_ms).since(now.log);
                now.ticks.saturating_add(until_due)
            });
            return self.skip(view, now, until_due, Next::Wait);
        }
        if !has_consent(view.row, view.options, now.log) {
            return Next::Ask;
        }
        match first {
            Some((number, _)) if due.is_none() || self.prefers_new => self.send_new(view, number),
            _ => Next::SendParked,
        }
    }

    fn send_new(&self, view: &View<'_>, first: u64) -> Next {
        match view.another {
            Some(_) if self.is_suspect(first) => return Next::SendAnother,
            // A question decides only whether it is parked.
            None if self.is_suspect(first) && !view.is_parking_full() => return Next::Probe,
            _ => {}
        }
        Next::SendNew(match first <= self.singly_through {
            true => 1,
            false => self.doubt.together(),
        })
    }

    fn is_suspect(&self, number: u64) -> bool {
        let enough = self.doubt.enough();
        !self.tried.others_are_taken(number) && self.tried.in_vain_alone(number) >= enough
    }

    /// The number behind which another new event is to be looked for before it is decided what to do next: the first
    /// one may be the reason why there are no answers. The search goes on page by page, see [`Course::looks_on`].
    pub fn seeks(&self) -> Option<u64> {
        let first = self.tried.first();
        self.is_suspect(first).then(|| self.search.after(first))
    }

    /// Another new event was looked for on a page, and is not there. Whether more is to be read.
    pub fn looks_on(&mut self, looked: Looked) -> bool {
        self.search.looks_on(looked)
    }

    /// What is remembered when something else is asked for: how soon the endpoint may be asked again.
    #[must_use]
    pub fn anew(&self) -> Course {
        Course {
            next_request: self.next_request,
            ..Course::default()
        }
    }

    /// Nothing can be sent: what is recorded meanwhile is looked at now and then.
    fn hold_or_skip(&self, view: &View<'_>, now: Now, until: Option<u64>) -> Next {
        let look_at = now.ticks.saturating_add(LOOK_MS);
        let until = until.map_or(look_at, |until| until.min(look_at));
        let hold = |until: Option<u64>| Next::Hold(until.unwrap_or(look_at));
        self.skip(view, now, Some(until), hold)
    }

    /// Waits, or tells first which events were passed over: not each of them, and not at once.
    fn skip(
        &self,
        view: &View<'_>,
        now: Now,
        until: Option<u64>,
        wait: impl Fn(Option<u64>) -> Next,
    ) -> Next {
        if view.skipped <= view.row.through {
            return wait(until);
        }
        match self.skip_at <= now.ticks {
            true => Next::Skip(view.skipped),
            false => wait(Some(until.map_or(self.skip_at, |at| at.min(self.skip_at)))),
        }
    }

    /// Goes by what the rows say: of events that they are done with nothing is remembered, and whoever clears its error
    /// wants it to be tried at once. An error that has not come to the rows is cleared by nobody.
    pub fn follow(&mut self, row: &EventSubscription) {
        if self.tried.first() <= row.through {
            // It is delivered, parked or dead.
            self.tried = Tried::default();
        }
        let has_error = !row.last_error.is_empty();
        if self.had_error && !has_error {
            self.up();
        }
        self.had_error = has_error;
    }

    /// Requests with the first new event that have not delivered it.
    pub fn requests(&self, number: u64) -> u32 {
        self.tried.requests(number)
    }

    /// Dead letters out of new events that are too old, in the order of the outbox, up to the first one that is not, or
    /// to as many as one account may hold.
    pub fn expired<'e>(
        &self,
        view: &View<'_>,
        events: impl IntoIterator<Item = (u64, &'e Event)>,
        now: Now,
    ) -> EventProgress {
        let mut progress = view.no_progress();
        for (number, event) in events.into_iter().take(limits::EVENT_PROGRESS_ITEMS) {
            if !view.is_over_age(event.time_ms, now) {
                break;
            }
            progress.through = number;
            let mut dead = DeadEvent {
                number,
                reason: DeathReason::TimeToLiveExceeded.number(),
                ..DeadEvent::default()
            };
            self.tried.tell(&mut dead);
            progress.dead.push(dead);
        }
        progress
    }

    /// Events were passed over.
    pub fn skipped(&mut self, view: &View<'_>, now: Now) -> EventProgress {
        self.skip_at = now.ticks + SKIP_MS;
        EventProgress {
            through: view.skipped,
            ..view.no_progress()
        }
    }

    /// A request begins: with events, or with the question whether the endpoint wants them.
    pub fn begin(&mut self, view: &View<'_>, now: Now) {
        let rate = u64::from(view.rate(now));
        self.next_request = now.ticks + MINUTE_MS.div_ceil(rate);
        self.skip_at = now.ticks + SKIP_MS;
    }

    /// A request of events has ended. The answer is what the rows are to say now. `error` says what is wrong with the
    /// endpoint, if something is, in words that do not change from one request to the next.
    pub fn ended(
        &mut self,
        view: &View<'_>,
        sent: &Sent<'_>,
        end: End,
        error: &str,
        now: Now,
        random: u32,
    ) -> EventProgress {
        let mut progress = view.no_progress();
        let consequence = end.consequence();
        if let Sent::New(numbers) = sent {
            self.tried.note(numbers, end, now);
        }
        match consequence {
            Consequence::Delivered => {
                self.delivered(&mut progress, sent);
                self.answered(&mut progress, view, sent, now, random);
            }
            Consequence::Gone => {
                self.up();
                progress.state = State::Gone.number();
                progress.consent = Some(Bytes::new());
            }
            Consequence::Down(after) => self.found_down(sent, after, now, random),
            Consequence::Unanswered => {
                self.unanswered(&mut progress, view, sent, end, now, random);
            }
            Consequence::Refused | Consequence::Suspect => {
                self.not_taken(&mut progress, view, sent, end, now, random);
                self.answered(&mut progress, view, sent, now, random);
            }
        }
        let is_fine = self.failures == 0 && consequence != Consequence::Gone;
        set_error(&mut progress, view, if is_fine { "" } else { error });
        progress
    }

    fn up(&mut self) {
        self.failures = 0;
        self.not_before = 0;
    }

    fn down(&mut self, after: Option<u64>, now: Now, random: u32) {
        self.failures = self.failures.saturating_add(1);
        // Who asks for no pause at all does not get more requests than who asks for none.
        let wait = match after {
            Some(after) => after.max(endpoint_ms(1, random)),
            None => endpoint_ms(self.failures, random),
        };
        self.not_before = now.ticks.saturating_add(wait);
    }

    fn found_down(&mut self, sent: &Sent<'_>, after: Option<u64>, now: Now, random: u32) {
        self.down(after, now, random);
        self.doubt.forget();
        self.prefers_new = matches!(sent, Sent::Parked(_));
    }

    /// The endpoint has not answered. It may be down, or what was sent is the reason.
    fn unanswered(
        &mut self,
        progress: &mut EventProgress,
        view: &View<'_>,
        sent: &Sent<'_>,
        end: End,
        now: Now,
        random: u32,
    ) {
        let was_up = self.failures == 0;
        self.found_down(sent, None, now, random);
        match sent {
            Sent::New([number]) if self.is_given_up(view, *number) => {
                self.set_aside(progress, view, sent, end, now, random);
            }
            Sent::New(_) => self.doubt.cut(),
            Sent::Another { .. } => self.search.unanswered(self.tried.first(), view.newest),
            Sent::Parked(parked) => self.doubt.put_off(progress, parked, end, was_up, now),
        }
    }

    /// The endpoint answers: what was not answered before is at fault itself.
    fn answered(
        &mut self,
        progress: &mut EventProgress,
        view: &View<'_>,
        sent: &Sent<'_>,
        now: Now,
        random: u32,
    ) {
        let answered = match sent {
            Sent::Parked(parked) => Some(parked.number),
            Sent::New(_) | Sent::Another { .. } => None,
        };
        self.doubt.count(progress, view, answered, now, random);
        let Some((first, _)) = view.first.filter(|_| !matches!(sent, Sent::New(_))) else {
            return;
        };
        if let Some(last) = self.tried.last(first)
            && self.is_suspect(first)
        {
            if view.is_parking_full() {
                // It gets another try: perhaps the endpoint has come back just now.
                if progress.delivered > 0 {
                    self.tried.note_others();
                }
            } else {
                self.doubt.beware();
                self.doubt.park(progress, first, last, now, random);
            }
        }
        // Where none may be parked, only one that is taken shows something.
        let shows = progress.delivered > 0 || !view.is_parking_full();
        if let Sent::Another { number, is_next } = sent
            && shows
        {
            self.search.answered(*number);
            if *is_next && progress.delivered > 0 && progress.through == first {
                progress.through = *number;
            }
        }
    }

    fn delivered(&mut self, progress: &mut EventProgress, sent: &Sent<'_>) {
        self.up();
        self.prefers_new = false;
        match sent {
            Sent::New(numbers) => {
                self.doubt.delivered();
                self.search = Search::default();
                progress.through = numbers.last().copied().unwrap_or_default();
                progress.delivered = numbers.len() as u64;
            }
            Sent::Another { .. } => progress.delivered = 1,
            Sent::Parked(parked) => {
                progress.delivered = 1;
                progress.unparked.push(UnparkEvent {
                    number: parked.number,
                    was_due_ms: parked.due_ms,
                });
            }
        }
    }

    /// The endpoint is there and does not take what was sent.
    fn not_taken(
        &mut self,
        progress: &mut EventProgress,
        view: &View<'_>,
        sent: &Sent<'_>,
        end: End,
        now: Now,
        random: u32,
    ) {
        if let Sent::New(numbers @ [first, _, ..]) = sent {
            self.up();
            let last = numbers.last().copied().unwrap_or(*first);
            let is_final = end.consequence() == Consequence::Refused;
            self.singly_through = if is_final { last } else { *first };
            return;
        }
        if matches!(sent, Sent::Another { .. }) {
            // It is judged when it is its turn; for the first one it says nothing where that is answered, too.
            let is_answered = |(number, _)| self.tried.is_answered(number);
            if view.first.is_some_and(is_answered) {
                self.found_down(sent, None, now, random);
                return self.search.unanswered(self.tried.first(), view.newest);
            }
            return self.up();
        }
        match self.set_aside(progress, view, sent, end, now, random) {
            true => self.up(),
            // So many events can't all be at fault, unless others are taken.
            false => self.found_down(sent, None, now, random),
        }
    }

    /// Whether there is no room for a new event among the parked ones, and others are delivered, so that it would only
    /// hold them up.
    fn is_given_up(&self, view: &View<'_>, number: u64) -> bool {
        view.is_parking_full() && self.tried.others_are_taken(number)
    }

    /// Parks a single event, or gives it up; `false` when there is no room among the parked ones.
    fn set_aside(
        &mut self,
        progress: &mut EventProgress,
        view: &View<'_>,
        sent: &Sent<'_>,
        end: End,
        now: Now,
        random: u32,
    ) -> bool {
        let is_final = end.consequence() == Consequence::Refused;
        let (number, was_due_ms, mut attempts) = match sent {
            Sent::New(numbers) => match numbers.first() {
                Some(number) => (*number, 0, 1),
                None => return false,
            },
            Sent::Another { .. } => return false,
            Sent::Parked(parked) => (
                parked.number,
                parked.due_ms,
                parked.row.attempts.saturating_add(1),
            ),
        };
        let mut reason = match is_final {
            true => Some(DeathReason::NotRetried),
            false if attempts >= view.options.max_attempts.max(1) => {
                Some(DeathReason::MaxDeliveryAttemptsExceeded)
            }
            false => None,
        };
        if reason.is_none() && was_due_ms == 0 && view.is_parking_full() {
            if !self.is_given_up(view, number) {
                return false;
            }
            self.doubt.beware();
            attempts = self.tried.requests(number);
            reason = Some(DeathReason::MaxDeliveryAttemptsExceeded);
        }
        let (outcome, attempted_ms) = (end.outcome().number(), now.log.0);
        match reason {
            Some(reason) => progress.dead.push(DeadEvent {
                number,
                was_due_ms,
                reason: reason.number(),
                attempts,
                outcome,
                attempted_ms,
            }),
            None => progress.parked.push(ParkEvent {
                number,
                was_due_ms,
                due_ms: now.log.plus(parked_ms(attempts, random)).0,
                attempts,
                outcome,
                attempted_ms,
            }),
        }
        if was_due_ms == 0 {
            progress.through = number;
        }
        true
    }
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
