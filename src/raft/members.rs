//! The cluster's members: making the first membership, joining, leaving, handing over leadership.
//!
//! Changes are made by the leader, one at a time, and passed on to it by whichever node is asked. A node id belongs
//! to one data directory for as long as it is a member.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;
use openraft::{ChangeMembers, Instant as _};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::peers::{Client, Peers};
use super::service::fatal_text;
use super::type_config::{CoreRaft, NodeInfo};
use super::types::{ChangeError, Leadership, NotLeader, Peer};
use crate::base::ids::{GroupId, NodeId};
use crate::base::proto::raft::{self as pb, change_reply::Result as Reply, change_request::Change};

/// Longest wait for a change to be committed, and for a node to be added to answer.
const CHANGE_PATIENCE: Duration = Duration::from_secs(120);
/// Longest pause in the progress of a node that catches up.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(120);
/// Entries a learner may be behind to become a voter: what a busy cluster writes in a few milliseconds.
const CAUGHT_UP: u64 = 100;
/// How often its progress is looked at.
const CATCH_UP_LOOK: Duration = Duration::from_millis(20);
/// Longest wait for another node to lead after a transfer was asked for.
const TRANSFER_PATIENCE: Duration = Duration::from_secs(3);
/// Pause between rounds of asking members that have not started yet.
const KNOCK: Duration = Duration::from_millis(100);
/// A refused caller is named in the log this often.
const COMPLAINT: Duration = Duration::from_secs(10);
/// Callers remembered for that.
const COMPLAINTS: usize = 64;

pub(super) struct Members {
    pub group: GroupId,
    pub core: CoreRaft,
    pub peers: Arc<Peers>,
    pub leadership: watch::Receiver<Leadership>,
    /// A node whose last sign of life is older than this is not handed leadership to.
    pub lives: Duration,
    /// Serialises changes: two at once could leave a joint configuration.
    pub changing: tokio::sync::Mutex<()>,
    pub complaints: Mutex<HashMap<String, Instant>>,
    /// The data directory the cluster knows this node's id with, when it is not this one.
    pub disowned: Mutex<Option<String>>,
}

impl Members {
    pub fn new(
        group: GroupId,
        core: CoreRaft,
        peers: Arc<Peers>,
        leadership: watch::Receiver<Leadership>,
        lives: Duration,
    ) -> Arc<Members> {
        Arc::new(Members {
            group,
            core,
            peers,
            leadership,
            lives,
            changing: tokio::sync::Mutex::new(()),
            complaints: Mutex::new(HashMap::new()),
            disowned: Mutex::new(None),
        })
    }

    fn own(&self) -> NodeId {
        self.peers.identity().node
    }

