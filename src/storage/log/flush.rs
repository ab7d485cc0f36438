//! The thread that writes the log.
//!
//! It takes the jobs that have gathered in the queue, writes them in queue order as frames, syncs once when they
//! hold entries or a vote, then calls back in order. There is no timer: the next ones gather while these are synced.
//!
//! A vote does not overtake the entries before it, although they are of an earlier term and nobody may need them any
//! more. The Raft library takes a durable vote for proof that everything given to the log before it is durable, and
//! answers the appends that wait: a former leader would count an acknowledgement that a crash takes back. So what a
//! vote waits for is kept small instead: those who append hold back while [`super::MAX_QUEUED_BYTES`] are queued, and
//! what is queued before a vote is written with it by one sync.
//!
//! Invariant: only this thread writes the log, in the order of the queue.
//! Invariant: a callback runs only after the sync that covers its entries. A failed write or sync ends the process.
//! Invariant: the committed log id that is stored names an entry that the same write, or an earlier one, has stored. A
//! mark past the durable log would have the next start apply entries that are not there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::change::Change;
use super::frame::{self, HEADER};
use super::record::Record;
use super::spare::StopOnPanic;
use super::tail::Tail;
use super::writer::Writer;
use crate::base::ids::GroupId;
use crate::base::pulse::{Phase, busy};
use crate::storage::fatal::fatal;
use crate::storage::metrics::LogMetrics;

/// Jobs that one sync covers at most.
const MAX_JOBS: usize = 4096;
/// Bytes of entries that one sync covers at most, the last job not counted.
const MAX_BYTES: usize = 4 << 20;
/// Bytes after which a frame is full: whoever reads an entry reads its whole frame.
const FRAME_BYTES: usize = 128 << 10;

/// Called once the entries of an append are durable.
pub type Durable = Box<dyn FnOnce() + Send>;

/// Runs on the flush thread before each sync: a slow disk, for fault injection.
pub type BeforeSync = Arc<dyn Fn() + Send + Sync>;

/// A change of the log.
pub enum Job {
    Append {
        group: GroupId,
        records: Vec<Record>,
        /// What they weigh.
        bytes: usize,
        /// Told what is durable.
        tail: Arc<Mutex<Tail>>,
        /// Wakes those who wait for the queue to grow shorter.
        written: Arc<Notify>,
        durable: Durable,
    },
    Vote {
        group: GroupId,
        vote: Bytes,
        done: oneshot::Sender<()>,
    },
    /// Removes every entry from `from` on; `last_term` is the term of the one before, when the log holds it.
    Truncate {
        group: GroupId,
        from: u64,
        last_term: Option<u64>,
        tail: Arc<Mutex<Tail>>,
    },
    /// Removes the entries up to `upto`, whose log id is `log_id`.
    Purge {
        group: GroupId,
        upto: u64,
        log_id: Bytes,
        tail: Arc<Mutex<Tail>>,
    },
    /// Writes the newest committed log id of `tail` whose entry is written.
    Committed {
        group: GroupId,
        tail: Arc<Mutex<Tail>>,
    },
    /// Makes everything queued before it durable.
    Sync { done: oneshot::Sender<()> },
    /// Has the thread look whether it is to end.
    Leave,
    /// Closes the log, and ends the thread.
    Stop { done: oneshot::Sender<()> },
}

/// What follows a write.
enum After {
    Durable {
        tail: Arc<Mutex<Tail>>,
        last: u64,
        term: u64,
        bytes: usize,
        written: Arc<Notify>,
        durable: Durable,
    },
    Tell(oneshot::Sender<()>),
    /// Segments may not be needed any more.
    Release,
}

/// The thread's state.
pub struct Flusher {
    pub _stop_on_panic: StopOnPanic,
    /// Whether the thread is to end where it is, and the log stays open.
    pub leave: Arc<AtomicBool>,
    /// Set when the log was closed, and everything in it is durable.
    pub closed: Arc<AtomicBool>,
    pub writer: Writer,
    pub queue: mpsc::Receiver<Job>,
    /// Votes in the queue.
    pub votes: Arc<AtomicUsize>,
    pub metrics: Arc<LogMetrics>,
    pub before_sync: Option<BeforeSync>,
}

/// What is being put together for one sync.
struct Gathered {
    /// Frames that are full.
    full: Vec<Vec<u8>>,
    /// The last frame.
    buffer: Vec<u8>,
    after: Vec<After>,
    entries: u64,
    bytes: usize,
    votes: usize,
    sync: bool,
    stop: Option<oneshot::Sender<()>>,
}

impl Flusher {
    /// Runs until [`Job::Stop`], or until every sender is gone.
    pub fn run(mut self) {
        let mut buffer = Vec::new();
        while let Some(first) = self.queue.blocking_recv() {
            let mut gathered = Gathered::new(buffer);
            gathered.add(first);
            let mut jobs = 1;
            while gathered.stop.is_none() && self.has_room(&gathered, jobs) {
                let Ok(job) = self.queue.try_recv() else {
                    break;
                };
                gathered.add(job);
                jobs += 1;
            }
            self.votes.fetch_sub(gathered.votes, AcqRel);
            busy(Phase::Log, || {
                self.write(&mut gathered);
                for after in gathered.after.drain(..) {
                    self.finish(after);
                }
            });
            buffer = gathered.buffer;
            if self.leave.load(Acquire) {
                return;
            }
            if let Some(done) = gathered.stop {
                if let Err(error) = self.writer.close() {
                    fatal("syncing the log", &error);
                }
                self.closed.store(true, Release);
                self.queue.close();
                // Nobody waits any more when this fails.
                let _ = done.send(());
                return;
            }
            // The room for one large entry is not kept for many small ones.
            buffer.shrink_to(2 * FRAME_BYTES);
        }
    }

