//! The numbers of connections: 1 for the first connection of a session under an authentication name, then rising by one
//! without gaps, whatever becomes of session, nodes and leaders in between.
//!
//! The row of a pair (authentication name, client id) outlives its session by `events.sequence_keep_s`. The rows of
//! those that have no connection stand in the order in which they may go ([`schema::EventSequenceEnd`]). A pair that
//! connects again stays where it stands, so that coming and going costs no more rows; where it comes first it is put
//! where it belongs. Where the server made the client id, the row goes soon after the session: many such clients come
//! once, and those that come again do so soon.
//!
//! Invariant: a number never comes twice. A pair without a row begins above the highest number that has ever gone.
//! Client ids that the server has made count apart, or the first of all other sessions would soon not begin with 1: one
//! that was just made begins as any other, and a client that comes back with one begins above the highest number that
//! has gone of those, and above that of a first connection. A row whose number is just that need not be kept.
//! Invariant: there are no more rows than `events.sequences_max`, nor more bytes than so many of
//! [`limits::EVENT_SEQUENCE_BYTES`], but for those of living connections and those that a timer is still to remove.
//! Invariant: what a place says is not later than when the row may go, unless that was made sooner since.

use super::super::batch::Batch;
use super::super::schema;
use super::super::schema::event_sequence::Pair;
use super::super::schema::timer::Kind;
use super::super::timers::whole_second;
use super::Named;
use crate::base::ids::is_assigned;
use crate::base::limits;
use crate::base::proto::state;
use crate::base::time::Millis;

/// Row operations that looking at the numbers of a pair takes.
const END_COST: usize = 5;

/// A place: when the row of a pair may go, and the pair.
type Place = (Millis, String, String);

/// Bytes of the row of a pair and of its place, their keys included.
fn size((name, client_id): Pair<'_>) -> u64 {
    2 * (name.len() + client_id.len()) as u64 + 40
}

/// What is known of the places beside their rows.
///
/// Invariant: no place comes before `since`. A scan that began with the first key would step over every place that has
/// gone, as long as the database keeps their tombstones.
#[derive(Default)]
pub(super) struct Places {
    since: Option<Place>,
}

impl Places {
    fn range(&self) -> schema::Range<schema::EventSequenceEnd> {
        let all = schema::Range::all();
        match &self.since {
            Some((due, name, client_id)) => {
                all.starting_at((*due, (name.as_str(), client_id.as_str())))
            }
            None => all,
        }
    }

    fn insert(&mut self, due: Millis, (name, client_id): Pair<'_>) {
        if let Some((first, of, session)) = &self.since
            && (due, name, client_id) < (*first, of.as_str(), session.as_str())
        {
            self.since = Some((due, name.to_owned(), client_id.to_owned()));
        }
    }
}

/// The number of a new connection.
pub(super) fn connected(
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
    of: &Named<'_>,
) -> u64 {
    let pair = of.pair();
    let row = batch.tables.get::<schema::EventSequence>(pair);
    let is_new = row.is_none();
    let comes_back = !of.has_new_id && is_assigned(of.client_id);
    let mut row = row.unwrap_or_else(|| state::EventSequence {
        last: match comes_back {
            true => batch.meta.assigned_sequence_floor(),
            false => batch.meta.sequence_floor(),
        },
        ..Default::default()
    });
    row.last += 1;
    row.ended_ms = 0;
    row.brief = false;
    batch.tables.put::<schema::EventSequence>(pair, &row);
    if is_new {
        batch.meta.count_sequence(size(pair));
        if exceeds(batch, settings) {
            end_soon(batch);
        }
    }
    row.last
}

/// The connection of a pair has ended.
pub(super) fn ended(
    places: &mut Places,
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
    pair: Pair<'_>,
) {
    let Some(mut row) = batch.tables.get::<schema::EventSequence>(pair) else {
        return;
    };
    row.ended_ms = batch.now.0;
    if row.due_ms == 0 {
        let due = stand(batch, settings, pair, &mut row);
        places.insert(due, pair);
    }
    batch.tables.put::<schema::EventSequence>(pair, &row);
}

/// The session of a pair has ended whose client id the server had made.
///
/// Its client knows the id, and many a library connects with it the next time: so its number stays, but not for as long
/// as others.
pub(super) fn release(
    places: &mut Places,
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
    pair: Pair<'_>,
) {
    if batch.meta.sequences() == 0 {
        return;
    }
    let Some(mut row) = batch.tables.get::<schema::EventSequence>(pair) else {
        return;
    };
    if row.due_ms != 0 {
        let place = (Millis(row.due_ms), pair);
        batch.tables.delete::<schema::EventSequenceEnd>(place);
    }
    // Whoever comes back under this id goes on with the next number, with or without a row.
    if is_assigned(pair.1) && row.last == batch.meta.assigned_sequence_floor() {
        batch.tables.delete::<schema::EventSequence>(pair);
        batch.meta.uncount_sequence(size(pair));
        return;
    }
    row.brief = true;
    row.ended_ms = batch.now.0;
    let due = stand(batch, settings, pair, &mut row);
    places.insert(due, pair);
    batch.tables.put::<schema::EventSequence>(pair, &row);
}

/// Other bounds hold: what is due has to be found anew.
pub(super) fn look_again(batch: &mut Batch<'_, '_>) {
    if batch.meta.sequences() > 0 {
        end_at(batch, batch.now);
    }
}

