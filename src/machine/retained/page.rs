//! The next retained messages of a replay, as many as one batch may look at.

use std::cell::Cell;
use std::collections::BTreeSet;

use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::machine::batch::Batch;
use crate::machine::schema::{self, Range, ReplayedTopic};
use crate::topic::walk;

/// Where a page ends.
#[derive(Clone, Copy)]
pub(super) struct PageLimits {
    /// Rows looked at.
    pub rows: usize,
    /// Messages found.
    pub messages: u64,
    /// Bytes of messages found; the last one may exceed them.
    pub bytes: u64,
}

/// Rows that a page counts for at least: to find that there is nothing may mean to pass tombstones of what was there.
const PAGE_COST: usize = 256;

pub(super) struct Page {
    pub found: Vec<(String, state::Retained)>,
    /// The topic to go on from, when there may be more.
    pub next: Option<String>,
    /// Rows looked at.
    pub looked: usize,
    /// Bytes of what was found.
    pub bytes: u64,
    /// Whether it is of one topic, so that nothing else can be passed.
    is_of_one_topic: bool,
}

impl Page {
    /// Rows that it counts for.
    pub fn cost(&self) -> usize {
        match self.is_of_one_topic {
            true => 1,
            false => self.looked.max(PAGE_COST),
        }
    }

    /// Reads until a limit is reached; only topics before `end`.
    pub fn read(
        batch: &Batch<'_, '_>,
        session: SessionId,
        replay: &state::RetainedReplay,
        end: Option<String>,
        limits: PageLimits,
    ) -> Page {
        let mut found = Vec::new();
        let (count, bytes, looked) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let mut next = end.clone();
        let is_of_one_topic = !replay.filter.contains(['+', '#']);
        let behind_topic = [replay.filter.as_bytes(), &[0]].concat();
        walk::for_each_match(
            &replay.filter,
            replay.from.as_bytes(),
            |from, show| {
                let mut range = Range::<schema::Retained>::all().starting_at(from);
                if is_of_one_topic {
                    range = range.before(&behind_topic);
                }
                batch.tables.scan(&range, |topic, row| {
                    let Ok(topic) = std::str::from_utf8(topic) else {
                        return true;
                    };
                    let is_enough = looked.get() >= limits.rows
                        || count.get() >= limits.messages
                        || bytes.get() >= limits.bytes;
                    if is_enough || end.as_deref().is_some_and(|end| topic >= end) {
                        next = Some(topic.to_owned());
                        return false;
                    }
                    looked.set(looked.get() + 1);
                    show(topic.as_bytes(), row.bytes())
                });
            },
            |topic, row| {
                let row = schema::StoredRow::<schema::Retained>::new(row).decode();
                if is_owed(replay, session, &row) {
                    count.set(count.get() + 1);
                    let size = topic.len() + row.payload.len() + row.properties.len();
                    bytes.set(bytes.get() + size as u64);
                    found.push((topic.to_owned(), row));
                }
                true
            },
        );
        // Where the end comes first, all before it has been looked at.
        if let (Some(end), Some(reached)) = (end, &next)
            && *reached > end
        {
            next = Some(end);
        }
        Page {
            found,
            next,
            looked: looked.get(),
            bytes: bytes.get(),
            is_of_one_topic,
        }
    }
}

/// Whether a replay sends a retained message: what was retained after its SUBSCRIBE has gone into the queue as it was
/// published.
pub(super) fn is_owed(
    replay: &state::RetainedReplay,
    session: SessionId,
    row: &state::Retained,
) -> bool {
    let is_own = replay.no_local && row.publisher == session.0;
    row.qos > 0 && !is_own && row.index <= replay.index
}

/// The first topics of a replay, from where it goes on, whose message is in the queue already.
pub(super) fn replayed_topics(
    batch: &Batch<'_, '_>,
    (session, number): (SessionId, u64),
    replay: &state::RetainedReplay,
    most: usize,
) -> BTreeSet<String> {
    let mut topics = BTreeSet::new();
    if replay.replayed_topics == 0 {
        return topics;
    }
    let range = ReplayedTopic::from(session, number, &replay.from);
    batch.tables.scan(&range, |(.., topic), _| {
        topics.insert(topic.to_owned());
        topics.len() < most
    });
    topics
}
