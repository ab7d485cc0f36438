//! What the segments hold: where the entries of each group are, and what is kept beside them.
//!
//! Replayed from the segments at the start, and kept up to date by the thread that writes them. Not every entry has a
//! place here: a *point* says where to begin to read, and there is one for each [`APART`] bytes of entries.
//!
//! Invariant: an entry is in the last frame that appended it, and that is at the last point at or before its index, or
//! behind that, before another entry of its index. A truncation takes the points at and behind its index away, and the
//! next entry gets a point of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::change::Change;
use super::segment::Segment;
use crate::base::ids::GroupId;

/// Bytes of a segment between two points, unless a frame is longer.
const APART: u32 = if cfg!(test) { 2 << 10 } else { 64 << 10 };

/// Where entries from `first` on are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub first: u64,
    /// Number of the segment.
    pub segment: u64,
    /// Where in it a frame begins.
    pub offset: u32,
}

/// What is stored of one group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub vote: Option<Bytes>,
    /// The last index that was purged, and its log id.
    pub purged: Option<(u64, Bytes)>,
    /// The log id of the last entry known to be committed.
    pub committed: Option<Bytes>,
    /// First index that may be there.
    pub start: u64,
    /// Term and index of the last entry.
    pub last: Option<(u64, u64)>,
    points: VecDeque<Point>,
    /// Whether the end of the log was truncated since its last entry.
    is_cut: bool,
}

/// A change does not follow from what was before it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of the log stands where {expected} has to")]
pub struct Hole {
    index: u64,
    expected: u64,
}

impl Group {
    /// Index after the last entry.
    pub fn next(&self) -> u64 {
        self.last.map_or(self.start, |(_, index)| index + 1)
    }

    /// Appends an entry; returns whether it made a point.
    fn append(&mut self, (term, index): (u64, u64), at: Point) -> Result<bool, Hole> {
        if self.last.is_none() && index > self.start {
            // An empty log starts wherever its first entry says.
            self.start = index;
        }
        if index != self.next() {
            let expected = self.next();
            return Err(Hole { index, expected });
        }
        let is_near = |point: &Point| {
            point.segment == at.segment && at.offset.saturating_sub(point.offset) < APART
        };
        let is_new = self.is_cut || !self.points.back().is_some_and(is_near);
        if is_new {
            self.points.push_back(at);
        }
        self.is_cut = false;
        self.last = Some((term, index));
        Ok(is_new)
    }

    fn cut(&mut self, from: u64) {
        while self
            .points
            .pop_back_if(|point| point.first >= from)
            .is_some()
        {}
        self.is_cut = true;
    }

    fn purge(&mut self, upto: u64, log_id: &[u8]) {
        self.purged = Some((upto, Bytes::copy_from_slice(log_id)));
        self.start = self.start.max(upto.saturating_add(1));
        self.last = self.last.filter(|(_, index)| *index > upto);
        self.forget();
    }

    /// Forgets the points before the first entry.
    fn forget(&mut self) {
        if self.last.is_none() {
            self.points.clear();
        }
        while self
            .points
            .get(1)
            .is_some_and(|second| second.first <= self.start)
        {
            self.points.pop_front();
        }
    }

    /// The point from which the entry at `index` is read, and the index after the last entry that is read from there.
    fn find(&self, index: u64) -> Option<(Point, u64)> {
        let behind = self.points.partition_point(|point| point.first <= index);
        let point = self.points.get(behind.checked_sub(1)?)?;
        let end = self.points.get(behind).map_or(u64::MAX, |next| next.first);
        Some((*point, end))
    }

    /// Whether what is there begins at the first entry that has to be.
    fn is_whole(&self) -> bool {
        let reaches = |first: &Point| first.first <= self.start;
        self.last.is_none() || self.points.front().is_some_and(reaches)
    }
}

/// What the log knows about its segments.
#[derive(Debug, Default)]
pub struct Index {
    pub groups: BTreeMap<GroupId, Group>,
    /// The segments that are there, by number.
    pub segments: BTreeMap<u64, Arc<Segment>>,
    /// Points and truncations of the newest segment, in order, encoded for the first frame of the next one.
    events: Vec<u8>,
}