    fn node(&self, id: u64) -> Option<NodeInfo> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&id).cloned()
    }

    /// Whether this replica knows `node` as a member.
    pub fn contains(&self, node: u64) -> bool {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&node).is_some()
    }

    /// The data directory `node` is known with, when it is a member and that is known.
    pub fn directory_of(&self, node: u64) -> Option<String> {
        let directory = self.node(node)?.directory;
        (!directory.is_empty()).then_some(directory)
    }

    /// The leader and where it is.
    pub fn leader(&self) -> Option<(u64, NodeInfo)> {
        let leader = self.core.server_metrics().borrow_watched().current_leader?;
        Some((leader, self.node(leader)?))
    }

    /// Names a refused caller in the log, now and then.
    pub fn refused(&self, from: &str, why: &str) {
        let mut complaints = self.complaints.lock();
        let now = Instant::now();
        complaints.retain(|_, at| now.duration_since(*at) < COMPLAINT);
        if complaints.len() >= COMPLAINTS || complaints.contains_key(from) {
            return;
        }
        complaints.insert(from.to_owned(), now);
        tracing::error!(from, why, "a peer was refused");
    }

    /// A peer expects another data directory behind this node's id.
    pub fn disowned(&self, known: &str) {
        *self.disowned.lock() = Some(known.to_owned());
    }

    fn other_directory(&self, known: String) -> ChangeError {
        ChangeError::OtherDataDirectory {
            node: self.own(),
            known,
        }
    }

    async fn hello(&self, client: &mut Client) -> Result<pb::HelloReply, tonic::Status> {
        let mut request = tonic::Request::new(pb::HelloRequest {
            group: self.group.0,
        });
        request.set_timeout(Duration::from_secs(2));
        Ok(client.hello(request).await?.into_inner())
    }

    /// See [`super::Raft::bootstrap`].
    pub async fn bootstrap(&self, members: Vec<Peer>) -> Result<(), ChangeError> {
        let initialised = self.core.is_initialized().await;
        if initialised.map_err(|_| ChangeError::Stopped)? {
            return Ok(());
        }
        let own = self.own();
        match members.iter().map(|member| member.node).min() {
            Some(lowest) if lowest == own => {}
            Some(lowest) => return Err(ChangeError::NotTheLowest { lowest }),
            None => return Err(ChangeError::UnknownNode(own)),
        }
        let mut nodes = BTreeMap::new();
        for member in members {
            let directory = if member.node == own {
                self.peers.identity().directory.clone()
            } else {
                self.wait_for(&member).await?
            };
            let info = NodeInfo {
                address: member.address,
                directory,
            };
            nodes.insert(member.node.0, info);
        }
        let made = self.core.initialize(nodes).await;
        made.map_err(|error| ChangeError::Failed(fatal_text(error)))
    }

    /// The data directory of a member of the bootstrap list, once it answers.
    async fn wait_for(&self, member: &Peer) -> Result<String, ChangeError> {
        let failed = ChangeError::Failed;
        let mut client = self.peers.stranger(&member.address).map_err(failed)?;
        let mut said = false;
        loop {
            match self.hello(&mut client).await {
                Ok(reply) if !reply.known_as.is_empty() => {
                    let known = reply.known_as;
                    if known != self.peers.identity().directory {
                        return Err(self.other_directory(known));
                    }
                    return Err(ChangeError::AlreadyInitialised);
                }
                Ok(reply) if reply.initialised => return Err(ChangeError::AlreadyInitialised),
                Ok(reply) if reply.node != member.node.0 => {
                    return Err(ChangeError::Failed(format!(
                        "{} is node {}, not node {}",
                        member.address, reply.node, member.node
                    )));
                }
                Ok(reply) => return Ok(reply.directory),
                Err(status) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::info!(node = %member.node, address = member.address, why = status.message(), "waiting for a member of the new cluster");
                    }
                }
            }
            tokio::time::sleep(KNOCK).await;
        }
    }

    /// See [`super::Raft::join`].
    pub async fn join(&self, via: &str) -> Result<(), ChangeError> {
        let identity = self.peers.identity();
        let mut client = self.peers.stranger(via).map_err(ChangeError::Failed)?;
        let reply = self.hello(&mut client).await;
        let reply = reply.map_err(|status| ChangeError::Failed(status.message().to_owned()))?;
        if !reply.known_as.is_empty() && reply.known_as != identity.directory {
            return Err(self.other_directory(reply.known_as));
        }
        let initialised = self.core.is_initialized().await;
        if initialised.map_err(|_| ChangeError::Stopped)? && reply.known_as.is_empty() {
            return Err(ChangeError::Failed(format!(
                "{via} does not know this node's data directory: it was removed from the cluster, or belongs to another one"
            )));
        }
        let own = pb::Node {
            id: identity.node.0,
            address: identity.address.clone(),
            directory: identity.directory.clone(),
        };
        self.ask(client, Change::Join(own), false).await.map(|_| ())
    }

    /// See [`super::Raft::add`].
    pub async fn add_node(&self, member: Peer) -> Result<(), ChangeError> {
        let answer = tokio::time::timeout(CHANGE_PATIENCE, self.wait_for(&member));
        let silent = || ChangeError::Failed(format!("{} does not answer", member.address));
        let directory = match answer.await.map_err(|_| silent())? {
            Ok(directory) => directory,
            Err(ChangeError::AlreadyInitialised) => match self.node(member.node.0) {
                Some(known) if known.address == member.address => known.directory,
                _ => {
                    return Err(ChangeError::Failed(format!(
                        "node {} at {} belongs to a cluster already; start it with cluster.join and an empty data directory",
                        member.node, member.address
                    )));
                }
            },
            Err(error) => return Err(error),
        };
        let node = pb::Node {
            id: member.node.0,
            address: member.address,
            directory,
        };
        self.change(Change::Join(node), false).await.map(|_| ())
    }

    async fn ask(
        &self,
        mut client: Client,
        change: Change,
        forwarded: bool,
    ) -> Result<u64, ChangeError> {
        let mut request = tonic::Request::new(pb::ChangeRequest {
            group: self.group.0,
            change: Some(change),
            forwarded,
        });
        request.set_timeout(CHANGE_PATIENCE + Duration::from_secs(5));
        let reply = client.change(request).await;
        let reply = reply.map_err(|status| ChangeError::Failed(status.message().to_owned()))?;
        result_from(reply.into_inner())
    }

    /// Makes a change here, or has the leader make it unless it was passed on already.
    pub async fn change(&self, change: Change, forwarded: bool) -> Result<u64, ChangeError> {
        let Some((leader, node)) = self.leader() else {
            return Err(ChangeError::NotLeader(NotLeader { leader: None }));
        };
        if leader != self.own().0 {
            if forwarded {
                return Err(ChangeError::NotLeader(NotLeader {
                    leader: Some(NodeId(leader)),
                }));
            }
            let client = self
                .peers
                .main(leader, &node)
                .map_err(ChangeError::Failed)?;
            return self.ask(client, change, true).await;
        }
        match change {
            Change::Join(node) => self.add(node).await,
            // The leader it leaves behind is elected by request, not after a time-out.
            Change::Remove(node) if node == leader && self.voters().len() > 1 => {
                let heir = self.transfer(0).await?;
                let unknown = || ChangeError::UnknownNode(NodeId(heir));
                let node = self.node(heir).ok_or_else(unknown)?;
                let client = self.peers.main(heir, &node).map_err(ChangeError::Failed)?;
                self.ask(client, change, true).await
            }
            Change::Remove(node) => self.remove(node).await,
            Change::Transfer(to) => self.transfer(to).await,
        }
    }

    /// Makes a change; voters that are removed become learners if `retain`.
    async fn write(
        &self,
        change: ChangeMembers<u64, NodeInfo>,
        retain: bool,
    ) -> Result<(), ChangeError> {
        let changed = self.core.change_membership(change, retain);
        match tokio::time::timeout(CHANGE_PATIENCE, changed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(ChangeError::Failed(fatal_text(error))),
            Err(_) => Err(ChangeError::Failed("it took too long".to_owned())),
        }
    }

    fn voters(&self) -> BTreeSet<u64> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.voter_ids().collect()
    }

    /// Adds a learner, waits until it has caught up, and makes it a voter. Other changes may be made while it catches
    /// up, which takes as long as its disk and network need.
    async fn add(&self, node: pb::Node) -> Result<u64, ChangeError> {
        let info = NodeInfo {
            address: node.address,
            directory: node.directory,
        };
        self.add_learner(node.id, info).await?;
        if self.voters().contains(&node.id) {
            return Ok(node.id);
        }
        self.caught_up(node.id).await?;
        let _one_at_a_time = self.changing.lock().await;
        let voter = BTreeSet::from([node.id]);
        self.write(ChangeMembers::AddVoterIds(voter), false).await?;
        Ok(node.id)
    }

    /// Makes `id` a member at that address; a voter stays one.
    async fn add_learner(&self, id: u64, info: NodeInfo) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changing.lock().await;
        match self.node(id) {
            Some(known) if !known.directory.is_empty() && known.directory != info.directory => {
                Err(ChangeError::OtherDataDirectory {
                    node: NodeId(id),
                    known: known.directory,
                })
            }
            Some(known) if known == info => Ok(()),
            Some(_) => {
                let nodes = BTreeMap::from([(id, info)]);
                self.write(ChangeMembers::SetNodes(nodes), false).await
            }
            None => {
                let nodes = BTreeMap::from([(id, info)]);
                self.write(ChangeMembers::AddNodes(nodes), false).await
            }
        }
    }

    /// Returns once the log of learner `id` nearly reaches this leader's.
    async fn caught_up(&self, id: u64) -> Result<(), ChangeError> {
        let mut progress = (None, Instant::now());
        loop {
            let (matched, last) = {
                let metrics = self.core.metrics();
                let metrics = metrics.borrow_watched();
                if !metrics
                    .membership_config
                    .nodes()
                    .any(|(node, _)| *node == id)
                {
                    return Err(ChangeError::Failed(format!(
                        "node {id} was removed while it caught up"
                    )));
                }
                let Some(replication) = &metrics.replication else {
                    return Err(ChangeError::Failed(format!(
                        "the leader changed while node {id} caught up; ask again"
                    )));
                };
                let matched = replication.get(&id).copied().flatten();
                (matched.map(|id| id.index), metrics.last_log_index)
            };
            if matched.is_some()
                && last.unwrap_or(0).saturating_sub(matched.unwrap_or(0)) <= CAUGHT_UP
            {
                return Ok(());
            }
            if matched != progress.0 {
                progress = (matched, Instant::now());
            } else if progress.1.elapsed() > CATCH_UP_PATIENCE {
                return Err(ChangeError::Failed(format!(
                    "node {id} makes no progress; it stays a learner"
                )));
            }
            tokio::time::sleep(CATCH_UP_LOOK).await;
        }
    }

    async fn remove(&self, node: u64) -> Result<u64, ChangeError> {
        let _one_at_a_time = self.changing.lock().await;
        if self.node(node).is_none() {
            return Err(ChangeError::UnknownNode(NodeId(node)));
        }
        let voters = self.voters();
        let gone = BTreeSet::from([node]);
        if voters.contains(&node) {
            if voters.len() == 1 {
                return Err(ChangeError::LastVoter(NodeId(node)));
            }
            // A learner first, so that the node, if it lives, hears that it does not stand for election any more.
            let change = ChangeMembers::RemoveVoters(gone.clone());
            self.write(change, true).await?;
        }
        self.write(ChangeMembers::RemoveNodes(gone), false).await?;
        Ok(node)
    }

    /// The voter (but this node) whose log reaches furthest, of those that were heard from lately.
    fn heir(&self) -> Option<u64> {
        let voters = self.voters();
        let metrics = self.core.data_metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref()?;
        let heard = metrics.heartbeat.as_ref();
        let lives = |node: &u64| {
            let heard = heard.and_then(|all| all.get(node).copied().flatten());
            heard.is_some_and(|at| at.elapsed() < self.lives)
        };
        let others = matched
            .iter()
            .filter(|(node, _)| **node != self.own().0 && voters.contains(node) && lives(node));
        let furthest = others.max_by_key(|(_, matched)| matched.map(|id| id.index));
        furthest.map(|(node, _)| *node)
    }

    /// Hands leadership over and returns who leads then.
    pub async fn transfer(&self, to: u64) -> Result<u64, ChangeError> {
        let own = self.own().0;
        if to == own {
            return Ok(own);
        }
        if to != 0 && !self.voters().contains(&to) {
            return Err(ChangeError::UnknownNode(NodeId(to)));
        }
        let nobody = || ChangeError::Failed("no other voter answers".to_owned());
        let to = match to {
            0 => self.heir().ok_or_else(nobody)?,
            to => to,
        };
        let mut leadership = self.leadership.clone();
        let asked = self.core.trigger().transfer_leader(to).await;
        asked.map_err(|_| ChangeError::Stopped)?;
        let other = leadership.wait_for(|now| now.leader.is_some_and(|leader| leader.0 != own));
        match tokio::time::timeout(TRANSFER_PATIENCE, other).await {
            Ok(Ok(now)) => Ok(now.leader.map_or(to, |leader| leader.0)),
            Ok(Err(_)) => Err(ChangeError::Stopped),
            Err(_) => Err(ChangeError::Failed(format!("node {to} did not take over"))),
        }
    }
}

