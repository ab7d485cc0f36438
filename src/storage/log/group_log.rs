//! The log of one group: what callers append, read, truncate and purge.
//!
//! What callers see changes at once, in memory ([`Tail`]); the flush thread makes it durable, and the callback of an
//! append tells when.
//!
//! Invariant: the tail is changed before the job is queued, and jobs are queued in the order of the calls. One task at
//! a time may change a group's log; any number may read it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::change::{Change, Changes};
use super::flush::{Durable, Job};
use super::frame::Frame;
use super::index::Index;
use super::record::Record;
use super::segment::Segment;
use super::tail::{Found, Mark, Tail};
use crate::base::ids::GroupId;
use crate::storage::fatal::fatal;
use crate::storage::metrics::LogMetrics;

/// Bytes of entries that may wait to become durable before those who append hold back. A vote waits for them, so they
/// are no more than a slow disk writes in a fraction of a second.
pub const MAX_QUEUED_BYTES: usize = 16 << 20;

/// First and last of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First index that may be held; everything below is purged.
    pub start: u64,
    /// The log id given with the last purge.
    pub purged: Option<Bytes>,
    /// Term and index of the last entry held.
    pub last: Option<(u64, u64)>,
}

/// The log of one group. Clones are the same log.
#[derive(Clone)]
pub struct GroupLog {
    group: GroupId,
    index: Arc<Mutex<Index>>,
    jobs: mpsc::Sender<Job>,
    tail: Arc<Mutex<Tail>>,
    /// Votes in the queue of all groups.
    votes: Arc<AtomicUsize>,
    /// Told after each append that is durable.
    written: Arc<Notify>,
    /// The log was closed, and everything in it is durable.
    closed: Arc<AtomicBool>,
    metrics: Arc<LogMetrics>,
}

impl GroupLog {
    /// The log whose state on disk is `tail`.
    pub(super) fn new(
        group: GroupId,
        index: Arc<Mutex<Index>>,
        jobs: mpsc::Sender<Job>,
        tail: Tail,
        votes: Arc<AtomicUsize>,
        closed: Arc<AtomicBool>,
        metrics: Arc<LogMetrics>,
    ) -> GroupLog {
        GroupLog {
            group,
            index,
            jobs,
            tail: Arc::new(Mutex::new(tail)),
            votes,
            written: Arc::new(Notify::new()),
            closed,
            metrics,
        }
    }

    /// What the log holds.
    pub fn bounds(&self) -> Bounds {
        let tail = self.tail.lock();
        Bounds {
            start: tail.start,
            purged: tail.purged.clone(),
            last: tail.last_term.map(|term| (term, tail.next - 1)),
        }
    }

    /// Index after the last entry.
    pub fn next(&self) -> u64 {
        self.tail.lock().next
    }

    /// The last index that is known to be durable, and the index after the last entry.
    pub fn durable(&self) -> (u64, u64) {
        let tail = self.tail.lock();
        let durable = match tail.queued_bytes {
            0 => tail.next.saturating_sub(1),
            _ => tail.flushed.max(tail.start.saturating_sub(1)),
        };
        (durable, tail.next)
    }

    /// Bytes of entries in memory: those not yet durable or applied, and the cache.
    pub fn bytes_in_memory(&self) -> usize {
        self.tail.lock().bytes()
    }

    /// Bytes of entries that are not durable yet.
    pub fn bytes_queued(&self) -> usize {
        self.tail.lock().queued_bytes
    }

    /// Where the entries begin in each segment that has some: the first index, and how many bytes of segments are
    /// before it.
    pub fn stored(&self) -> Vec<(u64, u64)> {
        self.index.lock().stored(self.group)
    }

    /// Waits while [`MAX_QUEUED_BYTES`] or more are not durable. Whoever takes entries in asks this first; what is
    /// given to [`GroupLog::append`] is always taken.
    pub async fn room(&self) {
        loop {
            let written = self.written.notified();
            if self.bytes_queued() < MAX_QUEUED_BYTES || self.is_closed() {
                return;
            }
            written.await;
        }
    }

    /// Whether the flush thread has ended: nothing is written any more.
    pub fn is_closed(&self) -> bool {
        self.jobs.is_closed()
    }

    /// The vote last saved.
    pub fn vote(&self) -> Option<Bytes> {
        self.tail.lock().vote.clone()
    }

