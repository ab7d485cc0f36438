//! What became of requests with the first new event so far. It is still in the outbox and no row says anything of it,
//! so the leader remembers it: for its dead letter, and to tell an event that breaks its endpoint from an endpoint that
//! is down.

use super::answer::{Consequence, End};
use super::view::Now;
use crate::base::proto::command::DeadEvent;

/// Requests that began with the same new event and have not delivered it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    /// The event.
    first: u64,
    /// The last event of the last request.
    through: u64,
    requests: u32,
    /// Of them, those with this event alone.
    in_vain_alone: u32,
    /// There was no room among the parked ones, and another event was delivered after that.
    others_are_taken: bool,
    last: Option<(End, u64)>,
}

impl Tried {
    /// A request with new events has ended.
    pub(super) fn note(&mut self, numbers: &[u64], end: End, now: Now) {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else {
            return;
        };
        if self.first != *first {
            *self = Tried::default();
        }
        self.first = *first;
        self.through = *last;
        self.requests = self.requests.saturating_add(1);
        self.last = Some((end, now.log.0));
        let consequence = end.consequence();
        self.others_are_taken &= !matches!(consequence, Consequence::Down(_));
        if numbers.len() == 1
            && matches!(consequence, Consequence::Unanswered | Consequence::Suspect)
        {
            self.in_vain_alone = self.in_vain_alone.saturating_add(1);
        }
    }

    /// Another event was delivered, so it is not the endpoint that is at fault.
    pub(super) fn note_others(&mut self) {
        self.others_are_taken = true;
    }

    /// Whether another one was delivered after an event was tried alone.
    pub(super) fn others_are_taken(&self, number: u64) -> bool {
        self.first == number && self.others_are_taken
    }

    /// Requests that have begun with an event and have not delivered it.
    pub(super) fn requests(&self, number: u64) -> u32 {
        match self.first == number {
            true => self.requests,
            false => 0,
        }
    }

    /// Requests with an event alone that no answer came to, or one that does not take it.
    pub(super) fn in_vain_alone(&self, number: u64) -> u32 {
        match self.first == number {
            true => self.in_vain_alone,
            false => 0,
        }
    }

    /// The event.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The endpoint is not there: of the event no more is known than from one request less than `enough`.
    pub(super) fn excuse(&mut self, enough: u32) {
        let less = enough.saturating_sub(1);
        self.in_vain_alone = self.in_vain_alone.min(less);
    }

    /// How the last request has ended that began with an event, and when.
    pub(super) fn last(&self, number: u64) -> Option<(End, u64)> {
        self.last.filter(|_| self.first == number)
    }

    /// Whether the last request that began with an event had an answer, which says nothing for ever.
    pub(super) fn is_answered(&self, number: u64) -> bool {
        self.last(number)
            .is_some_and(|(end, _)| end.consequence() == Consequence::Suspect)
    }

    /// Adds to a dead letter out of the outbox how often it was tried, and how that ended. What went behind the first
    /// event is told as that one.
    pub(super) fn tell(&self, dead: &mut DeadEvent) {
        let was_tried = (self.first..=self.through).contains(&dead.number);
        if let Some((end, attempted_ms)) = self.last.filter(|_| was_tried) {
            dead.attempts = self.requests;
            dead.outcome = end.outcome().number();
            dead.attempted_ms = attempted_ms;
        }
    }
}
