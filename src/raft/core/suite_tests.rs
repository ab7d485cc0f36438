//! The Raft library's own tests of a log store and state machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tokio::sync::watch;

use super::applier::{StateMachineApplier, Target};
use super::apply::Apply;
use super::log_store::LogStore;
use super::removed::Removed;
use super::state_machine::StateMachine;
use super::type_config::TypeConfig;
use crate::base::ids::{GROUP_ZERO, LogIndex};
use crate::machine::tables::{Backing, Tables};
use crate::raft::metrics::{LogMetrics, Metrics};
use crate::raft::types::NOTHING;
use crate::storage::{NodeLog, Snapshots, StateDb, wait_closed};

struct Nothing;

impl Apply for Nothing {
    fn apply(&mut self, _index: LogIndex, _batch: Bytes, _tables: &mut Tables<'_>) {}

    fn committed(&mut self, _last: LogIndex) {}

    fn restored(&mut self, _backing: &dyn Backing, _last: LogIndex) {}
}

/// Makes each store in a directory of its own below this one.
struct Builder(PathBuf);

impl StoreBuilder<TypeConfig, LogStore, StateMachine, NodeLog> for Builder {
    async fn build(&self) -> Result<(NodeLog, LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir_in(&self.0).expect("a temporary directory");
        let dir = dir.keep();
        let counters = Arc::new(LogMetrics::default());
        let node_log = NodeLog::open(&dir.join("log"), Arc::clone(&counters), None)
            .expect("an empty directory");
        // A cache this small makes nearly every read come from disk.
        let log = node_log.group(GROUP_ZERO, 0);
        let state = Arc::new(StateDb::open(&dir).expect("an empty directory"));
        let snapshots = Arc::new(Snapshots::open(&dir).expect("an empty directory"));
        let (applied, _) = watch::channel(NOTHING);
        let (term, _) = watch::channel(0);
        let (committed, _) = watch::channel(NOTHING);
        let applier = StateMachineApplier::start(
            Box::new(Nothing),
            Target {
                state: Arc::clone(&state),
                snapshots: Arc::clone(&snapshots),
                log: log.clone(),
                metrics: Arc::new(Metrics::new(counters)),
                applied,
                term,
                removed: Removed::default(),
            },
        )
        .expect("a thread");
        let machine = StateMachine::new(applier, state, snapshots, 1 << 20, committed);
        Ok((node_log, LogStore::new(log), machine))
    }
}

#[test]
fn the_store_passes_the_librarys_suite() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime
        .block_on(Suite::test_all(Builder(root.path().to_owned())))
        .expect("every test of the suite passes");
    drop(runtime);
    assert!(
        wait_closed(root.path(), Duration::from_secs(60)),
        "somebody still holds a store"
    );
}