impl Index {
    /// Follows a change of a frame that begins at `offset` of a segment.
    pub fn apply(&mut self, change: Change<'_>, segment: u64, offset: u32) -> Result<(), Hole> {
        match change {
            Change::Append {
                group, index, term, ..
            } => {
                let at = Point {
                    first: index,
                    segment,
                    offset,
                };
                if self.group(group).append((term, index), at)? {
                    let point = Change::Point {
                        group,
                        first: index,
                        offset,
                    };
                    point.encode(&mut self.events);
                }
            }
            Change::Vote { group, vote } => {
                self.group(group).vote = Some(Bytes::copy_from_slice(vote));
            }
            Change::Truncate {
                group,
                from,
                last_term,
            } => {
                let known = self.group(group);
                known.cut(from);
                known.last = last_term.zip(from.checked_sub(1));
                Change::Cut { group, from }.encode(&mut self.events);
            }
            Change::Purge {
                group,
                upto,
                log_id,
            } => self.group(group).purge(upto, log_id),
            Change::Committed { group, log_id } => {
                self.group(group).committed = Some(Bytes::copy_from_slice(log_id));
            }
            Change::Bounds { group, start, last } => {
                let known = self.group(group);
                (known.start, known.last) = (start, last);
                known.forget();
            }
            // Of the segment before: see `replay`.
            Change::Point { .. } | Change::Cut { .. } => {}
            Change::Opened { .. } | Change::Closed => {}
        }
        Ok(())
    }

    /// Follows what the first frame of a segment says of the segment before, `former`.
    pub fn replay(&mut self, change: Change<'_>, former: u64) {
        match change {
            Change::Point {
                group,
                first,
                offset,
            } if self.segments.contains_key(&former) => {
                let point = Point {
                    first,
                    segment: former,
                    offset,
                };
                let known = self.group(group);
                known.points.push_back(point);
                known.is_cut = false;
            }
            Change::Cut { group, from } => self.group(group).cut(from),
            _ => {}
        }
    }

    /// Adds to the first frame of a segment what was in the segment before, and what is stored beside entries.
    pub fn begin_segment(&mut self, frame: &mut Vec<u8>) {
        frame.append(&mut self.events);
        for (group, known) in &self.groups {
            let group = *group;
            let (start, last) = (known.start, known.last);
            // Before the purge, which forgets the places of all entries when there is no last one.
            Change::Bounds { group, start, last }.encode(frame);
            if let Some((upto, log_id)) = &known.purged {
                let purge = Change::Purge {
                    group,
                    upto: *upto,
                    log_id,
                };
                purge.encode(frame);
            }
            if let Some(vote) = &known.vote {
                Change::Vote { group, vote }.encode(frame);
            }
            if let Some(log_id) = &known.committed {
                Change::Committed { group, log_id }.encode(frame);
            }
        }
    }

    /// Where to begin to read the entry at `index` of `group`, and the index after the last entry that is read from
    /// there.
    pub fn find(&self, group: GroupId, index: u64) -> Option<(Arc<Segment>, Point, u64)> {
        let (point, end) = self.groups.get(&group)?.find(index)?;
        let segment = self.segments.get(&point.segment)?;
        Some((Arc::clone(segment), point, end))
    }

    /// Where the entries of `group` begin in each segment that has some: the first index, and how many bytes of
    /// segments are before it.
    pub fn stored(&self, group: GroupId) -> Vec<(u64, u64)> {
        let mut begins = BTreeMap::new();
        for point in self
            .groups
            .get(&group)
            .into_iter()
            .flat_map(|group| &group.points)
        {
            begins.entry(point.segment).or_insert(point.first);
        }
        let mut bytes = 0;
        let mut stored = Vec::new();
        for (number, segment) in &self.segments {
            stored.extend(begins.get(number).map(|first| (*first, bytes)));
            bytes += segment.capacity;
        }
        stored
    }

    /// Takes out the segments of which nobody needs anything any more: those before the first one with entries, but
    /// never the newest.
    pub fn take_unneeded(&mut self) -> Vec<Arc<Segment>> {
        let Some(newest) = self.segments.keys().next_back().copied() else {
            return Vec::new();
        };
        let firsts = self
            .groups
            .values()
            .filter_map(|group| group.points.front());
        let needed = firsts.map(|point| point.segment).min();
        let needed = needed.map_or(newest, |needed| needed.min(newest));
        let kept = self.segments.split_off(&needed);
        let unneeded = std::mem::replace(&mut self.segments, kept);
        unneeded.into_values().collect()
    }

    /// The group whose first entries are missing, and the index of the first.
    pub fn missing(&self) -> Option<(GroupId, u64)> {
        let mut groups = self.groups.iter();
        let torn = groups.find(|(_, known)| !known.is_whole());
        torn.map(|(group, known)| (*group, known.start))
    }

    fn group(&mut self, group: GroupId) -> &mut Group {
        self.groups.entry(group).or_default()
    }
}
