//! What this node proposes: commands of its connections, collected into numbered proposals that are kept until they are
//! applied.
//!
//! Connections append encoded commands to the open proposal. At most [`limits::PROPOSALS_IN_FLIGHT`] proposals are on
//! their way to the leader. While they are, further commands join the open one, so proposals grow with load and nothing
//! waits on an idle node. PUBACK and PUBCOMP are the exception: they wait up to [`limits::DEFERRED_COMMANDS`] to share
//! a proposal.
//!
//! Invariant: a proposal is kept until this node's own apply reports it, and sent again whenever it may have been lost.
//! The machine applies each sequence once.
//! Invariant: commands are proposed in the order in which they were submitted, and each gets its reply in this order. A
//! reply names its proposal, so one that a snapshot has passed over never gets the reply of a later one; whoever waits
//! for it is told that the outcome is unknown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{Notify, oneshot};

pub use super::propose_error::{Overloaded, ProposeError};
use super::reply_to::ReplyTo;
use super::share::{Share, Weights};
use super::weight::own_weight;
use crate::base::ids::{Incarnation, SessionId};
use crate::base::limits;
use crate::base::proto::command;
use crate::machine::effect::Reply;
use crate::mailbox::wait_list::WaitList;
use crate::mailbox::{Mailbox, WakeList};
use crate::router::Throttled;

/// A proposal on its way.
#[derive(Clone)]
pub struct SequencedProposal {
    /// The incarnation of this node that it belongs to.
    pub incarnation: Incarnation,
    /// Its number within that incarnation.
    pub sequence: u64,
    /// Length-delimited commands.
    pub commands: Bytes,
    /// What they count beyond their bytes: for so much the nodes are busy with them.
    pub weight: u64,
}

/// A proposal that is complete and has no number yet.
struct Unnumbered {
    commands: Bytes,
    weight: u64,
    /// As [`State::weights`].
    weights: Weights,
    reply_to: VecDeque<ReplyTo>,
}

struct InFlight {
    proposal: SequencedProposal,
    reply_to: VecDeque<ReplyTo>,
    since: Instant,
}

/// How far a forwarder has sent the proposals in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    incarnation: Incarnation,
    sent: u64,
    resend: u64,
}

#[derive(Default)]
struct State {
    incarnation: Incarnation,
    /// Raised when everything in flight must be sent again.
    resend: u64,
    next_sequence: u64,
    /// Complete proposals, which go before the open one.
    complete: VecDeque<Unnumbered>,
    /// What complete proposals and the open one count.
    queued: Weights,
    /// The open proposal: its commands, and who gets their replies.
    commands: BytesMut,
    /// Bytes of the open proposal, and what those of its commands count beyond theirs that may be refused.
    weights: Weights,
    /// The same with what all of them count.
    open_weight: usize,
    reply_to: VecDeque<ReplyTo>,
    /// When the open proposal is sent although it holds deferred commands only; `None` when it is sent at once.
    flush_at: Option<Instant>,
    in_flight: VecDeque<InFlight>,
}

impl State {
    /// Whether there is something to be proposed now.
    fn is_ready(&self) -> bool {
        !self.complete.is_empty() || !(self.commands.is_empty() || self.flush_at.is_some())
    }

    fn has_room_in_flight(&self) -> bool {
        self.in_flight.len() < limits::PROPOSALS_IN_FLIGHT
    }

    /// Takes out who waits for proposals below `sequence`. A later one is applied, so they were, too, but their replies
    /// did not come: a snapshot has passed over them.
    fn passed_over(&mut self, sequence: u64) -> Vec<ReplyTo> {
        let mut lost = Vec::new();
        while let Some(oldest) = self.in_flight.front_mut()
            && oldest.proposal.sequence < sequence
        {
            lost.extend(oldest.reply_to.drain(..));
            self.in_flight.pop_front();
        }
        lost
    }

