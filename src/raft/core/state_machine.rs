//! Raft's view of the state: passes committed entries to the applier's thread in bounded chunks, and snapshots both
//! ways.
//!
//! Invariant: the highest index handed over is published (`committed`) before its entries are applied.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use openraft::OptionalSend;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use prost::Message;
use tokio::sync::watch;

use super::applier::{self, Job, Responder, StateMachineApplier};
use super::encoding;
use super::type_config::{Entry, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig};
use crate::base::ids::LogIndex;
use crate::base::proto::raft as pb;
use crate::storage::{Snapshot, Snapshots, StateDb};

/// Entries that are applied in one write, however small they are.
const MAX_ENTRIES: usize = 4096;

/// Where a snapshot's files are.
#[derive(Clone, Debug)]
pub enum SnapshotData {
    /// A complete snapshot of this node.
    Kept(Snapshot),
    /// A database received from a leader, to be moved into place.
    Received(PathBuf),
}

/// The Raft library's core over this state machine.
pub type CoreRaft = openraft::Raft<TypeConfig, StateMachine>;

/// Raft's handle of the state.
pub struct StateMachine {
    applier: StateMachineApplier,
    state: Arc<StateDb>,
    snapshots: Arc<Snapshots>,
    apply_bytes: usize,
    committed: watch::Sender<LogIndex>,
}

impl StateMachine {
    pub fn new(
        applier: StateMachineApplier,
        state: Arc<StateDb>,
        snapshots: Arc<Snapshots>,
        apply_bytes: usize,
        committed: watch::Sender<LogIndex>,
    ) -> Self {
        StateMachine {
            applier,
            state,
            snapshots,
            apply_bytes,
            committed,
        }
    }

    async fn hand_over(&self, entries: Vec<(Entry, Option<Responder>)>) -> io::Result<()> {
        if let Some((last, _)) = entries.last() {
            self.committed.send_replace(LogIndex(last.log_id.index));
        }
        let job = |done| Job::Apply { entries, done };
        self.applier.ask(job).await.ok_or_else(stopped)
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the applier has stopped")
}

/// What a snapshot covers.
pub fn meta_of(snapshot: &Snapshot) -> io::Result<SnapshotMeta> {
    let meta = pb::SnapshotMeta::decode(snapshot.meta.clone())
        .map_err(|_| encoding::Malformed { what: "snapshot" })?;
    Ok(encoding::meta_from(meta)?)
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(applier::stored(&self.state)?)
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while let Some((entry, responder)) = entries.try_next().await? {
            if let Payload::Normal(batch) = &entry.payload {
                bytes += batch.0.len();
            }
            chunk.push((entry, responder));
            if bytes >= self.apply_bytes || chunk.len() >= MAX_ENTRIES {
                let entries = std::mem::take(&mut chunk);
                bytes = 0;
                self.hand_over(entries).await?;
            }
        }
        if chunk.is_empty() {
            return Ok(());
        }
        self.hand_over(chunk).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            applier: self.applier.clone(),
            state: Arc::clone(&self.state),
            snapshots: Arc::clone(&self.snapshots),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: SnapshotData,
    ) -> io::Result<()> {
        let database = match snapshot {
            SnapshotData::Received(path) => path,
            SnapshotData::Kept(snapshot) => {
                let path = self.snapshots.scratch("copy");
                let target = path.clone();
                tokio::task::spawn_blocking(move || snapshot.copy_to(&target))
                    .await
                    .map_err(io::Error::other)??;
                path
            }
        };
        let meta = meta.clone();
        let job = |done| Job::Install {
            meta,
            database,
            done,
        };
        let installed = self.applier.ask(job).await.ok_or_else(stopped)?;
        installed.map_err(io::Error::other)
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData>>> {
        let Some(snapshot) = self.snapshots.current() else {
            return Ok(None);
        };
        Ok(Some(openraft::Snapshot {
            meta: meta_of(&snapshot)?,
            snapshot: SnapshotData::Kept(snapshot),
        }))
    }
}

/// Takes snapshots.
pub struct SnapshotBuilder {
    applier: StateMachineApplier,
    state: Arc<StateDb>,
    snapshots: Arc<Snapshots>,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData>> {
        // Flushed here first, so that the applier, which stands still for the checkpoint, has little left to flush. The
        // second time flushes what came during the first, which may have taken seconds.
        for _ in 0..2 {
            let state = Arc::clone(&self.state);
            tokio::task::spawn_blocking(move || state.flush())
                .await
                .map_err(io::Error::other)?;
        }
        let built = applier::take_snapshot(&self.applier, &self.snapshots).await;
        let (meta, snapshot) = built.map_err(io::Error::other)?;
        Ok(openraft::Snapshot {
            meta,
            snapshot: SnapshotData::Kept(snapshot),
        })
    }
}
