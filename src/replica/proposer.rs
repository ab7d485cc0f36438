//! What this node proposes: collected from its connections into numbered proposals, kept until they are applied.
//!
//! Connections append encoded commands to the batch that is gathering. At most [`limits::PROPOSALS_IN_FLIGHT`]
//! proposals are on their way; while they are, the next one gathers, so batches grow with load and nothing waits
//! when idle, but for acknowledgements that nothing waits for: these let another command take them along. A proposal stays here until this node's own apply reports it, and is sent again whenever it may have
//! been lost: the machine applies each sequence once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{Notify, oneshot};

use crate::base::ids::{Incarnation, SessionId};
use crate::base::limits;
use crate::base::proto::command;
use crate::machine::effect::Reply;
use crate::mailbox::back_pressure;
use crate::mailbox::{Item, Mailbox, RequestId, WakeList};
use crate::router::Pressed;

/// Who gets the reply to a command.
pub enum ReplyTo {
    /// A connection.
    Connection(Arc<Mailbox>, RequestId),
    /// Another task of this node; it may have gone away.
    Task(oneshot::Sender<Reply>),
    /// Nobody.
    Nobody,
}

impl ReplyTo {
    /// The message that the coming reply acknowledges was handed to slow subscribers of this node: it is to wait for them,
    /// if it is this waiter's.
    fn hold(&self, publisher: SessionId, throttled: Throttled, wake: &mut WakeList) {
        let ReplyTo::Connection(mailbox, request_id) = self else {
            return;
        };
        if mailbox.session() != Some(publisher) {
            return;
        }
        for (slow, end) in throttled {
            // First, because it may be released at once.
            if mailbox.push_item(Item::AckDeferred(*request_id)) {
                wake.add(mailbox);
            }
            let waiter = pressure::ReplyTo::Publisher(mailbox.clone(), *request_id);
            if !slow.hold(end, waiter.clone(), wake) {
                waiter.release(wake);
            }
        }
    }

    fn complete(self, reply: Reply, wake: &mut WakeList) {
        match self {
            ReplyTo::Connection(mailbox, request_id) => {
                if mailbox.push_item(Item::Reply(request_id, reply)) {
                    wake.add(&mailbox);
                }
            }
            // The receiver may have given up waiting; the command was applied all the same.
            ReplyTo::Task(sender) => drop(sender.send(reply)),
            ReplyTo::Nobody => {}
        }
    }
}

/// A proposal on its way.
#[derive(Clone)]
pub struct SequencedProposal {
    /// The life of this node it belongs to.
    pub incarnation: Incarnation,
    /// Its number within that life.
    pub sequence: u64,
    /// Length-delimited commands.
    pub commands: Bytes,
}

struct InFlight {
    numbered: SequencedProposal,
    waiters: VecDeque<ReplyTo>,
    since: Instant,
}

/// How far a link has sent what is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    incarnation: Incarnation,
    sent: u64,
    resend: u64,
}

#[derive(Default)]
struct State {
    incarnation: Incarnation,
    resend: u64,
    next_sequence: u64,
    /// Proposals that are full and wait for their turn, before what gathers.
    full: VecDeque<(Bytes, VecDeque<ReplyTo>)>,
    full_bytes: usize,
    commands: BytesMut,
    /// When what has gathered is proposed although nothing in it is urgent; `None` when something is.
    ripe_at: Option<Instant>,
    waiters: VecDeque<ReplyTo>,
    in_flight: VecDeque<InFlight>,
}

impl State {
    /// Whether there is something to be proposed now.
    fn has_something(&self) -> bool {
        !self.full.is_empty() || !(self.commands.is_empty() || self.ripe_at.is_some())
    }
}

/// A command was not taken: too much is waiting to be proposed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many commands are waiting to be proposed")]
pub struct Overloaded;

/// Commands that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// For the next proposal.
    pub gathering: usize,
    /// To be applied here.
    pub in_flight: usize,
}

