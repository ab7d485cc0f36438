//! What a device or a module has retained goes with its identity: nobody else may publish there, so nobody could delete
//! it. Where an identity begins, what others have retained there before goes, too. It goes some rows at a time, so that
//! no batch takes long.

use super::{change_count, deadline};
use crate::base::ids::LogIndex;
use crate::base::time::Millis;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::machine::schema::Range;
use crate::machine::schema::timer::Kind;

/// Row operations that looking at a message and deleting it takes.
const PURGE_COST: usize = 5;

/// Messages that go with the entry that ends or begins an identity: more than most have. What a new identity of the
/// name retains at once is not counted beside them.
const PURGED_AT_ONCE: usize = 16;

/// What the subject of the timer says: the entry that has ended or begun the identity, what its topics begin with, and
/// where to go on. A new identity of the name keeps what it has retained later.
struct Purge<'a> {
    ended: LogIndex,
    publisher: &'a str,
    from: &'a str,
}

impl Purge<'_> {
    fn encode(&self) -> Vec<u8> {
        let length = u16::try_from(self.publisher.len()).unwrap_or(u16::MAX);
        let mut subject = self.ended.0.to_be_bytes().to_vec();
        subject.extend(length.to_be_bytes());
        subject.extend(self.publisher.as_bytes());
        subject.extend(self.from.as_bytes());
        subject
    }

    fn decode(subject: &[u8]) -> Option<Purge<'_>> {
        let (ended, rest) = subject.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let text = std::str::from_utf8(rest).ok()?;
        let (publisher, from) = text.split_at_checked(u16::from_be_bytes(*length).into())?;
        Some(Purge {
            ended: LogIndex(u64::from_be_bytes(*ended)),
            publisher,
            from,
        })
    }
}

/// The first of the topics, the parent level of all others.
fn parent(publisher: &str) -> String {
    format!("{publisher}/messages/events")
}

/// The rows of a publisher's topics from one of them on: its parent level, and what is below. Between the two may be
/// topics of anybody that only begin so.
fn ranges(publisher: &str, from: &str) -> [Range<schema::Retained>; 2] {
    let parent = parent(publisher);
    let (first, behind) = (format!("{parent}/"), format!("{parent}0"));
    let all = Range::<schema::Retained>::all;
    let after_parent = [parent.as_bytes(), &[0]].concat();
    [
        all().starting_at(from.as_bytes()).before(&after_parent),
        all()
            .starting_at(from.max(first.as_str()).as_bytes())
            .before(behind.as_bytes()),
    ]
}

/// An identity has ended or begun: what was retained before is to go. `named` is what its topics begin with. Some of it
/// goes at once, as work of the hub.
pub fn begin(batch: &mut Batch<'_, '_>, named: &str) {
    let purge = Purge {
        ended: batch.index,
        publisher: named,
        from: &parent(named),
    };
    let most = (batch.hub_budget_left() / PURGE_COST).min(PURGED_AT_ONCE);
    let Portion { looked, next } = delete_some(batch, &purge, most);
    batch.spend_for_hub(looked * PURGE_COST);
    let soon = batch.now;
    set_timer(batch, &purge, next, soon);
}

/// A timer asks to go on.
pub fn go_on(batch: &mut Batch<'_, '_>, subject: &[u8]) {
    let Some(purge) = Purge::decode(subject) else {
        return;
    };
    let most = batch.allowance(PURGE_COST).max(1);
    let Portion { looked, next } = delete_some(batch, &purge, most);
    batch.spend(looked * PURGE_COST);
    let soon = batch.now.plus(1);
    set_timer(batch, &purge, next, soon);
}

fn set_timer(batch: &mut Batch<'_, '_>, purge: &Purge<'_>, next: Option<String>, at: Millis) {
    if let Some(from) = next {
        let purge = Purge {
            from: &from,
            ..*purge
        };
        batch.set_timer(at, Kind::PurgeRetained, &purge.encode());
    }
}

/// What was done.
struct Portion {
    looked: usize,
    /// The topic to go on from, if there are more.
    next: Option<String>,
}

/// Deletes messages, until so many have been looked at, or as many bytes as a batch may look at.
fn delete_some(batch: &mut Batch<'_, '_>, purge: &Purge<'_>, most: usize) -> Portion {
    let mut bytes_left = batch.purged_bytes_left();
    let mut looked = 0;
    let mut found = Vec::new();
    let mut next = None;
    for range in ranges(purge.publisher, purge.from) {
        batch.tables.scan(&range, |topic, row| {
            // A topic is UTF-8.
            let Ok(topic) = std::str::from_utf8(topic) else {
                return true;
            };
            if looked == most || bytes_left == 0 {
                next = Some(topic.to_owned());
                return false;
            }
            looked += 1;
            let bytes = topic.len() + row.bytes().len();
            bytes_left = bytes_left.saturating_sub(bytes as u64);
            let row = row.decode();
            if row.index <= purge.ended.0 {
                found.push((topic.to_owned(), row.expires_at_ms));
            }
            true
        });
        if next.is_some() {
            break;
        }
    }
    let spent = batch.purged_bytes_left() - bytes_left;
    batch.spend_purged_bytes(spent);
    for (topic, expires_at_ms) in found {
        if let Some(deadline) = deadline(expires_at_ms) {
            batch.clear_timer(deadline, Kind::RetainedExpiry, topic.as_bytes());
        }
        batch.tables.delete::<schema::Retained>(topic.as_bytes());
        change_count(batch, &topic, -1);
    }
    Portion { looked, next }
}
