//! The thread that writes the log database.
//!
//! It takes the jobs that have gathered in the queue, writes them in queue order as one batch, syncs once when the
//! batch holds entries or a vote, then calls back in order. There is no timer: the next batch gathers while this one
//! syncs.
//!
//! A vote does not overtake the entries before it, although they are of an earlier term and nobody may need them any
//! more. The Raft library takes a durable vote for proof that everything given to the log before it is durable, and
//! answers the appends that wait: a former leader would count an acknowledgement that a crash takes back. So what a
//! vote waits for is kept small instead: those who append hold back while [`super::MAX_QUEUED_BYTES`] are queued, and
//! what is queued before a vote is written with it by one sync.
//!
//! Invariant: only this thread writes the log database, in the order of the queue.
//! Invariant: a callback runs only after the sync that covers its entries. A failed write or sync ends the process.
//! Invariant: the committed log id that is stored names an entry that the same write, or an earlier one, has stored. A
//! mark past the durable log would have the next start apply entries that are not there.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use rocksdb::{ColumnFamily, WriteBatch, WriteOptions};
use tokio::sync::{Notify, mpsc, oneshot};

use super::record::{self, META_FAMILY, Meta, Record};
use super::tail::Tail;
use crate::base::ids::GroupId;
use crate::base::pulse::{Phase, busy};
use crate::storage::database::Database;
use crate::storage::fatal::fatal;
use crate::storage::faults::{self, Step};
use crate::storage::metrics::LogMetrics;

/// Jobs that one sync covers at most.
const MAX_JOBS: usize = 4096;
/// Bytes of entries that one sync covers at most, the last job not counted.
const MAX_BYTES: usize = 4 << 20;

/// Called once the entries of an append are durable.
pub type Durable = Box<dyn FnOnce() + Send>;

/// Runs on the flush thread before each sync: a slow disk, for fault injection.
pub type BeforeSync = Arc<dyn Fn() + Send + Sync>;

/// A change of the database.
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
    /// Removes the entries from `from` to `upto`, whose log id is `log_id`.
    Purge {
        group: GroupId,
        from: u64,
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
    /// Ends the thread.
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
    DeleteFiles {
        group: GroupId,
        upto: u64,
    },
}

/// The thread's state.
pub struct Flusher {
    pub db: Arc<Database>,
    pub queue: mpsc::Receiver<Job>,
    /// Votes in the queue.
    pub votes: Arc<AtomicUsize>,
    pub metrics: Arc<LogMetrics>,
    pub before_sync: Option<BeforeSync>,
}

/// One batch being put together.
struct Gathered {
    batch: WriteBatch,
    after: Vec<After>,
    /// Buffer for encoding, kept from batch to batch.
    value: Vec<u8>,
    entries: u64,
    bytes: usize,
    votes: usize,
    sync: bool,
    stop: Option<oneshot::Sender<()>>,
}

impl Flusher {
    /// Runs until [`Job::Stop`], or until every sender is gone.
    pub fn run(mut self) {
        let mut value = Vec::new();
        while let Some(first) = self.queue.blocking_recv() {
            let mut gathered = Gathered::new(value);
            let db = Arc::clone(&self.db);
            let Some(meta) = db.cf_handle(META_FAMILY) else {
                fatal("opening the log", &"the meta family is missing");
            };
            gathered.add(meta, first);
            let mut jobs = 1;
            while gathered.stop.is_none() && self.has_room(&gathered, jobs) {
                let Ok(job) = self.queue.try_recv() else {
                    break;
                };
                gathered.add(meta, job);
                jobs += 1;
            }
            self.votes.fetch_sub(gathered.votes, AcqRel);
            busy(Phase::Log, || {
                self.write(&mut gathered);
                for after in gathered.after.drain(..) {
                    self.finish(after);
                }
            });
            if let Some(done) = gathered.stop {
                self.queue.close();
                if let Err(error) = self.put(WriteBatch::default(), true) {
                    fatal("syncing the log", &error);
                }
                // Nobody waits any more when this fails.
                let _ = done.send(());
                return;
            }
            value = gathered.value;
        }
    }

    /// Whether one more job joins a batch of so many.
    fn has_room(&self, gathered: &Gathered, jobs: usize) -> bool {
        let vote_follows = self.votes.load(Acquire) > gathered.votes;
        vote_follows || (jobs < MAX_JOBS && gathered.bytes < MAX_BYTES)
    }

