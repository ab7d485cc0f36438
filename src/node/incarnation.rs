//! The incarnation of this node, and whether the node may serve clients: it has registered its incarnation and has
//! contact with the quorum.
//!
//! A node that is cut off stops serving and disconnects its clients before the leader's lease for it runs out. An
//! incarnation that the cluster has ended is followed by a new one.
//!
//! Invariant: a session never has two live owners.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::error::Elapsed;

use crate::base::ids::{Incarnation, LogIndex};
use crate::base::limits;
use crate::base::time::wall_now;
use crate::connection::broker::Broker;
use crate::mailbox::{End, Item};
use crate::raft::{Raft, ReadError};
use crate::replica::applier::IncarnationEvent;

/// The answer of the quorum, if it came in time.
type Contact = Result<Result<LogIndex, ReadError>, Elapsed>;

/// Keeps [`NodeState::is_serving`](crate::connection::broker::NodeState::is_serving) right.
pub(super) struct IncarnationTask {
    broker: Arc<Broker>,
    raft: Raft,
    /// What the log says of this node's incarnation.
    events: mpsc::UnboundedReceiver<IncarnationEvent>,
    /// `cluster.give_up_ms`.
    give_up: Duration,
    /// The present incarnation is registered.
    registered: bool,
    /// When the question was asked that proved the contact with the quorum last; `None` when the node is cut off.
    contact_at: Option<Instant>,
}

impl IncarnationTask {
    pub(super) fn new(
        broker: Arc<Broker>,
        raft: Raft,
        events: mpsc::UnboundedReceiver<IncarnationEvent>,
        give_up: Duration,
    ) -> IncarnationTask {
        IncarnationTask {
            broker,
            raft,
            events,
            give_up,
            registered: false,
            contact_at: Some(Instant::now()),
        }
    }

    /// Runs until the node stops.
    pub(super) async fn run(mut self) {
        self.begin();
        // When the next question is asked; at once, if the last answer took longer than the interval.
        let mut next = Instant::now();
        loop {
            let raft = self.raft.clone();
            // The time-out covers the interval before the question, too.
            let barrier = async move { raft.read_barrier().await };
            let answer = tokio::time::timeout(self.give_up, barrier);
            let contact = async {
                tokio::time::sleep_until(next.into()).await;
                let asked = Instant::now();
                (asked, answer.await)
            };
            tokio::select! {
                event = self.events.recv() => {
                    let Some(event) = event else {
                        return;
                    };
                    if self.is_last(event) {
                        return;
                    }
                    self.handle_event(event);
                }
                (asked, contact) = contact => {
                    next = asked + limits::QUORUM_CONTACT_INTERVAL;
                    self.handle_contact(asked, contact);
                }
            }
            self.update_serving();
        }
    }

    /// Whether the node itself has ended its incarnation, to stop.
    fn is_last(&self, event: IncarnationEvent) -> bool {
        matches!(event, IncarnationEvent::Ended(_)) && self.broker.state.is_draining()
    }

    fn handle_event(&mut self, event: IncarnationEvent) {
        let present = self.broker.services.proposer.incarnation();
        match event {
            IncarnationEvent::Registered(incarnation) => self.registered |= incarnation == present,
            IncarnationEvent::Ended(incarnation) if incarnation == present => {
                tracing::warn!(
                    %incarnation,
                    "the cluster has ended this node's incarnation; a new one begins"
                );
                self.registered = false;
                self.stop_serving();
                self.begin();
            }
            IncarnationEvent::Ended(_) => {}
        }
    }

    fn handle_contact(&mut self, asked: Instant, contact: Contact) {
        if matches!(contact, Ok(Ok(_))) {
            self.contact_at = Some(asked);
            self.broker.state.routing_lease().renew(asked);
            return;
        }
        let Some(since) = self.contact_at else {
            return;
        };
        // A refusal says that this node is no member: nothing is gained by waiting.
        let refused = matches!(contact, Ok(Err(ReadError::Refused(_))));
        if refused || since.elapsed() > self.give_up {
            self.contact_at = None;
            let why = match contact {
                Ok(Err(error)) => error.to_string(),
                _ => "no answer".to_owned(),
            };
            tracing::warn!(why, "the quorum can't be reached: clients are disconnected");
            self.stop_serving();
        }
    }

    fn update_serving(&self) {
        let serving = self.registered && self.contact_at.is_some();
        if serving != self.broker.state.set_serving(serving) {
            tracing::info!(
                serving,
                incarnation = self.broker.services.proposer.incarnation().0,
                "serving clients"
            );
        }
    }

    /// Begins an incarnation above every one that this node has had.
    fn begin(&self) {
        let known = self.broker.services.view.known_incarnation().0;
        let last = known.max(self.broker.services.proposer.incarnation().0);
        let next = Incarnation(wall_now().0.max(last + 1));
        self.broker.services.proposer.begin(next);
    }

    fn stop_serving(&self) {
        self.broker.state.set_serving(false);
        self.broker
            .services
            .router
            .post_to_all(|| Item::End(End::Unavailable));
    }
}
