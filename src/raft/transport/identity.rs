//! Who calls whom: the metadata on every call between nodes, and what it has to be. [`super::identity_check`] holds it
//! against what the connection has proved and what the membership says.
//!
//! A node that lost its disk has forgotten what it voted for; two nodes at one address, or a node of another cluster,
//! would mix up two logs; replicas that apply one log by different versions of the machine would differ. Therefore each
//! call names its format, the machine's version, cluster, the calling node and its data directory, and calls of Raft
//! those of the node that is meant, too.
//!
//! Invariant: who has not proved to be a node of the cluster, and does not know its id, is told no reason.

use tonic::metadata::{Ascii, KeyAndValueRef, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::base::ids::NodeId;
use crate::peers::PeerInfo;

/// Version of the messages between nodes. It rises when a peer of the former version can't be understood. Format 1
/// knows no machine versions: its nodes would take entries of every other. Nodes of format 2 do not say who forwards.
pub const WIRE_FORMAT: u32 = 3;

const FORMAT_KEY: &str = "quorumq-format";
const MACHINE_KEY: &str = "quorumq-machine";
const CLUSTER_KEY: &str = "quorumq-cluster";
/// The cluster on calls of the cluster service. Nodes of format 1 look there at [`CLUSTER_KEY`] only, and refuse a call
/// that does not have it.
const FORWARDING_CLUSTER_KEY: &str = "quorumq-forwarding-cluster";
const FROM_KEY: &str = "quorumq-from";
const FROM_DIRECTORY_KEY: &str = "quorumq-from-directory";
const TO_KEY: &str = "quorumq-to";
const TO_DIRECTORY_KEY: &str = "quorumq-to-directory";

/// The machine's version of callers that do not name theirs: the key came with version 2.
const UNNAMED_MACHINE: &str = "1";
/// Who this node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub node: NodeId,
    /// UUID of the cluster.
    pub cluster: String,
    /// UUID of the data directory.
    pub directory: String,
    /// `host:port` of the cluster listener.
    pub address: String,
    /// The version of the machine that applies the log, [`crate::machine::VERSION`].
    pub machine: u32,
}

/// A value that can't be sent as metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is not printable ASCII")]
pub struct MetadataError {
    key: &'static str,
}

/// Puts the metadata of a caller on each of its calls.
#[derive(Clone)]
pub struct Caller(MetadataMap);

impl Caller {
    /// For calls of the Raft service. `to` is the node that is meant and its data directory, when they are known.
    ///
    /// # Errors
    /// When a value can't be sent.
    pub fn of_raft(own: &Identity, to: Option<(u64, &str)>) -> Result<Caller, MetadataError> {
        let mut metadata = MetadataMap::new();
        put(&mut metadata, FORMAT_KEY, &WIRE_FORMAT.to_string())?;
        put(&mut metadata, MACHINE_KEY, &own.machine.to_string())?;
        put(&mut metadata, CLUSTER_KEY, &own.cluster)?;
        put(&mut metadata, FROM_KEY, &own.node.to_string())?;
        put(&mut metadata, FROM_DIRECTORY_KEY, &own.directory)?;
        if let Some((node, directory)) = to {
            put(&mut metadata, TO_KEY, &node.to_string())?;
            put(&mut metadata, TO_DIRECTORY_KEY, directory)?;
        }
        Ok(Caller(metadata))
    }

    /// For calls of the cluster service.
    ///
    /// # Errors
    /// When the cluster's id can't be sent.
    pub fn of_forwarding(own: &Identity) -> Result<Caller, MetadataError> {
        let mut metadata = MetadataMap::new();
        put(&mut metadata, FORMAT_KEY, &WIRE_FORMAT.to_string())?;
        put(&mut metadata, MACHINE_KEY, &own.machine.to_string())?;
        put(&mut metadata, FORWARDING_CLUSTER_KEY, &own.cluster)?;
        put(&mut metadata, FROM_KEY, &own.node.to_string())?;
        put(&mut metadata, FROM_DIRECTORY_KEY, &own.directory)?;
        Ok(Caller(metadata))
    }
}

fn put(metadata: &mut MetadataMap, key: &'static str, text: &str) -> Result<(), MetadataError> {
    let value: MetadataValue<Ascii> = text.parse().map_err(|_| MetadataError { key })?;
    metadata.insert(key, value);
    Ok(())
}

fn text<'m>(metadata: &'m MetadataMap, key: &str) -> &'m str {
    metadata
        .get(key)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

impl Interceptor for Caller {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        for entry in self.0.iter() {
            if let KeyAndValueRef::Ascii(key, value) = entry {
                request.metadata_mut().insert(key.clone(), value.clone());
            }
        }
        Ok(request)
    }
}

/// A call as it came: what it says of its caller, and what the connection has proved.
#[derive(Clone, Copy)]
pub struct Call<'m> {
    metadata: &'m MetadataMap,
    proven: Option<NodeId>,
}

