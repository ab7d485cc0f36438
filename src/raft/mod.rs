//! Raft: one replicated log of batches, applied by every replica in the same order.
//!
//! Only this module names the Raft library. Above it a batch is opaque bytes, a member is a [`types::Member`],
//! and the replicated state machine is an [`Apply`]. It never looks into a batch.

mod config;
pub mod metrics;
mod types;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use crate::ids::{LogIndex, NodeId};
use crate::machine::tables::{Backing, Tables};
use crate::storage::DataDir;

pub use config::{RaftConfig, Retention, Timing};
pub use metrics::Metrics;
pub use types::{
    ChangeError, Leadership, Member, NOTHING, NotLeader, Peer, ReadError, Role, StartError, Status,
};

/// The replicated state machine as Raft sees it; implemented above.
///
/// Called from one thread, in log order. The same entries may come again after a restart: state that was not
/// written when the process died is applied anew from the log.
pub trait Apply: Send + 'static {
    /// Runs one committed batch. Reads and writes go through `tables`; outputs (replies, effects) are kept
    /// until [`Apply::committed`]. An error of a command is a reply: this can't fail.
    fn apply(&mut self, index: LogIndex, batch: Bytes, tables: &mut Tables<'_>);

    /// Everything applied up to and including `last` is written to `state/` in one atomic batch: release its
    /// outputs.
    fn committed(&mut self, last: LogIndex);

    /// The state was opened, or replaced by a snapshot, and holds everything up to `last`: rebuild what is
    /// kept in memory from it and drop outputs that were not released.
    fn restored(&mut self, backing: &dyn Backing, last: LogIndex);
}

/// A replica. Cheap to clone; all clones are the same replica.
#[derive(Clone)]
pub struct Raft {
    inner: Arc<Inner>,
}

struct Inner {}

impl Raft {
    /// Opens what `data` holds, replays what was committed but not written, and starts taking part.
    ///
    /// A replica that was never a member waits to be added or bootstrapped.
    ///
    /// # Errors
    /// When a setting is wrong or the data directory can't be used.
    pub async fn start(
        config: RaftConfig,
        data: DataDir,
        apply: Box<dyn Apply>,
    ) -> Result<Raft, StartError> {
        config.check()?;
        let _ = (data, apply);
        Ok(Raft {
            inner: Arc::new(Inner {}),
        })
    }

    /// The gRPC service peers connect to; to be added to the node's cluster server.
    pub fn service(&self) -> tonic::service::Routes {
        todo!()
    }

    /// Appends `batch` to the leader's log without waiting for its commit. Batches proposed one after the
    /// other are appended in that order; within one term those accepted before a loss of leadership are a
    /// prefix of those proposed. Whether a batch was committed is seen when it is applied, or never.
    ///
    /// # Errors
    /// When this replica does not lead; nothing was appended then.
    pub async fn propose(&self, batch: Bytes) -> Result<(), NotLeader> {
        let _ = (&self.inner, batch);
        todo!()
    }

    /// Who leads; changes are signalled.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        todo!()
    }

    /// Confirms that everything acknowledged anywhere before this call is applied here once it returns
    /// (ReadIndex), on any replica. Callers that come while a round is under way share the next one.
    ///
    /// # Errors
    /// When no majority confirmed a leader in time; a minority never passes.
    pub async fn read_barrier(&self) -> Result<LogIndex, ReadError> {
        todo!()
    }

    /// The highest index whose effects are written; changes are signalled.
    pub fn applied(&self) -> watch::Receiver<LogIndex> {
        todo!()
    }

    /// The applied state for reads. Stays valid, and current, when a snapshot replaces the state below.
    pub fn backing(&self) -> Arc<dyn Backing> {
        todo!()
    }

    /// The replica's state at this moment.
    pub fn status(&self) -> Status {
        todo!()
    }

    /// Counters of this replica.
    pub fn metrics(&self) -> Arc<Metrics> {
        todo!()
    }

    /// Makes a new cluster of `members`, once, from the node with the lowest id. Waits until every member has
    /// answered with its data directory's UUID, which becomes part of the membership. Does nothing when this
    /// replica already belongs to a cluster.
    ///
    /// # Errors
    /// [`ChangeError::NotTheLowest`] on the other nodes of the list.
    pub async fn bootstrap(&self, members: Vec<Peer>) -> Result<(), ChangeError> {
        let _ = members;
        todo!()
    }

    /// Asks the cluster `via` belongs to, to add this node: first as learner, as voter once it has caught up.
    /// Also used to tell the cluster a changed address. Returns when it is done.
    pub async fn join(&self, via: &str) -> Result<(), ChangeError> {
        let _ = via;
        todo!()
    }

    /// Removes `node` from the cluster for good; its id can't be used again with another data directory
    /// before it is removed. Forwarded to the leader.
    pub async fn remove(&self, node: NodeId) -> Result<(), ChangeError> {
        let _ = node;
        todo!()
    }

    /// Hands leadership to `to` (or to the most up-to-date voter). Forwarded to the leader; returns when
    /// another node leads.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<NodeId, ChangeError> {
        let _ = to;
        todo!()
    }

    /// Stands for election now.
    pub async fn elect(&self) -> Result<(), ChangeError> {
        todo!()
    }

    /// Takes a snapshot now and returns the index it covers.
    pub async fn snapshot(&self) -> Result<LogIndex, ChangeError> {
        todo!()
    }

    /// Hands leadership over if this node leads, stops taking part, flushes the state, and closes the files.
    pub async fn shutdown(&self) {
        todo!()
    }
}
