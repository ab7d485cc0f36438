//! The thread that applies committed entries, so that no task of Raft ever waits for the state.
//!
//! It is the only writer of the state. One job is one atomic write: all entries that were ready together,
//! their membership, and how far they go. It also takes the checkpoints and installs snapshots, because both
//! need the state to stand still.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Instant;

use openraft::storage::ApplyResponder;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, oneshot, watch};

use super::Apply;
use super::metrics::Metrics;
use super::type_config::{Entry, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig};
use super::wire;
use crate::base::ids::LogIndex;
use crate::machine::tables::{Backing, Tables};
use crate::storage::{GroupLog, OpenError, Snapshot, Snapshots, State, fatal};

/// Marks under the state's reserved prefix; for ever.
const APPLIED: &[u8] = b"applied";
const MEMBERSHIP: &[u8] = b"membership";

/// Jobs that may wait. The state machine's task waits for each, so more than a few never gather.
const QUEUE: usize = 16;

pub(super) type Responder = ApplyResponder<TypeConfig>;

pub(super) enum Job {
    Apply {
        entries: Vec<(Entry, Option<Responder>)>,
        done: oneshot::Sender<()>,
    },
    Snapshot {
        done: oneshot::Sender<Result<(SnapshotMeta, Snapshot), String>>,
    },
    Install {
        meta: SnapshotMeta,
        database: PathBuf,
        done: oneshot::Sender<Result<(), OpenError>>,
    },
    Stop {
        done: oneshot::Sender<()>,
    },
}

/// What the state says it holds.
pub(super) fn stored(state: &State) -> Result<(Option<LogId>, StoredMembership), wire::Malformed> {
    let applied = state
        .mark(APPLIED)
        .map(wire::log_id_from_bytes)
        .transpose()?;
    let membership = state.mark(MEMBERSHIP).map(wire::stored_from_bytes);
    Ok((applied, membership.transpose()?.unwrap_or_default()))
}

