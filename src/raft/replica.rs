//! The handle of this node's replica: what the other rooms ask of Raft.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::core::applier::StateMachineApplier;
use super::core::config::RaftConfig;
use super::core::read::{ReadIndexError, read_index};
use super::core::retention::Overdue;
use super::core::roster::Roster;
use super::core::state_machine::CoreRaft;
use super::core::status;
use super::core::write::{Appended, write};
use super::membership::call::Asked;
use super::membership::changes::Changes;
use super::membership::joining::Joining;
use super::metrics::Metrics;
use super::service::Service;
use super::transport::channels::{ChannelPool, ClusterClient};
use super::transport::identity_check::IdentityCheck;
use super::transport::read_rounds::ReadRounds;
use super::types::{ChangeError, Leadership, NotLeader, Peer, ReadError, Role, Status};
use crate::base::ids::{LogIndex, NodeId};
use crate::base::limits::RAFT_MESSAGE_BYTES;
use crate::base::proto::raft::change_request::Change;
use crate::base::proto::raft::raft_server::RaftServer;
use crate::machine::tables::Backing;
use crate::peers::Trust;
use crate::storage::{DataDir, GroupLog, MAX_QUEUED_BYTES, NodeLog, Snapshots, StateDb, StateView};

/// Longest wait for a snapshot asked for by hand.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(300);
/// Entries the state may lag behind the log before proposals wait: Raft itself blocks, and loses its leases, when
/// its own queue to the state is full.
const APPLY_LAG: u64 = 8192;
/// The same in bytes of entries held in memory beyond the cache.
const APPLY_LAG_BYTES: usize = 256 << 20;

/// Before a proposal that the core did not take is given to it again.
const PROPOSE_RETRY: Duration = Duration::from_millis(5);

/// A replica. Cheap to clone; all clones are the same replica.
#[derive(Clone)]
pub struct Raft {
    inner: Arc<Inner>,
}

/// The databases of a replica, and its counters.
pub struct Stores {
    pub node_log: NodeLog,
    pub log: GroupLog,
    pub state: Arc<StateDb>,
    pub snapshots: Arc<Snapshots>,
    pub metrics: Arc<Metrics>,
    pub overdue: Overdue,
}

/// The parts of a replica.
pub struct Inner {
    pub config: RaftConfig,
    pub core: CoreRaft,
    pub roster: Roster,
    pub channels: Arc<ChannelPool>,
    pub service: Service,
    pub identity_check: Arc<IdentityCheck>,
    pub joining: Joining,
    pub changes: Arc<Changes>,
    pub reads: ReadRounds,
    pub leadership: watch::Receiver<Leadership>,
    pub committed: watch::Receiver<LogIndex>,
    pub applied: watch::Receiver<LogIndex>,
    pub applier: StateMachineApplier,
    pub stores: Stores,
    /// Held until the replica is shut down.
    pub data: Mutex<Option<DataDir>>,
}

impl Raft {
    pub(super) fn new(inner: Inner) -> Raft {
        Raft {
            inner: Arc::new(inner),
        }
    }

    /// The gRPC service peers connect to, to be added to the node's cluster server. That server should set
    /// TCP_NODELAY and HTTP/2 keep-alive.
    pub fn service(&self) -> RaftServer<Service> {
        RaftServer::new(self.inner.service.clone())
            .max_decoding_message_size(RAFT_MESSAGE_BYTES)
            .max_encoding_message_size(RAFT_MESSAGE_BYTES)
    }

    /// Lets a call of the cluster service in, which peers reach at the same listener, and returns who calls.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` when the caller does not belong to the cluster, `FAILED_PRECONDITION` when it is not
    /// understood, or not who the membership knows.
    pub fn admit_forwarding<T>(
        &self,
        request: &tonic::Request<T>,
    ) -> Result<NodeId, tonic::Status> {
        self.inner.identity_check.admit_forwarding(request.into())
    }

    /// Whether this replica knows `node` as a member that votes.
    pub fn is_voter(&self, node: NodeId) -> bool {
        self.inner.roster.is_voter(node.0)
    }

    /// A client that takes proposals to `node`, when it is a member with a usable address.
    pub fn proposal_client(&self, node: NodeId) -> Option<ClusterClient> {
        let info = self.inner.roster.node(node.0)?;
        self.inner.channels.proposals(node.0, &info).ok()
    }

    /// A client that takes messages to `node`, when it is a member with a usable address. Its connection is driven by
    /// the runtime in which it is first asked for.
    pub fn message_client(&self, node: NodeId) -> Option<ClusterClient> {
        let info = self.inner.roster.node(node.0)?;
        self.inner.channels.messages(node.0, &info).ok()
    }

    /// A client that asks `node`, the leader, for contact; on the connection of Raft's small messages.
    pub fn contact_client(&self, node: NodeId) -> Option<ClusterClient> {
        let info = self.inner.roster.node(node.0)?;
        self.inner.channels.contacts(node.0, &info).ok()
    }