    /// Takes out everybody who waits for a reply.
    fn all_waiting(&mut self) -> Vec<ReplyTo> {
        let in_flight = self.in_flight.drain(..).flat_map(|sent| sent.reply_to);
        let complete = self.complete.drain(..).flat_map(|next| next.reply_to);
        let open = self.reply_to.drain(..);
        in_flight.chain(complete).chain(open).collect()
    }

    /// Takes the open proposal out.
    fn close_proposal(&mut self) -> Unnumbered {
        self.flush_at = None;
        let weight = std::mem::take(&mut self.open_weight) - self.commands.len();
        Unnumbered {
            weight: weight as u64,
            weights: std::mem::take(&mut self.weights),
            commands: self.commands.split().freeze(),
            reply_to: std::mem::take(&mut self.reply_to),
        }
    }

    /// Numbers the next proposal and puts it in flight.
    fn sequence_next(&mut self) {
        let complete = self.complete.pop_front();
        let next = complete.unwrap_or_else(|| self.close_proposal());
        self.queued -= next.weights;
        let proposal = SequencedProposal {
            incarnation: self.incarnation,
            sequence: self.next_sequence,
            commands: next.commands,
            weight: next.weight,
        };
        self.next_sequence += 1;
        self.in_flight.push_back(InFlight {
            proposal,
            reply_to: next.reply_to,
            since: Instant::now(),
        });
    }
}

/// Number of commands that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// To be proposed.
    pub queued: usize,
    /// To be applied here.
    pub in_flight: usize,
}

/// When a command is to be proposed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    /// Now, and however much waits.
    Always,
    /// With the next command, or after [`limits::DEFERRED_COMMANDS`], and however much waits.
    Deferred,
}

/// The proposals of this node. Shared by its connections, the forwarder, and apply.
#[derive(Default)]
pub struct Proposer {
    state: Mutex<State>,
    /// There may be something to send.
    ready: Notify,
    /// The first deferred command came: its time must be waited for.
    deferred: Notify,
    /// Connections whose command was not taken, by its share.
    waiting: [WaitList; Share::ALL.len()],
}

impl Proposer {
    /// Submits a command.
    ///
    /// # Errors
    /// When too much of its share is waiting already; nothing was submitted.
    pub fn submit(
        &self,
        share: Share,
        kind: command::command::Kind,
        reply_to: ReplyTo,
    ) -> Result<(), Overloaded> {
        self.submit_weighing(share, kind, reply_to, 0)
    }

    /// Submits a command that counts so many bytes more than it has: so long are all nodes busy with it.
    ///
    /// # Errors
    /// As [`Proposer::submit`].
    pub fn submit_weighing(
        &self,
        share: Share,
        kind: command::command::Kind,
        reply_to: ReplyTo,
        weight: usize,
    ) -> Result<(), Overloaded> {
        self.push((share, weight), kind, reply_to, When::Now)
    }

    /// Whether [`Proposer::submit`] would take a command now. Another connection may be quicker.
    pub fn has_room(&self, share: Share) -> bool {
        self.state.lock().queued.has_room(share)
    }

    /// Whether so much without room of its own waits that a client with much under way adds no more to them.
    pub fn is_crowded(&self) -> bool {
        self.state.lock().queued.is_crowded()
    }

    /// Whether there is room for a command of a connection now; if not, the connection offers it again when there is.
    pub fn has_room_for(&self, share: Share, mailbox: &Arc<Mailbox>) -> bool {
        let has_room = self.has_room(share);
        if !has_room {
            self.await_room(share, mailbox);
        }
        has_room
    }

    /// Has a connection, whose command was not taken, offer it again when there is room.
    pub fn await_room(&self, share: Share, mailbox: &Arc<Mailbox>) {
        self.waiting[share as usize].add(mailbox);
        if self.has_room(share) {
            mailbox.offer_again();
        }
    }

    /// Submits a command that ends something. There are at most as many as there are connections, so none is refused.
    /// It counts `weight` bytes more than it has, so that fewer share its proposal.
    pub fn submit_always(&self, kind: command::command::Kind, reply_to: ReplyTo, weight: usize) {
        let taken = self.push((Share::Common, weight), kind, reply_to, When::Always);
        debug_assert!(taken.is_ok(), "there is no bound");
    }

