//! What is to be done next for an event subscription, and what was sent.

use super::answer::DeathReason;
use super::view::Parked;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing before these ticks, or before the rows change; `None`: before they change.
    Wait(Option<u64>),
    /// Nothing before these ticks, whatever is recorded meanwhile: only an operator can change that.
    Hold(u64),
    /// The rows are to say that it is done with the events up to this one.
    Skip(u64),
    /// The first new event is too old: it becomes a dead letter.
    Expire,
    /// The parked event becomes a dead letter.
    Bury(DeathReason),
    /// The endpoint is to be asked whether it wants events.
    Ask,
    /// New events are to be sent, at most so many.
    SendNew(usize),
    /// Another new event than the first one is to be sent alone: it tells whether the first one is the reason why there
    /// are no answers.
    SendAnother,
    /// There is no other new event: the endpoint is to be asked something that it answers if it is there.
    Probe,
    /// The parked event is to be sent.
    SendParked,
}

/// What was sent.
#[derive(Clone, Debug)]
pub enum Sent<'a> {
    /// New events, by their numbers.
    New(&'a [u64]),
    /// A new event that is not the first one.
    Another {
        /// Its number.
        number: u64,
        /// It is the one that comes after the first one.
        is_next: bool,
    },
    /// A parked event.
    Parked(&'a Parked),
}
