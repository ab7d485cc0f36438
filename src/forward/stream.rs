//! The streams on which messages leave for other nodes: one per node, opened again whenever it breaks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::outbox::{Outbox, Outboxes};
use super::outbox_state::Relay;
use super::wire;
use crate::base::ids::{LogIndex, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::DeliverRequest;
use crate::base::proto::command::command::Kind;
use crate::machine::effect::Reply;
use crate::raft::Raft;
use crate::replica::proposer::Proposer;
use crate::replica::reply_to::ReplyTo;
use crate::replica::share::Share;
use crate::telemetry::labels::DropReason;
use crate::telemetry::metrics::Metrics;

/// How often the membership is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Before a broken stream is opened again.
const RETRY: Duration = Duration::from_millis(50);

/// The streams of one node.
pub struct PeerStreams {
    /// This node.
    pub local: NodeId,
    /// For the membership, and the way to its nodes.
    pub raft: Raft,
    /// For this node's incarnation.
    pub proposer: Arc<Proposer>,
    /// What is to be sent.
    pub outboxes: Arc<Outboxes>,
    /// Counts what is dropped.
    pub metrics: Arc<Metrics>,
}

impl PeerStreams {
    /// Keeps one stream to each member until the node stops.
    pub async fn run(self: Arc<Self>) {
        let mut streams: FxHashMap<NodeId, JoinHandle<()>> = FxHashMap::default();
        loop {
            let members: Vec<NodeId> = self
                .raft
                .status()
                .members
                .iter()
                .map(|member| NodeId(member.node))
                .collect();
            for node in members.iter().copied().filter(|node| *node != self.local) {
                streams
                    .entry(node)
                    .or_insert_with(|| tokio::spawn(self.clone().keep_stream(node)));
            }
            streams.retain(|node, stream| {
                let is_member = members.contains(node);
                if !is_member {
                    stream.abort();
                }
                is_member
            });
            let next = Instant::now() + CHECK_INTERVAL;
            while Instant::now() < next {
                tokio::time::sleep(limits::PEER_CHECK_INTERVAL).await;
                self.outboxes.release_overdue();
                self.relay_overdue();
            }
        }
    }

    /// Has what silent nodes do not confirm go through the log.
    fn relay_overdue(&self) {
        for (node, outbox) in self.outboxes.all() {
            // What the log has no room for now is looked at again at the next time.
            if !self.proposer.has_room(Share::Common) {
                return;
            }
            if let Some(relay) = outbox.begin_relay(node, self.proposer.incarnation()) {
                self.relay(node, outbox, relay);
            }
        }
    }

    fn relay(&self, node: NodeId, outbox: Arc<Outbox>, relay: Relay) {
        tracing::debug!(
            node = node.0,
            batches = relay.batches.len(),
            "the node confirms nothing: its messages go through the log"
        );
        if relay.left_out > 0 {
            let dropped = &self.metrics.messages_dropped;
            dropped.of(DropReason::PeerQueueFull).add(relay.left_out);
        }
        let mut replies = Vec::with_capacity(relay.batches.len());
        for batch in relay.batches {
            let (sender, receiver) = oneshot::channel();
            replies.push((batch.messages.clone(), receiver));
            // All of them or none: there are at most `Outbox::BATCHES_IN_FLIGHT`.
            self.proposer
                .submit_always(Kind::Relay(batch), ReplyTo::Task(sender), 0);
        }
        let metrics = self.metrics.clone();
        tokio::spawn(async move {
            let index = relayed_at(replies, &metrics).await;
            outbox.end_relay(relay.through, index);
        });
    }

    async fn keep_stream(self: Arc<Self>, node: NodeId) {
        let outbox = self.outboxes.outbox(node);
        loop {
            if let Err(status) = self.run_stream(node, &outbox).await {
                tracing::debug!(node = node.0, %status, "the stream of messages ended");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Runs one stream until it ends.
    async fn run_stream(&self, node: NodeId, outbox: &Outbox) -> Result<(), tonic::Status> {
        let Some(mut client) = self.raft.message_client(node) else {
            return Ok(());
        };
        let (sender, receiver) = mpsc::channel(Outbox::BATCHES_IN_FLIGHT);
        let mut answers = client
            .deliver(ReceiverStream::new(receiver))
            .await?
            .into_inner();
        // The answer names every deferred acknowledgement, and how far the other node has applied the log.
        let first = DeliverRequest {
            node: self.local.0,
            incarnation: self.proposer.incarnation().0,
            applied: outbox.awaited_index(),
            ..DeliverRequest::default()
        };
        if sender.send(first).await.is_err() {
            return Ok(());
        }
        let mut sent = 0;
        loop {
            while let Ok(permit) = sender.try_reserve()
                && let Some(batch) = outbox.next_after(sent, self.proposer.incarnation())
            {
                sent = batch.sequence;
                permit.send(batch.into_request(self.local));
            }
            tokio::select! {
                answer = answers.message() => match answer? {
                    Some(answer) => outbox.handle_answer(&answer),
                    None => return Ok(()),
                },
                () = outbox.changed() => {}
            }
        }
    }
}

/// Where in the log the last batch is, once all are; `None` when replies are lost with this node's incarnation. What
/// the leader refuses for good is dropped and counted: it would be refused again.
async fn relayed_at(
    replies: Vec<(Bytes, oneshot::Receiver<Reply>)>,
    metrics: &Metrics,
) -> Option<LogIndex> {
    let mut last = LogIndex::default();
    for (messages, reply) in replies {
        match reply.await.ok()? {
            Reply::Relayed(index) => last = last.max(index),
            Reply::Undecodable => {
                let count = wire::count(&messages);
                tracing::error!(
                    count,
                    "messages to another node can't go through the log: dropped"
                );
                let dropped = &metrics.messages_dropped;
                dropped.of(DropReason::TooLarge).add(count);
            }
            _ => return None,
        }
    }
    Some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_leader_refuses_is_not_relayed_again() {
        let metrics = Metrics::default();
        let reply = |reply: Option<Reply>| {
            let (sender, receiver) = oneshot::channel();
            if let Some(reply) = reply {
                let _ = sender.send(reply);
            }
            // One message, whose contents nobody looks at.
            (Bytes::from_static(&[0, 0, 0, 1, 0]), receiver)
        };
        let relayed = Reply::Relayed(LogIndex(7));
        let replies = vec![reply(Some(relayed)), reply(Some(Reply::Undecodable))];
        assert_eq!(relayed_at(replies, &metrics).await, Some(LogIndex(7)));
        let dropped = &metrics.messages_dropped;
        assert_eq!(dropped.of(DropReason::TooLarge).get(), 1);
        let lost = vec![reply(Some(Reply::Undecodable)), reply(None)];
        assert_eq!(relayed_at(lost, &metrics).await, None);
    }
}
