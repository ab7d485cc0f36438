//! The log database: opens it, and owns the thread that writes it.
//!
//! Invariant: everything that changes the database goes through one bounded queue to one thread ([`super::flush`]), in
//! order. A truncation that overtook a queued append would bring stale entries back from the dead.
//!
//! It knows nothing of Raft's rules: votes and log ids are opaque bytes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;
use rocksdb::{DB, Options};
use tokio::sync::{mpsc, oneshot};

use super::flush::{BeforeSync, Flusher, Job};
use super::group_log::GroupLog;
use super::record::{self, META_FAMILY, Meta, Record};
use super::tail::{Tail, Written};
use crate::base::ids::GroupId;
use crate::storage::data_dir::{OpenError, create_dir};
use crate::storage::database::Database;
use crate::storage::metrics::LogMetrics;
use crate::storage::options;

/// Jobs waiting for the flush thread before callers wait. An append of a whole Raft batch is one job.
const QUEUE: usize = 4096;

/// The open log database.
pub struct LogDb {
    db: Arc<Database>,
    jobs: mpsc::Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    votes: Arc<AtomicUsize>,
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
        create_dir(path).map_err(|error| OpenError::io(path, error))?;
        let families = [
            ("default", options::log_entries()),
            (META_FAMILY, Options::default()),
        ];
        let db = Database::open(path, || {
            DB::open_cf_with_opts(&options::log(), path, families)
        })
        .map_err(|error| OpenError::database(path, &error))?;
        let db = Arc::new(db);
        let (jobs, queue) = mpsc::channel(QUEUE);
        let votes = Arc::new(AtomicUsize::new(0));
        let flusher = Flusher {
            db: Arc::clone(&db),
            queue,
            votes: Arc::clone(&votes),
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
            votes,
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
        Ok(GroupLog::new(
            group,
            Arc::clone(&self.db),
            self.jobs.clone(),
            tail,
            Arc::clone(&self.votes),
            Arc::clone(&self.metrics),
        ))
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

/// What the disk holds of `group`, with no entry in memory yet.
fn load(db: &DB, group: GroupId, limit: usize) -> Result<Tail, OpenError> {
    let path = db.path();
    let failed = |error: rocksdb::Error| OpenError::database(path, &error);
    let family = db
        .cf_handle(META_FAMILY)
        .ok_or_else(|| OpenError::damaged(path, "the log has no meta family"))?;
    let stored = |meta: Meta| -> Result<Option<Bytes>, OpenError> {
        let value = db.get_cf(family, meta.key(group)).map_err(failed)?;
        Ok(value.map(Bytes::from))
    };
    let mut tail = Tail::new(limit);
    tail.vote = stored(Meta::Vote)?;
    tail.committed = stored(Meta::Committed)?;
    if let Some(mut value) = stored(Meta::Purged)? {
        if value.len() < 8 {
            return Err(OpenError::damaged(
                path,
                "the log's purged log id is cut short",
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
    tail.written = Written {
        last: tail.last_term.map(|term| (term, tail.flushed)),
        start: tail.start,
    };
    Ok(tail)
}