    /// Appends `batch` to the leader's log without waiting for its commit. Batches proposed one after the
    /// other are appended in that order; within one term those accepted before a loss of leadership are a
    /// prefix of those proposed. Whether a batch was committed is seen when it is applied, or never.
    ///
    /// Waits while the state or the disk lags far behind the log, and while the core takes no writes: no majority was
    /// heard for a lease, or leadership is being handed over.
    ///
    /// # Errors
    /// When this replica does not lead; nothing was appended then.
    pub async fn propose(&self, batch: Bytes) -> Result<(), NotLeader> {
        let term = self.inner.leadership.borrow().term;
        self.propose_in(term, batch).await
    }

    /// As [`Raft::propose`], for what was decided in `term`: another term does not append it.
    ///
    /// # Errors
    /// When this replica does not lead `term`; nothing was appended then.
    pub async fn propose_in(&self, term: u64, batch: Bytes) -> Result<(), NotLeader> {
        let inner = &self.inner;
        let mut leadership = inner.leadership.clone();
        let leads = move |now: &Leadership| now.is_leader && now.term == term;
        let mut waits = false;
        loop {
            if !leads(&leadership.borrow_and_update()) {
                let leader = leadership.borrow().leader;
                return Err(NotLeader { leader });
            }
            if !self.lags() {
                match write(&inner.core, batch.clone(), term).await {
                    Ok(Appended::Yes) => return Ok(()),
                    Ok(Appended::No) if !waits => {
                        tracing::info!(term, "the leader takes no writes: waiting");
                        waits = true;
                    }
                    Ok(Appended::No) => {}
                    Err(_) => {
                        // Raft has ended, and this process is about to: who comes again at once would be told at once.
                        tokio::time::sleep(PROPOSE_RETRY).await;
                        return Err(NotLeader { leader: None });
                    }
                }
            }
            tokio::select! {
                changed = leadership.changed() => if changed.is_err() {
                    return Err(NotLeader { leader: None });
                },
                () = tokio::time::sleep(PROPOSE_RETRY) => {}
            }
        }
    }

    fn lags(&self) -> bool {
        let inner = &self.inner;
        let applied = inner.applied.borrow().0;
        inner.stores.log.next().saturating_sub(applied) > APPLY_LAG
            || inner.stores.log.bytes_in_memory() > inner.config.cache_bytes + APPLY_LAG_BYTES
            || inner.stores.log.bytes_queued() >= MAX_QUEUED_BYTES
    }

    /// Who leads; changes are signalled.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// Confirms that everything acknowledged anywhere before this call is applied here once it returns
    /// (ReadIndex), on any replica. Callers that come while a round is under way share the next one.
    ///
    /// # Errors
    /// When no majority confirmed a leader in time; a minority never passes.
    pub async fn read_barrier(&self) -> Result<LogIndex, ReadError> {
        self.inner.reads.barrier().await
    }

    /// Confirms with a majority that this replica leads, and returns an index that covers everything committed by then.
    /// Unlike [`Raft::read_barrier`] it asks no other replica, and does not wait until this one has applied the index.
    ///
    /// # Errors
    /// When this replica does not lead, or no majority confirms it.
    pub async fn confirm_leadership(&self) -> Result<LogIndex, ReadError> {
        match read_index(&self.inner.core).await {
            Ok(index) => Ok(LogIndex(index)),
            Err(ReadIndexError::NotLeader(_)) => Err(ReadError::NoLeader),
            Err(ReadIndexError::Failed(error)) => Err(error),
        }
    }

    /// The highest index handed over to be applied; changes are signalled.
    pub fn committed(&self) -> watch::Receiver<LogIndex> {
        self.inner.committed.clone()
    }

    /// The highest index that this replica may apply: it has it in its log, and knows that it is committed. While apply
    /// is busy, less is handed over.
    pub fn last_committed(&self) -> LogIndex {
        let known = status::local_committed(&self.inner.core.metrics().borrow_watched());
        // What Raft publishes may come a little later than what it hands over.
        known.max(*self.inner.committed.borrow())
    }

    /// How far the log is committed, and how much of that each node's log has, as this replica, as leader, knows it.
    pub fn committed_logs(&self) -> (LogIndex, Vec<(NodeId, LogIndex)>) {
        status::committed_logs(&self.inner.core.metrics().borrow_watched())
    }

