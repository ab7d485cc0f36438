//! The incarnation of this node, and whether the node may serve clients: it has registered its incarnation and has
//! contact with the leader, which a majority follows.
//!
//! A node that is cut off stops serving and disconnects its clients before the leader's lease for it runs out. An
//! incarnation that the cluster has ended is followed by a new one.
//!
//! Invariant: a session never has two live owners. The right to serve ends by itself `cluster.give_up_ms` after the
//! last question that a leader has confirmed was asked, and a leader declares the node down `cluster.node_lease_ms`
//! after it heard such a question at the earliest, which is later.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::contact::{Contact, ContactError};
use crate::base::ids::Incarnation;
use crate::base::limits;
use crate::base::time::{Elapsed, elapsed_now, wall_now};
use crate::connection::broker::Broker;
use crate::mailbox::{End, Item};
use crate::replica::applier::IncarnationEvent;

/// Between a question that was not confirmed and the next one.
const RETRY: Duration = Duration::from_millis(50);

/// Keeps [`NodeState`](crate::connection::broker::NodeState) right.
pub(super) struct IncarnationTask {
    broker: Arc<Broker>,
    contact: Contact,
    /// What the log says of this node's incarnation.
    events: mpsc::UnboundedReceiver<IncarnationEvent>,
    /// `cluster.give_up_ms`.
    give_up: Duration,
    right: Right,
}

/// The right of a node to serve.
#[derive(Debug, Default)]
pub(super) struct Right {
    /// The present incarnation is registered.
    registered: bool,
    /// Until when the last contact lets the node serve; `None` when it was cut off, and before the first contact.
    until: Option<Elapsed>,
}

impl Right {
    /// The right of a registered incarnation that has had no contact yet.
    #[cfg(test)]
    pub(super) fn registered() -> Right {
        Right {
            registered: true,
            until: None,
        }
    }

    /// A leader has confirmed a question that was asked at `asked`. It counts from there, not from the answer.
    pub(super) fn confirmed(&mut self, asked: Elapsed, give_up: Duration) {
        let until = asked.plus(give_up);
        self.until = Some(self.until.map_or(until, |known| known.max(until)));
    }

    /// When the node has to stop serving; `None` when it does not serve.
    pub(super) fn ends_at(&self) -> Option<Elapsed> {
        self.until.filter(|_| self.registered)
    }

    /// Whether the node may serve at `now`.
    #[cfg(test)]
    pub(super) fn holds_at(&self, now: Elapsed) -> bool {
        self.ends_at().is_some_and(|end| now < end)
    }
}

/// A question, when it was asked, and its answer.
type Asked = (Elapsed, Result<(), ContactError>);

impl IncarnationTask {
    pub(super) fn new(
        broker: Arc<Broker>,
        contact: Contact,
        events: mpsc::UnboundedReceiver<IncarnationEvent>,
        give_up: Duration,
    ) -> IncarnationTask {
        IncarnationTask {
            broker,
            contact,
            events,
            give_up,
            right: Right::default(),
        }
    }

    /// Runs until the node stops.
    pub(super) async fn run(mut self) {
        self.begin();
        let mut question = self.ask_after(Duration::ZERO);
        loop {
            let end = self.right.ends_at();
            let cut_off = async {
                match end {
                    Some(end) => tokio::time::sleep(end.since(elapsed_now())).await,
                    None => std::future::pending().await,
                }
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
                (asked, answer) = &mut question => {
                    let pause = match answer {
                        Ok(()) => limits::QUORUM_CONTACT_INTERVAL.saturating_sub(elapsed_now().since(asked)),
                        Err(_) => RETRY,
                    };
                    self.handle_answer(asked, answer);
                    question = self.ask_after(pause);
                }
                () = cut_off => self.give_up("no contact was confirmed in time"),
            }
            self.update_state();
        }
    }

    /// Asks the leader, after a pause, whether this node may go on serving.
    fn ask_after(&self, pause: Duration) -> Pin<Box<dyn Future<Output = Asked> + Send>> {
        let contact = self.contact.clone();
        // An answer that comes later is worth nothing; the leader may have changed, and another one would answer.
        let timeout = self.give_up / 2;
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let asked = elapsed_now();
            let answer = tokio::time::timeout(timeout, contact.ask()).await;
            (asked, answer.unwrap_or(Err(ContactError::TimedOut)))
        })
    }

    /// Whether the incarnation has ended, or its replies are lost, of a node that stops: there is no further one.
    fn is_last(&self, event: IncarnationEvent) -> bool {
        let present = self.broker.services.proposer.incarnation();
        matches!(event, IncarnationEvent::Ended(ended) if ended == present)
            && self.broker.state.is_draining()
    }

    fn handle_event(&mut self, event: IncarnationEvent) {
        let present = self.broker.services.proposer.incarnation();
        match event {
            IncarnationEvent::Registered(incarnation) => {
                self.right.registered |= incarnation == present;
            }
            IncarnationEvent::Ended(incarnation) if incarnation == present => {
                tracing::warn!(
                    %incarnation,
                    "the cluster has ended this node's incarnation; a new one begins"
                );
                self.right.registered = false;
                self.stop_serving();
                self.begin();
            }
            IncarnationEvent::Ended(_) => {}
        }
    }

    fn handle_answer(&mut self, asked: Elapsed, answer: Result<(), ContactError>) {
        match answer {
            Ok(()) => {
                self.right.confirmed(asked, self.give_up);
                self.broker.state.routing_lease().renew(asked);
            }
            // The answer is that this node is no member: nothing is gained by waiting.
            Err(ContactError::Refused(why)) if self.right.until.is_some() => self.give_up(&why),
            Err(error) => tracing::debug!(%error, "no contact"),
        }
    }

    fn give_up(&mut self, why: &str) {
        self.right.until = None;
        tracing::warn!(why, "the quorum can't be reached: clients are disconnected");
        self.stop_serving();
    }

    /// Makes the right known to whoever serves.
    fn update_state(&self) {
        let state = &self.broker.state;
        let served = state.is_serving();
        state.set_registered(self.right.registered);
        match self.right.until {
            Some(until) => state.contact().hold_until(until),
            None => state.contact().end(),
        }
        let serving = state.is_serving();
        if serving != served {
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
        self.update_state();
        self.broker
            .services
            .router
            .post_to_all(|| Item::End(End::Unavailable));
    }
}
