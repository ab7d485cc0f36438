//! The thread that applies committed entries, so that no task of Raft ever waits for the state.
//!
//! It also takes checkpoints and installs snapshots, because both need the state to stand still.
//!
//! Invariant: this thread is the only writer of the state.
//! Invariant: the rows of all entries that were ready together, the last log id applied, and the membership are one
//! atomic write. It ends early at an entry after which the state is to be looked at, and when those before have taken
//! long: what they mean for clients is known only when they are written.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::storage::ApplyResponder;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, oneshot, watch};

use super::apply::Apply;
use super::encoding;
use super::removed::{self, Removed};
use super::type_config::{Entry, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig};
use crate::base::ids::LogIndex;
use crate::base::pulse::{Phase, busy};
use crate::machine::tables::{Backing, Changes, Tables};
use crate::raft::metrics::Metrics;
use crate::storage::{
    CheckpointError, GroupLog, OpenError, ReservedRows, Snapshot, Snapshots, StateDb, fatal,
};

/// Raft's own rows of the state. Names are for ever.
const APPLIED: &[u8] = b"applied";
const MEMBERSHIP: &[u8] = b"membership";
const REMOVED: &[u8] = b"removed";
/// The version of the machine that has applied the log.
pub const MACHINE: &[u8] = b"machine";

/// Entries are applied together until they have taken so long. One that is written for itself takes some ten
/// microseconds more.
const TOGETHER: Duration = Duration::from_millis(20);

/// Jobs that may wait. The state machine's task waits for each, so there are never more than a few.
const QUEUE: usize = 16;

pub type Responder = ApplyResponder<TypeConfig>;

/// Why no snapshot was taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The snapshot's directory could not be prepared or completed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The state could not be copied.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The thread has ended.
    #[error("the applier has stopped")]
    Stopped,
}

