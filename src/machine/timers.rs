//! Timers: what is due at a log time. They are rows, so every replica fires the same ones in the same order.
//!
//! When a million keys expire at once, messages that are on their way into queues must not wait until the last of them
//! has gone; and no will waits until the last of a million such messages is there. So those timers that messages wait
//! for have a table of their own, which is known in memory. The end of a node's connections waits for neither: its
//! clients have been away for as long as its lease.

use std::collections::BTreeSet;

use super::schema::timer::Kind;
use super::schema::{Range, Timer, WorkTimer};
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
#[derive(Default)]
pub(super) struct Timers {
    /// Of [`Timer`]. Invariant: no timer's row is before this one's, and none is there at all without it. There may be
    /// none here: it may have been cleared. What was due at the same time and has gone is not passed again.
    next: Option<Due>,
    /// The rows of [`WorkTimer`]: those whose [kind](Kind::is_work) messages wait for, without replays.
    work: BTreeSet<Due>,
    /// The rest of them: one session may have thousands, and each gets little done at a time.
    replays: BTreeSet<Due>,
    /// Those whose kind [goes first](Kind::goes_first).
    first: BTreeSet<Due>,
}

impl Timers {
    pub fn next_due(&self) -> Millis {
        let earliest = [self.next.as_ref(), self.work.first(), self.replays.first()];
        let earliest = earliest.into_iter().flatten().map(|due| due.deadline);
        earliest.min().unwrap_or(Millis::NEVER)
    }

    /// A timer is in [`Timer`].
    fn note(&mut self, deadline: Millis, kind: Kind, subject: &[u8]) {
        let is_first =
            |next: &Due| (deadline, kind, subject) < (next.deadline, next.kind, &next.subject[..]);
        if self.next.as_ref().is_none_or(is_first) {
            self.next = Some(due(deadline, kind, subject));
        }
    }

    /// Finds the earliest deadline anew, and what is known in memory, after the tables were replaced. What
    /// [goes first](Kind::goes_first) is due at the latest right after the log time `clock`.
    pub fn restore(&mut self, backing: &dyn Backing, clock: Millis) {
        *self = Timers::default();
        let last = clock.plus(1);
        backing.rows(&Range::<Timer>::all(), |(deadline, kind, subject), _| {
            self.note(deadline, kind, subject);
            if kind.goes_first() {
                self.first.insert(due(deadline, kind, subject));
            }
            deadline <= last
        });
        let all = Range::<WorkTimer>::all();
        backing.rows(&all, |(deadline, kind, subject), _| {
            self.known(kind).insert(due(deadline, kind, subject));
            true
        });
    }

    /// Where the timers of a kind that messages wait for are known.
    fn known(&mut self, kind: Kind) -> &mut BTreeSet<Due> {
        match kind {
            Kind::RetainedReplay => &mut self.replays,
            _ => &mut self.work,
        }
    }

    pub fn set(&mut self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        let key = (deadline, kind, subject);
        if kind.is_work() {
            tables.put::<WorkTimer>(key, &());
            self.known(kind).insert(due(deadline, kind, subject));
            return;
        }
        tables.put::<Timer>(key, &());
        self.note(deadline, kind, subject);
        if kind.goes_first() {
            self.first.insert(due(deadline, kind, subject));
        }
    }

    pub fn clear(&mut self, tables: &mut Tables<'_>, deadline: Millis, kind: Kind, subject: &[u8]) {
        let (key, due) = ((deadline, kind, subject), due(deadline, kind, subject));
        if self.known(kind).remove(&due) {
            tables.delete::<WorkTimer>(key);
            return;
        }
        self.first.remove(&due);
        tables.delete::<Timer>(key);
    }

    /// Whether such a timer is set that messages wait for.
    pub fn is_set(&mut self, deadline: Millis, kind: Kind, subject: &[u8]) -> bool {
        self.known(kind).contains(&due(deadline, kind, subject))
    }

    /// Those that are due and [go first](Kind::goes_first), the earliest first. There are few: one for each node.
    pub fn first_due(&self, now: Millis) -> BTreeSet<Due> {
        let due = self.first.iter().take_while(|due| due.deadline <= now);
        due.cloned().collect()
    }

    /// At most `most` timers that are due and that messages wait for, without replays, the earliest first.
    pub fn work_due(&self, now: Millis, most: usize) -> Vec<Due> {
        let due = self.work.iter().take_while(|due| due.deadline <= now);
        due.take(most).cloned().collect()
    }

    /// The earliest replay that is due.
    pub fn replay_due(&self, now: Millis) -> Option<Due> {
        self.replays
            .first()
            .filter(|due| due.deadline <= now)
            .cloned()
    }

    /// A timer that is due stays for the next batch.
    pub fn put_off(&mut self, due: &Due) {
        if self.known(due.kind).contains(due) {
            return;
        }
        self.note(due.deadline, due.kind, &due.subject);
    }

    /// Whether timers are due that messages wait for, or that go first.
    pub fn has_work_due(&self, now: Millis) -> bool {
        let earliest = [self.work.first(), self.replays.first(), self.first.first()];
        earliest
            .into_iter()
            .flatten()
            .any(|due| due.deadline <= now)
    }

    /// At most `most` other timers that are due, the earliest first. The rows stay until they are cleared; what is not
    /// fired is [put off](Timers::put_off).
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
    use super::super::tables::Change;
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
        let mut timers = Timers::default();
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

    #[test]
    fn what_messages_wait_for_hides_no_other_timer() {
        let stored = Scanned::default();
        let mut tables = Tables::new(&stored);
        let mut timers = Timers::default();
        for number in 0..1000_u32 {
            let subject = number.to_be_bytes();
            timers.set(&mut tables, Millis(1), Kind::RetainedReplay, &subject);
        }
        timers.set(&mut tables, Millis(2), Kind::FanOut, b"y");
        timers.set(&mut tables, Millis(5), Kind::WillDelay, b"x");
        let will = due(Millis(5), Kind::WillDelay, b"x");
        assert_eq!(timers.next_due(), Millis(1));
        assert_eq!(timers.due(&tables, Millis(7), 100), [will]);
        let fan_out = due(Millis(2), Kind::FanOut, b"y");
        assert_eq!(timers.work_due(Millis(7), 100), [fan_out]);
        let replay = timers.replay_due(Millis(7)).expect("it is due");
        assert_eq!(replay.kind, Kind::RetainedReplay);

        let rows = tables.into_changes().into_iter();
        let rows = rows.filter_map(|(key, change)| match change {
            Change::Put(row) | Change::New(row) => Some((key, row.to_vec())),
            Change::Delete => None,
        });
        let rows = Scanned {
            rows: rows.collect(),
            ..Default::default()
        };
        let mut restored = Timers::default();
        restored.restore(&rows, Millis(7));
        assert_eq!(restored.next_due(), Millis(1));
        assert_eq!(restored.work, timers.work);
        assert_eq!(restored.replays, timers.replays);
    }
}