    /// What was last given to [`GroupLog::save_committed`].
    pub fn committed(&self) -> Option<Bytes> {
        self.tail.lock().committed.clone()
    }

    /// Appends consecutive entries. They are readable on return; `durable` is called from the flush thread once
    /// they are synced, in the order of the appends.
    ///
    /// # Errors
    /// When the log is closed; nothing was queued then.
    pub async fn append(&self, records: Vec<Record>, durable: Durable) -> io::Result<()> {
        let bytes = records.iter().map(Record::weight).sum();
        {
            let mut tail = self.tail.lock();
            tail.queued_bytes += bytes;
            if tail.last_term.is_none()
                && let Some(first) = records.first()
                && first.index > tail.next
            {
                // An empty log starts wherever its first entry says.
                tail.next = first.index;
                tail.start = first.index;
            }
            for record in &records {
                tail.push(record.clone());
            }
        }
        self.send(Job::Append {
            group: self.group,
            records,
            bytes,
            tail: Arc::clone(&self.tail),
            written: Arc::clone(&self.written),
            durable,
        })
        .await
    }

    /// Saves the vote; durable on return.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn save_vote(&self, vote: Bytes) -> io::Result<()> {
        let (done, finished) = oneshot::channel();
        self.votes.fetch_add(1, AcqRel);
        self.send(Job::Vote {
            group: self.group,
            vote: vote.clone(),
            done,
        })
        .await?;
        finished.await.map_err(|_| closed())?;
        self.tail.lock().vote = Some(vote);
        Ok(())
    }

    /// Notes up to which log id entries are known to be committed. It is written with the next entries, or by
    /// [`GroupLog::write_committed`], but not before the entry that it names: a crash may bring back an older log id,
    /// never one past the log.
    pub fn save_committed(&self, committed: Option<Mark>) {
        self.tail.lock().note_committed(committed);
    }

    /// Writes the committed log id if it changed since it was last written.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn write_committed(&self) -> io::Result<()> {
        if !self.tail.lock().has_marks() {
            return Ok(());
        }
        self.send(Job::Committed {
            group: self.group,
            tail: Arc::clone(&self.tail),
        })
        .await
    }

    /// Removes every entry from `from` on. Gone for readers on return; durable before anything appended later.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn truncate(&self, from: u64) -> io::Result<()> {
        if from >= self.next() {
            return Ok(());
        }
        let last = from.checked_sub(1);
        let last_term = match last {
            Some(last) if last >= self.tail.lock().start => {
                let read = self.read(last, from, usize::MAX).await;
                // Nothing is read only when the runtime is shutting down.
                Some(read.first().ok_or_else(closed)?.term)
            }
            _ => None,
        };
        self.tail.lock().truncate(from, last_term);
        self.send(Job::Truncate {
            group: self.group,
            from,
            last_term,
            tail: Arc::clone(&self.tail),
        })
        .await
    }

    /// Removes every entry up to and including `upto`, whose log id is `log_id`. Gone for readers on return; the
    /// files go later.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn purge(&self, upto: u64, log_id: Bytes) -> io::Result<()> {
        let job = self.purge_job(upto, log_id);
        self.send(job).await
    }

    fn purge_job(&self, upto: u64, log_id: Bytes) -> Job {
        {
            let mut tail = self.tail.lock();
            tail.purge(upto);
            tail.purged = Some(log_id.clone());
        }
        Job::Purge {
            group: self.group,
            upto,
            log_id,
            tail: Arc::clone(&self.tail),
        }
    }

    /// As [`GroupLog::purge`], durable on return. For a thread outside of the runtime, which it blocks.
    ///
    /// # Errors
    /// When the log is closed.
    pub fn purge_blocking(&self, upto: u64, log_id: Bytes) -> io::Result<()> {
        let job = self.purge_job(upto, log_id);
        let sent = self.jobs.blocking_send(job);
        sent.map_err(|_| closed())?;
        match self.sync_blocking() {
            true => Ok(()),
            false => Err(closed()),
        }
    }

    /// Makes everything that was given to the log before this call durable: entries, truncations, purges and marks.
    ///
    /// For a thread outside of the runtime, which it blocks. Returns at once when the log is closed, because that has
    /// made everything durable; and `false` when its thread has ended otherwise: then nobody knows.
    #[must_use]
    pub fn sync_blocking(&self) -> bool {
        let (done, finished) = oneshot::channel();
        let sent = self.jobs.blocking_send(Job::Sync { done }).is_ok();
        sent && finished.blocking_recv().is_ok() || self.closed.load(Acquire)
    }

    /// Tells that everything up to `index` is applied and need not be kept in memory for that.
    pub fn applied(&self, index: u64) {
        let mut tail = self.tail.lock();
        tail.applied = tail.applied.max(index);
        tail.evict();
    }

    /// The entries of `[start, end)` that the log holds, in order and without holes: at least one, then no more once
    /// they weigh `max_bytes`. Stored entries that can't be read end the process.
    pub async fn read(&self, start: u64, end: u64, max_bytes: usize) -> Vec<Record> {
        loop {
            let found = self.tail.lock().read(start, end, max_bytes);
            let partly = match found {
                Found::All(records) => return records,
                Found::Partly(partly) => partly,
            };
            let (index, group) = (Arc::clone(&self.index), self.group);
            let (from, to) = (partly.start, partly.disk_end);
            let read =
                tokio::task::spawn_blocking(move || read_disk(&index, group, from..to, max_bytes));
            let Ok(read) = read.await else {
                // The runtime is shutting down; nobody waits for the answer.
                return Vec::new();
            };
            if self.tail.lock().generation != partly.generation {
                // What was read may be purged or truncated, and its segment in use again.
                continue;
            }
            let (mut records, whole) = match read {
                Ok(found) => found,
                Err(error) => fatal("reading the log", &error),
            };
            self.metrics
                .disk_reads
                .fetch_add(records.len() as u64, Relaxed);
            if !whole {
                return records;
            }
            let mut bytes: usize = records.iter().map(Record::weight).sum();
            for record in partly.rest {
                if bytes >= max_bytes {
                    break;
                }
                bytes += record.weight();
                records.push(record);
            }
            return records;
        }
    }

    async fn send(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).await.map_err(|_| closed())
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the log is closed")
}