const NOT_LEADER: u32 = 1;
const OTHER_DIRECTORY: u32 = 2;
const UNKNOWN_NODE: u32 = 3;
const LAST_VOTER: u32 = 4;
const FAILED: u32 = 5;

pub(super) fn reply_to(result: Result<u64, ChangeError>) -> pb::ChangeReply {
    let refusal = |reason, node: u64, text: String| {
        Reply::Refused(pb::ChangeRefusal {
            reason,
            node,
            text,
            leader_address: String::new(),
        })
    };
    let result = match result {
        Ok(node) => Reply::Done(node),
        Err(ChangeError::NotLeader(other)) => {
            let leader = other.leader.map_or(0, |leader| leader.0);
            refusal(NOT_LEADER, leader, String::new())
        }
        Err(ChangeError::OtherDataDirectory { node, known }) => {
            refusal(OTHER_DIRECTORY, node.0, known)
        }
        Err(ChangeError::UnknownNode(node)) => refusal(UNKNOWN_NODE, node.0, String::new()),
        Err(ChangeError::LastVoter(node)) => refusal(LAST_VOTER, node.0, String::new()),
        Err(error) => refusal(FAILED, 0, error.to_string()),
    };
    pb::ChangeReply {
        result: Some(result),
    }
}

fn result_from(reply: pb::ChangeReply) -> Result<u64, ChangeError> {
    let refused = match reply.result {
        Some(Reply::Done(node)) => return Ok(node),
        Some(Reply::Refused(refused)) => refused,
        None => return Err(ChangeError::Failed("an answer without content".to_owned())),
    };
    let node = NodeId(refused.node);
    Err(match refused.reason {
        NOT_LEADER => ChangeError::NotLeader(NotLeader {
            leader: (node.0 != 0).then_some(node),
        }),
        OTHER_DIRECTORY => ChangeError::OtherDataDirectory {
            node,
            known: refused.text,
        },
        UNKNOWN_NODE => ChangeError::UnknownNode(node),
        LAST_VOTER => ChangeError::LastVoter(node),
        _ => ChangeError::Failed(refused.text),
    })
}