impl<'m, T> From<&'m Request<T>> for Call<'m> {
    fn from(request: &'m Request<T>) -> Call<'m> {
        let info = request.extensions().get::<PeerInfo>();
        Call {
            metadata: request.metadata(),
            proven: info.and_then(|info| info.proven),
        }
    }
}

impl<'m> Call<'m> {
    /// The node that calls, as it says.
    pub(super) fn from(self) -> &'m str {
        text(self.metadata, FROM_KEY)
    }

    /// The data directory of the node that calls, as it says.
    pub fn directory(self) -> &'m str {
        text(self.metadata, FROM_DIRECTORY_KEY)
    }

    /// The node that is meant, and its data directory; empty when the caller does not know.
    pub(super) fn to(self) -> (&'m str, &'m str) {
        let directory = text(self.metadata, TO_DIRECTORY_KEY);
        (text(self.metadata, TO_KEY), directory)
    }

    /// The cluster that the caller says it belongs to, on calls of either service.
    fn cluster(self) -> &'m str {
        match text(self.metadata, CLUSTER_KEY) {
            "" => text(self.metadata, FORWARDING_CLUSTER_KEY),
            cluster => cluster,
        }
    }

    /// Whether the caller may be told why it is refused.
    pub(super) fn is_of(self, own: &Identity) -> bool {
        self.proven.is_some() || self.cluster() == own.cluster
    }
}

/// Why a call was refused; each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Callers have to prove which node they are, and this one did not.
    #[error("the connection has not proved which node is calling")]
    Unproven,
    /// The caller is another node than it says.
    #[error("the connection is of node {proven}, the call says that it is of {said:?}")]
    NotItself { proven: NodeId, said: String },
    /// The caller speaks another version of the messages.
    #[error(
        "node {own} speaks format {WIRE_FORMAT}, the caller {format:?}: upgrade all nodes as docs/operations.md says"
    )]
    Format { own: NodeId, format: String },
    /// The caller applies the log by another version.
    #[error(
        "node {own} applies the log by machine version {version}, the caller by {other}; replicas could differ, so \
         they refuse each other: upgrade all nodes as docs/operations.md says"
    )]
    Machine {
        own: NodeId,
        version: u32,
        other: String,
    },
    /// The caller belongs to another cluster.
    #[error(
        "node {own} belongs to cluster {cluster}, the caller to {other}: check cluster.id and the addresses"
    )]
    Cluster {
        own: NodeId,
        cluster: String,
        other: String,
    },
    /// The caller does not name itself.
    #[error("the caller does not say which node it is")]
    Nameless,
    /// The caller means another node.
    #[error("this is node {own}, the caller wants node {wanted}: two nodes share an address")]
    OtherNode { own: NodeId, wanted: String },
    /// The caller knows this node with another data directory.
    #[error(
        "node {own} has data directory {directory}, not the {known} the cluster knows: its disk was wiped or \
         replaced; run `quorumq cluster leave {own}` and join it under a new id"
    )]
    OwnDirectory {
        own: NodeId,
        directory: String,
        known: String,
    },
    /// The caller is known with another data directory.
    #[error(
        "node {from} is known with data directory {known}, the caller has another: its disk was wiped or \
         replaced; run `quorumq cluster leave {from}` and join it under a new id"
    )]
    CallersDirectory { from: u64, known: String },
}

impl Refusal {
    /// Whether the caller is of another release.
    pub(super) fn is_of_version(&self) -> bool {
        matches!(self, Refusal::Format { .. } | Refusal::Machine { .. })
    }
}

impl Refusal {
    /// What the caller is told.
    pub(super) fn to_status(&self, call: Call<'_>, own: &Identity) -> Status {
        match call.is_of(own) {
            true => Status::failed_precondition(self.to_string()),
            false => Status::permission_denied("refused"),
        }
    }
}

/// Whether the caller speaks the same format.
fn check_format(own: &Identity, metadata: &MetadataMap) -> Result<(), Refusal> {
    let format = text(metadata, FORMAT_KEY);
    if format.parse() == Ok(WIRE_FORMAT) {
        return Ok(());
    }
    Err(Refusal::Format {
        own: own.node,
        format: format.to_owned(),
    })
}

/// Whether the caller's machine has the same version.
fn check_machine(own: &Identity, metadata: &MetadataMap) -> Result<(), Refusal> {
    let other = match text(metadata, MACHINE_KEY) {
        "" => UNNAMED_MACHINE,
        other => other,
    };
    if other.parse() == Ok(own.machine) {
        return Ok(());
    }
    Err(Refusal::Machine {
        own: own.node,
        version: own.machine,
        other: other.to_owned(),
    })
}