    /// Submits a command that nobody waits for: it is proposed together with the next command, or after
    /// [`limits::DEFERRED_COMMANDS`].
    pub fn submit_deferred(&self, kind: command::command::Kind) {
        let taken = self.push((Share::Common, 0), kind, ReplyTo::Nobody, When::Deferred);
        debug_assert!(taken.is_ok(), "there is no bound");
    }

    fn push(
        &self,
        (share, weight): (Share, usize),
        kind: command::command::Kind,
        reply_to: ReplyTo,
        when: When,
    ) -> Result<(), Overloaded> {
        let weight = weight + own_weight(&kind);
        let command = command::Command { kind: Some(kind) };
        let mut state = self.state.lock();
        if when == When::Now && !state.queued.has_room(share) {
            return Err(Overloaded);
        }
        if when != When::Deferred {
            state.flush_at = None;
        } else if state.commands.is_empty() {
            state.flush_at = Some(Instant::now() + limits::DEFERRED_COMMANDS);
            self.deferred.notify_one();
        }
        let before = state.commands.len();
        let encoded = command.encode_length_delimited(&mut state.commands);
        encoded.expect("a BytesMut grows");
        let bytes = state.commands.len() - before;
        let counted = bytes + if when == When::Now { weight } else { 0 };
        state.open_weight += bytes + weight;
        state.weights.add(share, counted);
        state.queued.add(share, counted);
        state.reply_to.push_back(reply_to);
        if state.open_weight >= limits::PROPOSAL_BYTES {
            let complete = state.close_proposal();
            state.complete.push_back(complete);
        }
        let may_send = state.is_ready() && state.has_room_in_flight();
        drop(state);
        if may_send {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Proposes a command and waits until it is applied here.
    ///
    /// # Errors
    /// There is no reply.
    pub async fn propose(
        &self,
        share: Share,
        kind: command::command::Kind,
    ) -> Result<Reply, ProposeError> {
        let (sender, receiver) = oneshot::channel();
        self.submit(share, kind, ReplyTo::Task(sender))?;
        receiver.await.map_err(|_| ProposeError::Lost)
    }

    /// Waits until everything that was submitted before is applied here, and log time is the leader's. `false`: the
    /// node's incarnation ended before. However much waits, it is not refused: it adds some bytes to it.
    pub async fn pass(&self) -> bool {
        let (sender, receiver) = oneshot::channel();
        let nothing = command::command::Kind::Nothing(command::Nothing {});
        self.submit_always(nothing, ReplyTo::Task(sender), 0);
        receiver.await.is_ok()
    }

    /// How much is waiting.
    pub fn depth(&self) -> Depth {
        let state = self.state.lock();
        let complete = state.complete.iter().map(|next| next.reply_to.len());
        let in_flight = state.in_flight.iter().map(|sent| sent.reply_to.len());
        Depth {
            queued: state.reply_to.len() + complete.sum::<usize>(),
            in_flight: in_flight.sum(),
        }
    }

    /// Since when the oldest proposal has been on its way.
    pub fn oldest(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.in_flight.front().map(|proposal| proposal.since)
    }

    /// Begins a new incarnation: what was on its way is forgotten, the connections that wait for it end, and the first
    /// proposal, which registers the incarnation, is made.
    pub fn begin(&self, incarnation: Incarnation) {
        let mut state = self.state.lock();
        let lost = state.all_waiting();
        *state = State {
            incarnation,
            next_sequence: 1,
            ..State::default()
        };
        state.sequence_next();
        drop(state);
        self.lose(lost, &mut WakeList::default());
        self.ready.notify_one();
    }

    fn lose(&self, lost: Vec<ReplyTo>, wake: &mut WakeList) {
        for reply_to in lost {
            reply_to.lose(wake);
        }
    }

    /// This node's present incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.state.lock().incarnation
    }

    /// Waits until [`Proposer::next`] may return something new.
    pub async fn changed(&self) {
        loop {
            let flush_at = self.state.lock().flush_at;
            let flush = async {
                match flush_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.ready.notified() => return,
                () = flush => {
                    self.state.lock().flush_at = None;
                    return;
                }
                () = self.deferred.notified() => {}
            }
        }
    }

    /// The next proposal that a forwarder at `cursor` has not sent. Numbers a new one when there is room. A new
    /// forwarder begins with a default cursor, so it sends everything that is not applied yet.
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
            .is_none_or(|newest| newest.proposal.sequence <= cursor.sent)
        {
            if !state.is_ready() || !state.has_room_in_flight() {
                return None;
            }
            state.sequence_next();
            for share in Share::ALL {
                if state.queued.has_room(share) {
                    self.waiting[share as usize].wake();
                }
            }
        }
        let mut in_flight = state.in_flight.iter();
        let found = in_flight.find(|sent| sent.proposal.sequence > cursor.sent)?;
        cursor.sent = found.proposal.sequence;
        Some(found.proposal.clone())
    }

