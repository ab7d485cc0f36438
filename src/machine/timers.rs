//! Timers: what is due at a log time. They are rows, so every replica fires the same ones in the same order.
//!
//! When a million keys expire at once, messages that are on their way into queues must not wait until the last of them
//! has gone. So those timers that messages wait for are known in memory beside their rows, and are found whatever else
//! has been due for longer. The end of a node's connections does not wait for those either: its clients have been away
//! for as long as its lease.

use std::collections::BTreeSet;

use super::schema::timer::Kind;
use super::schema::{Range, Timer};
use super::tables::{Backing, Tables};
use crate::base::time::Millis;

/// A timer that is due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub deadline: Millis,
    pub kind: Kind,
    pub subject: Vec<u8>,
}

/// Which timer is the first one; the timers themselves are rows.
pub(super) struct Timers {
    /// Invariant: no timer's row is before this one's, and none is there at all without it. There may be none here: it
    /// may have been cleared. What was due at the same time and has gone is not passed again.
    next: Option<Due>,
    /// The rows whose [kind](Kind::is_work) messages wait for.
    work: BTreeSet<Due>,
    /// Those whose kind [goes first](Kind::goes_first).
    first: BTreeSet<Due>,
}

impl Timers {
    pub fn new() -> Self {
        Timers {
            next: None,
            work: BTreeSet::new(),
            first: BTreeSet::new(),
        }
    }

    pub fn next_due(&self) -> Millis {
        self.next.as_ref().map_or(Millis::NEVER, |due| due.deadline)
    }

    /// A timer is there.
    fn note(&mut self, deadline: Millis, kind: Kind, subject: &[u8]) {
        let is_first =
            |next: &Due| (deadline, kind, subject) < (next.deadline, next.kind, &next.subject[..]);
        if self.next.as_ref().is_none_or(is_first) {
            self.next = Some(due(deadline, kind, subject));
        }
    }

    /// Finds the earliest deadline anew, and what messages wait for, after the tables were replaced. That is due at the
    /// latest right after the log time `clock`.
    pub fn restore(&mut self, backing: &dyn Backing, clock: Millis) {
        *self = Timers::new();
        let last = clock.plus(1);
        backing.rows(&Range::<Timer>::all(), |(deadline, kind, subject), _| {
            self.note(deadline, kind, subject);
            if let Some(known) = self.known(kind) {
                known.insert(due(deadline, kind, subject));
            }
            deadline <= last
        });
    }

    pub fn set(&mut self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        tables.put::<Timer>((deadline, kind, subject), &());
        self.note(deadline, kind, subject);
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
        self.note(due.deadline, due.kind, &due.subject);
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
        let Some(next) = self.next.take_if(|next| next.deadline <= now) else {
            return found;
        };
        let first = (next.deadline, next.kind, &next.subject[..]);
        let since = Range::<Timer>::all().starting_at(first);
        tables.scan(&since, |(deadline, kind, subject), _| {
            let due = due(deadline, kind, subject);
            if deadline > now || found.len() == most {
                self.next = Some(due);
                return false;
            }
            found.push(due);
            true
        });
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use parking_lot::Mutex;

    use super::super::schema::Table as _;
    use super::*;

    /// Rows, and where scans of them began.
    #[derive(Default)]
    struct Scanned {
        rows: BTreeMap<Vec<u8>, Vec<u8>>,
        from: Mutex<Vec<Vec<u8>>>,
    }

    impl Backing for Scanned {
        fn get(&self, key: &[u8]) -> Option<Bytes> {
            Backing::get(&self.rows, key)
        }

        fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
            self.from.lock().push(from.to_vec());
            Backing::scan(&self.rows, from, to, visit);
        }
    }

    #[test]
    fn timers_of_one_time_that_have_fired_are_not_passed_again() {
        let at = Millis(7);
        let key = |number: u32| Timer::encode((at, Kind::Tombstone, &number.to_be_bytes()));
        let mut stored = Scanned::default();
        stored
            .rows
            .extend((0..1000).map(|number| (key(number), Vec::new())));
        let mut timers = Timers::new();
        timers.restore(&stored, at);
        stored.from.lock().clear();
        for round in 0..10_u32 {
            let mut tables = Tables::new(&stored);
            let due = timers.due(&tables, at, 100);
            assert_eq!(due.len(), 100);
            // The last one has to wait.
            let (put_off, fired) = due.split_last().expect("some are due");
            for due in fired {
                timers.clear(&mut tables, due.deadline, due.kind, &due.subject);
            }
            timers.put_off(put_off);
            for (gone, _) in tables.into_changes() {
                stored.rows.remove(&gone);
            }
            assert_eq!(stored.from.lock().pop(), Some(key(round * 99)));
        }
        // One that is set before all others is found.
        let mut tables = Tables::new(&stored);
        timers.set(&mut tables, at, Kind::KeyExpiry, b"key");
        assert_eq!(timers.due(&tables, at, 1)[0].subject, b"key");
        assert_eq!(timers.next_due(), at);
        assert!(timers.due(&tables, Millis(6), 1).is_empty());
    }
}
