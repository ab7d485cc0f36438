//! The gRPC service `Cluster`, which the other nodes call: their proposals go to the sequencer when this node leads,
//! and their messages to this node's connections.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::hand_over::HandOvers;
use super::inbox::{InboundStream, Inboxes};
use super::last_seen::LastSeen;
use super::outbox::Outbox;
use super::wire;
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::cluster_server::Cluster;
use crate::base::proto::cluster::{
    ContactRequest, ContactResponse, DeliverRequest, DeliverResponse, HandOverRequest,
    HandOverResponse, ProposeRequest, ProposeResponse,
};
use crate::base::pulse::{Phase, busy};
use crate::base::time::{Millis, wall_now};
use crate::raft::{Leadership, Raft};
use crate::replica::clock::Clock;
use crate::replica::progress::Reached;
use crate::replica::proposer::SequencedProposal;
use crate::replica::sequencer::Sequencer;
use crate::router::Router;

/// No wall clock is ahead of another by as much.
const CENTURY_MS: u64 = 100 * 366 * 24 * 3_600 * 1_000;

/// Answers that may wait for one stream.
const ANSWERS: usize = 32;

/// Bytes of messages that wait for this node to apply something, beyond which nothing is read behind them.
const READ_AHEAD_BYTES: usize = Outbox::BATCHES_IN_FLIGHT * limits::MESSAGE_BATCH_BYTES;

/// How often a node answers while a batch waits: so that it is not taken for silent, see [`limits::FORWARD_TIMEOUT`].
const ANSWER_INTERVAL: Duration = Duration::from_millis(250);

const _: () = assert!(ANSWER_INTERVAL.as_millis() * 3 <= limits::FORWARD_TIMEOUT.as_millis());

/// The service of one node.
pub struct ClusterService {
    /// For the membership, and for the check of callers.
    pub raft: Raft,
    /// Where proposals go.
    pub sequencer: Sequencer,
    /// Whether this node leads.
    pub leadership: watch::Receiver<Leadership>,
    /// How far this node has applied the log.
    pub applied: watch::Receiver<LogIndex>,
    /// This node's connections.
    pub router: Arc<Router>,
    /// When the other nodes were last heard from.
    pub last_seen: Arc<LastSeen>,
    /// Log time, and what the other nodes' wall clocks say.
    pub clock: Arc<Clock>,
    /// What this node's hub is configured with, as a number.
    pub hub_digest: u64,
    /// What the other nodes have sent.
    pub inboxes: Arc<Inboxes>,
    /// For connections whose sessions are about to be taken over.
    pub hand_overs: Arc<HandOvers>,
    /// The runtime on which messages are delivered to connections.
    pub clients: Handle,
}

impl ClusterService {
    async fn take_proposals(
        &self,
        from: NodeId,
        mut stream: Streaming<ProposeRequest>,
    ) -> Result<(), Status> {
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
            let incarnation = itself(from, message.node, message.incarnation)?;
            // A node that was removed gets no entries, so it would never see what becomes of its proposals.
            self.member(from)?;
            self.sequencer.heard(from, Reached::told_in(&message));
            // No sign of life: a node proposes, and sends heartbeats here, also when it can't serve. It asks for
            // contact all the time.
            if message.sequence != 0 {
                let proposal = SequencedProposal {
                    incarnation,
                    sequence: message.sequence,
                    commands: message.commands,
                    weight: message.weight,
                };
                self.sequencer.submit(from, proposal).await;
            }
        }
    }

    /// Whether the caller is a member, whose calls alone have an effect.
    fn member(&self, from: NodeId) -> Result<(), Status> {
        match self.raft.is_member(from) {
            true => Ok(()),
            false => Err(not_a_member(from)),
        }
    }
}

