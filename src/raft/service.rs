//! Raft's incoming side: checks who calls ([`super::transport::identity`]), then passes the call to the part that
//! answers it.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, VoteRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::core::encoding;
use super::core::fast_election::FastElection;
use super::core::heartbeat;
use super::core::read::{ReadIndexError, read_index};
use super::core::roster::Roster;
use super::core::state_machine::CoreRaft;
use super::core::type_config::TypeConfig;
use super::membership::call::{self, Asked};
use super::membership::changes::Changes;
use super::transport::identity::Call;
use super::transport::identity_check::IdentityCheck;
use super::transport::rights::{NoRight, Rights};
use super::transport::snapshot_receive::{self, SnapshotReceiver};
use super::transport::wellformed;
use crate::base::ids::GroupId;
use crate::base::proto::raft::{self as pb, raft_server, snapshot_part::Part};
use crate::storage::GroupLog;

/// Steps of a snapshot transfer that may wait for a slow sender.
const STEPS: usize = 16;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The Raft service. Clones serve the same replica.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

/// What the service answers with.
pub struct Inner {
    pub group: GroupId,
    pub core: CoreRaft,
    pub roster: Roster,
    pub identity_check: Arc<IdentityCheck>,
    pub rights: Arc<Rights>,
    pub changes: Arc<Changes>,
    pub log: GroupLog,
    pub receiver: Arc<SnapshotReceiver>,
    pub fast_election: Arc<FastElection>,
}

impl Service {
    /// The service over its parts.
    pub fn new(inner: Inner) -> Service {
        Service {
            inner: Arc::new(inner),
        }
    }
}

impl Inner {
    /// Lets a call in, and returns the caller's node id.
    fn admit<'m>(&self, call: impl Into<Call<'m>>) -> Result<u64, Status> {
        self.identity_check.admit(call.into())
    }

    /// Refuses what a caller has no right to.
    fn judge(&self, from: u64, judged: Result<(), NoRight>) -> Result<(), Status> {
        judged.map_err(|why| {
            self.identity_check.no_right(from, &why);
            why.into()
        })
    }

    /// What a leader sends: from itself, and such as can be.
    fn led(&self, from: u64, request: &pb::AppendRequest) -> Result<(), Status> {
        self.group(request.group)?;
        let formed = wellformed::append(request).map_err(|why| NoRight::IllFormed { from, why });
        let judged = formed
            .and_then(|()| self.rights.lead(from, request.vote.as_ref()))
            .and_then(|()| self.rights.keeps_committed(from, request));
        self.judge(from, judged)
    }

    fn group(&self, group: u32) -> Result<(), Status> {
        if group == self.group.0 {
            return Ok(());
        }
        Err(Status::not_found(format!("no Raft group {group} here")))
    }
}

impl Inner {
    /// The beginning of a snapshot, if `from` may send it, and it can be.
    async fn snapshot_begin(
        &self,
        from: u64,
        parts: &mut Streaming<pb::SnapshotPart>,
    ) -> Result<Part, Status> {
        let part = snapshot_receive::next(parts).await?;
        if let Part::Begin(begin) = &part {
            self.group(begin.group)?;
            let formed = wellformed::snapshot(begin);
            let formed = formed.map_err(|why| NoRight::IllFormed { from, why });
            let leads = || self.rights.lead(from, begin.vote.as_ref());
            let covers = || self.rights.covers_committed(from, begin);
            let judged = formed.and_then(|_| leads()).and_then(|()| covers());
            self.judge(from, judged)?;
            return Ok(part);
        }
        Err(Status::invalid_argument(
            "a snapshot begins with its list of files",
        ))
    }
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("the replica has stopped: {error}"))
}

fn append_from(
    request: pb::AppendRequest,
) -> Result<AppendEntriesRequest<TypeConfig>, encoding::Malformed> {
    let entries = request.entries.into_iter().map(encoding::entry_from);
    Ok(AppendEntriesRequest {
        vote: encoding::some_vote(&request.vote)?,
        prev_log_id: request.previous.as_ref().map(encoding::log_id_from),
        entries: entries.collect::<Result<_, _>>()?,
        leader_commit: request.committed.as_ref().map(encoding::log_id_from),
    })
}

