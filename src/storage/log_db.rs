//! The log database: entries, vote and marks of every group of this node, in one RocksDB with a synced WAL.
//!
//! Everything that changes it goes through one bounded queue to one thread (see [`super::log_flush`]), in order:
//! a truncation that overtook a queued append would bring stale entries back from the dead. What callers see
//! changes at once, in memory; what is durable is told by the callback. A failed write or sync ends the process.
//!
//! It knows nothing of Raft's rules: votes and marks are opaque bytes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;
use rocksdb::{DB, Options, ReadOptions};
use tokio::sync::{mpsc, oneshot};

use super::OpenError;
use super::database::Database;
use super::fatal::fatal;
use super::log_flush::{Flusher, Job};
use super::metrics::LogMetrics;
use super::options;
use super::record::{self, Record};
use super::tail::{Found, Tail};
use crate::base::ids::GroupId;

/// Jobs waiting for the flush thread before callers wait. An append of a whole Raft batch is one job.
const QUEUE: usize = 4096;

/// Family of votes and marks. Key: `group u32 BE | mark u8`.
pub(super) const META: &str = "meta";
pub(super) const MARK_VOTE: u8 = 1;
pub(super) const MARK_PURGED: u8 = 2;
pub(super) const MARK_COMMITTED: u8 = 3;

pub(super) fn meta_key(group: GroupId, mark: u8) -> [u8; 5] {
    let mut key = [mark; 5];
    key[..4].copy_from_slice(&group.0.to_be_bytes());
    key
}

/// Called once the entries of an append are durable.
pub type Durable = Box<dyn FnOnce() + Send>;

/// Runs on the flush thread before each sync: a slow disk, for fault injection.
pub type BeforeSync = Arc<dyn Fn() + Send + Sync>;

/// The open log database.
pub struct LogDb {
    db: Arc<Database>,
    jobs: mpsc::Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    metrics: Arc<LogMetrics>,
}

impl LogDb {
    /// Opens or creates the database at `path`.
    ///
    /// # Errors
    /// When RocksDB can't open it, for example because a file other than the WAL's tail is damaged.
    pub fn open(
        path: &Path,
        metrics: Arc<LogMetrics>,
        before_sync: Option<BeforeSync>,
    ) -> Result<LogDb, OpenError> {
        let families = [
            ("default", options::log_entries()),
            (META, Options::default()),
        ];
        let db = Database::open(path, || {
            DB::open_cf_with_opts(&options::log(), path, families)
        })
        .map_err(|error| OpenError::database(path, &error))?;
        let db = Arc::new(db);
        let (jobs, queue) = mpsc::channel(QUEUE);
        let flusher = Flusher {
            db: Arc::clone(&db),
            queue,
            metrics: Arc::clone(&metrics),
            before_sync,
        };
        let thread = std::thread::Builder::new()
            .name("log-flush".into())
            .spawn(move || flusher.run())
            .map_err(|error| OpenError::io(path, error))?;
        Ok(LogDb {
            db,
            jobs,
            thread: Mutex::new(Some(thread)),
            metrics,
        })
    }

    /// The log of `group`, with at most about `cache_bytes` of its newest entries kept in memory once they are
    /// durable and applied. Opened once per group.
    ///
    /// # Errors
    /// When what is stored can't be read.
    pub fn group(&self, group: GroupId, cache_bytes: usize) -> Result<GroupLog, OpenError> {
        let tail = load(&self.db, group, cache_bytes)?;
        Ok(GroupLog {
            group,
            db: Arc::clone(&self.db),
            jobs: self.jobs.clone(),
            tail: Arc::new(Mutex::new(tail)),
            metrics: Arc::clone(&self.metrics),
        })
    }