impl ClusterService {
    /// Answers a node that asks whether it may go on serving.
    ///
    /// The order matters. The sign of life is noted first, and only then a majority confirms that this node leads: so
    /// the leader that counts it is the one that could declare the node down, or an earlier one, after which every node
    /// has its full lease.
    async fn confirm(
        &self,
        node: NodeId,
        request: ContactRequest,
    ) -> Result<ContactResponse, Status> {
        let incarnation = itself(node, request.node, request.incarnation)?;
        // The membership that counts is the leader's: another node may not know yet of a new member, which gives up
        // when it is refused.
        let led = *self.leadership.borrow();
        if !led.is_leader {
            return Err(Status::failed_precondition("this node does not lead"));
        }
        self.member(node)?;
        if !self.last_seen.note(node, incarnation, Instant::now()) {
            return Err(Status::failed_precondition(
                "this incarnation is being declared down",
            ));
        }
        if is_plausible(request.wall_ms) {
            // A new leader that does not know log time takes it from here: a voter could have led.
            let is_voter = self.raft.is_voter(node);
            let log_time = request
                .log_ms
                .filter(|log_ms| is_voter && is_plausible(*log_ms));
            let wall = Millis(request.wall_ms);
            self.clock.heard(node, wall, log_time.map(Millis));
        }
        let index = self.raft.confirm_leadership().await;
        let index = index.map_err(|error| Status::unavailable(error.to_string()))?;
        let log_time = self.clock.live();
        // What this node knows of log time is that of the term which it has led all the while, or nobody's.
        if *self.leadership.borrow() != led {
            return Err(Status::unavailable("another term has begun"));
        }
        Ok(ContactResponse {
            index: index.0,
            log_ms: log_time.map(|log_time| log_time.0),
            hub_digest: Some(self.hub_digest),
            wall_ahead_ms: self.clock.ahead_ms(node),
            wall_ms: self.clock.agreed_wall().map(|wall| wall.0),
            term: led.term,
        })
    }
}

/// Whether a time of a wall clock, in milliseconds since the Unix epoch, can be one: whatever this node's own clock
/// shows, no other is a century ahead.
fn is_plausible(time_ms: u64) -> bool {
    time_ms <= wall_now().0.saturating_add(CENTURY_MS)
}

/// The incarnation that a message names, if the message is of the node that calls. Incarnations are taken from wall
/// clocks; one from the end of the numbers would leave the node no higher one.
fn itself(from: NodeId, named: u64, incarnation: u64) -> Result<Incarnation, Status> {
    if named != from.0 {
        let text = format!("node {from} speaks for node {named}");
        return Err(Status::permission_denied(text));
    }
    match is_plausible(incarnation) {
        true => Ok(Incarnation(incarnation)),
        false => Err(Status::invalid_argument(
            "the incarnation is impossibly high",
        )),
    }
}