    /// Something on its way may have been lost: forwarders send everything again.
    pub fn resend(&self) {
        self.state.lock().resend += 1;
        self.ready.notify_one();
    }

    /// Hands the reply to the next command of a proposal, which is named by its incarnation and sequence, over. If the
    /// command is a PUBLISH of the session in `throttled`, its acknowledgement is deferred until those subscribers have
    /// read enough.
    pub fn replied(
        &self,
        (incarnation, sequence): (Incarnation, u64),
        reply: Reply,
        throttled: Option<(SessionId, Throttled)>,
        wake: &mut WakeList,
    ) {
        let mut state = self.state.lock();
        if state.incarnation != incarnation {
            return;
        }
        let lost = state.passed_over(sequence);
        let oldest = state.in_flight.front_mut();
        let reply_to = oldest
            .filter(|oldest| oldest.proposal.sequence == sequence)
            .and_then(|oldest| oldest.reply_to.pop_front());
        drop(state);
        self.lose(lost, wake);
        if let Some(reply_to) = reply_to {
            if let Some((publisher, throttled)) = throttled
                && matches!(reply, Reply::Published { .. })
            {
                reply_to.defer_ack(publisher, throttled, wake);
            }
            reply_to.complete(reply, wake);
        }
    }

    /// Commands of a proposal were refused: those that have no reply yet get [`Reply::Undecodable`].
    pub fn refused(&self, incarnation: Incarnation, sequence: u64, wake: &mut WakeList) {
        let mut state = self.state.lock();
        if state.incarnation != incarnation {
            return;
        }
        let mut in_flight = state.in_flight.iter_mut();
        let found = in_flight.find(|sent| sent.proposal.sequence == sequence);
        let waiting = found.map(|sent| std::mem::take(&mut sent.reply_to));
        drop(state);
        for reply_to in waiting.into_iter().flatten() {
            reply_to.complete(Reply::Undecodable, wake);
        }
    }

    /// Forgets a proposal that is applied. Returns how long it was on its way.
    pub fn applied(&self, incarnation: Incarnation, sequence: u64) -> Option<Duration> {
        let mut state = self.state.lock();
        if state.incarnation != incarnation {
            return None;
        }
        let lost = state.passed_over(sequence);
        let is_next = |oldest: &InFlight| oldest.proposal.sequence == sequence;
        let mut taken = None;
        if state.in_flight.front().is_some_and(is_next)
            && let Some(oldest) = state.in_flight.pop_front()
        {
            debug_assert!(oldest.reply_to.is_empty(), "every command has a reply");
            taken = Some(oldest.since.elapsed());
        }
        drop(state);
        self.lose(lost, &mut WakeList::default());
        self.ready.notify_one();
        taken
    }
}

#[cfg(test)]
#[path = "proposer_tests.rs"]
mod tests;
