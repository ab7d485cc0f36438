//! What a device or a module has retained goes with its identity: nobody else may publish there, so nobody could delete
//! it. It goes some rows at a time, so that no batch takes long.

use super::{change_count, deadline};
use crate::base::ids::LogIndex;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::machine::schema::Range;
use crate::machine::schema::timer::Kind;
use crate::registry::messages::publisher;

/// Row operations that looking at a message and deleting it takes.
const PURGE_COST: usize = 5;

/// Bytes of messages that are looked at in one batch; the last one may exceed them.
const PURGE_BYTES: usize = 4 << 20;

/// What the subject of the timer says: the entry that has ended the identity, what its topics begin with, and where to
/// go on. A new identity of the name keeps what it has retained later.
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

/// What the topics begin with, its parent level included.
fn beginning(publisher: &str) -> String {
    format!("{publisher}/messages/events")
}

/// An identity has ended: what it has retained is to go. `named` is what its topics begin with.
pub fn begin(batch: &mut Batch<'_, '_>, named: &str) {
    if !batch.tables.contains::<schema::RetainedCount>(named) {
        return;
    }
    let purge = Purge {
        ended: batch.index,
        publisher: named,
        from: &beginning(named),
    };
    batch.set_timer(batch.now, Kind::PurgeRetained, &purge.encode());
}

/// A timer asks to go on.
pub fn go_on(batch: &mut Batch<'_, '_>, subject: &[u8]) {
    let Some(purge) = Purge::decode(subject) else {
        return;
    };
    let most = batch.allowance(PURGE_COST).max(1);
    let (mut looked, mut bytes) = (0, 0);
    let mut found = Vec::new();
    let mut next = None;
    let all = beginning(purge.publisher);
    let range = Range::<schema::Retained>::all().starting_at(purge.from.as_bytes());
    batch.tables.scan(&range, |topic, row| {
        let Ok(topic) = std::str::from_utf8(topic) else {
            return false;
        };
        if !topic.starts_with(&all) {
            return false;
        }
        if looked == most || bytes >= PURGE_BYTES {
            next = Some(topic.to_owned());
            return false;
        }
        looked += 1;
        bytes += row.bytes().len();
        let row = row.decode();
        // Between them may be topics that only begin so.
        if row.index <= purge.ended.0 && publisher(topic) == Some(purge.publisher) {
            found.push((topic.to_owned(), row.expires_at_ms));
        }
        true
    });
    batch.spend(looked * PURGE_COST);
    for (topic, expires_at_ms) in found {
        if let Some(deadline) = deadline(expires_at_ms) {
            batch.clear_timer(deadline, Kind::RetainedExpiry, topic.as_bytes());
        }
        batch.tables.delete::<schema::Retained>(topic.as_bytes());
        change_count(batch, &topic, -1);
    }
    if let Some(from) = next {
        let purge = Purge {
            from: &from,
            ..purge
        };
        let soon = batch.now.plus(1);
        batch.set_timer(soon, Kind::PurgeRetained, &purge.encode());
    }
}
