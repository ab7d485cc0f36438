//! Timers: what is due at a log time. They are rows, so every replica fires the same ones in the same order.

use super::schema::Timer;
use super::schema::timer::Kind;
use super::tables::{Backing, Tables};
use crate::base::time::Millis;

/// A timer that is due.
pub(super) struct Due {
    pub deadline: Millis,
    pub kind: Kind,
    pub subject: Vec<u8>,
}

/// When the earliest timer is due; the timers themselves are rows.
pub(super) struct Timers {
    /// Invariant: no timer is due earlier. There may be none at this very time: it may have been cleared.
    next_due: Millis,
}

impl Timers {
    pub fn new() -> Self {
        let next_due = Millis::NEVER;
        Timers { next_due }
    }

    pub fn next_due(&self) -> Millis {
        self.next_due
    }

    /// Finds the earliest deadline anew, after the tables were replaced.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.next_due = Millis::NEVER;
        backing.rows(&Timer::since(Millis(0)), |(deadline, ..), _| {
            self.next_due = deadline;
            false
        });
    }

    pub fn set(&mut self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        tables.put::<Timer>((deadline, kind, subject), &());
        self.next_due = self.next_due.min(deadline);
    }

    pub fn clear(&self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        tables.delete::<Timer>((deadline, kind, subject));
    }

    /// A timer that is due stays for the next batch.
    pub fn put_off(&mut self, due: &Due) {
        self.next_due = self.next_due.min(due.deadline);
    }

    /// At most `most` timers that are due, the earliest first. The rows stay until they are cleared; what is not fired
    /// is [put off](Timers::put_off).
    pub fn due(&mut self, tables: &Tables<'_>, now: Millis, most: usize) -> Vec<Due> {
        let mut due = Vec::new();
        if self.next_due > now {
            return due;
        }
        let mut next = Millis::NEVER;
        let since = Timer::since(self.next_due);
        tables.scan(&since, |(deadline, kind, subject), _| {
            if deadline > now || due.len() == most {
                next = deadline;
                return false;
            }
            due.push(Due {
                deadline,
                kind,
                subject: subject.to_vec(),
            });
            true
        });
        self.next_due = next;
        due
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
