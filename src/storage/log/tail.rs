//! The newest entries of a group's log, in memory.
//!
//! Every entry is read back once per follower and once to be applied, so nearly all reads are served from here. The
//! tail knows nothing of the disk: [`super::group_log`] changes it first, and the flush thread follows.
//!
//! Invariant: `records` are consecutive and end at `next - 1`.
//! Invariant: only a truncation or a purge takes away an entry that is not durable.

use std::collections::VecDeque;

use bytes::Bytes;

use super::record::Record;

/// Weight above the limit up to which entries that are not applied stay in memory. It is twice what a leader may be
/// behind before it takes no more from clients, which it knows by this weight.
const UNAPPLIED_BYTES: usize = if cfg!(test) { 32 << 10 } else { 512 << 20 };

/// What a read finds in memory.
pub enum Found {
    /// Everything that was asked for, or its first part up to the limit.
    All(Vec<Record>),
    /// The first entries have to come from disk.
    Partly(Partly),
}

/// A read that memory can't answer alone.
pub struct Partly {
    /// First index to read from disk.
    pub start: u64,
    /// Index after the last one to read from disk.
    pub disk_end: u64,
    /// The entries from `disk_end` on.
    pub rest: Vec<Record>,
    /// [`Tail::generation`] at this moment.
    pub generation: u64,
}

/// A log id that may be stored as committed: its parts, and its bytes as `raft` gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Term of the entry.
    pub term: u64,
    /// Index of the entry.
    pub index: u64,
    /// What is stored.
    pub log_id: Bytes,
}

/// What the log on disk holds once what is being put together is written. The flush thread alone changes it.
#[derive(Debug, Default)]
pub struct Written {
    /// Term and index of the last entry.
    pub last: Option<(u64, u64)>,
    /// Index after the last one that was purged; 0 when nothing was.
    pub start: u64,
}

impl Written {
    /// Whether the entry that `mark` names is on disk, or is purged.
    ///
    /// The index alone does not tell: an entry of a former leader may still be at that place, because its truncation
    /// and its replacement are queued. A last entry of the mark's term, or of a later one, was appended by a leader
    /// whose log holds the committed entry, so everything below it is that leader's.
    fn holds(&self, mark: &Mark) -> bool {
        let by_last = |(term, index)| mark.term <= term && mark.index <= index;
        mark.index < self.start || self.last.is_some_and(by_last)
    }
}

/// Committed log ids that wait to be written. When one more comes, the newest is replaced: it is durable later then.
const MAX_MARKS: usize = 256;

/// What is known of one group's log without asking the disk.
#[derive(Debug, Default)]
pub struct Tail {
    records: VecDeque<Record>,
    /// Weight of `records`.
    bytes: usize,
    /// Weight above which entries that are durable and applied are evicted.
    limit: usize,
    /// Index after the last entry.
    pub next: u64,
    /// Term of the last entry, when the log holds one.
    pub last_term: Option<u64>,
    /// First index the log may hold: everything below is purged.
    pub start: u64,
    /// Weight of the entries whose append has not been called back.
    pub queued_bytes: usize,
    /// Highest index known durable.
    pub flushed: u64,
    /// Highest index known applied.
    pub applied: u64,
    /// Rises whenever entries are truncated or purged, so that a reader of the disk notices.
    pub generation: u64,
    /// The vote last saved.
    pub vote: Option<Bytes>,
    /// The log id of the last purged entry.
    pub purged: Option<Bytes>,
    /// The log id of the last entry known to be committed.
    pub committed: Option<Bytes>,
    /// Committed log ids that are not written yet, in order.
    marks: VecDeque<Mark>,
    /// What the flush thread has written.
    pub written: Written,
}

impl Tail {
    /// An empty log that keeps about `limit` bytes in memory.
    pub fn new(limit: usize) -> Self {
        Tail {
            limit,
            ..Tail::default()
        }
    }

    /// Notes up to where entries are committed.
    pub fn note_committed(&mut self, mark: Option<Mark>) {
        self.committed = mark.as_ref().map(|mark| mark.log_id.clone());
        let Some(mark) = mark else {
            self.marks.clear();
            return;
        };
        if self.marks.len() == MAX_MARKS {
            self.marks.pop_back();
        }
        self.marks.push_back(mark);
    }

