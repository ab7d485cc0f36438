//! Parked events and dead letters: copies of events that one event subscription has still to get, or has given up.
//!
//! Replaying, purging, ending and making room may concern more rows than one log entry may touch; a timer goes on with
//! them.
//!
//! Invariant: no event subscription has more dead letters than `events.dead_letters_max`, nor more bytes than so many
//! of [`limits::DEAD_LETTER_BYTES`], but for those that a timer is still to remove: the oldest go, but no client
//! that has brought most of them makes others' go: its new ones go themselves then. Invariant: no dead letter comes
//! before the row's `first_dead`. A scan that began with the first key would step over every letter that
//! has gone, once for each account. Invariant: an event of the outbox is parked or given up by the account that moves
//! the cursor past it, and by no other: what a former leader says late finds the cursor past it.

use super::super::batch::Batch;
use super::super::effect::{EventDrop, EventsReply};
use super::super::schema;
use super::super::schema::timer::Kind;
use super::Events;
use super::portion::Portion;
use crate::base::limits;
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::events::majority;

/// Row operations that moving or removing a letter takes.
const LETTER_COST: usize = 6;

/// Row operations that an item of an account takes at most.
const ITEM_COST: usize = 8;

/// Dead letters that an account makes room for beyond those that it brings.
const DROPS: usize = 2;

impl Events {
    /// Parks events, takes parked ones out, and gives events up, as an account says.
    pub(super) fn sort_out(
        &self,
        batch: &mut Batch<'_, '_>,
        row: &mut state::EventSubscription,
        command: &command::EventProgress,
    ) {
        let name = command.name.as_str();
        for parked in &command.parked {
            let found = take(batch, name, row, parked.number, parked.was_due_ms);
            if let Some(found) = found {
                let found = state::ParkedEvent {
                    attempts: parked.attempts,
                    outcome: parked.outcome,
                    attempted_ms: parked.attempted_ms,
                    ..found
                };
                park(
                    batch,
                    name,
                    row,
                    Millis(parked.due_ms),
                    parked.number,
                    &found,
                );
            }
        }
        for unparked in &command.unparked {
            if unparked.was_due_ms != 0 {
                take(batch, name, row, unparked.number, unparked.was_due_ms);
            }
        }
        for dead in &command.dead {
            let found = take(batch, name, row, dead.number, dead.was_due_ms);
            if let Some(found) = found {
                let letter = state::DeadLetter {
                    event: found.event,
                    reason: dead.reason,
                    attempts: dead.attempts,
                    outcome: dead.outcome,
                    attempted_ms: dead.attempted_ms,
                    died_ms: batch.now.0,
                };
                row.dead_lettered += 1;
                match self.finds_room(batch, name, row, &letter) {
                    true => give_up(batch, name, row, dead.number, &letter),
                    false => drop_letter(batch, row),
                }
            }
        }
        let items = command.parked.len() + command.unparked.len() + command.dead.len();
        batch.spend(items * ITEM_COST);
        if !command.dead.is_empty() {
            // Once for all of them: each scan steps over what this entry has deleted before.
            let mut portion = Portion::of(batch, command.dead.len() + DROPS);
            self.make_room(batch, name, row, &mut portion);
            portion.settle(batch);
            if portion.is_used_up() {
                go_on_soon(batch, name);
            }
        }
    }

    /// Whether so many dead letters with so many bytes are more than there may be.
    fn exceeds(&self, dead: u64, bytes: u64) -> bool {
        let most = self.settings.dead_letters_max;
        most != 0 && (dead > most || bytes > most.saturating_mul(limits::DEAD_LETTER_BYTES))
    }

    /// Whether a dead letter may be kept. Where others would have to make room for it, and its client has brought most
    /// of what there is, its own do so if they are the oldest; or it finds none.
    fn finds_room(
        &self,
        batch: &mut Batch<'_, '_>,
        name: &str,
        row: &mut state::EventSubscription,
        letter: &state::DeadLetter,
    ) -> bool {
        let most = self.settings.dead_letters_max;
        let share = most.saturating_mul(limits::DEAD_LETTER_BYTES) / limits::DEAD_LETTER_SHARES;
        if !majority::outweighs(row.dead_mostly.as_ref(), client(letter), share) {
            return true;
        }
        for _ in 0..DROPS {
            if !self.exceeds(row.dead + 1, row.dead_bytes + size(letter)) {
                return true;
            }
            let mut oldest = None;
            let range = from(name, row.first_dead);
            batch.tables.scan(&range, |(_, number), found| {
                let is_own = client(&found.decode()) == client(letter);
                oldest = is_own.then_some((number, found.bytes().len() as u64));
                false
            });
            let Some(own) = oldest else {
                return false;
            };
            remove(batch, name, row, row.first_dead, &[own]);
            drop_letter(batch, row);
        }
        !self.exceeds(row.dead + 1, row.dead_bytes + size(letter))
    }

    /// Other bounds hold: what does not fit any more goes.
    pub(super) fn look_at_letters(&self, batch: &mut Batch<'_, '_>) {
        for (name, row) in self.live() {
            if self.exceeds(row.dead, row.dead_bytes) {
                go_on_soon(batch, name);
            }
        }
    }

