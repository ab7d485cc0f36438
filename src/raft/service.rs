//! Raft's incoming side: checks who calls, then translates.
//!
//! A caller of another cluster, with another format, under an id that belongs to another data directory, or that
//! means to reach another node than this, is refused on every call with a message that says what to do.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures::{Stream, StreamExt};
use openraft::errors::RaftError;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, VoteRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::members::Members;
use super::metrics::Metrics;
use super::peers::{
    CLUSTER_KEY, FORMAT_KEY, FROM_DIRECTORY_KEY, FROM_KEY, Identity, TO_DIRECTORY_KEY, TO_KEY,
    WIRE_FORMAT,
};
use super::read::{self, LocalError};
use super::snapshot_receive::Receiver;
use super::succession::Succession;
use super::type_config::{CoreRaft, TypeConfig};
use super::wire;
use crate::base::ids::GroupId;
use crate::base::proto::raft::{self as pb, raft_server};

/// Steps of a snapshot transfer that may wait for a slow sender.
const STEPS: usize = 16;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What peers call. Clones serve the same replica.
#[derive(Clone)]
pub struct Service {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub group: GroupId,
    pub core: CoreRaft,
    pub identity: Identity,
    pub members: Arc<Members>,
    pub receiver: Arc<Receiver>,
    pub metrics: Arc<Metrics>,
    pub succession: Arc<Succession>,
}

fn text<'m>(metadata: &'m MetadataMap, key: &str) -> &'m str {
    metadata
        .get(key)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

impl Inner {
    /// Lets a call of a member or a stranger of this cluster in.
    fn admit(&self, metadata: &MetadataMap) -> Result<u64, Status> {
        let checked = self.check(metadata);
        if let Err(status) = &checked {
            self.metrics.peers_refused.fetch_add(1, Relaxed);
            self.members
                .refused(text(metadata, FROM_KEY), status.message());
        }
        checked
    }

    /// A caller of this cluster that speaks our language, and its node id.
    fn check_cluster(&self, metadata: &MetadataMap) -> Result<u64, Status> {
        let refuse = |text: String| Err(Status::failed_precondition(text));
        let own = &self.identity;
        let format = text(metadata, FORMAT_KEY);
        if format.parse() != Ok(WIRE_FORMAT) {
            return refuse(format!(
                "node {} speaks format {WIRE_FORMAT}, the caller {format:?}: upgrade one release at a time",
                own.node
            ));
        }
        let cluster = text(metadata, CLUSTER_KEY);
        if cluster != own.cluster {
            return refuse(format!(
                "node {} belongs to cluster {}, the caller to {cluster}: check cluster.id and the addresses",
                own.node, own.cluster
            ));
        }
        match text(metadata, FROM_KEY).parse() {
            Ok(from) => Ok(from),
            Err(_) => refuse("the caller does not say which node it is".to_owned()),
        }
    }

    fn check(&self, metadata: &MetadataMap) -> Result<u64, Status> {
        let refuse = |text: String| Err(Status::failed_precondition(text));
        let own = &self.identity;
        let from = self.check_cluster(metadata)?;
        let to = text(metadata, TO_KEY);
        if !to.is_empty() && to.parse() != Ok(own.node.0) {
            return refuse(format!(
                "this is node {}, the caller wants node {to}: two nodes share an address",
                own.node
            ));
        }
        if !to.is_empty() && text(metadata, TO_DIRECTORY_KEY) != own.directory {
            self.members.disowned(text(metadata, TO_DIRECTORY_KEY));
            return refuse(format!(
                "node {} has data directory {}, not the {} the cluster knows: its disk was wiped or replaced; \
                 run `quorumq cluster leave {}` and join it under a new id",
                own.node,
                own.directory,
                text(metadata, TO_DIRECTORY_KEY),
                own.node
            ));
        }
        if let Some(known) = self.members.directory_of(from)
            && known != text(metadata, FROM_DIRECTORY_KEY)
        {
            return refuse(format!(
                "node {from} is known with data directory {known}, the caller has another: its disk was wiped or \
                 replaced; run `quorumq cluster leave {from}` and join it under a new id"
            ));
        }
        Ok(from)
    }

