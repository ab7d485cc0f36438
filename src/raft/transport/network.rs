//! Raft's outgoing side: entries on one long-lived stream per peer, everything else as single calls.
//!
//! Invariant: a peer that can't be reached, or refuses, is `Unreachable`, so that the library waits longer and longer
//! before it tries again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use tonic::{Request, Status, Streaming};

use super::channels::{ChannelPool, ConnectError, RaftClient};
use super::{snapshot_send, wellformed};
use crate::base::ids::GroupId;
use crate::base::proto::raft as pb;
use crate::raft::core::encoding;
use crate::raft::core::retention::Overdue;
use crate::raft::core::state_machine::SnapshotData;
use crate::raft::core::type_config::{NodeInfo, TypeConfig, Vote};
use crate::raft::metrics::Metrics;

/// Pause before a stream of entries to a peer that can't be reached is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// How long a peer may take to open a stream of entries.
const STREAM_OPENING: Duration = Duration::from_secs(60);

/// How often it is looked, while no answer comes, whether a stream keeps the log from being purged.
const OVERDUE_LOOK: Duration = Duration::from_secs(1);

type RpcError = RPCError<TypeConfig>;
type AppendResults<'s> = BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>;

/// Makes the library's clients for peers.
#[derive(Clone)]
pub struct Network {
    pub group: GroupId,
    pub channels: Arc<ChannelPool>,
    pub metrics: Arc<Metrics>,
    pub overdue: Overdue,
}

/// What the library makes a client for.
#[derive(Clone, Copy)]
enum Purpose {
    Log,
    Heartbeat,
    Snapshot,
}

/// The library's way to one peer.
pub struct PeerConnection {
    group: GroupId,
    target: u64,
    client: Result<RaftClient, ConnectError>,
    purpose: Purpose,
    directory: String,
    metrics: Arc<Metrics>,
    overdue: Overdue,
}

impl Network {
    fn peer(&self, target: u64, node: &NodeInfo, purpose: Purpose) -> PeerConnection {
        let client = match purpose {
            Purpose::Snapshot => self.channels.snapshots(target, node),
            Purpose::Log | Purpose::Heartbeat => self.channels.raft(target, node),
        };
        PeerConnection {
            group: self.group,
            target,
            client,
            purpose,
            directory: self.channels.identity().directory.clone(),
            metrics: Arc::clone(&self.metrics),
            overdue: self.overdue.clone(),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerConnection;

    async fn new_client(&mut self, target: u64, node: &NodeInfo) -> PeerConnection {
        self.peer(target, node, Purpose::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &NodeInfo) -> PeerConnection {
        self.peer(target, node, Purpose::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &NodeInfo) -> PeerConnection {
        self.peer(target, node, Purpose::Snapshot)
    }
}

fn unreachable(text: impl ToString) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(text))
}

fn failed(status: tonic::Status) -> RpcError {
    unreachable(format!("{:?}: {}", status.code(), status.message()))
}

/// A vote in an answer to what was sent in `term`: this node would follow it.
fn believable(vote: &pb::Vote, term: u64) -> Result<Vote, RpcError> {
    wellformed::term(vote.term, term).map_err(unreachable)?;
    Ok(encoding::vote_from(vote))
}

fn append_to(group: GroupId, request: AppendEntriesRequest<TypeConfig>) -> pb::AppendRequest {
    pb::AppendRequest {
        group: group.0,
        vote: Some(encoding::vote_to(&request.vote)),
        previous: request.prev_log_id.as_ref().map(encoding::log_id_to),
        entries: request.entries.iter().map(encoding::entry_to).collect(),
        committed: request.leader_commit.as_ref().map(encoding::log_id_to),
    }
}

/// An answer to what was sent in `term`.
fn append_result(
    reply: pb::AppendReply,
    term: u64,
) -> Result<StreamAppendResult<TypeConfig>, RpcError> {
    use pb::append_reply::Result as Reply;
    match reply.result {
        Some(Reply::Matched(matched)) => Ok(Ok(matched.log_id.as_ref().map(encoding::log_id_from))),
        Some(Reply::Conflict(id)) => {
            Ok(Err(StreamAppendError::Conflict(encoding::log_id_from(&id))))
        }
        Some(Reply::Higher(vote)) => {
            let vote = believable(&vote, term)?;
            Ok(Err(StreamAppendError::HigherVote(vote)))
        }
        None => Err(unreachable("an answer without content")),
    }
}

impl PeerConnection {
    fn client(&self) -> Result<RaftClient, RpcError> {
        self.client.clone().map_err(unreachable)
    }

    async fn ask_vote(
        &self,
        rpc: VoteRequest<TypeConfig>,
        pre: bool,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let mut request = Request::new(pb::VoteRequest {
            group: self.group.0,
            vote: Some(encoding::vote_to(&rpc.vote)),
            last: rpc.last_log_id.as_ref().map(encoding::log_id_to),
            pre,
            transfer: rpc.leadership_transfer,
        });
        request.set_timeout(option.soft_ttl());
        let reply = self
            .client()?
            .vote(request)
            .await
            .map_err(failed)?
            .into_inner();
        let vote = reply
            .vote
            .ok_or_else(|| unreachable("an answer without a vote"))?;
        let vote = believable(&vote, rpc.vote.leader_id.term)?;
        Ok(VoteResponse {
            vote,
            vote_granted: reply.granted,
            last_log_id: reply.last.as_ref().map(encoding::log_id_from),
        })
    }
}

impl NetStreamAppend<TypeConfig> for PeerConnection {
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<AppendResults<'s>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let client = self.client()?;
            match self.purpose {
                Purpose::Heartbeat => heartbeat(client, self.group, input).await,
                Purpose::Log | Purpose::Snapshot => {
                    append(client, self.group, input, &self.overdue).await
                }
            }
        })
    }
}