/// Handle of the thread.
#[derive(Clone)]
pub(super) struct Applier {
    jobs: mpsc::Sender<Job>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Applier {
    /// Starts the thread. `applied` tells every write's last index, `term` every change of the applied term.
    pub fn start(
        apply: Box<dyn Apply>,
        state: Arc<State>,
        snapshots: Arc<Snapshots>,
        log: GroupLog,
        metrics: Arc<Metrics>,
        applied: watch::Sender<LogIndex>,
        term: watch::Sender<u64>,
    ) -> std::io::Result<Applier> {
        let (last, membership) = stored(&state)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let mut worker = Worker {
            apply,
            state,
            snapshots,
            log,
            metrics,
            applied,
            term,
            last,
            membership,
        };
        let thread = std::thread::Builder::new()
            .name("apply".into())
            .spawn(move || {
                let _guard = StopProcessOnPanic;
                worker.restored();
                worker.run(queue);
            })?;
        Ok(Applier {
            jobs,
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    /// Does what is asked already, flushes the state, and ends the thread.
    pub async fn stop(&self) {
        let _ = self.ask(|done| Job::Stop { done }).await;
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Hands over a job; `None` when the thread has stopped.
    pub async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (done, finished) = oneshot::channel();
        self.jobs.send(job(done)).await.ok()?;
        finished.await.ok()
    }
}

/// A replica whose apply panicked must not go on: its state would differ from the others'.
struct StopProcessOnPanic;

impl Drop for StopProcessOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            fatal(
                "applying a committed batch",
                &"the state machine panicked; see above",
            );
        }
    }
}

struct Worker {
    apply: Box<dyn Apply>,
    state: Arc<State>,
    snapshots: Arc<Snapshots>,
    log: GroupLog,
    metrics: Arc<Metrics>,
    applied: watch::Sender<LogIndex>,
    term: watch::Sender<u64>,
    last: Option<LogId>,
    membership: StoredMembership,
}

impl Worker {
    fn run(&mut self, mut queue: mpsc::Receiver<Job>) {
        while let Some(job) = queue.blocking_recv() {
            // Whoever asked may have been cancelled; the job is done all the same.
            match job {
                Job::Apply { entries, done } => {
                    self.apply(entries);
                    let _ = done.send(());
                }
                Job::Snapshot { done } => {
                    let _ = done.send(self.snapshot());
                }
                Job::Install {
                    meta,
                    database,
                    done,
                } => {
                    let _ = done.send(self.install(meta, database));
                }
                Job::Stop { done } => {
                    self.state.flush();
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn apply(&mut self, entries: Vec<(Entry, Option<Responder>)>) {
        let started = Instant::now();
        let count = entries.len() as u64;
        let state = Arc::clone(&self.state);
        let mut tables = Tables::new(&*state as &dyn Backing);
        let mut responders = Vec::new();
        let mut bytes = 0;
        let mut changed = false;
        for (entry, responder) in entries {
            let index = LogIndex(entry.log_id.index);
            match entry.payload {
                Payload::Blank => {}
                Payload::Normal(batch) => {
                    bytes += batch.0.len();
                    self.apply.apply(index, batch.0, &mut tables);
                }
                Payload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership);
                    changed = true;
                }
            }
            self.last = Some(entry.log_id);
            responders.extend(responder);
        }
        let Some(last) = self.last else {
            return;
        };
        let applied = wire::log_id_to_bytes(&last);
        let mut marks = vec![(APPLIED, &applied[..])];
        let membership;
        if changed {
            membership = wire::stored_to(&self.membership).encode_to_vec();
            marks.push((MEMBERSHIP, &membership));
        }
        self.state.write(tables.into_changes(), &marks);
        self.apply.committed(LogIndex(last.index));
        self.publish(last);
        for responder in responders {
            responder.send(());
        }
        self.metrics.apply_us.observe_latency(started.elapsed());
        self.metrics.apply_entries.observe(count);
        self.metrics.apply_bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn publish(&self, last: LogId) {
        self.log.applied(last.index);
        self.applied.send_replace(LogIndex(last.index));
        let term = wire::term_of(&last);
        self.term.send_if_modified(|known| {
            let changed = *known != term;
            *known = term;
            changed
        });
    }

    fn restored(&mut self) {
        let index = LogIndex(self.last.map_or(0, |last| last.index));
        let state = Arc::clone(&self.state);
        self.apply.restored(&*state, index);
        if let Some(last) = self.last {
            self.publish(last);
        }
    }

    fn snapshot(&mut self) -> Result<(SnapshotMeta, Snapshot), String> {
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.membership.clone(),
        };
        let id = match &self.last {
            Some(last) => format!("{:020}-{:020}", last.index, wire::term_of(last)),
            None => format!("{:020}-{:020}", 0, 0),
        };
        if let Some(current) = self.snapshots.current()
            && current.id == id
        {
            return Ok((meta, current));
        }
        let path = self
            .snapshots
            .prepare(&id)
            .map_err(|error| error.to_string())?;
        self.state.checkpoint(&path)?;
        let bytes = wire::meta_to(&meta).encode_to_vec();
        let snapshot = self
            .snapshots
            .finish(&id, bytes.into())
            .map_err(|error| error.to_string())?;
        self.metrics.snapshots_built.fetch_add(1, Relaxed);
        Ok((meta, snapshot))
    }

    fn install(&mut self, meta: SnapshotMeta, database: PathBuf) -> Result<(), OpenError> {
        self.state.replace(&database)?;
        match stored(&self.state) {
            Ok((last, membership)) if last == meta.last_log_id => {
                self.last = last;
                self.membership = membership;
            }
            Ok(_) => fatal(
                "installing a snapshot",
                &"its content is not what was announced",
            ),
            Err(error) => fatal("installing a snapshot", &error),
        }
        self.metrics.snapshots_installed.fetch_add(1, Relaxed);
        self.restored();
        // Kept so that this replica can send it on; without it the next one is taken when needed.
        if let Err(error) = self.snapshot() {
            tracing::warn!(error, "no copy of the installed snapshot was kept");
        }
        Ok(())
    }
}
