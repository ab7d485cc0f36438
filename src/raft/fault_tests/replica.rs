//! A replica without its core, and what it applies.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use crate::base::ids::{LogIndex, NodeId};
use crate::machine::tables::{Backing, Tables};
use crate::raft::core::applier::{StateMachineApplier, Target};
use crate::raft::core::apply::Apply;
use crate::raft::core::config::RaftConfig;
use crate::raft::core::encoding;
use crate::raft::core::log_store::LogStore;
use crate::raft::core::removed::Removed;
use crate::raft::core::state_machine::StateMachine;
use crate::raft::core::type_config::{Batch, Entry, Membership, NodeInfo, Payload};
use crate::raft::replica::Stores;
use crate::raft::start::{cover_purged, open_stores};
use crate::raft::types::{NOTHING, StartError};
use crate::storage::{DataDir, Record};

/// Keys of the state.
const KEYS: u64 = 7;

pub fn membership() -> Membership {
    let nodes = BTreeMap::from([1, 2, 3].map(|id| (id, NodeInfo::default())));
    Membership::new(vec![nodes.keys().copied().collect()], nodes).expect("three voters")
}

/// The entry that a leader of `term` appends at `index`: the first is the membership, others write one key.
pub fn entry(term: u64, index: u64) -> Entry {
    let payload = match index {
        0 => Payload::Membership(membership()),
        _ => {
            let mut bytes = index.to_be_bytes().to_vec();
            bytes.resize(8 + (index * 131 + term * 977) as usize % 3_000, term as u8);
            Payload::Normal(Batch(bytes.into()))
        }
    };
    Entry {
        log_id: encoding::log_id(term, index),
        payload,
    }
}

pub fn record(term: u64, index: u64) -> Record {
    encoding::record_to(&entry(term, index))
}

pub fn key(index: u64) -> Vec<u8> {
    vec![b'k', (index % KEYS) as u8]
}

/// The rows once everything up to `last` is applied.
pub fn rows(last: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let written = 1..=last;
    written
        .map(|index| (key(index), index.to_be_bytes().to_vec()))
        .collect()
}

/// Writes the index of each batch under its key.
pub struct Rows;

impl Apply for Rows {
    fn apply(&mut self, index: LogIndex, batch: Bytes, tables: &mut Tables<'_>) {
        assert_eq!(batch[..8], index.0.to_be_bytes(), "another entry's batch");
        tables.put_bytes(key(index.0), batch.slice(..8));
    }

    fn committed(&mut self, _last: LogIndex) {}

    fn restored(&mut self, _backing: &dyn Backing, _last: LogIndex) {}
}

/// An open replica without its core.
pub struct Replica {
    pub _data: DataDir,
    pub config: RaftConfig,
    pub stores: Stores,
    pub applier: StateMachineApplier,
    pub log: LogStore,
    pub machine: StateMachine,
}

impl Replica {
    /// Opens the data directory `path` with this version of the machine, as a node does.
    pub async fn open(path: &Path, machine: u32) -> Result<Replica, StartError> {
        let mut config = RaftConfig::new(NodeId(1), "cluster".into(), "127.0.0.1:1".into());
        config.cache_bytes = 1 << 20;
        config.machine = machine;
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let mut data = DataDir::open(&path, NodeId(1), "cluster")?;
            let stores = open_stores(&config, &mut data)?;
            Ok::<_, StartError>((config, data, stores))
        });
        let (config, data, stores) = opened.await.expect("no panic")?;
        let (applied, _) = watch::channel(NOTHING);
        let (term, _) = watch::channel(0);
        let (committed, _) = watch::channel(NOTHING);
        let target = Target {
            state: Arc::clone(&stores.state),
            snapshots: Arc::clone(&stores.snapshots),
            log: stores.log.clone(),
            metrics: Arc::clone(&stores.metrics),
            applied,
            term,
            removed: Removed::default(),
        };
        let applier = StateMachineApplier::start(Box::new(Rows), target).expect("a thread");
        cover_purged(&stores, &applier).await?;
        let machine = StateMachine::new(
            applier.clone(),
            Arc::clone(&stores.state),
            Arc::clone(&stores.snapshots),
            8 << 10,
            committed,
        );
        Ok(Replica {
            _data: data,
            config,
            log: LogStore::new(stores.log.clone()),
            stores,
            applier,
            machine,
        })
    }

    pub async fn close(self) {
        self.applier.stop().await;
        self.stores.node_log.close().await;
    }
}
