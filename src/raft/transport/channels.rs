//! Connections to the other nodes, for Raft and for forwarding.
//!
//! Connections are opened when they are first used, and again after they broke. A dead peer is noticed after
//! [`KEEPALIVE`] plus [`KEEPALIVE_TIMEOUT`] at the latest.
//!
//! Invariant: each kind of traffic ([`Lane`]) has a connection of its own to a peer, so that a snapshot, or many
//! messages, never hold back a heartbeat.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use super::identity::{Caller, Identity, MetadataError};
use crate::base::ids::NodeId;
use crate::base::limits::{CLUSTER_MESSAGE_BYTES, RAFT_MESSAGE_BYTES};
use crate::base::proto::cluster::cluster_client::ClusterClient as GeneratedClusterClient;
use crate::base::proto::raft::raft_client::RaftClient as GeneratedRaftClient;
use crate::peers::{Connector, Trust};
use crate::raft::core::type_config::NodeInfo;

const KEEPALIVE: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Flow-control windows of HTTP/2, bytes.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Calls a peer's Raft service.
pub type RaftClient = GeneratedRaftClient<InterceptedService<Channel, Caller>>;
/// Calls a peer's cluster service: forwarding.
pub type ClusterClient = GeneratedClusterClient<InterceptedService<Channel, Caller>>;

/// No client could be made for a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The peer's address makes no sense.
    #[error("peer address {address:?}: {reason}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The calls could not name caller and peer.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// Kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lane {
    /// Entries, heartbeats, votes, and everything else that is small.
    Raft,
    /// Snapshots.
    Snapshots,
    /// Proposals on their way to the leader.
    Proposals,
    /// Messages that go past the log.
    Messages,
}

/// The connections of this node.
pub struct ChannelPool {
    identity: Identity,
    /// How both ends of a connection prove who they are.
    trust: Trust,
    /// Drives the connections, whichever task asks for them first; but not those of [`Lane::Messages`].
    runtime: Handle,
    /// Per peer and kind of traffic: the address, and the connection to it.
    open: Mutex<HashMap<(u64, Lane), (String, Channel)>>,
}

impl ChannelPool {
    /// No connections yet. Those to come are driven by the runtime that this is called in.
    pub fn new(identity: Identity, trust: Trust) -> Arc<ChannelPool> {
        Arc::new(ChannelPool {
            identity,
            trust,
            runtime: Handle::current(),
            open: Mutex::new(HashMap::new()),
        })
    }

    /// Who this node is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether who answers has proved to be a node of the cluster.
    pub fn peers_are_proved(&self) -> bool {
        self.trust.is_proved()
    }

    /// A client for Raft's small messages to `node`.
    ///
    /// # Errors
    /// When the node's address or directory makes no sense.
    pub fn raft(&self, node: u64, info: &NodeInfo) -> Result<RaftClient, ConnectError> {
        self.raft_client(node, info, Lane::Raft)
    }

    /// A client for snapshots to `node`.
    ///
    /// # Errors
    /// When the node's address or directory makes no sense.
    pub fn snapshots(&self, node: u64, info: &NodeInfo) -> Result<RaftClient, ConnectError> {
        self.raft_client(node, info, Lane::Snapshots)
    }

    /// A client for the Raft service of the node at `address`: `wanted`, or whichever of the cluster that is. Its
    /// connection is not shared.
    ///
    /// # Errors
    /// When the address makes no sense.
    pub fn stranger(
        &self,
        address: &str,
        wanted: Option<NodeId>,
    ) -> Result<RaftClient, ConnectError> {
        let caller = Caller::of_raft(&self.identity, None)?;
        let _runtime = self.runtime.enter();
        Ok(raft_client(self.connect(address, wanted)?, caller))
    }

    /// A client for proposals to `node`.
    ///
    /// # Errors
    /// When the node's address makes no sense.
    pub fn proposals(&self, node: u64, info: &NodeInfo) -> Result<ClusterClient, ConnectError> {
        let _runtime = self.runtime.enter();
        self.cluster_client(node, info, Lane::Proposals)
    }

    /// A client for contact with `node`: small calls that must not wait behind proposals.
    ///
    /// # Errors
    /// When the node's address makes no sense.
    pub fn contacts(&self, node: u64, info: &NodeInfo) -> Result<ClusterClient, ConnectError> {
        let _runtime = self.runtime.enter();
        self.cluster_client(node, info, Lane::Raft)
    }

    /// A client for messages to `node`. Its connection is driven by the runtime of the first caller: handling messages
    /// must not take time from replication.
    ///
    /// # Errors
    /// When the node's address makes no sense.
    pub fn messages(&self, node: u64, info: &NodeInfo) -> Result<ClusterClient, ConnectError> {
        self.cluster_client(node, info, Lane::Messages)
    }

    fn raft_client(
        &self,
        node: u64,
        info: &NodeInfo,
        lane: Lane,
    ) -> Result<RaftClient, ConnectError> {
        let caller = Caller::of_raft(&self.identity, Some((node, &info.directory)))?;
        let _runtime = self.runtime.enter();
        Ok(raft_client(self.channel(node, info, lane)?, caller))
    }

    fn cluster_client(
        &self,
        node: u64,
        info: &NodeInfo,
        lane: Lane,
    ) -> Result<ClusterClient, ConnectError> {
        let caller = Caller::of_forwarding(&self.identity)?;
        let channel = self.channel(node, info, lane)?;
        let client = GeneratedClusterClient::with_interceptor(channel, caller)
            .max_decoding_message_size(CLUSTER_MESSAGE_BYTES)
            .max_encoding_message_size(CLUSTER_MESSAGE_BYTES);
        Ok(client)
    }

    /// The connection to `node` at its present address; driven by the current runtime if it is opened now.
    fn channel(&self, node: u64, info: &NodeInfo, lane: Lane) -> Result<Channel, ConnectError> {
        let mut open = self.open.lock();
        if let Some((address, channel)) = open.get(&(node, lane))
            && *address == info.address
        {
            return Ok(channel.clone());
        }
        let channel = self.connect(&info.address, Some(NodeId(node)))?;
        open.insert((node, lane), (info.address.clone(), channel.clone()));
        Ok(channel)
    }

    /// A channel to `wanted` at `address`, or to whichever node of the cluster is there.
    fn connect(&self, address: &str, wanted: Option<NodeId>) -> Result<Channel, ConnectError> {
        // The scheme is that of what the channel is given: the connector encrypts below it.
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
            ConnectError::Address {
                address: address.to_owned(),
                reason: error.to_string(),
            }
        })?;
        let endpoint = endpoint
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let connector = Connector::new(self.trust.clone(), wanted);
        Ok(endpoint.connect_with_connector_lazy(connector))
    }
}

fn raft_client(channel: Channel, caller: Caller) -> RaftClient {
    GeneratedRaftClient::with_interceptor(channel, caller)
        .max_decoding_message_size(RAFT_MESSAGE_BYTES)
        .max_encoding_message_size(RAFT_MESSAGE_BYTES)
}