/// Why a received snapshot was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The state was not replaced: it stays as it was.
    #[error(transparent)]
    Replace(#[from] OpenError),
    /// The state was replaced, but no copy could be kept. The log must not be purged then: nobody could be brought up
    /// to date from this replica. The next start takes the copy.
    #[error("keeping a copy of the installed snapshot: {0}")]
    Keep(#[from] SnapshotError),
}

/// A checkpoint of the state.
pub enum Checkpoint {
    /// It became a snapshot earlier.
    Kept(SnapshotMeta, Snapshot),
    /// It lies where [`Snapshots::prepare`] said, and is no snapshot before [`Snapshots::finish`].
    Taken { meta: SnapshotMeta, id: String },
}

/// Takes a snapshot. The thread only makes the checkpoint; what is slow about it (syncing its files, removing the
/// snapshot that it replaces) is done beside it, so that apply goes on meanwhile.
///
/// # Errors
/// When the disk or RocksDB refuses; the former snapshot stays.
pub async fn take_snapshot(
    applier: &StateMachineApplier,
    snapshots: &Arc<Snapshots>,
) -> Result<(SnapshotMeta, Snapshot), SnapshotError> {
    let taken = applier.ask(|done| Job::Snapshot { done }).await;
    match taken.ok_or(SnapshotError::Stopped)?? {
        Checkpoint::Kept(meta, snapshot) => Ok((meta, snapshot)),
        Checkpoint::Taken { meta, id } => {
            let snapshots = Arc::clone(snapshots);
            let finishing = tokio::task::spawn_blocking(move || finish(&snapshots, meta, &id));
            finishing.await.map_err(std::io::Error::other)?
        }
    }
}

fn finish(
    snapshots: &Snapshots,
    meta: SnapshotMeta,
    id: &str,
) -> Result<(SnapshotMeta, Snapshot), SnapshotError> {
    let bytes = encoding::meta_to(&meta).encode_to_vec();
    let snapshot = snapshots.finish(id, bytes.into())?;
    Ok((meta, snapshot))
}

/// What the thread is asked to do.
pub enum Job {
    Apply {
        entries: Vec<(Entry, Option<Responder>)>,
        done: oneshot::Sender<()>,
    },
    Snapshot {
        done: oneshot::Sender<Result<Checkpoint, SnapshotError>>,
    },
    Install {
        meta: SnapshotMeta,
        database: PathBuf,
        done: oneshot::Sender<Result<(), InstallError>>,
    },
    Stop {
        done: oneshot::Sender<()>,
    },
}

/// The last log id applied, and the membership, as the state holds them.
pub fn stored(state: &StateDb) -> Result<(Option<LogId>, StoredMembership), encoding::Malformed> {
    decoded(state.reserved(APPLIED), state.reserved(MEMBERSHIP))
}

fn decoded(
    applied: Option<Bytes>,
    membership: Option<Bytes>,
) -> Result<(Option<LogId>, StoredMembership), encoding::Malformed> {
    let applied = applied.map(encoding::log_id_from_bytes).transpose()?;
    let membership = membership.map(encoding::stored_from_bytes).transpose()?;
    Ok((applied, membership.unwrap_or_default()))
}

/// The last log id applied, the membership, and who was removed.
type Received = (Option<LogId>, StoredMembership, BTreeSet<u64>);

/// What a received state holds, if it is what `meta` announces, and was applied by the `machine` of this node.
fn received(
    rows: &ReservedRows<'_>,
    meta: &SnapshotMeta,
    machine: Option<&Bytes>,
) -> Result<Received, String> {
    let row = |name: &[u8]| rows(name).map_err(|error| error.to_string());
    let found = decoded(row(APPLIED)?, row(MEMBERSHIP)?).map_err(|error| error.to_string())?;
    let removed = removed::from_row(row(REMOVED)?).map_err(|error| error.to_string())?;
    if found.0 != meta.last_log_id {
        return Err("the received snapshot holds something else than was announced".to_owned());
    }
    if row(MACHINE)?.as_ref() != machine {
        return Err("the received snapshot was applied by another machine version".to_owned());
    }
    Ok((found.0, found.1, removed))
}

/// What the thread works on, and whom it tells.
pub struct Target {
    pub state: Arc<StateDb>,
    pub snapshots: Arc<Snapshots>,
    /// Told which entries it need not keep in memory any more.
    pub log: GroupLog,
    pub metrics: Arc<Metrics>,
    /// Told the last index of every write.
    pub applied: watch::Sender<LogIndex>,
    /// Told every change of the term of the last entry applied.
    pub term: watch::Sender<u64>,
    /// Told who is removed from the membership, before [`Target::applied`] is.
    pub removed: Removed,
}

/// Handle of the thread.
#[derive(Clone)]
pub struct StateMachineApplier {
    jobs: mpsc::Sender<Job>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl StateMachineApplier {
    /// Starts the thread, and then calls [`Apply::restored`] on it.
    pub fn start(apply: Box<dyn Apply>, target: Target) -> std::io::Result<StateMachineApplier> {
        let (last, membership) = stored(&target.state)?;
        let gone = removed::from_row(target.state.reserved(REMOVED))?;
        target.removed.replace(gone);
        let (jobs, queue) = mpsc::channel(QUEUE);
        let mut worker = Worker {
            apply,
            target,
            last,
            membership,
        };
        let thread = std::thread::Builder::new()
            .name("apply".into())
            .spawn(move || {
                let _guard = StopProcessOnPanic;
                busy(Phase::Restore, || worker.restored());
                worker.run(queue);
            })?;
        Ok(StateMachineApplier {
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

/// Ends the process when apply panicked: the replica's state would differ from the others'.
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

/// The thread's state.
struct Worker {
    apply: Box<dyn Apply>,
    target: Target,
    /// The last log id applied.
    last: Option<LogId>,
    /// The membership in force at `last`.
    membership: StoredMembership,
}

impl Worker {
    fn run(&mut self, mut queue: mpsc::Receiver<Job>) {
        while let Some(job) = queue.blocking_recv() {
            // The caller may have been cancelled; the job is done all the same.
            match job {
                Job::Apply { entries, done } => {
                    busy(Phase::Apply, || {
                        self.apply(entries);
                        let _ = done.send(());
                    });
                }
                Job::Snapshot { done } => {
                    let taken = busy(Phase::Snapshot, || self.checkpoint());
                    let _ = done.send(taken);
                }
                Job::Install {
                    meta,
                    database,
                    done,
                } => {
                    let installed = busy(Phase::Snapshot, || self.install(meta, database));
                    let _ = done.send(installed);
                }
                Job::Stop { done } => {
                    busy(Phase::Snapshot, || self.target.state.flush());
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn apply(&mut self, entries: Vec<(Entry, Option<Responder>)>) {
        let mut entries = entries.into_iter();
        while !entries.as_slice().is_empty() {
            self.apply_run(&mut entries);
        }
    }

    /// Applies entries, and writes what they did at once, up to one after which the state is to be looked at, or until
    /// that has taken long.
    fn apply_run(&mut self, entries: &mut impl Iterator<Item = (Entry, Option<Responder>)>) {
        let started = Instant::now();
        let state = Arc::clone(&self.target.state);
        let mut tables = Tables::new(&*state as &dyn Backing);
        let mut responders = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        let mut changed = false;
        let mut look = None;
        for (entry, responder) in entries {
            count += 1;
            let index = LogIndex(entry.log_id.index);
            match entry.payload {
                Payload::Blank => {}
                Payload::Normal(batch) => {
                    bytes += batch.0.len();
                    self.apply.apply(index, batch.0, &mut tables);
                    look = self.apply.look();
                }
                Payload::Membership(membership) => {
                    let before = self.membership.membership();
                    self.target.removed.change(before, &membership);
                    self.membership = StoredMembership::new(Some(entry.log_id), membership);
                    changed = true;
                }
            }
            self.last = Some(entry.log_id);
            responders.extend(responder);
            if look.is_some() || started.elapsed() >= TOGETHER {
                break;
            }
        }
        let Some(last) = self.last else {
            return;
        };
        self.write(tables.into_changes(), last, changed);
        if let Some(look) = look
            && let Err(error) = state.look(look)
        {
            tracing::warn!(%error, "the state can't be looked at");
        }
        self.apply.committed(LogIndex(last.index));
        if let Some(why) = self.apply.diverged() {
            state.give_up(&why);
        }
        self.publish(last);
        for responder in responders {
            responder.send(());
        }
        let metrics = &self.target.metrics;
        metrics.apply_us.observe_latency(started.elapsed());
        metrics.apply_entries.observe(count);
        metrics.apply_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Writes rows with the log id that they go up to, and the membership if it has changed.
    fn write(&self, changes: Changes, last: LogId, membership_changed: bool) {
        let applied = encoding::log_id_to_bytes(&last);
        let mut reserved = vec![(APPLIED, &applied[..])];
        let (membership, removed);
        if membership_changed {
            membership = encoding::stored_to(&self.membership).encode_to_vec();
            removed = self.target.removed.to_row();
            reserved.push((MEMBERSHIP, &membership));
            reserved.push((REMOVED, &removed));
        }
        self.target.state.write(changes, &reserved);
    }

    fn publish(&self, last: LogId) {
        self.target.log.applied(last.index);
        self.target.applied.send_replace(LogIndex(last.index));
        let term = encoding::term_of(&last);
        self.target.term.send_if_modified(|known| {
            let changed = *known != term;
            *known = term;
            changed
        });
    }

    fn restored(&mut self) {
        let index = LogIndex(self.last.map_or(0, |last| last.index));
        let state = Arc::clone(&self.target.state);
        self.apply.restored(&*state, index);
        if let Some(last) = self.last {
            self.publish(last);
        }
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, SnapshotError> {
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.membership.clone(),
        };
        let (index, term) = match &self.last {
            Some(last) => (last.index, encoding::term_of(last)),
            None => (0, 0),
        };
        // A version of the machine that has taken the state over has the same rows but its own mark.
        let machine = self.target.state.reserved(MACHINE);
        let machine = machine.and_then(|row| row[..].try_into().ok());
        let machine = machine.map_or(0, u32::from_be_bytes);
        let id = format!("{index:020}-{term:020}-{machine:010}");
        if let Some(current) = self.target.snapshots.current()
            && current.id == id
        {
            return Ok(Checkpoint::Kept(meta, current));
        }
        let path = self.target.snapshots.prepare(&id)?;
        self.target.state.checkpoint(&path)?;
        self.target.metrics.snapshots_built.fetch_add(1, Relaxed);
        Ok(Checkpoint::Taken { meta, id })
    }

    fn install(&mut self, meta: SnapshotMeta, database: PathBuf) -> Result<(), InstallError> {
        let state = &self.target.state;
        // This node's own version, ever since it took the state over.
        let machine = state.reserved(MACHINE);
        let check = |rows: &ReservedRows<'_>| received(rows, &meta, machine.as_ref());
        let removed;
        (self.last, self.membership, removed) = state.replace_checked(&database, check)?;
        self.target.removed.replace(removed);
        self.target
            .metrics
            .snapshots_installed
            .fetch_add(1, Relaxed);
        self.restored();
        // Kept so that this replica can send it on: what it covers is purged from the log next. This replica has
        // nothing else to apply meanwhile.
        if let Checkpoint::Taken { meta, id } = self.checkpoint()? {
            finish(&self.target.snapshots, meta, &id)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "applier_tests.rs"]
mod tests;