/// Sends one heartbeat. The library itself gives up after a heartbeat's interval.
async fn heartbeat<'s, S>(
    mut client: RaftClient,
    group: GroupId,
    mut input: S,
) -> Result<AppendResults<'s>, RpcError>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
{
    let Some(request) = input.next().await else {
        return Ok(futures::stream::empty().boxed());
    };
    let term = request.vote.leader_id.term;
    let reply = client.heartbeat(append_to(group, request)).await;
    let result = append_result(reply.map_err(failed)?.into_inner(), term);
    Ok(futures::stream::once(async { result }).boxed())
}

/// Opens a stream of entries. When the peer ends it while requests are unanswered, the last result is an error: the
/// library takes a stream that ends for one that is finished, and would wait for the answers for ever. When the library
/// drops the results, the requests end, too.
async fn append<'s, S>(
    mut client: RaftClient,
    group: GroupId,
    input: S,
    overdue: &'s Overdue,
) -> Result<AppendResults<'s>, RpcError>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
{
    let asked = Arc::new(Asked::new());
    let noted = Arc::clone(&asked);
    let requests = input.map(move |request| {
        noted.note(&request);
        append_to(group, request)
    });
    let (requests, end) = endable(requests);
    let opened = tokio::time::timeout(STREAM_OPENING, client.append(requests));
    let silent = || Status::deadline_exceeded("a stream of entries was not opened");
    let replies = match opened.await.unwrap_or_else(|_| Err(silent())) {
        Ok(replies) => replies.into_inner(),
        Err(status) => {
            // The library backs off between the requests of a stream, not between streams that could not be opened.
            tokio::time::sleep(REOPEN_PAUSE).await;
            return Err(failed(status));
        }
    };
    let answered = Arc::clone(&asked);
    let results = until_overdue(replies, Arc::clone(&asked), overdue).map(move |reply| {
        // Dropped with the results.
        let _end = &end;
        let reply = append_result(reply.map_err(failed)?, answered.term.load(Relaxed))?;
        answered.answer(&reply)?;
        Ok(reply)
    });
    let end = futures::stream::once(async move {
        let ended_early = asked.unanswered.load(Relaxed) > 0;
        ended_early.then(|| Err(unreachable("the peer ended the stream early")))
    });
    let results = results.chain(end.filter_map(futures::future::ready));
    Ok(results.boxed())
}

/// A stream that can be ended from outside, with all that it holds. Its reader may have to wait before it asks for
/// more, and would not see that it is to end.
struct Endable<S>(Arc<Mutex<Ending<S>>>);

/// Ends the stream when it is dropped.
struct End<S>(Arc<Mutex<Ending<S>>>);

struct Ending<S> {
    stream: Option<S>,
    reader: Option<Waker>,
}

fn endable<S>(stream: S) -> (Endable<S>, End<S>) {
    let ending = Arc::new(Mutex::new(Ending {
        stream: Some(stream),
        reader: None,
    }));
    (Endable(Arc::clone(&ending)), End(ending))
}

impl<S: Stream + Unpin> Stream for Endable<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let Ending { stream, reader } = &mut *self.0.lock();
        let Some(stream) = stream else {
            return Poll::Ready(None);
        };
        let polled = stream.poll_next_unpin(context);
        if polled.is_pending() {
            match reader {
                Some(reader) => reader.clone_from(context.waker()),
                None => *reader = Some(context.waker().clone()),
            }
        }
        polled
    }
}