    /// The index of the log's last entry.
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.inner.stores.log.next().saturating_sub(1))
    }

    /// The highest index whose effects are written; changes are signalled.
    pub fn applied(&self) -> watch::Receiver<LogIndex> {
        self.inner.applied.clone()
    }

    /// The applied state for reads. Stays valid, and current, when a snapshot replaces the state below.
    pub fn backing(&self) -> Arc<dyn Backing> {
        Arc::clone(&self.inner.stores.state) as Arc<dyn Backing>
    }

    /// Has `work` look at the applied state as it is now, on a thread of its own; see [`StateView`].
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn look(&self, work: impl FnOnce(&StateView<'_>) + Send + 'static) -> io::Result<()> {
        self.inner.stores.state.look(work)
    }

    /// The replica's state at this moment.
    pub fn status(&self) -> Status {
        let applied = *self.inner.applied.borrow();
        status::status(
            &self.inner.core.metrics().borrow_watched(),
            applied,
            self.inner.identity_check.directory_mismatch(),
            self.inner.identity_check.other_versions(),
        )
    }

    /// Whether this replica knows `node` as a member.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.inner.roster.contains(node.0)
    }

    /// The members that vote, as far as this replica knows.
    pub fn voters(&self) -> Vec<NodeId> {
        let members = self.status().members.into_iter();
        members
            .filter(|member| member.role == Role::Voter)
            .map(|member| NodeId(member.node))
            .collect()
    }

    /// How this node and its peers prove who they are.
    pub fn trust(&self) -> &Trust {
        &self.inner.config.trust
    }

    /// Counters of this replica.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.inner.stores.metrics)
    }

    /// Makes a new cluster of `members`, once, from the node with the lowest id. Waits until every member has
    /// answered with its data directory's UUID, which becomes part of the membership. Does nothing when this
    /// replica already belongs to a cluster.
    ///
    /// # Errors
    /// [`ChangeError::NotTheLowest`] on the other nodes of the list; [`ChangeError::AlreadyInitialised`] or
    /// [`ChangeError::OtherDataDirectory`] when a member belongs to a cluster already.
    pub async fn bootstrap(&self, members: Vec<Peer>) -> Result<(), ChangeError> {
        self.inner.joining.bootstrap(members).await
    }

    /// Asks the cluster that the node at `via` belongs to, to add this node: first as learner, as voter once it
    /// has caught up. Also tells the cluster a changed address. Returns when it is done.
    ///
    /// # Errors
    /// [`ChangeError::OtherDataDirectory`] when the cluster knows this id with another data directory.
    pub async fn join(&self, via: &str) -> Result<(), ChangeError> {
        self.inner.joining.join(via).await
    }

    /// Adds a node that runs with an empty data directory: first as learner, as voter once it has caught up. The
    /// leader is asked; waits until the node answers.
    ///
    /// # Errors
    /// When the node belongs to a cluster already, or its id does not match.
    pub async fn add(&self, member: Peer) -> Result<(), ChangeError> {
        self.inner.joining.add(member).await
    }

    /// Removes `node` from the cluster; the leader is asked.
    ///
    /// # Errors
    /// When it is not a member, or the last voter.
    pub async fn remove(&self, node: NodeId) -> Result<(), ChangeError> {
        let change = Change::Remove(node.0);
        self.inner
            .changes
            .change(change, Asked::HERE)
            .await
            .map(|_| ())
    }

    /// Hands leadership to `to` (or to the most up-to-date voter); the leader is asked. Returns who leads then.
    ///
    /// # Errors
    /// When nobody took over in time.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<NodeId, ChangeError> {
        let change = Change::Transfer(to.map_or(0, |to| to.0));
        self.inner
            .changes
            .change(change, Asked::HERE)
            .await
            .map(NodeId)
    }

    /// Takes a snapshot now and returns the index it covers, at least what is applied at the call.
    ///
    /// # Errors
    /// When it could not be taken in time.
    pub async fn snapshot(&self) -> Result<LogIndex, ChangeError> {
        let core = &self.inner.core;
        let wanted = self.inner.applied.borrow().0;
        let mut data = core.data_metrics();
        let asked = core.trigger().snapshot().await;
        asked.map_err(|_| ChangeError::Stopped)?;
        let taken = async {
            loop {
                let covered = data.borrow_and_update().snapshot.map_or(0, |id| id.index);
                if covered >= wanted {
                    return Ok(LogIndex(covered));
                }
                data.changed().await.map_err(|_| ChangeError::Stopped)?;
            }
        };
        let taken = tokio::time::timeout(SNAPSHOT_TIMEOUT, taken).await;
        taken.unwrap_or_else(|_| Err(ChangeError::Failed("the snapshot took too long".to_owned())))
    }

    /// Removes entries up to `upto` from the log as far as a snapshot covers them.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn purge(&self, upto: LogIndex) -> Result<(), ChangeError> {
        let purged = self.inner.core.trigger().purge_log(upto.0).await;
        purged.map_err(|_| ChangeError::Stopped)
    }

    /// Hands leadership over if this node leads, stops taking part, flushes the state, and closes the files.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        if inner.leadership.borrow().leader == Some(inner.config.node) {
            // With nobody to hand over to, the others elect one among themselves.
            if let Err(error) = inner.changes.hand_over().await {
                tracing::info!(%error, "leadership was not handed over");
            }
        }
        if let Err(error) = inner.core.shutdown().await {
            tracing::warn!(%error, "the Raft core ended badly");
        }
        inner.applier.stop().await;
        let _ = inner.stores.log.write_committed().await;
        inner.stores.node_log.close().await;
        inner.data.lock().take();
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
