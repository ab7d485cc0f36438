//! Raft's view of the state: hands committed entries to the applier's thread in bounded portions, and snapshots
//! both ways.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use openraft::OptionalSend;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use prost::Message;
use tokio::sync::watch;

use super::applier::{self, Applier, Job, Responder};
use super::type_config::{Entry, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig};
use super::wire;
use crate::base::ids::LogIndex;
use crate::base::proto::raft as pb;
use crate::storage::{Snapshot, Snapshots, State};

/// Entries written to the state at once, however small they are.
const MAX_ENTRIES: usize = 4096;

/// Where a snapshot's files are.
#[derive(Clone, Debug)]
pub enum SnapshotData {
    /// Among this node's snapshots.
    Kept(Snapshot),
    /// A database received from a leader, to be moved into place.
    Received(PathBuf),
}

/// Raft's handle of the state.
pub struct StateMachine {
    applier: Applier,
    state: Arc<State>,
    snapshots: Arc<Snapshots>,
    apply_bytes: usize,
    committed: watch::Sender<LogIndex>,
}

impl StateMachine {
    pub(super) fn new(
        applier: Applier,
        state: Arc<State>,
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

pub(super) fn meta_of(snapshot: &Snapshot) -> io::Result<SnapshotMeta> {
    let meta = pb::SnapshotMeta::decode(snapshot.meta.clone())
        .map_err(|_| wire::Malformed { what: "snapshot" })?;
    Ok(wire::meta_from(meta)?)
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(applier::stored(&self.state)?)
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let mut portion = Vec::new();
        let mut bytes = 0;
        while let Some((entry, responder)) = entries.try_next().await? {
            if let Payload::Normal(batch) = &entry.payload {
                bytes += batch.0.len();
            }
            portion.push((entry, responder));
            if bytes >= self.apply_bytes || portion.len() >= MAX_ENTRIES {
                let entries = std::mem::take(&mut portion);
                bytes = 0;
                self.hand_over(entries).await?;
            }
        }
        if portion.is_empty() {
            return Ok(());
        }
        self.hand_over(portion).await
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            applier: self.applier.clone(),
            state: Arc::clone(&self.state),
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
pub struct Builder {
    applier: Applier,
    state: Arc<State>,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData>> {
        // Most of what has to reach the disk does so beside the applier, which then stands still for less.
        let state = Arc::clone(&self.state);
        tokio::task::spawn_blocking(move || state.flush())
            .await
            .map_err(io::Error::other)?;
        let built = self.applier.ask(|done| Job::Snapshot { done }).await;
        let (meta, snapshot) = built.ok_or_else(stopped)?.map_err(io::Error::other)?;
        Ok(openraft::Snapshot {
            meta,
            snapshot: SnapshotData::Kept(snapshot),
        })
    }
}
