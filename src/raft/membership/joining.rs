//! The first membership of a cluster, and nodes that come later.
//!
//! Invariant: a cluster is made once, by the node with the lowest id of a fixed list, after every member of the list
//! has answered. "Nobody answers, so this node begins alone" would make two clusters.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::call::{self, Asked};
use super::changes::{Changes, change_error};
use crate::base::ids::{GroupId, NodeId};
use crate::base::proto::raft::{self as pb, change_request::Change};
use crate::raft::core::roster::Roster;
use crate::raft::core::state_machine::CoreRaft;
use crate::raft::core::type_config::NodeInfo;
use crate::raft::transport::channels::{ChannelPool, ConnectError, RaftClient};
use crate::raft::types::{ChangeError, Peer};

/// Pause between probes of a member that does not answer yet.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the answer to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for an answer of a node that an operator adds, who learns then what is wrong: shorter than his request
/// may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// What may be wrong where a refusal has no reason: only nodes of its own cluster are told one.
const OTHER_CLUSTER: &str =
    "it tells its own cluster alone why: compare cluster.name and cluster.id of both nodes";

/// How long somebody is waited for.
#[derive(Clone, Copy)]
struct Patience {
    /// Probes in a row that are answered, and not as a node does that may be added.
    strange_answers: u32,
    /// From the first probe on.
    within: Duration,
}

impl Patience {
    /// For a member of a list: the cluster is made of all of them.
    const ENDLESS: Patience = Patience {
        strange_answers: u32::MAX,
        within: Duration::MAX,
    };
    /// For whoever an operator names. Some two seconds of strange answers: a node that stops, or starts, may give one,
    /// and a proxy before one that is not there yet does for a while.
    const OPERATOR: Patience = Patience {
        strange_answers: 20,
        within: ANSWER_TIMEOUT,
    };
}

/// Brings nodes together.
pub struct Joining {
    group: GroupId,
    core: CoreRaft,
    roster: Roster,
    channels: Arc<ChannelPool>,
    changes: Arc<Changes>,
}

impl Joining {
    /// For the replica `core` of `group`; changes of a membership that is there are made by `changes`.
    pub fn new(
        group: GroupId,
        core: CoreRaft,
        roster: Roster,
        channels: &Arc<ChannelPool>,
        changes: &Arc<Changes>,
    ) -> Joining {
        Joining {
            group,
            core,
            roster,
            channels: Arc::clone(channels),
            changes: Arc::clone(changes),
        }
    }