    /// The oldest dead letters go, a portion at most, as long as there are too many.
    fn make_room(
        &self,
        batch: &mut Batch<'_, '_>,
        name: &str,
        row: &mut state::EventSubscription,
        portion: &mut Portion,
    ) {
        let (mut dead, mut bytes) = (row.dead, row.dead_bytes);
        if portion.is_used_up() || !self.exceeds(dead, bytes) {
            return;
        }
        let mut found = Vec::new();
        let range = from(name, row.first_dead);
        batch.tables.scan(&range, |(_, number), letter| {
            let size = letter.bytes().len() as u64;
            dead = dead.saturating_sub(1);
            bytes = bytes.saturating_sub(size);
            found.push((number, size));
            portion.spend(size);
            !portion.is_used_up() && self.exceeds(dead, bytes)
        });
        remove(batch, name, row, row.first_dead, &found);
        let dropped = found.len() as u64;
        row.dead_dropped += dropped;
        batch.count_events_dropped(EventDrop::DeadLettersFull, dropped);
    }

    /// Has dead letters delivered again, or removed.
    pub fn replay(
        &mut self,
        batch: &mut Batch<'_, '_>,
        command: command::ReplayDeadLetters,
    ) -> EventsReply {
        let known = self.subscriptions.get(&command.name).cloned();
        let Some(mut row) = known.filter(|row| row.options.is_some()) else {
            return EventsReply::NotFound;
        };
        let (from, through) = (command.from, command.through);
        if through == 0 || from > through {
            return EventsReply::Invalid;
        }
        match command.purge {
            true if row.purge_through != 0 => return EventsReply::Busy,
            true => (row.purge_from, row.purge_through) = (from, through),
            // It takes the place of one that waits for room, which nobody could end otherwise.
            false => (row.replay_from, row.replay_through) = (from, through),
        }
        self.store(batch, &command.name, row);
        self.go_on_with_letters(batch, &command.name);
        EventsReply::Done(batch.index)
    }

    /// Goes on with what is to become of the letters of an event subscription, as far as the batch's budget allows.
    pub fn go_on_with_letters(&mut self, batch: &mut Batch<'_, '_>, name: &str) {
        let Some(mut row) = self.subscriptions.get(name).cloned() else {
            return;
        };
        let most = batch.allowance(LETTER_COST);
        let mut portion = Portion::of(batch, most);
        if row.options.is_none() {
            if end(batch, name, &mut row, &mut portion) {
                batch.tables.delete::<schema::EventSubscription>(name);
                self.subscriptions.remove(name);
                self.has_changed = true;
            } else {
                self.store(batch, name, row);
            }
        } else {
            purge(batch, name, &mut row, &mut portion);
            self.make_room(batch, name, &mut row, &mut portion);
            replay(batch, name, &mut row, &mut portion);
            self.store(batch, name, row);
        }
        batch.spend((most - portion.letters) * LETTER_COST);
        portion.settle(batch);
        if portion.is_used_up() {
            go_on_soon(batch, name);
        }
    }
}

/// Whom a dead letter tells of.
fn client(letter: &state::DeadLetter) -> &str {
    letter.event.as_ref().map_or("", |event| &event.name)
}

/// A dead letter goes because there are too many.
fn drop_letter(batch: &mut Batch<'_, '_>, row: &mut state::EventSubscription) {
    row.dead_dropped += 1;
    batch.count_events_dropped(EventDrop::DeadLettersFull, 1);
}

fn go_on_soon(batch: &mut Batch<'_, '_>, name: &str) {
    let soon = batch.now.plus(1);
    batch.set_timer(soon, Kind::EventLetters, name.as_bytes());
}

/// An event becomes a dead letter.
fn give_up(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    number: u64,
    letter: &state::DeadLetter,
) {
    match batch.tables.get::<schema::DeadLetter>((name, number)) {
        Some(former) => row.dead_bytes = row.dead_bytes.saturating_sub(size(&former)),
        None => row.dead += 1,
    }
    row.dead_bytes += size(letter);
    let all = row.dead_bytes.max(row.dead * limits::DEAD_LETTER_BYTES);
    let weight = size(letter).max(limits::DEAD_LETTER_BYTES);
    majority::vote(&mut row.dead_mostly, client(letter), weight, all);
    row.first_dead = match row.dead {
        1 => number,
        _ => row.first_dead.min(number),
    };
    batch
        .tables
        .put::<schema::DeadLetter>((name, number), letter);
}

/// Bytes of a row.
fn size(row: &impl prost::Message) -> u64 {
    row.encoded_len() as u64
}

