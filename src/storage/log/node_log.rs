//! The log: opens it, and owns the thread that writes it.
//!
//! Invariant: everything that changes the log goes through one bounded queue to one thread ([`super::flush`]), in
//! order. A truncation that overtook a queued append would bring stale entries back from the dead.
//!
//! It knows nothing of Raft's rules: votes and log ids are opaque bytes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::flush::{BeforeSync, Flusher, Job};
use super::group_log::GroupLog;
use super::index::Index;
use super::recovery::{Recovered, recover};
use super::segment::ANY_LOG;
use super::spare::StopOnPanic;
use super::tail::{Tail, Written};
use super::writer::Writer;
use crate::base::ids::GroupId;
use crate::storage::files::{create_dir, sync_dir};
use crate::storage::metrics::LogMetrics;
use crate::storage::open_error::OpenError;
use crate::storage::space::Space;

/// Jobs waiting for the flush thread before callers wait. An append of a whole Raft batch is one job.
const QUEUE: usize = 4096;

/// The open log.
pub struct NodeLog {
    index: Arc<Mutex<Index>>,
    jobs: mpsc::Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    votes: Arc<AtomicUsize>,
    leave: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
    metrics: Arc<LogMetrics>,
}

impl NodeLog {
    /// Opens or creates the log in the directory `path`.
    ///
    /// # Errors
    /// When it can't be read or made, or when anything but its end is damaged or missing.
    pub fn open(
        path: &Path,
        metrics: Arc<LogMetrics>,
        before_sync: Option<BeforeSync>,
    ) -> Result<NodeLog, OpenError> {
        let (index, writer) = open_writer(path)?;
        NodeLog::start(path, index, writer, metrics, before_sync)
    }

    /// Opens the log in the directory `path`; `None`, and nothing is changed, when there is none.
    ///
    /// # Errors
    /// As for [`NodeLog::open`].
    pub fn open_existing(
        path: &Path,
        metrics: Arc<LogMetrics>,
        before_sync: Option<BeforeSync>,
    ) -> Result<Option<NodeLog>, OpenError> {
        let recovered = recover(path)?;
        if recovered.log.is_none() {
            return Ok(None);
        }
        let (index, writer) = write_on(path, recovered)?;
        NodeLog::start(path, index, writer, metrics, before_sync).map(Some)
    }

    fn start(
        path: &Path,
        index: Arc<Mutex<Index>>,
        writer: Writer,
        metrics: Arc<LogMetrics>,
        before_sync: Option<BeforeSync>,
    ) -> Result<NodeLog, OpenError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let votes = Arc::new(AtomicUsize::new(0));
        let (leave, closed) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let flusher = Flusher {
            leave: Arc::clone(&leave),
            closed: Arc::clone(&closed),
            _stop_on_panic: StopOnPanic("writing the log"),
            writer,
            queue,
            votes: Arc::clone(&votes),
            metrics: Arc::clone(&metrics),
            before_sync,
        };
        let thread = std::thread::Builder::new()
            .name("log-flush".into())
            .spawn(move || flusher.run())
            .map_err(|error| OpenError::io(path, error))?;
        Ok(NodeLog {
            index,
            jobs,
            thread: Mutex::new(Some(thread)),
            votes,
            leave,
            closed,
            metrics,
        })
    }

    /// The log of `group`, with at most about `cache_bytes` of its newest entries kept in memory once they are
    /// durable and applied. Opened once per group.
    pub fn group(&self, group: GroupId, cache_bytes: usize) -> GroupLog {
        GroupLog::new(
            group,
            Arc::clone(&self.index),
            self.jobs.clone(),
            tail(&self.index.lock(), group, cache_bytes),
            Arc::clone(&self.votes),
            Arc::clone(&self.closed),
            Arc::clone(&self.metrics),
        )
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

impl Drop for NodeLog {
    fn drop(&mut self) {
        // A start that fails does not close the log. The next one must not find its threads at work.
        if let Some(thread) = self.thread.get_mut().take() {
            self.leave.store(true, Release);
            // It does not wait for a job where there is no room for this one.
            let _ = self.jobs.try_send(Job::Leave);
            let _ = thread.join();
        }
    }
}

/// Opens or creates the segments in `path`.
pub fn open_writer(path: &Path) -> Result<(Arc<Mutex<Index>>, Writer), OpenError> {
    create_dir(path).map_err(|error| OpenError::io(path, error))?;
    write_on(path, recover(path)?)
}

/// Goes on with the segments in `path`.
fn write_on(
    path: &Path,
    mut recovered: Recovered,
) -> Result<(Arc<Mutex<Index>>, Writer), OpenError> {
    let failed = |error: io::Error| OpenError::io(path, error);
    recovered.settle().map_err(failed)?;
    // The segment behind the end may have got its name just before the last process ended.
    sync_dir(path).map_err(failed)?;
    let volume = Space::of(path).map_err(failed)?.total_bytes;
    if let Some((index, end)) = recovered.log {
        let index = Arc::new(Mutex::new(index));
        let writer = Writer::open(path, volume, Arc::clone(&index), end, recovered.ready);
        return Ok((index, writer.map_err(failed)?));
    }
    let log = getrandom::u64().map_err(|error| failed(io::Error::other(error)))?;
    let log = log.max(ANY_LOG + 1);
    let index = Arc::new(Mutex::new(Index::default()));
    let writer = Writer::create(path, log, volume, Arc::clone(&index)).map_err(failed)?;
    Ok((index, writer))
}

/// What the disk holds of `group`, with no entry in memory yet.
fn tail(index: &Index, group: GroupId, limit: usize) -> Tail {
    let known = index.groups.get(&group).cloned().unwrap_or_default();
    let mut tail = Tail::new(limit);
    tail.next = known.next();
    tail.start = known.start;
    tail.last_term = known.last.map(|(term, _)| term);
    tail.flushed = tail.next.saturating_sub(1);
    tail.written = Written {
        last: known.last,
        start: known.start,
    };
    tail.vote = known.vote;
    tail.committed = known.committed;
    tail.purged = known.purged.map(|(_, log_id)| log_id);
    tail
}