/// Whether the caller is a node of this cluster that is understood; which one it is.
pub(super) fn check_caller(own: &Identity, call: Call<'_>, prove: bool) -> Result<u64, Refusal> {
    let metadata = call.metadata;
    if prove && call.proven.is_none() {
        return Err(Refusal::Unproven);
    }
    check_format(own, metadata)?;
    if call.cluster() != own.cluster {
        return Err(Refusal::Cluster {
            own: own.node,
            cluster: own.cluster.clone(),
            other: call.cluster().to_owned(),
        });
    }
    check_machine(own, metadata)?;
    let from = call.from().parse().map_err(|_| Refusal::Nameless)?;
    match call.proven {
        Some(proven) if proven.0 != from => Err(Refusal::NotItself {
            proven,
            said: call.from().to_owned(),
        }),
        _ => Ok(from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node: u64, machine: u32) -> Identity {
        Identity {
            node: NodeId(node),
            cluster: "c".to_owned(),
            directory: format!("d{node}"),
            address: "127.0.0.1:1".to_owned(),
            machine,
        }
    }

    fn call(metadata: &MetadataMap, proven: Option<u64>) -> Call<'_> {
        Call {
            metadata,
            proven: proven.map(NodeId),
        }
    }

    #[test]
    fn a_call_is_of_the_node_that_the_connection_has_proved() {
        let own = identity(1, 2);
        let of = identity(3, 2);
        let raft = Caller::of_raft(&of, None).expect("printable").0;
        let forwarding = Caller::of_forwarding(&of).expect("printable").0;
        for metadata in [&raft, &forwarding] {
            assert_eq!(check_caller(&own, call(metadata, Some(3)), true), Ok(3));
            let other = check_caller(&own, call(metadata, Some(2)), true);
            assert!(matches!(
                other,
                Err(Refusal::NotItself {
                    proven: NodeId(2),
                    ..
                })
            ));
            let unproven = check_caller(&own, call(metadata, None), true);
            assert_eq!(unproven, Err(Refusal::Unproven));
            assert_eq!(check_caller(&own, call(metadata, None), false), Ok(3));
        }
        let mut nameless = forwarding;
        nameless.remove(FROM_KEY);
        let refused = check_caller(&own, call(&nameless, Some(3)), true);
        assert_eq!(refused, Err(Refusal::Nameless));
    }

    #[test]
    fn a_stranger_is_not_told_the_cluster_nor_anything_else() {
        let own = identity(1, 2);
        let mut stranger = identity(3, 7);
        stranger.cluster = "other".to_owned();
        let metadata = Caller::of_raft(&stranger, None).expect("printable").0;
        let nothing = MetadataMap::new();
        for metadata in [&metadata, &nothing] {
            let call = call(metadata, None);
            let refused = check_caller(&own, call, false).expect_err("a stranger");
            let told = refused.to_status(call, &own);
            assert_eq!(told.code(), tonic::Code::PermissionDenied);
            assert_eq!(told.message(), "refused");
        }
        // A node that has proved itself learns what to do.
        let call = call(&metadata, Some(3));
        let refused = check_caller(&own, call, true).expect_err("another cluster");
        assert!(
            refused
                .to_status(call, &own)
                .message()
                .contains("check cluster.id")
        );
    }

    #[test]
    fn callers_name_their_machine_and_another_one_is_refused() {
        let own = identity(1, 2);
        let raft = |machine| {
            Caller::of_raft(&identity(3, machine), None)
                .expect("printable")
                .0
        };
        let forwarding = |machine| {
            Caller::of_forwarding(&identity(3, machine))
                .expect("printable")
                .0
        };
        assert_eq!(check_machine(&own, &raft(2)), Ok(()));
        assert_eq!(check_machine(&own, &forwarding(2)), Ok(()));
        for metadata in [raft(7), forwarding(7)] {
            let refused = check_machine(&own, &metadata);
            assert!(matches!(&refused, Err(Refusal::Machine { other, .. }) if other == "7"));
        }
        // A node from before the versions were named.
        let mut unnamed = raft(2);
        unnamed.remove(MACHINE_KEY);
        assert!(check_machine(&own, &unnamed).is_err());
        assert_eq!(check_machine(&identity(1, 1), &unnamed), Ok(()));
    }

    #[test]
    fn nodes_of_the_first_format_and_of_this_one_refuse_each_other() {
        let own = identity(1, 2);
        let raft = Caller::of_raft(&own, None).expect("printable").0;
        let forwarding = Caller::of_forwarding(&own).expect("printable").0;
        assert_eq!(check_format(&own, &raft), Ok(()));
        assert_eq!(check_caller(&own, call(&forwarding, None), false), Ok(1));
        // Format 1 looks at the format of the Raft service, and at this key of the cluster service.
        assert_ne!(text(&raft, "quorumq-format"), "1");
        assert_eq!(text(&forwarding, "quorumq-cluster"), "");
        // What its nodes send.
        let mut old = MetadataMap::new();
        put(&mut old, "quorumq-cluster", "c").expect("printable");
        assert!(check_caller(&own, call(&old, None), false).is_err());
        put(&mut old, "quorumq-format", "1").expect("printable");
        let refused = check_format(&own, &old).expect_err("another format");
        assert!(refused.is_of_version());
    }
}