    fn write(&self, gathered: &mut Gathered) {
        if gathered.batch.is_empty() && !gathered.sync {
            return;
        }
        let batch = std::mem::take(&mut gathered.batch);
        let started = Instant::now();
        if gathered.sync
            && let Some(before_sync) = &self.before_sync
        {
            before_sync();
        }
        if let Err(error) = self.put(batch, gathered.sync) {
            fatal("writing the log", &error);
        }
        if gathered.sync {
            self.metrics.fsync_us.observe_latency(started.elapsed());
        }
        if gathered.entries > 0 {
            self.metrics.append_entries.observe(gathered.entries);
            self.metrics
                .append_bytes
                .fetch_add(gathered.bytes as u64, Relaxed);
        }
    }

    /// Writes `batch`. An empty one makes what was written before durable.
    fn put(&self, batch: WriteBatch, sync: bool) -> Result<(), Box<dyn Error>> {
        faults::step(Step::LogWriting, self.db.path())?;
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        match batch.is_empty() {
            true => self.db.flush_wal(true)?,
            false => self.db.write_opt(batch, &options)?,
        }
        let written = match sync {
            true => Step::LogSynced,
            false => Step::LogWritten,
        };
        Ok(faults::step(written, self.db.path())?)
    }

    fn finish(&self, after: After) {
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
            After::DeleteFiles { group, upto } => {
                // Only gives space back early; the range tombstone written before is what removes.
                if let Err(error) = self
                    .db
                    .delete_file_in_range(record::key(group, 0), record::key(group, upto))
                {
                    tracing::warn!(%error, "files of the purged log were not removed early");
                }
            }
        }
    }
}

impl Gathered {
    /// An empty batch that encodes in `value`.
    fn new(value: Vec<u8>) -> Gathered {
        Gathered {
            batch: WriteBatch::default(),
            after: Vec::new(),
            value,
            entries: 0,
            bytes: 0,
            votes: 0,
            sync: false,
            stop: None,
        }
    }

    fn add(&mut self, meta: &ColumnFamily, job: Job) {
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
                self.put_committed(meta, group, &tail);
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
                self.batch.put_cf(meta, Meta::Vote.key(group), &vote);
                self.sync = true;
                self.after.push(After::Tell(done));
            }
            Job::Truncate {
                group,
                from,
                last_term,
                tail,
            } => {
                self.batch.delete_range(
                    record::key(group, from).as_slice(),
                    record::key(group, u64::MAX).as_slice(),
                );
                let last = last_term.zip(from.checked_sub(1));
                tail.lock().written.last = last;
            }
            Job::Purge {
                group,
                from,
                upto,
                log_id,
                tail,
            } => {
                self.purge(meta, group, (from, upto), &log_id);
                let mut tail = tail.lock();
                let written = &mut tail.written;
                written.start = written.start.max(upto + 1);
                written.last = written.last.filter(|(_, index)| *index > upto);
            }
            Job::Committed { group, tail } => self.put_committed(meta, group, &tail),
            Job::Sync { done } => {
                self.sync = true;
                self.after.push(After::Tell(done));
            }
            Job::Stop { done } => self.stop = Some(done),
        }
    }

    fn purge(
        &mut self,
        meta: &ColumnFamily,
        group: GroupId,
        (from, upto): (u64, u64),
        log_id: &[u8],
    ) {
        let mut value = upto.to_be_bytes().to_vec();
        value.extend_from_slice(log_id);
        self.batch.put_cf(meta, Meta::Purged.key(group), &value);
        if from <= upto {
            self.batch.delete_range(
                record::key(group, from).as_slice(),
                record::key(group, upto + 1).as_slice(),
            );
            self.after.push(After::DeleteFiles { group, upto });
        }
    }

    fn put_records(&mut self, group: GroupId, records: &[Record]) {
        for record in records {
            record.encode_into(&mut self.value);
            self.batch
                .put(record::key(group, record.index), &self.value);
            self.bytes += self.value.len();
            self.entries += 1;
        }
    }

    fn put_committed(&mut self, meta: &ColumnFamily, group: GroupId, tail: &Mutex<Tail>) {
        let committed = tail.lock().take_mark();
        if let Some(committed) = committed {
            self.batch
                .put_cf(meta, Meta::Committed.key(group), &committed);
        }
    }
}