fn not_a_member(node: NodeId) -> Status {
    Status::permission_denied(format!("node {node} is not a member of the cluster"))
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn propose(
        &self,
        request: Request<Streaming<ProposeRequest>>,
    ) -> Result<Response<ProposeResponse>, Status> {
        let from = self.raft.admit_forwarding(&request)?;
        self.member(from)?;
        self.take_proposals(from, request.into_inner()).await?;
        Ok(Response::new(ProposeResponse {}))
    }

    async fn hand_over(
        &self,
        request: Request<HandOverRequest>,
    ) -> Result<Response<HandOverResponse>, Status> {
        let from = self.raft.admit_forwarding(&request)?;
        self.member(from)?;
        self.hand_overs.answer(request.into_inner()).await;
        Ok(Response::new(HandOverResponse {}))
    }

    async fn contact(
        &self,
        request: Request<ContactRequest>,
    ) -> Result<Response<ContactResponse>, Status> {
        let from = self.raft.admit_forwarding(&request)?;
        let answer = self.confirm(from, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    type DeliverStream = Pin<Box<dyn Stream<Item = Result<DeliverResponse, Status>> + Send>>;

    async fn deliver(
        &self,
        request: Request<Streaming<DeliverRequest>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let from = self.raft.admit_forwarding(&request)?;
        self.member(from)?;
        let (answers, receiver) = mpsc::channel(ANSWERS);
        let receiving = Receiving {
            applied: self.applied.clone(),
            router: self.router.clone(),
            inboxes: self.inboxes.clone(),
            answers,
            inbound: None,
            awaited_index: 0,
            waiting: VecDeque::new(),
            answered_at: Instant::now(),
        };
        let raft = self.raft.clone();
        let requests = request.into_inner().map(move |request| {
            let request = request?;
            itself(from, request.node, request.incarnation)?;
            // It may have been removed since the stream began.
            match raft.is_member(from) {
                true => Ok(request),
                false => Err(not_a_member(from)),
            }
        });
        self.clients.spawn(receiving.run(requests));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// A request, and when it came.
struct Arrived {
    request: DeliverRequest,
    at: Instant,
}

/// One call of `Deliver`.
struct Receiving {
    applied: watch::Receiver<LogIndex>,
    router: Arc<Router>,
    inboxes: Arc<Inboxes>,
    answers: mpsc::Sender<Result<DeliverResponse, Status>>,
    /// The stream; `None` until the first request says which node sends it.
    inbound: Option<InboundStream>,
    /// The log index that the other node waits for, 0 when none.
    awaited_index: u64,
    /// Batches behind one that follows what is in the log further on than this node has applied, and that one. They are
    /// read so that the time they wait is known. There is no deadline: a node whose apply stands gives its clients up.
    waiting: VecDeque<Arrived>,
    /// When the other node was answered last.
    answered_at: Instant,
}

/// The other node takes no more answers: the call has ended.
struct Ended;

impl Receiving {
    async fn run(mut self, mut stream: impl Stream<Item = Result<DeliverRequest, Status>> + Unpin) {
        loop {
            let applied = self.applied.borrow_and_update().0;
            let may_deliver = |next: &mut Arrived| next.request.after <= applied;
            while let Some(next) = self.waiting.pop_front_if(may_deliver) {
                if self.handle(&next, applied).await.is_err() {
                    return;
                }
            }
            let reached = self.awaited_index != 0 && applied >= self.awaited_index;
            if reached {
                self.awaited_index = 0;
            }
            let has_news = self.inbound.as_ref().is_some_and(InboundStream::has_news);
            if (reached || has_news) && self.answer(applied).await.is_err() {
                return;
            }
            let next_answer = self.answered_at + ANSWER_INTERVAL;
            let has_room = self.has_room();
            let released = async {
                match &mut self.inbound {
                    Some(inbound) => inbound.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = stream.next(), if has_room => match request {
                    Some(Ok(request)) => self.read(request),
                    Some(Err(status)) => {
                        // The other node is gone, or learns why it is refused.
                        let _ = self.answers.send(Err(status)).await;
                        return;
                    }
                    None => return,
                },
                changed = self.applied.changed(), if self.awaited_index != 0 || !self.waiting.is_empty() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = released => {}
                // A node that is behind is not silent: it says so, however often it comes round meanwhile.
                () = tokio::time::sleep_until(next_answer.into()), if !self.waiting.is_empty() => {
                    if self.answer(applied).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn read(&mut self, mut request: DeliverRequest) {
        self.awaited_index = self.awaited_index.max(request.applied);
        // Nobody looks at more of them.
        let expiring = request.messages.len() / wire::LEAST_EXPIRING;
        if request.waited_ms.len() > expiring {
            request.waited_ms.truncate(expiring);
            request.waited_ms.shrink_to_fit();
        }
        let at = Instant::now();
        self.waiting.push_back(Arrived { request, at });
    }

    /// Whether one more request is read. The other node sends no more batches than that without an answer.
    fn has_room(&self) -> bool {
        let bytes =
            |next: &Arrived| next.request.messages.len() + size_of_val(&*next.request.waited_ms);
        let waiting = self.waiting.iter().map(bytes);
        self.waiting.len() < Outbox::BATCHES_IN_FLIGHT && waiting.sum::<usize>() < READ_AHEAD_BYTES
    }

    async fn handle(&mut self, next: &Arrived, applied: u64) -> Result<(), Ended> {
        // The runtime's other tasks have their turn between the portions.
        while !busy(Phase::Messages, || self.deliver(next)) {
            if self.answered_at.elapsed() >= ANSWER_INTERVAL {
                self.answer(applied).await?;
            }
            tokio::task::yield_now().await;
        }
        self.answer(applied).await
    }

    /// Delivers a portion of a batch. Returns whether it was the last one.
    fn deliver(&mut self, Arrived { request, at }: &Arrived) -> bool {
        let inbound = self
            .inbound
            .get_or_insert_with(|| InboundStream::new(self.inboxes.inbox(NodeId(request.node))));
        let mut batch = self.router.batch();
        let handled = inbound.handle(request, *at, |forwarded, wake| {
            let groups = forwarded.groups.iter();
            let throttled = batch.deliver(&forwarded.message, groups, forwarded.only_groups, wake);
            (throttled, batch.take_work())
        });
        handled.unwrap_or_else(|error| {
            tracing::error!(from = request.node, %error, "a batch of messages can't be read");
            true
        })
    }

    async fn answer(&mut self, applied: u64) -> Result<(), Ended> {
        self.answered_at = Instant::now();
        let Some(inbound) = &mut self.inbound else {
            return Ok(());
        };
        let answer = inbound.answer(applied);
        self.answers.send(Ok(answer)).await.map_err(|_| Ended)
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