    /// See [`crate::raft::Raft::bootstrap`].
    pub async fn bootstrap(&self, members: Vec<Peer>) -> Result<(), ChangeError> {
        if self.is_initialised().await? {
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
                self.channels.identity().directory.clone()
            } else {
                self.wait_for(&member, Patience::ENDLESS).await?
            };
            let info = NodeInfo {
                address: member.address,
                directory,
            };
            nodes.insert(member.node.0, info);
        }
        self.core.initialize(nodes).await.map_err(change_error)
    }

    /// See [`crate::raft::Raft::join`].
    pub async fn join(&self, via: &str) -> Result<(), ChangeError> {
        let identity = self.channels.identity();
        let mut client = self.channels.stranger(via, None).map_err(unusable)?;
        let reply = self.probe(&mut client).await;
        let reply = reply.map_err(|status| ChangeError::Failed(self.refusal(via, &status)))?;
        if !reply.known_as.is_empty() && reply.known_as != identity.directory {
            return Err(self.other_directory(reply.known_as));
        }
        if self.is_initialised().await? && reply.known_as.is_empty() {
            return Err(ChangeError::Failed(format!(
                "{via} does not know this node's data directory: it was removed from the cluster, or belongs to \
                 another one"
            )));
        }
        let own = pb::Node {
            id: identity.node.0,
            address: identity.address.clone(),
            directory: identity.directory.clone(),
        };
        let joined = call::ask(client, self.group, Change::Join(own), Asked::ITSELF).await;
        joined.map(|_| ())
    }

    /// See [`crate::raft::Raft::add`].
    pub async fn add(&self, member: Peer) -> Result<(), ChangeError> {
        let directory = match self.wait_for(&member, Patience::OPERATOR).await {
            Ok(directory) => directory,
            Err(ChangeError::AlreadyInitialised) => match self.roster.node(member.node.0) {
                Some(known) if known.address == member.address => known.directory,
                _ => {
                    return Err(ChangeError::Failed(format!(
                        "node {} at {} belongs to a cluster already; start it with cluster.join and an empty data \
                         directory",
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
        let added = self.changes.change(Change::Join(node), Asked::HERE).await;
        added.map(|_| ())
    }

    fn own(&self) -> NodeId {
        self.channels.identity().node
    }

    async fn is_initialised(&self) -> Result<bool, ChangeError> {
        let initialised = self.core.is_initialized().await;
        initialised.map_err(|_| ChangeError::Stopped)
    }

    fn other_directory(&self, known: String) -> ChangeError {
        ChangeError::OtherDataDirectory {
            node: self.own(),
            known,
        }
    }

    /// Asks who is there.
    async fn probe(&self, client: &mut RaftClient) -> Result<pb::HelloReply, Status> {
        let mut request = tonic::Request::new(pb::HelloRequest {
            group: self.group.0,
        });
        request.set_timeout(PROBE_TIMEOUT);
        Ok(client.hello(request).await?.into_inner())
    }

    /// The data directory of a node that belongs to no cluster yet, once it answers.
    async fn wait_for(&self, member: &Peer, patience: Patience) -> Result<String, ChangeError> {
        let address = &member.address;
        let client = self.channels.stranger(address, Some(member.node));
        let mut client = client.map_err(unusable)?;
        let began = Instant::now();
        let mut said = false;
        let mut strange = 0;
        loop {
            let status = match self.probe(&mut client).await {
                Ok(reply) => return self.directory_of(member, reply),
                Err(status) => status,
            };
            let why = self.why(&status);
            let (so_far, does) = match status.code() {
                Code::FailedPrecondition | Code::PermissionDenied => {
                    (strange + 1, "refuses this node")
                }
                Code::Internal | Code::Unknown | Code::Unimplemented => {
                    (strange + 1, "answers, and not as a node does")
                }
                // The connection has ended before the probe was sent.
                Code::Cancelled => (strange, "does not answer"),
                _ => (0, "does not answer"),
            };
            strange = so_far;
            if strange == patience.strange_answers || began.elapsed() >= patience.within {
                return Err(ChangeError::Failed(format!("{address} {does}: {why}")));
            }
            if !std::mem::replace(&mut said, true) {
                tracing::info!(
                    node = %member.node,
                    address,
                    why,
                    "waiting for a member of the new cluster"
                );
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// What is wrong with somebody whom an operator has named. The words of who has not proved to be a node are not
    /// repeated: it may be any service that this node reaches and the operator does not.
    fn why(&self, status: &Status) -> String {
        let is_own_finding = status.source().is_some();
        match status.code() {
            Code::PermissionDenied => OTHER_CLUSTER.to_owned(),
            _ if is_own_finding || self.channels.peers_are_proved() => call::reason(status),
            _ => "its log may say why".to_owned(),
        }
    }

    /// What this node says that asks to be added and is refused.
    fn refusal(&self, via: &str, status: &Status) -> String {
        let why = call::reason(status);
        match status.code() {
            Code::PermissionDenied => format!("{via} refuses this node: {OTHER_CLUSTER}"),
            // There was a connection, and it has ended: with TLS 1.3 this side believes before the other one does.
            Code::Cancelled | Code::Internal | Code::Unknown
                if self.channels.peers_are_proved() =>
            {
                format!(
                    "{via}: {why}; the log there says whether it took this node for one of its cluster"
                )
            }
            _ => format!("{via}: {why}"),
        }
    }

    /// What a probe's answer says of the data directory of `member`.
    fn directory_of(&self, member: &Peer, reply: pb::HelloReply) -> Result<String, ChangeError> {
        let knows_this_node = !reply.known_as.is_empty();
        if knows_this_node && reply.known_as != self.channels.identity().directory {
            return Err(self.other_directory(reply.known_as));
        }
        if knows_this_node || reply.initialised {
            return Err(ChangeError::AlreadyInitialised);
        }
        if reply.node != member.node.0 {
            return Err(ChangeError::Failed(format!(
                "{} is node {}, not node {}",
                member.address, reply.node, member.node
            )));
        }
        Ok(reply.directory)
    }
}

fn unusable(error: ConnectError) -> ChangeError {
    ChangeError::Failed(error.to_string())
}
