//! Who calls whom: the metadata on every call between nodes, and its check on the receiving side.
//!
//! A node that lost its disk has forgotten what it voted for; two nodes at one address, or a node of another cluster,
//! would mix up two logs; replicas that apply one log by different versions of the machine would differ. Therefore each
//! call names its format, the machine's version, cluster, both nodes and both data directories.
//!
//! Invariant: no call of the Raft service is answered before [`IdentityCheck::admit`] let it in, but `Hello`, which is
//! how a node learns that it is not who it believes to be. See `docs/spec/replication.md`, Membership.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::metadata::{Ascii, KeyAndValueRef, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::base::ids::NodeId;
use crate::raft::core::roster::Roster;
use crate::raft::metrics::Metrics;

/// Version of the messages between nodes. It rises when a peer of the former version can't be understood. Format 1 knows
/// no machine versions: its nodes would take entries of every other.
const WIRE_FORMAT: u32 = 2;

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

/// A refused caller is named in the log this often.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Callers that are remembered for that.
const REFUSAL_LOG_CALLERS: usize = 64;

/// The machine's version of callers that do not name theirs: the key came with version 2.
const UNNAMED_MACHINE: &str = "1";
/// How long the status names a caller of another version after its last call.
const REFUSAL_STATUS: Duration = Duration::from_secs(10);

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

    /// For calls of the cluster service, which names format, cluster and machine only.
    ///
    /// # Errors
    /// When the cluster's id can't be sent.
    pub fn of_forwarding(own: &Identity) -> Result<Caller, MetadataError> {
        let mut metadata = MetadataMap::new();
        put(&mut metadata, FORMAT_KEY, &WIRE_FORMAT.to_string())?;
        put(&mut metadata, MACHINE_KEY, &own.machine.to_string())?;
        put(&mut metadata, FORWARDING_CLUSTER_KEY, &own.cluster)?;
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

/// Why a call was refused; each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
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
    fn is_of_version(&self) -> bool {
        matches!(self, Refusal::Format { .. } | Refusal::Machine { .. })
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        Status::failed_precondition(refusal.to_string())
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

/// Whether a call of the cluster service comes from a node that may make it.
fn check_forwarding(own: &Identity, metadata: &MetadataMap) -> Result<(), Status> {
    check_format(own, metadata)?;
    if text(metadata, FORWARDING_CLUSTER_KEY) != own.cluster {
        let text = "this node belongs to another cluster";
        return Err(Status::permission_denied(text));
    }
    Ok(check_machine(own, metadata)?)
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

/// Checks incoming calls.
pub struct IdentityCheck {
    own: Identity,
    roster: Roster,
    metrics: Arc<Metrics>,
    /// Refused callers, and when each was last named in the log.
    logged: Mutex<HashMap<String, Instant>>,
    /// The data directory that the cluster knows this node with, when it is not its own.
    mismatch: Mutex<Option<String>>,
    /// Callers whose format or machine has another version: when each called last, and why it was refused.
    other_versions: Mutex<HashMap<String, (Instant, String)>>,
}

impl IdentityCheck {
    /// Checks calls of `own` against the membership in `roster`.
    pub fn new(own: Identity, roster: Roster, metrics: Arc<Metrics>) -> Arc<IdentityCheck> {
        Arc::new(IdentityCheck {
            own,
            roster,
            metrics,
            logged: Mutex::new(HashMap::new()),
            mismatch: Mutex::new(None),
            other_versions: Mutex::new(HashMap::new()),
        })
    }

    /// Who this node is.
    pub fn own(&self) -> &Identity {
        &self.own
    }

    /// The data directory that the cluster knows this node with, when it is not its own.
    pub fn directory_mismatch(&self) -> Option<String> {
        self.mismatch.lock().clone()
    }

    /// Nodes that were refused lately because their format or machine has another version, and why.
    pub fn other_versions(&self) -> Vec<(String, String)> {
        let mut known = self.other_versions.lock();
        known.retain(|_, (at, _)| at.elapsed() < REFUSAL_STATUS);
        let named = known
            .iter()
            .map(|(from, (_, why))| (from.clone(), why.clone()));
        let mut named: Vec<_> = named.collect();
        named.sort();
        named
    }

    /// Lets a call of the Raft service in, and returns the caller's node id. A caller that is no member yet is let in,
    /// too. A refusal is counted and logged.
    ///
    /// # Errors
    /// When something of the metadata does not match.
    pub fn admit(&self, metadata: &MetadataMap) -> Result<u64, Refusal> {
        let checked = self.check(metadata);
        if let Err(refusal) = &checked {
            self.refused(metadata, refusal);
        }
        checked
    }

    /// As [`IdentityCheck::admit`], but whatever the caller's data directory is.
    ///
    /// # Errors
    /// When format, machine or cluster does not match.
    pub fn admit_stranger(&self, metadata: &MetadataMap) -> Result<u64, Refusal> {
        let checked = self.check_stranger(metadata);
        if let Err(refusal) = &checked
            && refusal.is_of_version()
        {
            self.refused(metadata, refusal);
        }
        checked
    }

    fn refused(&self, metadata: &MetadataMap, refusal: &Refusal) {
        self.metrics.peers_refused.fetch_add(1, Relaxed);
        let from = text(metadata, FROM_KEY);
        if refusal.is_of_version() {
            let mut known = self.other_versions.lock();
            if known.len() < REFUSAL_LOG_CALLERS || known.contains_key(from) {
                known.insert(from.to_owned(), (Instant::now(), refusal.to_string()));
            }
        }
        self.log(from, refusal);
    }

    fn check_stranger(&self, metadata: &MetadataMap) -> Result<u64, Refusal> {
        check_format(&self.own, metadata)?;
        if text(metadata, CLUSTER_KEY) != self.own.cluster {
            return Err(Refusal::Cluster {
                own: self.own.node,
                cluster: self.own.cluster.clone(),
                other: text(metadata, CLUSTER_KEY).to_owned(),
            });
        }
        check_machine(&self.own, metadata)?;
        text(metadata, FROM_KEY)
            .parse()
            .map_err(|_| Refusal::Nameless)
    }

    /// Lets a call of the cluster service in.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` when the caller belongs to another cluster, `FAILED_PRECONDITION` when its format or its
    /// machine has another version.
    pub fn admit_forwarding(&self, metadata: &MetadataMap) -> Result<(), Status> {
        check_forwarding(&self.own, metadata)
    }

    fn check(&self, metadata: &MetadataMap) -> Result<u64, Refusal> {
        let own = self.own.node;
        let from = self.check_stranger(metadata)?;
        let wanted = text(metadata, TO_KEY);
        if !wanted.is_empty() && wanted.parse() != Ok(own.0) {
            let wanted = wanted.to_owned();
            return Err(Refusal::OtherNode { own, wanted });
        }
        let known = text(metadata, TO_DIRECTORY_KEY);
        if !wanted.is_empty() && known != self.own.directory {
            *self.mismatch.lock() = Some(known.to_owned());
            return Err(Refusal::OwnDirectory {
                own,
                directory: self.own.directory.clone(),
                known: known.to_owned(),
            });
        }
        match self.roster.directory_of(from) {
            Some(known) if known != text(metadata, FROM_DIRECTORY_KEY) => {
                Err(Refusal::CallersDirectory { from, known })
            }
            _ => Ok(from),
        }
    }

    /// Names a refused caller in the log, once per interval.
    fn log(&self, from: &str, refusal: &Refusal) {
        let mut logged = self.logged.lock();
        let now = Instant::now();
        logged.retain(|_, at| now.duration_since(*at) < REFUSAL_LOG_INTERVAL);
        if logged.len() >= REFUSAL_LOG_CALLERS || logged.contains_key(from) {
            return;
        }
        logged.insert(from.to_owned(), now);
        tracing::error!(from, why = %refusal, "a peer was refused");
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
        assert!(check_forwarding(&own, &forwarding).is_ok());
        // Format 1 looks at the format of the Raft service, and at this key of the cluster service.
        assert_ne!(text(&raft, "quorumq-format"), "1");
        assert_eq!(text(&forwarding, "quorumq-cluster"), "");
        // What its nodes send.
        let mut old = MetadataMap::new();
        put(&mut old, "quorumq-cluster", "c").expect("printable");
        assert!(check_forwarding(&own, &old).is_err());
        put(&mut old, "quorumq-format", "1").expect("printable");
        let refused = check_format(&own, &old).expect_err("another format");
        assert!(refused.is_of_version());
    }
}