impl<S> Drop for End<S> {
    fn drop(&mut self) {
        let (stream, reader) = {
            let mut ending = self.0.lock();
            (ending.stream.take(), ending.reader.take())
        };
        drop(stream);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// What was sent on a stream of entries, and what came back.
struct Asked {
    /// The term of the last request.
    term: AtomicU64,
    unanswered: AtomicU64,
    /// The index up to which the library took the logs to be the same when the stream began; [`UNKNOWN`] before that.
    begin: AtomicU64,
    /// The last index that the peer has in common with this node; [`UNKNOWN`] before the first request.
    matched: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl Asked {
    fn new() -> Asked {
        Asked {
            term: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            begin: AtomicU64::new(UNKNOWN),
            matched: AtomicU64::new(UNKNOWN),
        }
    }

    fn note(&self, request: &AppendEntriesRequest<TypeConfig>) {
        if self.begin.load(Relaxed) == UNKNOWN {
            let previous = request.prev_log_id.map_or(0, |id| id.index);
            self.matched.store(previous, Relaxed);
            self.begin.store(previous, Relaxed);
        }
        self.term.store(request.vote.leader_id.term, Relaxed);
        self.unanswered.fetch_add(1, Relaxed);
    }

    fn answer(&self, result: &StreamAppendResult<TypeConfig>) -> Result<(), RpcError> {
        let less = |owed: u64| Some(owed.saturating_sub(1));
        let _ = self.unanswered.fetch_update(Relaxed, Relaxed, less);
        if let Ok(matched) = result {
            let matched = matched.map_or(0, |id| id.index);
            if matched < self.begin.load(Relaxed) {
                return Err(unreachable("it has less than it was sent"));
            }
            self.matched.store(matched, Relaxed);
        }
        Ok(())
    }
}

/// The answers of a peer. An error ends them when the peer has not come to where the log is to begin: the library
/// purges nothing that a stream may still need. Its disk may stand still as long as nothing waits for that.
fn until_overdue<'s>(
    replies: Streaming<pb::AppendReply>,
    asked: Arc<Asked>,
    overdue: &'s Overdue,
) -> impl Stream<Item = Result<pb::AppendReply, Status>> + 's {
    futures::stream::unfold(Some(replies), move |replies| {
        let asked = Arc::clone(&asked);
        async move {
            let mut replies = replies?;
            loop {
                if overdue.is_needed_behind(asked.matched.load(Relaxed)) {
                    let gone = Status::out_of_range("what the peer lacks is about to be purged");
                    return Some((Err(gone), None));
                }
                if let Ok(reply) = tokio::time::timeout(OVERDUE_LOOK, replies.next()).await {
                    return reply.map(|reply| (reply, Some(replies)));
                }
            }
        }
    })
}

impl NetVote<TypeConfig> for PeerConnection {
    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.ask_vote(rpc, false, option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.ask_vote(rpc, true, option).await
    }
}

impl NetTransferLeader<TypeConfig> for PeerConnection {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RpcError> {
        use pb::transfer_leader_reply::Refused;
        let mut rpc = Request::new(pb::TransferLeaderRequest {
            group: self.group.0,
            from: Some(encoding::vote_to(request.from_leader())),
            to: *request.to_node_id(),
            last: request.last_log_id().map(encoding::log_id_to),
        });
        rpc.set_timeout(option.soft_ttl());
        let reply = self.client()?.transfer_leader(rpc).await.map_err(failed)?;
        Ok(match reply.into_inner().refused {
            None => Ok(()),
            Some(Refused::Vote(actual)) => Err(TransferLeaderError::VoteChanged {
                expected: *request.from_leader(),
                actual: believable(&actual, request.from_leader().leader_id.term)?,
            }),
            Some(Refused::Durable(durable)) => Err(TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: durable.log_id.as_ref().map(encoding::log_id_from),
            }),
        })
    }
}

impl NetSnapshot<TypeConfig> for PeerConnection {
    type SnapshotData = SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let client = self.client.clone().map_err(Unreachable::from_string)?;
        let begin = pb::SnapshotBegin {
            group: self.group.0,
            vote: Some(encoding::vote_to(&vote)),
            meta: Some(encoding::meta_to(&snapshot.meta)),
            id: self.directory.clone(),
            files: Vec::new(),
        };
        let send = snapshot_send::send(client, begin, snapshot.snapshot);
        tokio::select! {
            sent = send => match sent {
                Ok(answer) => {
                    let term = vote.leader_id.term;
                    wellformed::term(answer.term, term).map_err(Unreachable::from_string)?;
                    self.metrics.snapshots_sent.fetch_add(1, Relaxed);
                    Ok(SnapshotResponse::new(encoding::vote_from(&answer)))
                }
                Err(error) => {
                    tracing::warn!(to = self.target, %error, "a snapshot was not sent to the end");
                    Err(Unreachable::from_string(error).into())
                }
            },
            closed = cancel => Err(closed.into()),
        }
    }
}

impl NetBackoff<TypeConfig> for PeerConnection {
    fn backoff(&self) -> Option<Backoff> {
        None
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
