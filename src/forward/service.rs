//! The gRPC service the other nodes call: their proposals when this node leads, their messages for its connections.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures::Stream;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::proto::cluster::cluster_server::Cluster;
use crate::base::proto::cluster::{
    DeliverRequest, DeliverResponse, ProposeRequest, ProposeResponse,
};
use crate::forward::inbox::{DeferAcks, Incoming, Received};
use crate::mailbox::WakeList;
use crate::raft::{Leadership, Raft};
use crate::replica::peers::ClusterId;
use crate::replica::proposer::SequencedProposal;
use crate::replica::sequencer::Sequencer;
use crate::router::Router;

/// When each node was last heard of, kept by the leader.
#[derive(Default)]
pub struct LastSeen(Mutex<FxHashMap<NodeId, (Incarnation, Instant)>>);

impl LastSeen {
    fn note(&self, node: NodeId, incarnation: Incarnation) {
        self.0.lock().insert(node, (incarnation, Instant::now()));
    }

    /// When `incarnation` of `node` was last heard of; now, if this is the first time it is asked for.
    pub fn last(&self, node: NodeId, incarnation: Incarnation) -> Instant {
        let mut heard = self.0.lock();
        let entry = heard.entry(node).or_insert((incarnation, Instant::now()));
        if entry.0 < incarnation {
            *entry = (incarnation, Instant::now());
        }
        entry.1
    }

    /// Starts all leases anew: a new leader gives every node its full lease.
    pub fn forget(&self) {
        self.0.lock().clear();
    }
}

/// The service.
pub struct ClusterService {
    /// Checked on every call.
    pub cluster: ClusterId,
    /// For the membership.
    pub raft: Raft,
    /// Where proposals go.
    pub sequencer: Sequencer,
    /// Whether this node leads.
    pub leadership: watch::Receiver<Leadership>,
    /// How far the log is applied here.
    pub applied: watch::Receiver<LogIndex>,
    /// This node's connections.
    pub router: Arc<Router>,
    /// Signs of life.
    pub heard: Arc<LastSeen>,
    /// What other nodes have handed over.
    pub received: Arc<Received>,
    /// Where messages are handed to connections.
    pub clients: Handle,
}

impl ClusterService {
    async fn take_proposals(&self, mut stream: Streaming<ProposeRequest>) -> Result<(), Status> {
        let mut leadership = self.leadership.clone();
        let not_leader = || Status::failed_precondition("this node does not lead");
        loop {
            if !leadership.borrow_and_update().is_leader {
                return Err(not_leader());
            }
            let message = tokio::select! {
                message = stream.message() => message?,
                changed = leadership.changed() => {
                    changed.map_err(|_| Status::unavailable("this node is stopping"))?;
                    continue;
                }
            };
            let Some(message) = message else {
                return Ok(());
            };
            let (node, incarnation) = (NodeId(message.node), Incarnation(message.incarnation));
            // A node that was removed gets no entries, so it would never see what becomes of its proposals.
            if !self.raft.is_member(node) {
                return Err(Status::permission_denied(format!(
                    "node {node} is not a member of the cluster"
                )));
            }
            self.heard.note(node, incarnation);
            if message.sequence != 0 {
                let proposal = SequencedProposal {
                    incarnation,
                    sequence: message.sequence,
                    commands: message.commands,
                };
                self.sequencer.submit(node, proposal).await;
            }
        }
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn propose(
        &self,
        request: Request<Streaming<ProposeRequest>>,
    ) -> Result<Response<ProposeResponse>, Status> {
        self.cluster.check(&request)?;
        self.take_proposals(request.into_inner()).await?;
        Ok(Response::new(ProposeResponse {}))
    }

    type DeliverStream = Pin<Box<dyn Stream<Item = Result<DeliverResponse, Status>> + Send>>;

    async fn deliver(
        &self,
        request: Request<Streaming<DeliverRequest>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        self.cluster.check(&request)?;
        let (answers, receiver) = mpsc::channel(32);
        let receiving = Receiving {
            applied: self.applied.clone(),
            router: self.router.clone(),
            received: self.received.clone(),
            answers,
            incoming: None,
            wanted: 0,
        };
        self.clients.spawn(receiving.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// One incoming stream of messages.
struct Receiving {
    applied: watch::Receiver<LogIndex>,
    router: Arc<Router>,
    received: Arc<Received>,
    answers: mpsc::Sender<Result<DeliverResponse, Status>>,
    /// Since the first request has come, which says who sends.
    incoming: Option<Incoming>,
    /// The log index the other node waits for, 0 when none.
    wanted: u64,
}

impl Receiving {
    async fn run(mut self, mut stream: Streaming<DeliverRequest>) {
        loop {
            let applied = self.applied.borrow_and_update().0;
            let reached = self.wanted != 0 && applied >= self.wanted;
            if reached {
                self.wanted = 0;
            }
            let has_news = self.incoming.as_ref().is_some_and(Incoming::has_news);
            if (reached || has_news) && self.answer(applied).await.is_err() {
                return;
            }
            let released = async {
                match &mut self.incoming {
                    Some(incoming) => incoming.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = stream.message() => match message {
                    Ok(Some(message)) => {
                        if self.handle(&message, applied).await.is_err() {
                            return;
                        }
                    }
                    _ => return,
                },
                changed = self.applied.changed(), if self.wanted != 0 => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = released => {}
            }
        }
    }

    async fn handle(&mut self, message: &DeliverRequest, applied: u64) -> Result<(), ()> {
        let incoming = self
            .incoming
            .get_or_insert_with(|| Incoming::new(self.received.peer(NodeId(message.node))));
        let deliver = |hold: &mut DeferAcks<'_>, wake: &mut WakeList| {
            self.router.deliver_forwarded(&message.messages, hold, wake)
        };
        if incoming.handle(message, deliver).is_none() {
            tracing::error!(
                from = message.node,
                "a node forwarded messages that can't be read"
            );
        }
        self.wanted = self.wanted.max(message.applied);
        self.answer(applied).await
    }

    async fn answer(&mut self, applied: u64) -> Result<(), ()> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        let answer = incoming.answer(applied);
        self.answers.send(Ok(answer)).await.map_err(|_| ())
    }
}
