//! Timers: what is due at a log time. They are rows, so every replica fires the same ones in the same order.
//!
//! When a million keys expire at once, messages that are on their way into queues must not wait until the last of them
//! has gone. So those timers that messages wait for are known in memory beside their rows, and are found whatever else
//! has been due for longer. The end of a node's connections does not wait for those either: its clients have been away
//! for as long as its lease.

use std::collections::BTreeSet;

use super::schema::Timer;
use super::schema::timer::Kind;
use super::tables::{Backing, Tables};
use crate::base::time::Millis;

/// A timer that is due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub deadline: Millis,
    pub kind: Kind,
    pub subject: Vec<u8>,
}

/// When the earliest timer is due; the timers themselves are rows.
pub(super) struct Timers {
    /// Invariant: no timer is due earlier. There may be none at this very time: it may have been cleared.
    next_due: Millis,
    /// The rows whose [kind](Kind::is_work) messages wait for.
    work: BTreeSet<Due>,
    /// Those whose kind [goes first](Kind::goes_first).
    first: BTreeSet<Due>,
}

impl Timers {
    pub fn new() -> Self {
        Timers {
            next_due: Millis::NEVER,
            work: BTreeSet::new(),
            first: BTreeSet::new(),
        }
    }

    pub fn next_due(&self) -> Millis {
        self.next_due
    }

    /// Finds the earliest deadline anew, and what messages wait for, after the tables were replaced. That is due at the
    /// latest right after the log time `clock`.
    pub fn restore(&mut self, backing: &dyn Backing, clock: Millis) {
        *self = Timers::new();
        let last = clock.plus(1);
        backing.rows(&Timer::since(Millis(0)), |(deadline, kind, subject), _| {
            self.next_due = self.next_due.min(deadline);
            if let Some(known) = self.known(kind) {
                known.insert(due(deadline, kind, subject));
            }
            deadline <= last
        });
    }

    pub fn set(&mut self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        tables.put::<Timer>((deadline, kind, subject), &());
        self.next_due = self.next_due.min(deadline);
        if let Some(known) = self.known(kind) {
            known.insert(due(deadline, kind, subject));
        }
    }

    pub fn clear(&mut self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        tables.delete::<Timer>((deadline, kind, subject));
        if let Some(known) = self.known(kind) {
            known.remove(&due(deadline, kind, subject));
        }
    }

    /// Where timers of a kind are known in memory.
    fn known(&mut self, kind: Kind) -> Option<&mut BTreeSet<Due>> {
        if kind.goes_first() {
            return Some(&mut self.first);
        }
        kind.is_work().then_some(&mut self.work)
    }

    /// Those that are due and [go first](Kind::goes_first), the earliest first. There are few: one for each node.
    pub fn first_due(&self, now: Millis) -> BTreeSet<Due> {
        let due = self.first.iter().take_while(|due| due.deadline <= now);
        due.cloned().collect()
    }

    /// At most `most` timers that are due and that messages wait for, the earliest first.
    pub fn work_due(&self, now: Millis, most: usize) -> BTreeSet<Due> {
        let due = self.work.iter().take_while(|due| due.deadline <= now);
        due.take(most).cloned().collect()
    }

    /// A timer that is due stays for the next batch.
    pub fn put_off(&mut self, due: &Due) {
        self.next_due = self.next_due.min(due.deadline);
    }

    /// Whether timers are due that messages wait for, or that go first.
    pub fn has_work_due(&self, now: Millis) -> bool {
        let earliest = [self.work.first(), self.first.first()];
        earliest
            .into_iter()
            .flatten()
            .any(|due| due.deadline <= now)
    }

    /// At most `most` timers that are due, the earliest first. The rows stay until they are cleared; what is not fired
    /// is [put off](Timers::put_off).
    pub fn due(&mut self, tables: &Tables<'_>, now: Millis, most: usize) -> Vec<Due> {
        let mut found = Vec::new();
        if self.next_due > now {
            return found;
        }
        let mut next = Millis::NEVER;
        let since = Timer::since(self.next_due);
        tables.scan(&since, |(deadline, kind, subject), _| {
            if deadline > now || found.len() == most {
                next = deadline;
                return false;
            }
            found.push(due(deadline, kind, subject));
            true
        });
        self.next_due = next;
        found
    }
}

fn due(deadline: Millis, kind: Kind, subject: &[u8]) -> Due {
    Due {
        deadline,
        kind,
        subject: subject.to_vec(),
    }
}

/// The deadline in whole seconds, not earlier, for what need not happen at once: so an idle cluster commits at most one
/// entry per second for it.
pub(super) fn whole_second(deadline: Millis) -> Millis {
    match deadline.0.checked_next_multiple_of(1_000) {
        Some(rounded) => Millis(rounded),
        None => deadline,
    }
}