/// The node's proposals. Shared by its connections, the link to the leader, and apply.
#[derive(Default)]
pub struct Proposer {
    state: Mutex<State>,
    ready: Notify,
    lazy: Notify,
}

/// When a command wants to be proposed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    Soon,
}

impl Proposer {
    /// Adds a command to the proposal that is gathering.
    ///
    /// # Errors
    /// When too much is waiting already; nothing was added.
    pub fn submit(&self, kind: command::command::Kind, waiter: ReplyTo) -> Result<(), Overloaded> {
        self.gather(kind, waiter, limits::PROPOSAL_GATHERING_BYTES, When::Now)
    }

    /// Adds a command that goes ahead of what is held back: there is room for it when there is none for others.
    ///
    /// # Errors
    /// When even that is used up; nothing was added.
    pub fn submit_urgent(
        &self,
        kind: command::command::Kind,
        waiter: ReplyTo,
    ) -> Result<(), Overloaded> {
        self.gather(kind, waiter, limits::PROPOSAL_URGENT_BYTES, When::Now)
    }

    /// Adds a command that ends something: there are at most as many as there are connections, so it is never refused.
    pub fn submit_always(&self, kind: command::command::Kind, waiter: ReplyTo) {
        let taken = self.gather(kind, waiter, usize::MAX, When::Now);
        debug_assert!(taken.is_ok(), "there is no bound");
    }

    /// The same for a command that nothing waits for: it goes with the next one, or after [`limits::LAZY_COMMANDS`].
    pub fn submit_lazily(&self, kind: command::command::Kind) {
        let taken = self.gather(kind, ReplyTo::Nobody, usize::MAX, When::Soon);
        debug_assert!(taken.is_ok(), "there is no bound");
    }

