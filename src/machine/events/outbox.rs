//! The outbox: events in the order of the log, until everybody who is to get them has them and they were kept for
//! `events.keep_s`, or until there are too many.
//!
//! Invariant: events never slow down what makes them. Where they exceed their bounds the oldest go, whoever still wants
//! them, and are counted.
//! Invariant: there is at most one timer for trimming; its time is in the row of counters.

use prost::Message as _;

use super::super::batch::Batch;
use super::super::effect::EventDrop;
use super::super::meta::EventUsage;
use super::super::schema;
use super::super::schema::timer::Kind;
use super::super::timers::whole_second;
use crate::base::limits;
use crate::base::proto::state;
use crate::base::time::Millis;

/// Events that make room for a new one; the timer takes care of others.
const DROPS: u64 = 2;

/// Row operations that removing an event takes.
const TRIM_COST: usize = 2;

/// Bytes of an event in the outbox: its row and its key.
fn size(event: &state::Event) -> u64 {
    (event.encoded_len() + 9) as u64
}

/// The same of an event that is there.
fn stored_size(row: &[u8]) -> u64 {
    (row.len() + 9) as u64
}

/// Whether what there is, is more than the bounds allow.
fn exceeds(batch: &Batch<'_, '_>, settings: &state::EventSettings) -> bool {
    exceed(&batch.meta.outbox(), settings)
}

/// The same of so many events. 0 is no bound.
fn exceed(held: &EventUsage, settings: &state::EventSettings) -> bool {
    let exceeds = |held: u64, bound: u64| bound != 0 && held > bound;
    exceeds(held.events, settings.outbox_max_events)
        || exceeds(held.bytes, settings.outbox_max_bytes)
}

/// Adds an event; others make room for it.
pub(super) fn append(
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
    number: u64,
    event: &state::Event,
) {
    batch.tables.put_new::<schema::Event>(number, event);
    let is_first = batch.meta.outbox().events == 0;
    batch.meta.count_event(size(event));
    if is_first {
        batch.meta.set_first_event(number);
        if settings.keep_s > 0 {
            trim_at(batch, end_of(settings, Millis(event.time_ms)));
        }
    }
    let mut dropped = 0;
    while dropped < DROPS && exceeds(batch, settings) && drop_first(batch) {
        dropped += 1;
    }
    if dropped == DROPS && exceeds(batch, settings) {
        trim_at(batch, batch.now);
    }
    batch.count_events_dropped(EventDrop::OutboxFull, dropped);
}

/// Until when an event is kept for readers.
fn end_of(settings: &state::EventSettings, recorded: Millis) -> Millis {
    recorded.plus(settings.keep_s.saturating_mul(1000))
}

/// The events that are there.
fn all(batch: &Batch<'_, '_>) -> schema::Range<schema::Event> {
    schema::Range::all().starting_at(batch.meta.first_event())
}

fn drop_first(batch: &mut Batch<'_, '_>) -> bool {
    let mut found = None;
    batch.tables.scan(&all(batch), |number, row| {
        found = Some((number, stored_size(row.bytes())));
        false
    });
    let Some((number, size)) = found else {
        return false;
    };
    remove(batch, number, size);
    true
}

/// Removes an event, before which there is none.
fn remove(batch: &mut Batch<'_, '_>, number: u64, size: u64) {
    batch.tables.delete::<schema::Event>(number);
    batch.meta.uncount_event(size);
    batch.meta.set_first_event(number + 1);
}

/// Has events removed at a time, at the latest.
pub(super) fn trim_at(batch: &mut Batch<'_, '_>, at: Millis) {
    let known = batch.meta.trim_at();
    // What may go now goes with what may go in the same second.
    let at = whole_second(at);
    let is_empty = known.is_none() && batch.meta.outbox().events == 0;
    if !is_empty && known.is_none_or(|known| at < known) {
        set_timer(batch, at);
    }
}

fn set_timer(batch: &mut Batch<'_, '_>, at: Millis) {
    if let Some(known) = batch.meta.trim_at() {
        batch.clear_timer(known, Kind::TrimEvents, &[]);
    }
    batch.meta.set_trim_at(Some(at));
    batch.set_timer(at, Kind::TrimEvents, &[]);
}

/// What trimming looks at in the row of an event, whose other fields are as large as clients like.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Recorded {
    #[prost(uint64, tag = "2")]
    time_ms: u64,
}

/// Why trimming ends.
enum Last {
    /// There are no more events.
    None,
    /// There are more to look at than one batch does.
    More,
    /// The first one that stays: it may go at this time, or when somebody has come further.
    Stays(Option<Millis>),
}

/// Removes events that may go: everybody who is to get them has those up to `passed`. It looks at no more than those,
/// and the first one that stays.
pub(super) fn trim(batch: &mut Batch<'_, '_>, settings: &state::EventSettings, passed: u64) {
    batch.meta.set_trim_at(None);
    let most = batch.allowance(TRIM_COST).min(limits::EVENTS_TRIMMED);
    let mut held = batch.meta.outbox();
    let bytes_before = held.bytes;
    let (mut found, mut dropped) = (Vec::new(), 0);
    let mut last = Last::None;
    batch.tables.scan(&all(batch), |number, row| {
        let removed = bytes_before.saturating_sub(held.bytes);
        if found.len() >= most || removed >= limits::EVENTS_TRIMMED_BYTES {
            last = Last::More;
            return false;
        }
        // Prost skips what it does not know; the row is decoded whole where it is sent.
        let time_ms = Recorded::decode(row.bytes()).map_or(0, |recorded| recorded.time_ms);
        let end = end_of(settings, Millis(time_ms));
        let is_passed = number <= passed;
        if !(is_passed && end <= batch.now) {
            if !exceed(&held, settings) {
                last = Last::Stays(is_passed.then_some(end));
                return false;
            }
            dropped += 1;
        }
        let size = stored_size(row.bytes());
        held.events = held.events.saturating_sub(1);
        held.bytes = held.bytes.saturating_sub(size);
        found.push((number, size));
        true
    });
    batch.spend(found.len() * TRIM_COST + 1);
    for (number, size) in found {
        remove(batch, number, size);
    }
    batch.count_events_dropped(EventDrop::OutboxFull, dropped);
    match last {
        Last::More => set_timer(batch, batch.now.plus(1)),
        Last::Stays(Some(end)) => trim_at(batch, end),
        Last::None | Last::Stays(None) => {}
    }
}