fn append_reply(result: StreamAppendResult<TypeConfig>) -> pb::AppendReply {
    use pb::append_reply::Result as Reply;
    let result = match result {
        Ok(matched) => Reply::Matched(pb::Matched {
            log_id: matched.as_ref().map(encoding::log_id_to),
        }),
        Err(StreamAppendError::Conflict(id)) => Reply::Conflict(encoding::log_id_to(&id)),
        Err(StreamAppendError::HigherVote(vote)) => Reply::Higher(encoding::vote_to(&vote)),
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
        let from = self.inner.admit(&request)?;
        let inner = Arc::clone(&self.inner);
        let stream = inner.fast_election.stream(from);
        // A stream that is broken or makes no sense just ends here; the leader opens another.
        let requests = request.into_inner().scan((), move |(), item| {
            let decoded = item.ok().filter(|request| inner.led(from, request).is_ok());
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
            // Held back here, where heartbeats and votes pass by, and not in the core, where they would wait, too.
            let log = inner.log.clone();
            async move {
                log.room().await;
                decoded
            }
        });
        let results = self.inner.core.stream_append(requests);
        let replies = results.map(|result| result.map(append_reply).map_err(stopped));
        Ok(Response::new(Box::pin(replies)))
    }

    async fn heartbeat(
        &self,
        request: Request<pb::AppendRequest>,
    ) -> Result<Response<pb::AppendReply>, Status> {
        let from = self.inner.admit(&request)?;
        let request = request.into_inner();
        self.inner.led(from, &request)?;
        if !request.entries.is_empty() {
            return Err(Status::invalid_argument("a heartbeat carries no entries"));
        }
        let request = append_from(request)?;
        self.inner.fast_election.heard(from);
        let previous = request.prev_log_id;
        let response = heartbeat::answer(&self.inner.core, request)
            .await
            .map_err(stopped)?;
        let result = match response {
            AppendEntriesResponse::Success => Ok(previous),
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
        let from = self.inner.admit(&request)?;
        let request = request.into_inner();
        self.inner.group(request.group)?;
        let judged = self.inner.rights.stand(from, &request);
        self.inner.judge(from, judged)?;
        let rpc = VoteRequest {
            vote: encoding::some_vote(&request.vote)?,
            last_log_id: request.last.as_ref().map(encoding::log_id_from),
            leadership_transfer: request.transfer,
        };
        let core = &self.inner.core;
        let response = match request.pre {
            true => core.pre_vote(rpc).await,
            false => core.vote(rpc).await,
        };
        let response = response.map_err(stopped)?;
        Ok(Response::new(pb::VoteReply {
            vote: Some(encoding::vote_to(&response.vote)),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(encoding::log_id_to),
        }))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::TransferLeaderReply>, Status> {
        use pb::transfer_leader_reply::Refused;
        let from = self.inner.admit(&request)?;
        let request = request.into_inner();
        self.inner.group(request.group)?;
        let formed = wellformed::transfer(&request);
        let formed = formed.map_err(|why| NoRight::IllFormed { from, why });
        let leads = || self.inner.rights.lead(from, request.from.as_ref());
        self.inner.judge(from, formed.and_then(|()| leads()))?;
        let from = encoding::some_vote(&request.from)?;
        let last = request.last.as_ref().map(encoding::log_id_from);
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
                Some(Refused::Vote(encoding::vote_to(&actual)))
            }
            Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                Some(Refused::Durable(pb::Matched {
                    log_id: actual.as_ref().map(encoding::log_id_to),
                }))
            }
        };
        Ok(Response::new(pb::TransferLeaderReply { refused }))
    }

    async fn read_index(
        &self,
        request: Request<pb::ReadIndexRequest>,
    ) -> Result<Response<pb::ReadIndexReply>, Status> {
        let from = self.inner.admit(&request)?;
        self.inner.group(request.into_inner().group)?;
        match read_index(&self.inner.core).await {
            // A node that was removed gets no entries any more, so it would wait for them in vain.
            Ok(_) if !self.inner.roster.contains(from) => Err(Status::failed_precondition(
                format!("node {from} is not a member of the cluster"),
            )),
            Ok(index) => Ok(Response::new(pb::ReadIndexReply { index })),
            Err(ReadIndexError::NotLeader(_)) => {
                Err(Status::unavailable("this node does not lead"))
            }
            Err(ReadIndexError::Failed(error)) => Err(Status::unavailable(error.to_string())),
        }
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<pb::SnapshotPart>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let from = self.inner.admit(&request)?;
        let (steps, answers) = mpsc::channel(STEPS);
        let inner = Arc::clone(&self.inner);
        let mut parts = request.into_inner();
        tokio::spawn(async move {
            // Before the receiver's turn is taken: who may not send must not hold up who may.
            let begin = match inner.snapshot_begin(from, &mut parts).await {
                Ok(begin) => begin,
                Err(status) => {
                    let _ = steps.send(Err(status)).await;
                    return;
                }
            };
            let parts = parts.map(|part| {
                let part = part?;
                wellformed::part(&part).map_err(|why| Status::invalid_argument(why.to_string()))?;
                Ok(part)
            });
            let begin = pb::SnapshotPart { part: Some(begin) };
            let parts = futures::stream::iter([Ok(begin)]).chain(parts);
            inner.receiver.run(parts, steps).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn hello(
        &self,
        request: Request<pb::HelloRequest>,
    ) -> Result<Response<pb::HelloReply>, Status> {
        // A node that is known with another data directory is not refused: it learns just that from the answer.
        let inner = &self.inner;
        let from = inner.identity_check.admit_stranger((&request).into())?;
        let known_as = inner.roster.directory_of(from).unwrap_or_default();
        inner.group(request.get_ref().group)?;
        let initialised = inner.core.is_initialized().await.map_err(stopped)?;
        let leader = inner.roster.leader();
        let own = inner.identity_check.own();
        Ok(Response::new(pb::HelloReply {
            node: own.node.0,
            directory: own.directory.clone(),
            initialised,
            known_as,
            leader: leader.as_ref().map_or(0, |(id, _)| *id),
            membership: inner
                .roster
                .membership_id()
                .as_ref()
                .map(encoding::log_id_to),
            voters: inner.roster.voters().into_iter().collect(),
            leader_address: leader.map(|(_, node)| node.address).unwrap_or_default(),
        }))
    }

    async fn change(
        &self,
        request: Request<pb::ChangeRequest>,
    ) -> Result<Response<pb::ChangeReply>, Status> {
        let from = self.inner.admit(&request)?;
        self.inner.group(request.get_ref().group)?;
        let judged = self
            .inner
            .rights
            .change((&request).into(), from, request.get_ref());
        self.inner.judge(from, judged)?;
        let request = request.into_inner();
        let Some(change) = request.change else {
            return Err(Status::invalid_argument("a change without content"));
        };
        let asked = Asked {
            forwarded: request.forwarded,
            // A node that asks for itself is no operator, whatever it says.
            by_operator: request.forwarded && request.by_operator,
        };
        let result = self.inner.changes.change(change, asked).await;
        Ok(Response::new(call::reply_to(result)))
    }
}
