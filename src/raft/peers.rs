//! Connections to peers, and who this node says it is on each call.
//!
//! Per peer one connection for everything small and one for snapshots, so that a snapshot never holds back a
//! heartbeat. Connections are opened when first used and again after they broke; a dead peer is noticed after
//! [`KEEPALIVE`] plus [`KEEPALIVE_TIMEOUT`] at the latest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use super::type_config::NodeInfo;
use crate::base::ids::NodeId;
use crate::base::proto::raft::raft_client::RaftClient;

/// Version of the messages between nodes. Raised when a peer of the former version can't be understood.
pub(super) const WIRE_FORMAT: u32 = 1;
/// Largest message taken, bytes: a batch of 1 MiB with room for one oversized entry.
pub(super) const MAX_MESSAGE: usize = 64 << 20;
const KEEPALIVE: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

pub(super) const FORMAT_KEY: &str = "quorumq-format";
pub(super) const CLUSTER_KEY: &str = "quorumq-cluster";
pub(super) const FROM_KEY: &str = "quorumq-from";
pub(super) const FROM_DIRECTORY_KEY: &str = "quorumq-from-directory";
pub(super) const TO_KEY: &str = "quorumq-to";
pub(super) const TO_DIRECTORY_KEY: &str = "quorumq-to-directory";

/// Who this node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub node: NodeId,
    pub cluster: String,
    pub directory: String,
    pub address: String,
}

/// Says who calls and whom it means to reach.
#[derive(Clone)]
pub(super) struct Signed {
    own: MetadataMap,
}

impl Signed {
    fn new(identity: &Identity, to: Option<(u64, &str)>) -> Result<Signed, String> {
        let mut own = MetadataMap::new();
        let mut put = |key: &'static str, text: String| -> Result<(), String> {
            let value: MetadataValue<Ascii> = text
                .parse()
                .map_err(|_| format!("{key} is not printable ASCII"))?;
            own.insert(key, value);
            Ok(())
        };
        put(FORMAT_KEY, WIRE_FORMAT.to_string())?;
        put(CLUSTER_KEY, identity.cluster.clone())?;
        put(FROM_KEY, identity.node.to_string())?;
        put(FROM_DIRECTORY_KEY, identity.directory.clone())?;
        if let Some((node, directory)) = to {
            put(TO_KEY, node.to_string())?;
            put(TO_DIRECTORY_KEY, directory.to_owned())?;
        }
        Ok(Signed { own })
    }
}

impl Interceptor for Signed {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        for entry in self.own.iter() {
            if let tonic::metadata::KeyAndValueRef::Ascii(key, value) = entry {
                request.metadata_mut().insert(key.clone(), value.clone());
            }
        }
        Ok(request)
    }
}

pub(super) type Client = RaftClient<InterceptedService<Channel, Signed>>;

struct Connections {
    address: String,
    main: Channel,
    bulk: Channel,
}

/// Connections to every peer this node talks to.
pub(super) struct Peers {
    identity: Identity,
    /// Where connections are driven, whoever asks for them first.
    runtime: Handle,
    open: Mutex<HashMap<u64, Connections>>,
}

impl Peers {
    /// No connections yet; those to come are driven by the runtime this is called in.
    pub fn new(identity: Identity) -> Arc<Peers> {
        Arc::new(Peers {
            identity,
            runtime: Handle::current(),
            open: Mutex::new(HashMap::new()),
        })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The connection for small messages to `node`.
    ///
    /// # Errors
    /// When its address makes no sense.
    pub fn main(&self, node: u64, info: &NodeInfo) -> Result<Client, String> {
        let channel = self.channel(node, info, |connections| &connections.main)?;
        self.client(channel, Some((node, &info.directory)))
    }

    /// The connection for snapshots to `node`.
    ///
    /// # Errors
    /// When its address makes no sense.
    pub fn bulk(&self, node: u64, info: &NodeInfo) -> Result<Client, String> {
        let channel = self.channel(node, info, |connections| &connections.bulk)?;
        self.client(channel, Some((node, &info.directory)))
    }

    /// A connection to whoever is at `address`.
    ///
    /// # Errors
    /// When the address makes no sense.
    pub fn stranger(&self, address: &str) -> Result<Client, String> {
        let _runtime = self.runtime.enter();
        self.client(connect(address)?, None)
    }

    fn channel(
        &self,
        node: u64,
        info: &NodeInfo,
        pick: impl Fn(&Connections) -> &Channel,
    ) -> Result<Channel, String> {
        let _runtime = self.runtime.enter();
        let mut open = self.open.lock();
        if let Some(connections) = open.get(&node)
            && connections.address == info.address
        {
            return Ok(pick(connections).clone());
        }
        let connections = Connections {
            address: info.address.clone(),
            main: connect(&info.address)?,
            bulk: connect(&info.address)?,
        };
        let channel = pick(&connections).clone();
        open.insert(node, connections);
        Ok(channel)
    }

    fn client(&self, channel: Channel, to: Option<(u64, &str)>) -> Result<Client, String> {
        let signed = Signed::new(&self.identity, to)?;
        let client = RaftClient::with_interceptor(channel, signed)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Ok(client)
    }
}

fn connect(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| format!("peer address {address:?}: {error}"))?;
    let endpoint = endpoint
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    Ok(endpoint.connect_lazy())
}