    /// Writes what is queued and ends the flush thread. [`GroupLog`]s must not be used afterwards.
    pub async fn close(&self) {
        let (done, finished) = oneshot::channel();
        if self.jobs.send(Job::Stop { done }).await.is_ok() {
            // An error means the thread has ended already.
            let _ = finished.await;
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

fn load(db: &DB, group: GroupId, limit: usize) -> Result<Tail, OpenError> {
    let path = db.path();
    let failed = |error: rocksdb::Error| OpenError::database(path, &error);
    let meta = db
        .cf_handle(META)
        .ok_or_else(|| OpenError::damaged(path, "the log has no meta family"))?;
    let mark = |mark| -> Result<Option<Bytes>, OpenError> {
        let value = db.get_cf(meta, meta_key(group, mark)).map_err(failed)?;
        Ok(value.map(Bytes::from))
    };
    let mut tail = Tail::new(limit);
    tail.vote = mark(MARK_VOTE)?;
    tail.committed = mark(MARK_COMMITTED)?;
    if let Some(mut value) = mark(MARK_PURGED)? {
        if value.len() < 8 {
            return Err(OpenError::damaged(
                path,
                "the log's purge mark is cut short",
            ));
        }
        let index = u64::from_be_bytes(value.split_to(8)[..].try_into().unwrap_or_default());
        tail.start = index + 1;
        tail.purged = Some(value);
    }
    tail.next = tail.start;
    let mut newest = db.raw_iterator();
    newest.seek_for_prev(record::key(group, u64::MAX));
    newest.status().map_err(failed)?;
    if let Some((key, value)) = newest.item()
        && let Some(index) = record::index_of(group, key)
        && index >= tail.start
    {
        let record = Record::decode(index, value)
            .ok_or_else(|| OpenError::damaged(path, format!("log entry {index} is cut short")))?;
        tail.next = index + 1;
        tail.last_term = Some(record.term);
    }
    tail.flushed = tail.next.saturating_sub(1);
    Ok(tail)
}

/// First and last of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First index that may be held; everything below is purged.
    pub start: u64,
    /// The mark given with the last purge.
    pub purged: Option<Bytes>,
    /// Term and index of the last entry held.
    pub last: Option<(u64, u64)>,
}

/// The log of one group. Clones are the same log.
#[derive(Clone)]
pub struct GroupLog {
    group: GroupId,
    db: Arc<Database>,
    jobs: mpsc::Sender<Job>,
    tail: Arc<Mutex<Tail>>,
    metrics: Arc<LogMetrics>,
}

impl GroupLog {
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

    /// Bytes of entries in memory: those not yet durable or applied, and the cache.
    pub fn bytes_in_memory(&self) -> usize {
        self.tail.lock().bytes()
    }

    /// Nothing is written any more.
    pub fn is_closed(&self) -> bool {
        self.jobs.is_closed()
    }

    /// The vote last saved.
    pub fn vote(&self) -> Option<Bytes> {
        self.tail.lock().vote.clone()
    }

    /// The commit mark last given.
    pub fn committed(&self) -> Option<Bytes> {
        self.tail.lock().committed.clone()
    }

    /// Appends consecutive entries. They are readable on return; `durable` is called from the flush thread once
    /// they are synced, in the order of the appends.
    ///
    /// # Errors
    /// When the log is closed; nothing was queued then.
    pub async fn append(&self, records: Vec<Record>, durable: Durable) -> io::Result<()> {
        {
            let mut tail = self.tail.lock();
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
            tail: Arc::clone(&self.tail),
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

    /// Notes how far entries are known to be committed. Written with the next entries, or by
    /// [`GroupLog::write_committed`]: a crash may bring back an older mark, never a newer one.
    pub fn save_committed(&self, committed: Option<Bytes>) {
        let mut tail = self.tail.lock();
        tail.committed_dirty = committed.is_some();
        tail.committed = committed;
    }

    /// Writes the commit mark if it changed since it was last written.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn write_committed(&self) -> io::Result<()> {
        if !self.tail.lock().committed_dirty {
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
            Some(last) => self
                .read(last, from, usize::MAX)
                .await
                .first()
                .map(|record| record.term),
            None => None,
        };
        self.tail.lock().truncate(from, last_term);
        self.send(Job::Truncate {
            group: self.group,
            from,
        })
        .await
    }

    /// Removes every entry up to and including `upto`, and keeps `mark` in their place. Gone for readers on
    /// return; the files go later.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn purge(&self, upto: u64, mark: Bytes) -> io::Result<()> {
        let from = {
            let mut tail = self.tail.lock();
            let from = tail.start;
            tail.purge(upto);
            tail.purged = Some(mark.clone());
            from
        };
        self.send(Job::Purge {
            group: self.group,
            from,
            upto,
            mark,
        })
        .await
    }

    /// Tells that everything up to `index` is applied and need not be kept in memory for that.
    pub fn applied(&self, index: u64) {
        let mut tail = self.tail.lock();
        tail.applied = tail.applied.max(index);
        tail.evict();
    }

    /// Term of the entry at `index`, when it is in memory.
    pub fn cached_term(&self, index: u64) -> Option<u64> {
        self.tail.lock().term_of(index)
    }

    /// The entries of `[start, end)` the log holds, in order and without holes; the first part of them once
    /// `max_bytes` are exceeded, but at least one. Stored entries that can't be read end the process.
    pub async fn read(&self, start: u64, end: u64, max_bytes: usize) -> Vec<Record> {
        loop {
            let found = self.tail.lock().read(start, end, max_bytes);
            let (start, disk_end, rest, generation) = match found {
                Found::All(records) => return records,
                Found::Partly {
                    start,
                    disk_end,
                    rest,
                    generation,
                } => (start, disk_end, rest, generation),
            };
            let (db, group) = (Arc::clone(&self.db), self.group);
            let read = tokio::task::spawn_blocking(move || {
                read_disk(&db, group, start, disk_end, max_bytes)
            });
            // Fails only when the runtime is shutting down; nobody waits for the answer then.
            let (mut records, whole) = read.await.unwrap_or_default();
            self.metrics
                .disk_reads
                .fetch_add(records.len() as u64, Relaxed);
            if self.tail.lock().generation != generation {
                continue;
            }
            if !whole {
                return records;
            }
            let mut bytes: usize = records.iter().map(Record::weight).sum();
            for record in rest {
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

/// Entries `[start, end)` from disk and whether all of them fitted into `max_bytes`.
fn read_disk(
    db: &DB,
    group: GroupId,
    start: u64,
    end: u64,
    max_bytes: usize,
) -> (Vec<Record>, bool) {
    let mut read = ReadOptions::default();
    read.set_iterate_upper_bound(record::key(group, end).to_vec());
    read.set_readahead_size(1 << 20);
    let mut rows = db.raw_iterator_opt(read);
    rows.seek(record::key(group, start));
    let mut records = Vec::new();
    let mut bytes = 0;
    let mut expected = start;
    while let Some((key, value)) = rows.item() {
        if bytes >= max_bytes {
            return (records, false);
        }
        let record = match record::index_of(group, key) {
            Some(index) if index == expected => Record::decode(index, value),
            _ => None,
        };
        let Some(record) = record else {
            // A purge or truncation under way may leave a hole; the caller notices and reads again.
            return (records, false);
        };
        bytes += record.weight();
        expected += 1;
        records.push(record);
        rows.next();
    }
    if let Err(error) = rows.status() {
        fatal("reading the log", &error);
    }
    (records, expected == end)
}
