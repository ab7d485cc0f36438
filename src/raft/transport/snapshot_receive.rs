//! Receives a snapshot into `incoming/`, checks it, and gives it to Raft to install.
//!
//! Invariant: the present state is not touched before the last file is here, checked and synced. A transfer that
//! breaks off leaves its whole files behind for the next attempt.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tonic::{Status, Streaming};

use super::identity_check::IdentityCheck;
use super::rights::{NoRight, Rights};
use super::wellformed;
use crate::base::ids::GroupId;
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

/// Receives snapshots, one at a time.
pub struct SnapshotReceiver {
    group: GroupId,
    rights: Arc<Rights>,
    identity_check: Arc<IdentityCheck>,
    core: CoreRaft,
    snapshots: Arc<Snapshots>,
    metrics: Arc<Metrics>,
    /// Held during a transfer.
    turn: Mutex<()>,
}

/// Where the sender is told how far the transfer is.
type Steps = mpsc::Sender<Result<pb::SnapshotStep, Status>>;

/// A call that sends a snapshot.
pub struct Sender {
    /// Who calls.
    pub node: u64,
    pub parts: Streaming<pb::SnapshotPart>,
    pub steps: Steps,
}

impl SnapshotReceiver {
    /// Receives into `snapshots` and installs in `core` what leaders send.
    pub fn new(
        group: GroupId,
        rights: Arc<Rights>,
        identity_check: Arc<IdentityCheck>,
        core: CoreRaft,
        snapshots: Arc<Snapshots>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(SnapshotReceiver {
            group,
            rights,
            identity_check,
            core,
            snapshots,
            metrics,
            turn: Mutex::new(()),
        })
    }

    /// Runs one transfer to its end and tells the sender.
    pub async fn run(&self, sender: Sender) {
        let Sender { node, parts, steps } = sender;
        let result = self.receive(node, parts, &steps).await;
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

    /// Whether `from` may send this snapshot, and whether it can be.
    fn judge(&self, from: u64, begin: &pb::SnapshotBegin) -> Result<(), Status> {
        if begin.group != self.group.0 {
            let text = format!("no Raft group {} here", begin.group);
            return Err(Status::not_found(text));
        }
        let formed = wellformed::snapshot(begin);
        let formed = formed.map_err(|why| NoRight::IllFormed { from, why });
        let judged = formed.and_then(|_| self.rights.lead(from, begin.vote.as_ref()));
        judged.map_err(|why| {
            self.identity_check.no_right(from, &why);
            why.into()
        })
    }

    async fn receive(
        &self,
        from: u64,
        mut parts: Streaming<pb::SnapshotPart>,
        steps: &Steps,
    ) -> Result<pb::Vote, Status> {
        let Part::Begin(begin) = next(&mut parts).await? else {
            return Err(Status::invalid_argument(
                "a snapshot begins with its list of files",
            ));
        };
        // Before it waits for its turn: who may not send must not hold up who may.
        self.judge(from, &begin)?;
        let _turn = tokio::time::timeout(TURN_TIMEOUT, self.turn.lock())
            .await
            .map_err(|_| Status::unavailable("another snapshot is being received"))?;
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
                wellformed::chunk(chunk)
                    .map_err(|why| Status::invalid_argument(why.to_string()))?;
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
        let installed = self.install(vote, meta, database);
        tokio::pin!(installed);
        let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                vote = &mut installed => return vote,
                _ = progress.tick() => tell(steps, Step::Received(received)).await?,
            }
        }
    }

    async fn install(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        database: PathBuf,
    ) -> Result<pb::Vote, Status> {
        let snapshot = openraft::Snapshot {
            meta,
            snapshot: SnapshotData::Received(database),
        };
        let installed = self.core.install_full_snapshot(vote, snapshot).await;
        Ok(encoding::vote_to(&installed.map_err(internal)?.vote))
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

async fn next(parts: &mut Streaming<pb::SnapshotPart>) -> Result<Part, Status> {
    let part = tokio::time::timeout(SENDER_TIMEOUT, parts.message());
    let part = part
        .await
        .map_err(|_| Status::deadline_exceeded("the sender fell silent"))??;
    part.and_then(|part| part.part)
        .ok_or_else(|| Status::cancelled("the sender ended the transfer"))
}

async fn tell(steps: &Steps, step: Step) -> Result<(), Status> {
    let step = pb::SnapshotStep { step: Some(step) };
    steps
        .send(Ok(step))
        .await
        .map_err(|_| Status::cancelled("the sender is gone"))
}