    /// Whether a committed log id waits to be written.
    pub fn has_marks(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Takes the newest committed log id whose entry is [`Written`].
    pub fn take_mark(&mut self) -> Option<Bytes> {
        let mut taken = None;
        while let Some(mark) = self.marks.pop_front_if(|mark| self.written.holds(mark)) {
            taken = Some(mark.log_id);
        }
        taken
    }

    /// Index of the oldest entry in memory.
    fn first(&self) -> u64 {
        self.next - self.records.len() as u64
    }

    /// Weight of the entries in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the next entry.
    pub fn push(&mut self, record: Record) {
        debug_assert_eq!(record.index, self.next, "the log has no holes");
        self.next = record.index + 1;
        self.last_term = Some(record.term);
        self.bytes += record.weight();
        self.records.push_back(record);
    }

    /// Takes away every entry from `from` on; `last_term` is the term of the one before.
    pub fn truncate(&mut self, from: u64, last_term: Option<u64>) {
        let first = self.first();
        while self.records.len() as u64 > from.saturating_sub(first) {
            if let Some(record) = self.records.pop_back() {
                self.bytes -= record.weight();
            }
        }
        self.next = self.next.min(from);
        self.flushed = self.flushed.min(from.saturating_sub(1));
        self.last_term = last_term;
        self.generation += 1;
    }

    /// Takes away every entry up to and including `upto`.
    pub fn purge(&mut self, upto: u64) {
        while self
            .records
            .front()
            .is_some_and(|record| record.index <= upto)
        {
            if let Some(record) = self.records.pop_front() {
                self.bytes -= record.weight();
            }
        }
        self.start = self.start.max(upto + 1);
        if self.next < self.start {
            self.next = self.start;
        }
        if self.next == self.start {
            self.last_term = None;
        }
        self.generation += 1;
    }

    /// While there are more bytes than the limit, forgets the oldest entries that are durable and applied; and those
    /// that are durable alone, while there are more by [`UNAPPLIED_BYTES`]: a follower may get entries faster than it
    /// can apply them.
    pub fn evict(&mut self) {
        let safe = self.flushed.min(self.applied);
        while self.bytes > self.limit {
            let may_go = match self.bytes - self.limit > UNAPPLIED_BYTES {
                true => self.flushed,
                false => safe,
            };
            match self.records.front() {
                Some(record) if record.index <= may_go => {}
                _ => return,
            }
            if let Some(record) = self.records.pop_front() {
                self.bytes -= record.weight();
            }
        }
    }

    /// Term of the entry at `index`, when memory holds it.
    pub fn term_of(&self, index: u64) -> Option<u64> {
        let offset = index.checked_sub(self.first())?;
        self.records
            .get(usize::try_from(offset).ok()?)
            .map(|record| record.term)
    }

    /// The entries of `[start, end)` that the log holds: at least one, then no more once they weigh `max_bytes`.
    pub fn read(&self, start: u64, end: u64, max_bytes: usize) -> Found {
        let start = start.max(self.start);
        let end = end.min(self.next);
        if start >= end {
            return Found::All(Vec::new());
        }
        let first = self.first();
        if start >= first {
            return Found::All(self.collect(start, end, max_bytes));
        }
        Found::Partly(Partly {
            start,
            disk_end: end.min(first),
            rest: if end > first {
                self.collect(first, end, max_bytes)
            } else {
                Vec::new()
            },
            generation: self.generation,
        })
    }

    fn collect(&self, start: u64, end: u64, max_bytes: usize) -> Vec<Record> {
        let first = self.first();
        // Both are offsets into `records`, whose length is a usize.
        let (from, to) = ((start - first) as usize, (end - first) as usize);
        let mut taken = Vec::with_capacity((to - from).min(1024));
        let mut bytes = 0;
        for record in self.records.range(from..to) {
            if bytes >= max_bytes {
                break;
            }
            bytes += record.weight();
            taken.push(record.clone());
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_applied_stays_in_memory_only_up_to_a_bound() {
        let mut tail = Tail::new(0);
        tail.next = 1;
        for index in 1..1001 {
            tail.push(Record {
                index,
                term: 1,
                kind: 1,
                payload: Bytes::from(vec![b'.'; 100]),
            });
        }
        tail.evict();
        assert_eq!(tail.records.len(), 1000, "nothing is durable");
        tail.flushed = 900;
        tail.evict();
        let weight = tail.bytes / tail.records.len();
        assert!(tail.bytes <= UNAPPLIED_BYTES);
        assert!(tail.bytes > UNAPPLIED_BYTES - weight);
        tail.applied = 1000;
        tail.evict();
        assert_eq!(tail.first(), 901, "the rest is not durable");
    }
}
