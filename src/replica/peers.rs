//! gRPC channels to the other nodes, at their addresses in the cluster's membership, and the cluster's id on every
//! call.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::cluster::cluster_client::ClusterClient;
use crate::raft::Raft;

/// Metadata key that names the cluster; a call of another cluster is refused.
pub const CLUSTER_METADATA: &str = "quorumq-cluster";

/// Puts the cluster's id on every call, and checks it on the receiving side.
#[derive(Clone)]
pub struct ClusterId(MetadataValue<Ascii>);

impl ClusterId {
    /// The id as a metadata value.
    ///
    /// # Errors
    /// When the id holds something else than visible ASCII.
    pub fn new(id: &str) -> Result<ClusterId, tonic::metadata::errors::InvalidMetadataValue> {
        Ok(ClusterId(id.parse()?))
    }

    /// Refuses a call that belongs to another cluster.
    pub fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        match request.metadata().get(CLUSTER_METADATA) {
            Some(id) if id == self.0 => Ok(()),
            _ => Err(Status::permission_denied(
                "this node belongs to another cluster",
            )),
        }
    }
}

impl Interceptor for ClusterId {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert(CLUSTER_METADATA, self.0.clone());
        Ok(request)
    }
}

/// A client of another node's cluster service.
pub type Client = ClusterClient<InterceptedService<Channel, ClusterId>>;

/// Channels to the other nodes.
pub struct Peers {
    raft: Raft,
    cluster: ClusterId,
    channels: Mutex<FxHashMap<NodeId, (String, Channel)>>,
}

impl Peers {
    /// No channels yet; each is opened when it is used for the first time.
    pub fn new(raft: Raft, cluster: ClusterId) -> Peers {
        Peers {
            raft,
            cluster,
            channels: Mutex::default(),
        }
    }

    /// A client of `node`, when it is a member with a usable address.
    pub fn client(&self, node: NodeId) -> Option<Client> {
        let address = self.raft.status().member(node)?.address.clone();
        let mut channels = self.channels.lock();
        let channel = match channels.get(&node) {
            Some((known, channel)) if *known == address => channel.clone(),
            _ => {
                let channel = Endpoint::from_shared(format!("http://{address}"))
                    .ok()?
                    .tcp_nodelay(true)
                    .connect_timeout(Duration::from_secs(1))
                    .http2_keep_alive_interval(Duration::from_secs(2))
                    .keep_alive_timeout(Duration::from_secs(4))
                    .initial_stream_window_size(8 << 20)
                    .initial_connection_window_size(16 << 20)
                    .connect_lazy();
                channels.insert(node, (address, channel.clone()));
                channel
            }
        };
        Some(
            ClusterClient::with_interceptor(channel, self.cluster.clone())
                .max_decoding_message_size(limits::CLUSTER_MESSAGE_BYTES)
                .max_encoding_message_size(limits::CLUSTER_MESSAGE_BYTES),
        )
    }
}
