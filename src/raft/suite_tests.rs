//! The Raft library's own tests of a log store and state machine.

use std::sync::Arc;

use bytes::Bytes;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;
use tokio::sync::watch;

use super::applier::Applier;
use super::log_store::LogStore;
use super::metrics::{LogMetrics, Metrics};
use super::state_machine::StateMachine;
use super::type_config::TypeConfig;
use super::{Apply, NOTHING};
use crate::ids::{GROUP_ZERO, LogIndex};
use crate::machine::tables::{Backing, Tables};
use crate::storage::{LogDb, Snapshots, State};

struct Nothing;

impl Apply for Nothing {
    fn apply(&mut self, _index: LogIndex, _batch: Bytes, _tables: &mut Tables<'_>) {}

    fn committed(&mut self, _last: LogIndex) {}

    fn restored(&mut self, _backing: &dyn Backing, _last: LogIndex) {}
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, (TempDir, LogDb)> for Builder {
    async fn build(
        &self,
    ) -> Result<((TempDir, LogDb), LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let counters = Arc::new(LogMetrics::default());
        let log_db = LogDb::open(&dir.path().join("log"), Arc::clone(&counters), None)
            .expect("an empty directory");
        // A cache this small makes nearly every read come from disk.
        let log = log_db.group(GROUP_ZERO, 0).expect("an empty log");
        let state = Arc::new(State::open(dir.path()).expect("an empty directory"));
        let snapshots = Arc::new(Snapshots::open(dir.path()).expect("an empty directory"));
        let (applied, _) = watch::channel(NOTHING);
        let (term, _) = watch::channel(0);
        let applier = Applier::start(
            Box::new(Nothing),
            Arc::clone(&state),
            Arc::clone(&snapshots),
            log.clone(),
            Arc::new(Metrics::new(counters)),
            applied,
            term,
        )
        .expect("a thread");
        let machine = StateMachine::new(applier, state, snapshots, 1 << 20);
        Ok(((dir, log_db), LogStore::new(log), machine))
    }
}

#[test]
fn the_store_passes_the_librarys_suite() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime
        .block_on(Suite::test_all(Builder))
        .expect("every test of the suite passes");
    drop(runtime);
    wait_for_storage_threads();
}

/// The stores were dropped, but their threads end on their own time; one that outlives the process's static data would
/// abort it.
fn wait_for_storage_threads() {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let running = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| ["log-flush", "apply"].contains(&name.trim()))
            .count()
    };
    while running() > 0 {
        assert!(
            std::time::Instant::now() < deadline,
            "{} threads of dropped stores are still running",
            running()
        );
        std::thread::yield_now();
    }
}
