//! The newest part of a group's log in memory.
//!
//! Every entry is read back once per follower and once for apply, so the tail is what nearly all reads see. It
//! knows nothing of the disk; [`super::log_db`] keeps the two in step. Invariant: `records` are consecutive
//! and end at `next - 1`; nothing leaves before it is durable and applied.

use std::collections::VecDeque;

use bytes::Bytes;

use super::record::Record;

/// What a read finds in memory.
pub(super) enum Found {
    /// Everything asked for (or the first part of it, up to the limit).
    All(Vec<Record>),
    /// The part before `disk_end` has to come from disk; `rest` follows it.
    Partly {
        start: u64,
        disk_end: u64,
        rest: Vec<Record>,
        generation: u64,
    },
}

/// The in-memory state of one group's log.
#[derive(Debug, Default)]
pub(super) struct Tail {
    records: VecDeque<Record>,
    bytes: usize,
    limit: usize,
    /// Index after the last entry.
    pub next: u64,
    /// Term of the last entry, when the log holds one.
    pub last_term: Option<u64>,
    /// First index the log may hold: everything below is purged.
    pub start: u64,
    /// Highest index known durable.
    pub flushed: u64,
    /// Highest index known applied.
    pub applied: u64,
    /// Rises whenever entries are taken away, so that a reader of the disk notices.
    pub generation: u64,
    pub vote: Option<Bytes>,
    pub purged: Option<Bytes>,
    pub committed: Option<Bytes>,
    /// `committed` is newer than what was handed to the disk.
    pub committed_dirty: bool,
}

impl Tail {
    pub fn new(limit: usize) -> Self {
        Tail {
            limit,
            ..Tail::default()
        }
    }

    fn first(&self) -> u64 {
        self.next - self.records.len() as u64
    }

    /// Bytes of entries held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn push(&mut self, record: Record) {
        debug_assert_eq!(record.index, self.next, "the log has no holes");
        self.next = record.index + 1;
        self.last_term = Some(record.term);
        self.bytes += record.weight();
        self.records.push_back(record);
    }

    /// Takes away everything from `from` on.
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

    /// Takes away everything up to and including `upto`.
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

    /// Lets go of the oldest entries beyond the limit that are durable and applied.
    pub fn evict(&mut self) {
        let safe = self.flushed.min(self.applied);
        while self.bytes > self.limit {
            match self.records.front() {
                Some(record) if record.index <= safe => {}
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

    /// Entries of `[start, end)` the log holds, at least one, at most `max_bytes` beyond that.
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
        Found::Partly {
            start,
            disk_end: end.min(first),
            rest: if end > first {
                self.collect(first, end, max_bytes)
            } else {
                Vec::new()
            },
            generation: self.generation,
        }
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
