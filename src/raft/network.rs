//! Raft's outgoing side: entries over one long-lived stream per peer, everything else as single calls.
//!
//! A peer that can't be reached, or refuses, is `Unreachable`, so that Raft waits longer and longer before it
//! tries again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
use tonic::Request;

use super::metrics::Metrics;
use super::peers::{Client, Peers};
use super::snapshot_send;
use super::state_machine::SnapshotData;
use super::type_config::{NodeInfo, TypeConfig};
use super::wire;
use crate::base::ids::GroupId;
use crate::base::proto::raft as pb;

/// Before a stream of entries to a peer that can't be reached is opened again.
const REOPEN: std::time::Duration = std::time::Duration::from_millis(100);

type RpcError = RPCError<TypeConfig>;
type AppendResults<'s> = BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>;

/// Makes clients for peers.
#[derive(Clone)]
pub(super) struct Network {
    pub group: GroupId,
    pub peers: Arc<Peers>,
    pub metrics: Arc<Metrics>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Log,
    Heartbeat,
    Snapshot,
}

/// The way to one peer.
pub(super) struct Peer {
    group: GroupId,
    target: u64,
    client: Result<Client, String>,
    kind: Use,
    directory: String,
    metrics: Arc<Metrics>,
}

impl Network {
    fn peer(&self, target: u64, node: &NodeInfo, kind: Use) -> Peer {
        let client = match kind {
            Use::Snapshot => self.peers.bulk(target, node),
            Use::Log | Use::Heartbeat => self.peers.main(target, node),
        };
        Peer {
            group: self.group,
            target,
            client,
            kind,
            directory: self.peers.identity().directory.clone(),
            metrics: Arc::clone(&self.metrics),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &NodeInfo) -> Peer {
        self.peer(target, node, Use::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &NodeInfo) -> Peer {
        self.peer(target, node, Use::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &NodeInfo) -> Peer {
        self.peer(target, node, Use::Snapshot)
    }
}

fn unreachable(text: impl ToString) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(text))
}

fn failed(status: tonic::Status) -> RpcError {
    unreachable(format!("{:?}: {}", status.code(), status.message()))
}

fn append_to(group: GroupId, request: AppendEntriesRequest<TypeConfig>) -> pb::AppendRequest {
    pb::AppendRequest {
        group: group.0,
        ballot: Some(wire::vote_to(&request.vote)),
        previous: request.prev_log_id.as_ref().map(wire::log_id_to),
        entries: request.entries.iter().map(wire::entry_to).collect(),
        committed: request.leader_commit.as_ref().map(wire::log_id_to),
    }
}

fn append_result(reply: pb::AppendReply) -> Result<StreamAppendResult<TypeConfig>, RpcError> {
    use pb::append_reply::Result as Reply;
    match reply.result {
        Some(Reply::Matched(matched)) => Ok(Ok(matched.log_id.as_ref().map(wire::log_id_from))),
        Some(Reply::Conflict(id)) => Ok(Err(StreamAppendError::Conflict(wire::log_id_from(&id)))),
        Some(Reply::Higher(ballot)) => {
            Ok(Err(StreamAppendError::HigherVote(wire::vote_from(&ballot))))
        }
        None => Err(unreachable("an answer without content")),
    }
}

impl Peer {
    fn client(&self) -> Result<Client, RpcError> {
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
            ballot: Some(wire::vote_to(&rpc.vote)),
            last: rpc.last_log_id.as_ref().map(wire::log_id_to),
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
        let vote = wire::some_vote(&reply.ballot).map_err(unreachable)?;
        Ok(VoteResponse {
            vote,
            vote_granted: reply.granted,
            last_log_id: reply.last.as_ref().map(wire::log_id_from),
        })
    }
}

impl NetStreamAppend<TypeConfig> for Peer {
    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<AppendResults<'s>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let mut client = self.client()?;
            let group = self.group;
            if self.kind == Use::Heartbeat {
                let Some(first) = input.next().await else {
                    return Ok(futures::stream::empty().boxed());
                };
                // Raft itself gives up after a heartbeat's interval.
                let reply = client
                    .heartbeat(append_to(group, first))
                    .await
                    .map_err(failed)?;
                let result = append_result(reply.into_inner());
                return Ok(futures::stream::once(async { result }).boxed());
            }
            // Raft takes a stream that ends for one that is finished, and would wait for what it never answered.
            let unanswered = Arc::new(AtomicU64::new(0));
            let asked = Arc::clone(&unanswered);
            let requests = input.map(move |request| {
                asked.fetch_add(1, Relaxed);
                append_to(group, request)
            });
            let replies = match client.append(requests).await {
                Ok(replies) => replies.into_inner(),
                Err(status) => {
                    // Raft backs off between the requests of a stream, not between streams that could not be opened.
                    tokio::time::sleep(REOPEN).await;
                    return Err(failed(status));
                }
            };
            let answered = Arc::clone(&unanswered);
            let results = replies.map(move |reply| {
                answered.fetch_sub(1, Relaxed);
                reply.map_err(failed).and_then(append_result)
            });
            let end = futures::stream::once(async move {
                let ended_early = unanswered.load(Relaxed) > 0;
                ended_early.then(|| Err(unreachable("the peer ended the stream early")))
            });
            let results = results.chain(end.filter_map(futures::future::ready));
            Ok(results.boxed())
        })
    }
}

impl NetVote<TypeConfig> for Peer {
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

impl NetTransferLeader<TypeConfig> for Peer {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RpcError> {
        use pb::transfer_leader_reply::Refused;
        let mut rpc = Request::new(pb::TransferLeaderRequest {
            group: self.group.0,
            from: Some(wire::vote_to(request.from_leader())),
            to: *request.to_node_id(),
            last: request.last_log_id().map(wire::log_id_to),
        });
        rpc.set_timeout(option.soft_ttl());
        let reply = self.client()?.transfer_leader(rpc).await.map_err(failed)?;
        Ok(match reply.into_inner().refused {
            None => Ok(()),
            Some(Refused::Ballot(actual)) => Err(TransferLeaderError::VoteChanged {
                expected: *request.from_leader(),
                actual: wire::vote_from(&actual),
            }),
            Some(Refused::Durable(durable)) => Err(TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: durable.log_id.as_ref().map(wire::log_id_from),
            }),
        })
    }
}

impl NetSnapshot<TypeConfig> for Peer {
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
            ballot: Some(wire::vote_to(&vote)),
            meta: Some(wire::meta_to(&snapshot.meta)),
            id: self.directory.clone(),
            files: Vec::new(),
        };
        let send = snapshot_send::send(client, begin, snapshot.snapshot);
        tokio::select! {
            sent = send => match sent {
                Ok(ballot) => {
                    self.metrics.snapshots_sent.fetch_add(1, Relaxed);
                    Ok(SnapshotResponse::new(wire::vote_from(&ballot)))
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

impl NetBackoff<TypeConfig> for Peer {
    fn backoff(&self) -> Option<Backoff> {
        None
    }
}