    fn gather(
        &self,
        kind: command::command::Kind,
        waiter: ReplyTo,
        bound: usize,
        when: When,
    ) -> Result<(), Overloaded> {
        let command = command::Command { kind: Some(kind) };
        let mut state = self.state.lock();
        if state.full_bytes + state.commands.len() >= bound {
            return Err(Overloaded);
        }
        if when == When::Now {
            state.ripe_at = None;
        } else if state.commands.is_empty() {
            state.ripe_at = Some(Instant::now() + limits::LAZY_COMMANDS);
            self.lazy.notify_one();
        }
        command
            .encode_length_delimited(&mut state.commands)
            .expect("a BytesMut grows");
        state.waiters.push_back(waiter);
        if state.commands.len() >= limits::PROPOSAL_BYTES {
            state.ripe_at = None;
            let full = (
                state.commands.split().freeze(),
                std::mem::take(&mut state.waiters),
            );
            state.full_bytes += full.0.len();
            state.full.push_back(full);
        }
        let may_send = state.has_something() && state.in_flight.len() < limits::PROPOSALS_IN_FLIGHT;
        drop(state);
        if may_send {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Proposes a command and waits until it is applied here; `None` when the node's life ended before.
    pub async fn propose(&self, kind: command::command::Kind) -> Option<Reply> {
        let (sender, receiver) = oneshot::channel();
        self.submit(kind, ReplyTo::Task(sender)).ok()?;
        receiver.await.ok()
    }

    /// How much is waiting.
    pub fn depth(&self) -> Depth {
        let state = self.state.lock();
        Depth {
            gathering: state.waiters.len()
                + state
                    .full
                    .iter()
                    .map(|(_, waiters)| waiters.len())
                    .sum::<usize>(),
            in_flight: state
                .in_flight
                .iter()
                .map(|proposal| proposal.waiters.len())
                .sum(),
        }
    }

    /// How long the oldest proposal has been on its way.
    pub fn oldest(&self) -> Option<Instant> {
        self.state
            .lock()
            .in_flight
            .front()
            .map(|proposal| proposal.since)
    }

    /// Begins a new life: what was under way is forgotten (its connections are ended by the caller), and the first
    /// proposal, which registers the incarnation, is made.
    pub fn begin(&self, incarnation: Incarnation) {
        let mut state = self.state.lock();
        *state = State {
            incarnation,
            next_sequence: 1,
            ..State::default()
        };
        Self::number(&mut state);
        drop(state);
        self.ready.notify_one();
    }

    /// This node's present life.
    pub fn incarnation(&self) -> Incarnation {
        self.state.lock().incarnation
    }

    fn number(state: &mut State) {
        let (commands, waiters) = match state.full.pop_front() {
            Some(full) => {
                state.full_bytes -= full.0.len();
                full
            }
            None => {
                state.ripe_at = None;
                let commands = state.commands.split().freeze();
                (commands, std::mem::take(&mut state.waiters))
            }
        };
        let numbered = SequencedProposal {
            incarnation: state.incarnation,
            sequence: state.next_sequence,
            commands,
        };
        state.next_sequence += 1;
        state.in_flight.push_back(InFlight {
            numbered,
            waiters,
            since: Instant::now(),
        });
    }

    /// Waits until [`Proposer::next`] may have something new.
    pub async fn changed(&self) {
        loop {
            let ripe_at = self.state.lock().ripe_at;
            let ripe = async {
                match ripe_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.ready.notified() => return,
                () = ripe => {
                    self.state.lock().ripe_at = None;
                    return;
                }
                () = self.lazy.notified() => {}
            }
        }
    }

    /// The next proposal that a link at `cursor` has not sent, numbering what has gathered when there is room. A link
    /// begins with a default cursor, so a new link sends everything that is not applied yet.
    pub fn next(&self, cursor: &mut Cursor) -> Option<SequencedProposal> {
        let mut state = self.state.lock();
        if cursor.incarnation != state.incarnation || cursor.resend != state.resend {
            *cursor = Cursor {
                incarnation: state.incarnation,
                sent: 0,
                resend: state.resend,
            };
        }
        // The newest is looked at first: usually everything older has been sent.
        if state
            .in_flight
            .back()
            .is_none_or(|newest| newest.numbered.sequence <= cursor.sent)
        {
            if !state.has_something() || state.in_flight.len() >= limits::PROPOSALS_IN_FLIGHT {
                return None;
            }
            Self::number(&mut state);
        }
        let found = state
            .in_flight
            .iter()
            .find(|proposal| proposal.numbered.sequence > cursor.sent)?;
        cursor.sent = found.numbered.sequence;
        Some(found.numbered.clone())
    }

    /// Something on its way may have been lost: links send everything again.
    pub fn resend(&self) {
        self.state.lock().resend += 1;
        self.ready.notify_one();
    }

    /// Apply has the reply to the next command of the oldest proposal. `throttled`: if that is a PUBLISH of this session, it
    /// is to wait for slow subscribers.
    pub fn replied(
        &self,
        reply: Reply,
        throttled: Option<(SessionId, Throttled)>,
        wake: &mut WakeList,
    ) {
        let waiter = self
            .state
            .lock()
            .in_flight
            .front_mut()
            .and_then(|proposal| proposal.waiters.pop_front());
        if let Some(waiter) = waiter {
            if let Some((publisher, throttled)) = throttled
                && matches!(reply, Reply::Published { .. })
            {
                waiter.hold(publisher, throttled, wake);
            }
            waiter.complete(reply, wake);
        }
    }

    /// Apply is through with a proposal; returns how long it was on its way.
    pub fn applied(&self, incarnation: Incarnation, sequence: u64) -> Option<std::time::Duration> {
        let mut state = self.state.lock();
        if state.incarnation != incarnation {
            return None;
        }
        let mut since = None;
        while let Some(proposal) = state.in_flight.front()
            && proposal.numbered.sequence <= sequence
        {
            debug_assert!(proposal.numbered.sequence < sequence || proposal.waiters.is_empty());
            since = Some(proposal.since.elapsed());
            state.in_flight.pop_front();
        }
        drop(state);
        self.ready.notify_one();
        since
    }
}

#[cfg(test)]
#[path = "proposer_tests.rs"]
mod tests;
