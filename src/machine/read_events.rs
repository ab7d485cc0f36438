//! Reads of events for the outside: for who delivers them, and for who lists them. The caller has waited until this
//! replica has applied what the read must see.

use super::schema::{self, Range};
use super::tables::Backing;
use crate::base::proto::state;
use crate::base::time::Millis;

/// What there is of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Before it there is none in the outbox.
    pub first: u64,
    /// The last one that was recorded; 0: there was none.
    pub last: u64,
    /// Log time.
    pub clock: Millis,
}

/// Which events there are.
pub fn numbers(backing: &dyn Backing) -> Numbers {
    let meta = backing.row::<schema::Meta>(()).unwrap_or_default();
    Numbers {
        first: meta.first_event,
        last: meta.last_event,
        clock: Millis(meta.clock_ms),
    }
}

/// What events are rendered with; `None` before a leader has said it.
pub fn settings(backing: &dyn Backing) -> Option<state::EventSettings> {
    backing.row::<schema::EventSettings>(())
}

/// At most `most` events of the outbox after a number, in order. Together they have at most `bytes` bytes, but the
/// first one always comes.
pub fn events(
    backing: &dyn Backing,
    after: u64,
    most: usize,
    bytes: usize,
) -> Vec<(u64, state::Event)> {
    let mut found: Vec<(u64, state::Event)> = Vec::new();
    let Some(from) = after.checked_add(1).filter(|_| most > 0) else {
        return found;
    };
    // Rows that have gone before the first one are not looked for.
    let from = from.max(numbers(backing).first);
    let mut left = bytes;
    let range = Range::<schema::Event>::all().starting_at(from);
    backing.rows(&range, |number, row| {
        let size = row.bytes().len();
        if size > left && !found.is_empty() {
            return false;
        }
        left = left.saturating_sub(size);
        found.push((number, row.decode()));
        found.len() < most
    });
    found
}

/// An event subscription; one that has ended and of which rows are left has no options.
pub fn subscription(backing: &dyn Backing, name: &str) -> Option<state::EventSubscription> {
    backing.row::<schema::EventSubscription>(name)
}

/// All event subscriptions, in the order of their names.
pub fn subscriptions(backing: &dyn Backing) -> Vec<(String, state::EventSubscription)> {
    let mut found = Vec::new();
    backing.rows::<schema::EventSubscription>(&Range::all(), |name, row| {
        found.push((name.to_owned(), row.decode()));
        true
    });
    found
}

/// At most `most` parked events of an event subscription, those that are due first: when, and their numbers.
pub fn parked(
    backing: &dyn Backing,
    name: &str,
    most: usize,
) -> Vec<(Millis, u64, state::ParkedEvent)> {
    let mut found = Vec::new();
    let range = schema::ParkedEvent::of_subscription(name);
    backing.rows(&range, |(_, due, number), row| {
        let has_room = found.len() < most;
        if has_room {
            found.push((due, number, row.decode()));
        }
        has_room
    });
    found
}

/// Dead letters of an event subscription after a number, in order, as long as `visit` returns `true`. They are as large
/// as clients like: what is made of them needs a bound of bytes.
pub fn dead_letters(
    backing: &dyn Backing,
    name: &str,
    after: u64,
    mut visit: impl FnMut(u64, state::DeadLetter) -> bool,
) {
    let Some(row) = subscription(backing, name) else {
        return;
    };
    let Some(from) = after.checked_add(1) else {
        return;
    };
    // Letters that have gone before the first one are not looked for.
    let from = from.max(row.first_dead);
    let range = schema::DeadLetter::of_subscription(name).starting_at((name, from));
    backing.rows(&range, |(_, number), row| visit(number, row.decode()));
}