fn exceeds(batch: &Batch<'_, '_>, settings: &state::EventSettings) -> bool {
    exceed(
        batch.meta.sequences(),
        batch.meta.sequence_bytes(),
        settings,
    )
}

fn exceed(rows: u64, bytes: u64, settings: &state::EventSettings) -> bool {
    let most = settings.sequences_max;
    let most_bytes = most.saturating_mul(limits::EVENT_SEQUENCE_BYTES);
    most != 0 && (rows > most || bytes > most_bytes)
}

/// When the row of a pair without a connection may go.
fn end_of(settings: &state::EventSettings, row: &state::EventSequence) -> Millis {
    let keep_ms = settings.sequence_keep_s.saturating_mul(1000);
    Millis(row.ended_ms).plus(match row.brief {
        true => keep_ms.min(limits::ASSIGNED_SEQUENCE_KEEP_MS),
        false => keep_ms,
    })
}

/// Gives a pair its place among those that may go; the caller adds it to [`Places`].
fn stand(
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
    pair: Pair<'_>,
    row: &mut state::EventSequence,
) -> Millis {
    let due = end_of(settings, row);
    row.due_ms = due.0;
    batch
        .tables
        .put::<schema::EventSequenceEnd>((due, pair), &());
    end_at(batch, whole_second(due));
    due
}

fn end_at(batch: &mut Batch<'_, '_>, at: Millis) {
    let known = batch.meta.sequences_end_at();
    if known.is_none_or(|known| at < known) {
        if let Some(known) = known {
            batch.clear_timer(known, Kind::EventSequences, &[]);
        }
        batch.meta.set_sequences_end_at(Some(at));
        batch.set_timer(at, Kind::EventSequences, &[]);
    }
}

/// There are too many, or there are more than one batch looks at.
fn end_soon(batch: &mut Batch<'_, '_>) {
    end_at(batch, batch.now.plus(1));
}

/// A timer says that some are due: those that are go, and as many more as there are too many, the first ones first.
pub(super) fn end_due(
    places: &mut Places,
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
) {
    batch.meta.set_sequences_end_at(None);
    let (found, last) = first(places, batch, settings);
    let mut put_off = Vec::new();
    for (due, name, client_id) in &found {
        batch.spend(END_COST);
        let pair = (name.as_str(), client_id.as_str());
        let again = look_at(batch, settings, *due, pair);
        put_off.extend(again.map(|due| (due, pair)));
    }
    let exceeds = exceeds(batch, settings);
    match &last {
        Last::More(_) => end_soon(batch),
        // Some of those that were looked at have stayed.
        Last::Stays(_) if exceeds => end_soon(batch),
        Last::Stays((due, ..)) => end_at(batch, whole_second(*due)),
        Last::None if exceeds && !put_off.is_empty() => end_soon(batch),
        Last::None => {}
    }
    match last {
        Last::More(place) | Last::Stays(place) => places.since = Some(place),
        // All that come before it have gone.
        Last::None => places.since = found.last().cloned().or(places.since.take()),
    }
    for (due, pair) in put_off {
        places.insert(due, pair);
    }
}

/// What comes first goes, unless its connection lives or has ended later than its place says: then, if it has ended, it
/// is put off until the time that is returned.
fn look_at(
    batch: &mut Batch<'_, '_>,
    settings: &state::EventSettings,
    due: Millis,
    pair: Pair<'_>,
) -> Option<Millis> {
    batch.tables.delete::<schema::EventSequenceEnd>((due, pair));
    let mut row = batch.tables.get::<schema::EventSequence>(pair)?;
    let mut again = None;
    if row.ended_ms == 0 {
        row.due_ms = 0;
    } else if end_of(settings, &row) > due {
        again = Some(stand(batch, settings, pair, &mut row));
    } else {
        batch.tables.delete::<schema::EventSequence>(pair);
        batch.meta.uncount_sequence(size(pair));
        match is_assigned(pair.1) {
            true => batch.meta.raise_assigned_sequence_floor(row.last),
            false => batch.meta.raise_sequence_floor(row.last),
        }
        return None;
    }
    batch.tables.put::<schema::EventSequence>(pair, &row);
    again
}

/// Why looking for places that are due ends.
enum Last {
    /// There are no more places.
    None,
    /// There are more to look at than one batch does, from this one on.
    More(Place),
    /// The first one that is neither due nor too many.
    Stays(Place),
}

/// The places that are due, and as many more as there are too many: the first ones, as many as one batch looks at. A
/// place is as large as its client likes, so none but these are read, and the one after them.
fn first(
    places: &Places,
    batch: &Batch<'_, '_>,
    settings: &state::EventSettings,
) -> (Vec<Place>, Last) {
    let most = batch.allowance(END_COST);
    let (mut rows, mut bytes) = (batch.meta.sequences(), batch.meta.sequence_bytes());
    let bytes_before = bytes;
    let (mut found, mut last) = (Vec::new(), Last::None);
    batch.tables.scan(&places.range(), |(due, pair), _| {
        let place = || (due, pair.0.to_owned(), pair.1.to_owned());
        let looked_at = bytes_before.saturating_sub(bytes);
        if found.len() >= most || looked_at >= limits::EVENTS_TRIMMED_BYTES {
            last = Last::More(place());
            return false;
        }
        if due > batch.now && !exceed(rows, bytes, settings) {
            last = Last::Stays(place());
            return false;
        }
        rows = rows.saturating_sub(1);
        bytes = bytes.saturating_sub(size(pair));
        found.push(place());
        true
    });
    (found, last)
}
