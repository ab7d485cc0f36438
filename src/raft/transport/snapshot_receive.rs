//! Receives a snapshot into `incoming/`, checks it, and gives it to Raft to install.
//!
//! Invariant: the present state is not touched before the last file is here, checked and synced. A transfer that
//! breaks off leaves its whole files behind for the next attempt.
//! Invariant: nothing is received while a snapshot is being installed, even if its sender is gone: a new transfer
//! removes what others have left in `incoming/`, and the snapshot's files are there until they are moved.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::base::proto::raft::{self as pb, snapshot_part::Part, snapshot_step::Step};
use crate::raft::core::encoding;
use crate::raft::core::state_machine::{CoreRaft, SnapshotData};
use crate::raft::core::type_config::{SnapshotMeta, Vote};
use crate::raft::metrics::Metrics;
use crate::storage::{Incoming, SnapshotFile, Snapshots};

/// Longest wait for the sender's next message.
const SENDER_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of messages to the sender while the snapshot is installed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// A second sender is told to come back rather than to wait behind the first.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Installs a snapshot whose files are at this path. It moves them, unless it does not want them. The answer comes when
/// it is done with them.
pub type Install =
    Box<dyn Fn(Vote, SnapshotMeta, PathBuf) -> BoxFuture<'static, Installed> + Send + Sync>;

/// The vote of the replica that has installed a snapshot.
pub type Installed = Result<pb::Vote, Status>;

/// Installs in `core`.
pub fn install_in(core: CoreRaft) -> Install {
    Box::new(move |vote, meta, database| {
        let core = core.clone();
        let snapshot = openraft::Snapshot {
            meta,
            snapshot: SnapshotData::Received(database),
        };
        Box::pin(async move {
            let installed = core.install_full_snapshot(vote, snapshot).await;
            Ok(encoding::vote_to(&installed.map_err(internal)?.vote))
        })
    })
}

/// Receives snapshots, one at a time.
pub struct SnapshotReceiver {
    install: Install,
    snapshots: Arc<Snapshots>,
    metrics: Arc<Metrics>,
    /// Held during a transfer, and until its files are where they belong.
    turn: Arc<Mutex<()>>,
}

/// What the sender sends.
pub trait Parts: Stream<Item = Result<pb::SnapshotPart, Status>> + Send + Unpin {}

impl<S: Stream<Item = Result<pb::SnapshotPart, Status>> + Send + Unpin> Parts for S {}

/// Where the sender is told how far the transfer is.
pub type Steps = mpsc::Sender<Result<pb::SnapshotStep, Status>>;

impl SnapshotReceiver {
    /// Receives into `snapshots`.
    pub fn new(install: Install, snapshots: Arc<Snapshots>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(SnapshotReceiver {
            install,
            snapshots,
            metrics,
            turn: Arc::default(),
        })
    }

    /// Runs one transfer to its end and tells the sender through `steps`.
    pub async fn run(&self, parts: impl Parts, steps: Steps) {
        let result = self.receive(parts, &steps).await;
        let last = result.map(|vote| pb::SnapshotStep {
            step: Some(Step::Finished(vote)),
        });
        if let Err(status) = &last {
            tracing::warn!(
                error = status.message(),
                "a snapshot was not received to the end"
            );
        }
        // The sender may be gone; it asks again if it still needs to.
        let _ = steps.send(last).await;
    }