    fn group(&self, group: u32) -> Result<(), Status> {
        if group == self.group.0 {
            return Ok(());
        }
        Err(Status::not_found(format!("no Raft group {group} here")))
    }
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("the replica has stopped: {error}"))
}

fn append_from(
    request: pb::AppendRequest,
) -> Result<AppendEntriesRequest<TypeConfig>, wire::Malformed> {
    let entries = request.entries.into_iter().map(wire::entry_from);
    Ok(AppendEntriesRequest {
        vote: wire::some_vote(&request.ballot)?,
        prev_log_id: request.previous.as_ref().map(wire::log_id_from),
        entries: entries.collect::<Result<_, _>>()?,
        leader_commit: request.committed.as_ref().map(wire::log_id_from),
    })
}

fn append_reply(result: StreamAppendResult<TypeConfig>) -> pb::AppendReply {
    use pb::append_reply::Result as Reply;
    let result = match result {
        Ok(matched) => Reply::Matched(pb::Matched {
            log_id: matched.as_ref().map(wire::log_id_to),
        }),
        Err(StreamAppendError::Conflict(id)) => Reply::Conflict(wire::log_id_to(&id)),
        Err(StreamAppendError::HigherVote(vote)) => Reply::Higher(wire::vote_to(&vote)),
    };
    pb::AppendReply {
        result: Some(result),
    }
}

#[tonic::async_trait]
impl raft_server::Raft for Service {
    type AppendStream = Answers<pb::AppendReply>;
    type SnapshotStream = Answers<pb::SnapshotStep>;

    async fn append(
        &self,
        request: Request<Streaming<pb::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let from = self.inner.admit(request.metadata())?;
        let inner = Arc::clone(&self.inner);
        let stream = inner.succession.stream(from);
        // A broken or senseless stream just ends here; the leader opens another.
        let requests = request.into_inner().scan((), move |(), item| {
            let decoded = item
                .ok()
                .filter(|request| inner.group(request.group).is_ok());
            let decoded = decoded.and_then(|request| match append_from(request) {
                Ok(request) => {
                    stream.heard();
                    Some(request)
                }
                Err(error) => {
                    tracing::warn!(%error, "an append stream was ended");
                    None
                }
            });
            futures::future::ready(decoded)
        });
        let results = self.inner.core.stream_append(requests);
        let replies = results.map(|result| result.map(append_reply).map_err(stopped));
        Ok(Response::new(Box::pin(replies)))
    }

    async fn heartbeat(
        &self,
        request: Request<pb::AppendRequest>,
    ) -> Result<Response<pb::AppendReply>, Status> {
        let from = self.inner.admit(request.metadata())?;
        let request = request.into_inner();
        self.inner.group(request.group)?;
        let request = append_from(request)?;
        self.inner.succession.heard(from);
        let previous = request.prev_log_id;
        let last = request
            .entries
            .last()
            .map(|entry| entry.log_id)
            .or(previous);
        let response = self
            .inner
            .core
            .append_entries(request)
            .await
            .map_err(stopped)?;
        let result = match response {
            AppendEntriesResponse::Success => Ok(last),
            AppendEntriesResponse::PartialSuccess(matched) => Ok(matched),
            AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
            AppendEntriesResponse::Conflict => match previous {
                Some(previous) => Err(StreamAppendError::Conflict(previous)),
                None => {
                    return Err(Status::internal(
                        "nothing conflicts with the log's beginning",
                    ));
                }
            },
        };
        Ok(Response::new(append_reply(result)))
    }