/// Takes an event from where it is: parked, or in the outbox behind the cursor.
fn take(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    number: u64,
    was_due_ms: u64,
) -> Option<state::ParkedEvent> {
    if was_due_ms == 0 {
        if number <= row.through {
            return None;
        }
        let event = batch.tables.get::<schema::Event>(number)?;
        let since_ms = event.time_ms;
        return Some(state::ParkedEvent {
            event: Some(event),
            since_ms,
            ..Default::default()
        });
    }
    let key = (name, Millis(was_due_ms), number);
    let parked = batch.tables.get::<schema::ParkedEvent>(key)?;
    batch.tables.delete::<schema::ParkedEvent>(key);
    row.parked = row.parked.saturating_sub(1);
    row.parked_bytes = row.parked_bytes.saturating_sub(size(&parked));
    Some(parked)
}

fn park(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    due: Millis,
    number: u64,
    parked: &state::ParkedEvent,
) {
    // 0 is none.
    let key = (name, due.max(Millis(1)), number);
    match batch.tables.get::<schema::ParkedEvent>(key) {
        Some(former) => row.parked_bytes = row.parked_bytes.saturating_sub(size(&former)),
        None => row.parked += 1,
    }
    row.parked_bytes += size(parked);
    batch.tables.put::<schema::ParkedEvent>(key, parked);
}

/// Dead letters of an event subscription from a number on.
fn from(name: &str, number: u64) -> schema::Range<schema::DeadLetter> {
    schema::DeadLetter::of_subscription(name).starting_at((name, number))
}

/// Removes dead letters: all that there are from a number on up to the last of them.
fn remove(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    from: u64,
    letters: &[(u64, u64)],
) {
    for (number, size) in letters {
        batch.tables.delete::<schema::DeadLetter>((name, *number));
        row.dead = row.dead.saturating_sub(1);
        row.dead_bytes = row.dead_bytes.saturating_sub(*size);
    }
    if let Some((last, _)) = letters.last()
        && from <= row.first_dead
    {
        row.first_dead = last.saturating_add(1);
    }
}

/// The first dead letters with numbers within bounds, and their bytes: a portion at most. Whether these are all.
fn letters(
    batch: &Batch<'_, '_>,
    name: &str,
    first: u64,
    through: u64,
    mut portion: Portion,
) -> (Vec<(u64, u64)>, bool) {
    let mut found = Vec::new();
    let mut is_all = !portion.is_used_up();
    if !is_all {
        return (found, is_all);
    }
    batch
        .tables
        .scan(&from(name, first), |(_, number), letter| {
            if number > through {
                return false;
            }
            is_all = !portion.is_used_up();
            if is_all {
                let size = letter.bytes().len() as u64;
                portion.spend(size);
                found.push((number, size));
            }
            is_all
        });
    (found, is_all)
}

/// Removes what an event subscription has left; `false` when there may be more.
fn end(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    portion: &mut Portion,
) -> bool {
    let mut parked = Vec::new();
    let range = schema::ParkedEvent::of_subscription(name);
    batch.tables.scan(&range, |(_, due, number), event| {
        parked.push((due, number));
        portion.spend(event.bytes().len() as u64);
        !portion.is_used_up()
    });
    for (due, number) in &parked {
        let key = (name, *due, *number);
        batch.tables.delete::<schema::ParkedEvent>(key);
    }
    let first = row.first_dead;
    let (dead, is_all) = letters(
        batch,
        name,
        first,
        u64::MAX,
        portion.within(u64::MAX, u64::MAX),
    );
    remove(batch, name, row, first, &dead);
    portion.spend_all(&dead);
    is_all && !portion.is_used_up()
}

fn purge(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    portion: &mut Portion,
) {
    if row.purge_through == 0 {
        return;
    }
    let first = row.purge_from.max(row.first_dead);
    let all = portion.within(u64::MAX, u64::MAX);
    let (found, is_all) = letters(batch, name, first, row.purge_through, all);
    remove(batch, name, row, first, &found);
    portion.spend_all(&found);
    if is_all {
        (row.purge_from, row.purge_through) = (0, 0);
    } else if let Some((last, _)) = found.last() {
        row.purge_from = last.saturating_add(1);
    }
}

/// Parks dead letters anew, as many as may be parked; what has no room waits for others to leave. Whoever waits looks
/// at no letter: it is asked for with every account.
fn replay(
    batch: &mut Batch<'_, '_>,
    name: &str,
    row: &mut state::EventSubscription,
    portion: &mut Portion,
) {
    if row.replay_through == 0 {
        return;
    }
    let room = portion.within(
        limits::EVENTS_PARKED.saturating_sub(row.parked),
        limits::EVENTS_PARKED_BYTES.saturating_sub(row.parked_bytes),
    );
    let first = row.replay_from.max(row.first_dead);
    let (found, is_all) = letters(batch, name, first, row.replay_through, room);
    for (number, _) in &found {
        let letter = batch.tables.get::<schema::DeadLetter>((name, *number));
        let parked = state::ParkedEvent {
            event: letter.and_then(|letter| letter.event),
            since_ms: batch.now.0,
            ..Default::default()
        };
        park(batch, name, row, batch.now, *number, &parked);
    }
    remove(batch, name, row, first, &found);
    portion.spend_all(&found);
    if is_all {
        (row.replay_from, row.replay_through) = (0, 0);
    } else if let Some((last, _)) = found.last() {
        row.replay_from = last.saturating_add(1);
    }
}