    async fn receive(&self, mut parts: impl Parts, steps: &Steps) -> Installed {
        let turn = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.turn).lock_owned())
            .await
            .map_err(|_| Status::unavailable("another snapshot is being received"))?;
        let Part::Begin(begin) = next(&mut parts).await? else {
            return Err(Status::invalid_argument(
                "a snapshot begins with its list of files",
            ));
        };
        let vote = encoding::some_vote(&begin.vote)?;
        let meta = encoding::meta_from(begin.meta.unwrap_or_default())?;
        let files = begin.files.into_iter().map(|file| SnapshotFile {
            name: file.name,
            bytes: file.bytes,
            crc: file.crc32c,
        });
        // It may remove gigabytes of a transfer that broke off.
        let (snapshots, id) = (Arc::clone(&self.snapshots), begin.id);
        let files = files.collect();
        let opened = tokio::task::spawn_blocking(move || {
            let incoming = snapshots.receive(&id, files)?;
            Ok::<_, std::io::Error>((incoming.have(), incoming))
        });
        let (files, mut incoming) = opened.await.map_err(internal)?.map_err(refused)?;
        let have = pb::SnapshotHave { files };
        tell(steps, Step::Have(have)).await?;
        let mut received = 0;
        let database = loop {
            let part = next(&mut parts).await?;
            if matches!(part, Part::Done(_)) {
                let done = tokio::task::spawn_blocking(move || incoming.done());
                break done.await.map_err(internal)?.map_err(internal)?;
            }
            if let Part::Chunk(chunk) = &part {
                received += chunk.data.len() as u64;
                let bytes = &self.metrics.snapshot_bytes_received;
                bytes.fetch_add(chunk.data.len() as u64, Relaxed);
            }
            let ended = matches!(part, Part::End(_));
            let stored = tokio::task::spawn_blocking(move || store(incoming, part));
            incoming = stored.await.map_err(internal)??;
            if ended {
                tell(steps, Step::Received(received)).await?;
            }
        };
        let mut installed = self.install(vote, meta, database, turn);
        let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                installed = &mut installed => return installed.map_err(internal)?,
                _ = progress.tick() => tell(steps, Step::Received(received)).await?,
            }
        }
    }

    /// Installs in a task that keeps the turn: it goes on when the sender is gone.
    fn install(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        database: PathBuf,
        turn: OwnedMutexGuard<()>,
    ) -> JoinHandle<Installed> {
        let installing = (self.install)(vote, meta, database.clone());
        tokio::spawn(async move {
            let _turn = turn;
            let installed = installing.await;
            if installed.is_ok() {
                // It is still there if the core did not want it: its leader is none any more, or it is older than what
                // this replica has. It may be gigabytes.
                let removed = tokio::task::spawn_blocking(move || Snapshots::forget(&database));
                removed.await.map_err(internal)?;
            }
            installed
        })
    }
}

/// What can't be received.
fn refused(error: std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::StorageFull => Status::resource_exhausted(error.to_string()),
        std::io::ErrorKind::InvalidInput => Status::invalid_argument(error.to_string()),
        _ => internal(error),
    }
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn store(mut incoming: Incoming, part: Part) -> Result<Incoming, Status> {
    match part {
        Part::Chunk(chunk) => incoming.chunk(chunk.file, chunk.offset, &chunk.data, chunk.crc32c),
        Part::End(end) => incoming.end_file(end.file, end.crc32c),
        Part::Begin(_) | Part::Done(_) => {
            return Err(Status::invalid_argument("a snapshot begins once"));
        }
    }
    .map_err(|error| Status::data_loss(error.to_string()))?;
    Ok(incoming)
}

/// The sender's next part.
///
/// # Errors
/// When it falls silent, or is gone.
pub async fn next(parts: &mut impl Parts) -> Result<Part, Status> {
    let part = tokio::time::timeout(SENDER_TIMEOUT, parts.next());
    let part = part
        .await
        .map_err(|_| Status::deadline_exceeded("the sender fell silent"))?;
    part.transpose()?
        .and_then(|part| part.part)
        .ok_or_else(|| Status::cancelled("the sender ended the transfer"))
}

async fn tell(steps: &Steps, step: Step) -> Result<(), Status> {
    let step = pb::SnapshotStep { step: Some(step) };
    steps
        .send(Ok(step))
        .await
        .map_err(|_| Status::cancelled("the sender is gone"))
}

#[cfg(test)]
#[path = "snapshot_receive_tests.rs"]
mod tests;