    async fn vote(
        &self,
        request: Request<pb::VoteRequest>,
    ) -> Result<Response<pb::VoteReply>, Status> {
        self.inner.admit(request.metadata())?;
        let request = request.into_inner();
        self.inner.group(request.group)?;
        let rpc = VoteRequest {
            vote: wire::some_vote(&request.ballot)?,
            last_log_id: request.last.as_ref().map(wire::log_id_from),
            leadership_transfer: request.transfer,
        };
        let core = &self.inner.core;
        let response = match request.pre {
            true => core.pre_vote(rpc).await,
            false => core.vote(rpc).await,
        };
        let response = response.map_err(stopped)?;
        Ok(Response::new(pb::VoteReply {
            ballot: Some(wire::vote_to(&response.vote)),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(wire::log_id_to),
        }))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::TransferLeaderReply>, Status> {
        use pb::transfer_leader_reply::Refused;
        self.inner.admit(request.metadata())?;
        let request = request.into_inner();
        self.inner.group(request.group)?;
        let from = wire::some_vote(&request.from)?;
        let last = request.last.as_ref().map(wire::log_id_from);
        let rpc = TransferLeaderRequest::new(from, request.to, last);
        let response = self
            .inner
            .core
            .handle_transfer_leader(rpc)
            .await
            .map_err(stopped)?;
        let refused = match response {
            Ok(()) => None,
            Err(TransferLeaderError::VoteChanged { actual, .. }) => {
                Some(Refused::Ballot(wire::vote_to(&actual)))
            }
            Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                Some(Refused::Durable(pb::Matched {
                    log_id: actual.as_ref().map(wire::log_id_to),
                }))
            }
        };
        Ok(Response::new(pb::TransferLeaderReply { refused }))
    }

    async fn read_index(
        &self,
        request: Request<pb::ReadIndexRequest>,
    ) -> Result<Response<pb::ReadIndexReply>, Status> {
        let from = self.inner.admit(request.metadata())?;
        self.inner.group(request.into_inner().group)?;
        match read::local(&self.inner.core).await {
            // A node that was removed gets no entries any more, so it would wait for them in vain.
            Ok(_) if !self.inner.members.contains(from) => Err(Status::failed_precondition(
                format!("node {from} is not a member of the cluster"),
            )),
            Ok(index) => Ok(Response::new(pb::ReadIndexReply { index })),
            Err(LocalError::Elsewhere(_)) => Err(Status::unavailable("this node does not lead")),
            Err(LocalError::Failed(error)) => Err(Status::unavailable(error.to_string())),
        }
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<pb::SnapshotPart>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.inner.admit(request.metadata())?;
        let (steps, answers) = mpsc::channel(STEPS);
        let receiver = Arc::clone(&self.inner.receiver);
        tokio::spawn(async move { receiver.run(request.into_inner(), steps).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn hello(
        &self,
        request: Request<pb::HelloRequest>,
    ) -> Result<Response<pb::HelloReply>, Status> {
        // A known node under another data directory is not refused: it learns just that from the answer.
        let from = self.inner.check_cluster(request.metadata())?;
        let known_as = self.inner.members.directory_of(from).unwrap_or_default();
        self.inner.group(request.get_ref().group)?;
        let initialised = self.inner.core.is_initialized().await.map_err(stopped)?;
        let leader = self.inner.members.leader();
        Ok(Response::new(pb::HelloReply {
            node: self.inner.identity.node.0,
            directory: self.inner.identity.directory.clone(),
            initialised,
            known_as,
            leader: leader.as_ref().map_or(0, |(id, _)| *id),
            leader_address: leader.map(|(_, node)| node.address).unwrap_or_default(),
        }))
    }

    async fn change(
        &self,
        request: Request<pb::ChangeRequest>,
    ) -> Result<Response<pb::ChangeReply>, Status> {
        self.inner.admit(request.metadata())?;
        let request = request.into_inner();
        self.inner.group(request.group)?;
        let Some(change) = request.change else {
            return Err(Status::invalid_argument("a change without content"));
        };
        let result = self.inner.members.change(change, request.forwarded).await;
        Ok(Response::new(super::members::reply_to(result)))
    }
}

/// The error of an operation that only a stopped core refuses.
pub(super) fn fatal_text<E>(error: RaftError<TypeConfig, E>) -> String
where
    E: std::fmt::Display + std::fmt::Debug,
{
    match error {
        RaftError::APIError(error) => error.to_string(),
        RaftError::Fatal(fatal) => fatal.to_string(),
    }
}