    /// Whether one more job joins a frame of so many.
    fn has_room(&self, gathered: &Gathered, jobs: usize) -> bool {
        let vote_follows = self.votes.load(Acquire) > gathered.votes;
        vote_follows || (jobs < MAX_JOBS && gathered.bytes < MAX_BYTES)
    }

    fn write(&mut self, gathered: &mut Gathered) {
        let is_empty = gathered.full.is_empty() && gathered.buffer.len() == HEADER;
        if is_empty && !gathered.sync {
            return;
        }
        let started = Instant::now();
        if gathered.sync
            && let Some(before_sync) = &self.before_sync
        {
            before_sync();
        }
        let grown = match is_empty {
            true => self.writer.sync().map(|()| 0),
            false => self.put(gathered),
        };
        let grown = grown.unwrap_or_else(|error| fatal("writing the log", &error));
        if gathered.sync {
            self.metrics.fsync_us.observe_latency(started.elapsed());
        }
        if gathered.entries > 0 {
            self.metrics.append_entries.observe(gathered.entries);
        }
        self.metrics.append_bytes.fetch_add(grown, Relaxed);
    }

    /// Writes the frames, and syncs the last one with all before it; returns by how many bytes the log has grown.
    fn put(&mut self, gathered: &mut Gathered) -> io::Result<u64> {
        let mut grown = 0;
        for mut frame in gathered.full.drain(..) {
            grown += self.writer.write(&mut frame, false)?;
        }
        Ok(grown + self.writer.write(&mut gathered.buffer, gathered.sync)?)
    }

    fn finish(&mut self, after: After) {
        match after {
            After::Durable {
                tail,
                last,
                term,
                bytes,
                written,
                durable,
            } => {
                {
                    let mut tail = tail.lock();
                    tail.queued_bytes -= bytes;
                    // Entries truncated while they were queued are not the log's any more.
                    if tail.term_of(last) == Some(term) {
                        tail.flushed = tail.flushed.max(last);
                        tail.evict();
                    }
                }
                written.notify_waiters();
                durable();
            }
            After::Tell(done) => {
                // The caller may have been cancelled; what it asked for is done all the same.
                let _ = done.send(());
            }
            After::Release => {
                if let Err(error) = self.writer.release() {
                    fatal("writing the log", &error);
                }
            }
        }
    }
}

impl Gathered {
    /// An empty frame in `buffer`.
    fn new(mut buffer: Vec<u8>) -> Gathered {
        frame::begin(&mut buffer);
        Gathered {
            full: Vec::new(),
            buffer,
            after: Vec::new(),
            entries: 0,
            bytes: 0,
            votes: 0,
            sync: false,
            stop: None,
        }
    }

    fn add(&mut self, job: Job) {
        match job {
            Job::Append {
                group,
                records,
                bytes,
                tail,
                written,
                durable,
            } => {
                self.put_records(group, &records);
                // An append of nothing has no last entry, and its callback is called all the same.
                let (mut last, mut term) = (0, 0);
                if let Some(record) = records.last() {
                    (last, term) = (record.index, record.term);
                    tail.lock().written.last = Some((term, last));
                }
                self.put_committed(group, &tail);
                self.sync = true;
                self.after.push(After::Durable {
                    tail,
                    last,
                    term,
                    bytes,
                    written,
                    durable,
                });
            }
            Job::Vote { group, vote, done } => {
                self.votes += 1;
                Change::Vote { group, vote: &vote }.encode(&mut self.buffer);
                self.sync = true;
                self.after.push(After::Tell(done));
            }
            Job::Truncate {
                group,
                from,
                last_term,
                tail,
            } => {
                let truncate = Change::Truncate {
                    group,
                    from,
                    last_term,
                };
                truncate.encode(&mut self.buffer);
                let last = last_term.zip(from.checked_sub(1));
                tail.lock().written.last = last;
            }
            Job::Purge {
                group,
                upto,
                log_id,
                tail,
            } => self.put_purge(group, upto, &log_id, &tail),
            Job::Committed { group, tail } => self.put_committed(group, &tail),
            Job::Sync { done } => {
                self.sync = true;
                self.after.push(After::Tell(done));
            }
            Job::Leave => {}
            Job::Stop { done } => self.stop = Some(done),
        }
    }

    fn put_records(&mut self, group: GroupId, records: &[Record]) {
        for record in records {
            let append = Change::Append {
                group,
                index: record.index,
                term: record.term,
                kind: record.kind,
                payload: &record.payload,
            };
            let before = self.buffer.len();
            append.encode(&mut self.buffer);
            self.bytes += self.buffer.len() - before;
            if self.buffer.len() >= FRAME_BYTES {
                let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(FRAME_BYTES));
                self.full.push(full);
                frame::begin(&mut self.buffer);
            }
            self.entries += 1;
        }
    }

    fn put_purge(&mut self, group: GroupId, upto: u64, log_id: &[u8], tail: &Mutex<Tail>) {
        let purge = Change::Purge {
            group,
            upto,
            log_id,
        };
        purge.encode(&mut self.buffer);
        self.after.push(After::Release);
        let mut tail = tail.lock();
        let written = &mut tail.written;
        written.start = written.start.max(upto + 1);
        written.last = written.last.filter(|(_, index)| *index > upto);
    }

    fn put_committed(&mut self, group: GroupId, tail: &Mutex<Tail>) {
        let committed = tail.lock().take_mark();
        if let Some(log_id) = &committed {
            Change::Committed { group, log_id }.encode(&mut self.buffer);
        }
    }
}