/// Entries of `range` from disk, and whether all of them fitted into `max_bytes`.
fn read_disk(
    index: &Mutex<Index>,
    group: GroupId,
    range: Range<u64>,
    max_bytes: usize,
) -> io::Result<(Vec<Record>, bool)> {
    let mut reading = Reading {
        group,
        next: range.start,
        max_bytes,
        bytes: 0,
        records: Vec::new(),
    };
    while reading.next < range.end {
        let (segment, point, end) = {
            let index = index.lock();
            let found = index.find(group, reading.next);
            found.ok_or_else(|| reading.hole())?
        };
        if !reading.piece(&segment, point.offset, end.min(range.end))? {
            return Ok((reading.records, false));
        }
    }
    Ok((reading.records, true))
}

/// Entries being read.
struct Reading {
    group: GroupId,
    /// Index of the next one.
    next: u64,
    max_bytes: usize,
    /// What those read weigh.
    bytes: usize,
    records: Vec<Record>,
}

impl Reading {
    /// Reads the entries up to `end` from the frame at `offset` on; returns whether all fitted in.
    fn piece(&mut self, segment: &Segment, offset: u32, end: u64) -> io::Result<bool> {
        let mut offset = u64::from(offset);
        while self.next < end {
            let Some(frame) = segment.frame(offset)? else {
                return Err(self.hole());
            };
            offset = frame.end();
            for record in records(&frame, self.group)? {
                if record.index != self.next || record.index >= end {
                    continue;
                }
                if self.bytes >= self.max_bytes {
                    return Ok(false);
                }
                self.bytes += record.weight();
                self.next += 1;
                self.records.push(record);
            }
        }
        Ok(true)
    }

    fn hole(&self) -> io::Error {
        let text = format!("entry {} can't be read", self.next);
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

/// The entries of `group` in a frame, without those that it truncates itself.
fn records(frame: &Frame, group: GroupId) -> io::Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for change in Changes::of(&frame.payload) {
        match change.map_err(|_| io::ErrorKind::InvalidData)? {
            Change::Append {
                group: of,
                index,
                term,
                kind,
                payload,
            } if of == group => records.push(Record {
                index,
                term,
                kind,
                payload: frame.payload.slice_ref(payload),
            }),
            Change::Truncate {
                group: of, from, ..
            } if of == group => records.retain(|record| record.index < from),
            _ => {}
        }
    }
    Ok(records)
}
