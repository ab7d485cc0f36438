//! A cluster of one replica.

use std::sync::mpsc;
use std::time::Duration;

use openraft::RaftMetrics;

use super::*;
use crate::machine::tables::Tables;
use crate::raft::core::apply::Apply;
use crate::raft::core::type_config::TypeConfig;

/// Applies nothing before it may.
struct Gate(mpsc::Receiver<()>);

impl Apply for Gate {
    fn apply(&mut self, _index: LogIndex, _batch: Bytes, _tables: &mut Tables<'_>) {
        // The test has ended otherwise.
        let _ = self.0.recv();
    }

    fn committed(&mut self, _last: LogIndex) {}

    fn restored(&mut self, _backing: &dyn Backing, _last: LogIndex) {}
}

/// Who asked for what is handed over would not hear of what is committed while apply is busy.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_is_known_before_it_is_handed_over() {
    const LONG: Duration = Duration::from_secs(60);
    let root = tempfile::tempdir().expect("a temporary directory");
    let data = DataDir::open(root.path(), NodeId(1), "cluster").expect("an empty directory");
    let config = RaftConfig::new(NodeId(1), "cluster".into(), "127.0.0.1:1".into());
    let (opens, gate) = mpsc::channel();
    let raft = Raft::start(config, data, Box::new(Gate(gate))).await;
    let raft = raft.expect("it starts");
    let own = Peer {
        node: NodeId(1),
        address: "127.0.0.1:1".into(),
    };
    raft.bootstrap(vec![own]).await.expect("a new cluster");
    let mut leadership = raft.leadership();
    let leads = leadership.wait_for(|now| now.is_leader);
    let leads = tokio::time::timeout(LONG, leads).await.expect("in time");
    drop(leads.expect("it runs"));

    raft.propose(Bytes::new()).await.expect("it leads");
    let first = raft.last_index();
    let mut handed_over = raft.committed();
    let reaches = handed_over.wait_for(|last| *last >= first);
    let reached = tokio::time::timeout(LONG, reaches).await.expect("in time");
    drop(reached.expect("it runs"));
    raft.propose(Bytes::new()).await.expect("it leads");
    let second = raft.last_index();
    let is_committed = |known: &RaftMetrics<TypeConfig>| status::local_committed(known) >= second;
    let wait = raft.inner.core.wait(Some(LONG));
    let committed = wait.metrics(is_committed, "it is committed").await;
    committed.expect("in time");
    assert_eq!(raft.last_committed(), second);
    assert_eq!(*raft.committed().borrow(), first, "apply is busy");

    opens.send(()).expect("it applies");
    opens.send(()).expect("it applies");
    raft.shutdown().await;
}
