//! A connection's task: the socket, the mailbox and the clock, around [`Connection`].
//!
//! One buffer per thread takes what is read; a connection keeps only the beginning of an unfinished packet, so an idle
//! connection holds no buffer.
//!
//! Invariant: one turn does a bounded amount of work; the rest waits until other tasks had theirs.

mod hand_over;
mod rates;
mod reading;

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use tokio::time::{Instant, sleep_until};

use super::broker::Broker;
use super::context::Memory;
use super::coordinator::Connection;
use super::drain_timeout::{DrainTimeout, Progress};
use super::end::Ended;
use super::input::{Input, Turn};
use super::linger::{LINGER_TIMEOUT, SLOW_LINGER_TIMEOUT, end_stream, linger, write_output};
use super::liveness::Liveness;
use super::output::OutputBuffers;
use super::rate::ClientRates;
use super::socket::{READ_BUFFER, is_transient};
use super::unread::Unread;
use crate::base::limits;
use crate::base::pulse::{Phase, busy};
use crate::mailbox::memory::Charge;
use crate::mailbox::{Contents, End};
use crate::transport::{Accepted, Peer, Stream};

thread_local! {
    /// What is taken from any mailbox of this thread.
    static CONTENTS: RefCell<Contents> = RefCell::default();
}

/// What a connection waits for.
enum Event {
    Read,
    Writable,
    Mailbox,
    /// The next retained messages of a new subscription are to be sent.
    Replay,
    /// Publishers have begun to wait for this client, wait no longer, or have waited long enough.
    BackPressure,
    Liveness,
    /// Much has been sent.
    BulkTurn,
}

/// Counts the end of a connection, and says why.
pub(super) fn report_end(broker: &Broker, ended: &Ended, peer: &Peer, client_id: &str) {
    broker.metrics.disconnects.of(ended.cause).increment();
    tracing::debug!(client_id, address = %peer, cause = ?ended.cause, reason = ended.text, "connection closed");
}

/// One connection whose session is open.
pub(super) struct Task {
    connection: Connection,
    stream: Stream,
    peer: Box<Peer>,
    input: Input,
    /// What the connection keeps, in the memory of the node.
    charge: Charge,
    /// Until when a hand-over that is under way may take.
    /// Boxed, because it is seldom there.
    hand_over_until: Option<Box<Instant>>,
    drain_timeout: DrainTimeout,
    /// Other connections had their turn before the next retained messages of this one.
    has_yielded: bool,
    liveness: Liveness,
    rates: Option<Box<ClientRates>>,
    unread: Unread,
}

impl Task {
    /// A connection on which `unfinished` has come behind the CONNECT.
    pub(super) fn new(
        connection: Connection,
        accepted: Accepted,
        unfinished: Vec<u8>,
    ) -> Box<Task> {
        let Accepted { stream, peer, .. } = accepted;
        let context = connection.context();
        let settings = &context.broker.settings;
        let bounds = &context.options.bounds;
        Box::new(Task {
            stream,
            peer: Box::new(peer),
            input: Input::new(unfinished, bounds.rate_in.0),
            charge: Charge::new(&settings.outbox.memory, 0),
            hand_over_until: None,
            drain_timeout: DrainTimeout::default(),
            has_yielded: false,
            liveness: Liveness::new(context.options.keep_alive, Instant::now()),
            rates: ClientRates::new(bounds.rate_in.1, bounds.rate_out),
            unread: Unread::default(),
            connection,
        })
    }

    pub(super) async fn run(mut self: Box<Self>) {
        let Err(mut ended) = self.serve().await;
        if !ended.discard_will {
            self.read_rest();
            if let Some(disconnected) = self.input.disconnected(&mut self.connection) {
                ended = disconnected;
            }
        }
        Box::pin(self.close(ended)).await;
    }

    /// What is kept for the client is given back before its last packets leave and it lingers.
    async fn close(self: Box<Self>, ended: Ended) {
        let Task {
            mut connection,
            mut stream,
            peer,
            mut input,
            mut charge,
            ..
        } = *self;
        // The log is told first: the client's last packets may take their time.
        let is_known = connection.close(&ended);
        input.clear(&connection);
        let context = connection.context_mut();
        // No publisher waits for the last packets.
        context.mailbox.close(&mut context.wake);
        context.wake.wake();
        let mut output = OutputBuffers::default();
        if let Some(reason) = ended.reason {
            if ended.is_for_memory() {
                connection.context_mut().output.drop_not_begun();
                stream.take_at_once();
            }
            // Otherwise acknowledgements may be left of what is done.
            connection.disconnect(reason, ended.text);
            output = std::mem::take(&mut connection.context_mut().output);
        }
        let context = connection.context_mut();
        let client_id = std::mem::take(&mut context.options.client_id);
        // Whoever leaves may come again at once.
        let place = context.rights.take_place();
        let _place = place.filter(|_| ended.reason.is_some());
        let (broker, id) = (context.broker.clone(), context.mailbox.connection);
        context.mailbox.keep(0);
        drop(connection);
        charge.set(output.owned());
        if !output.is_empty() {
            write_output(&mut stream, &mut output).await;
        }
        drop(output);
        drop(charge);
        broker.unregister(id);
        // The client may connect to another node as soon as it sees the end of the stream: by then the log knows.
        // Without a quorum it won't in time, and no node opens a session.
        if broker.state.is_serving() {
            let _ = tokio::time::timeout(limits::END_COMMIT_TIMEOUT, is_known).await;
        }
        end_stream(&mut stream).await;
        report_end(&broker, &ended, &peer, &client_id);
        if ended.reason.is_some() && !broker.state.is_draining() {
            let within = match ended.is_for_memory() {
                true => SLOW_LINGER_TIMEOUT,
                false => LINGER_TIMEOUT,
            };
            linger(&mut stream, within).await;
        }
    }

    async fn serve(&mut self) -> Result<Infallible, Ended> {
        loop {
            self.connection.context_mut().work = 0;
            let mut written = self.exchange(limits::TURN_WRITTEN_BYTES)?;
            let mut turn = Turn::Done;
            if self.input.is_waiting() {
                turn = busy(Phase::Packets, || {
                    self.input.offer_again(&mut self.connection)
                })?;
                self.note_arrival(Instant::now());
                if written == Turn::Done {
                    written = self.exchange(limits::TURN_WRITTEN_BYTES)?;
                }
            }
            turn = turn.or(self.hand_over()?);
            let kept = self.account()?;
            self.connection.check_authentication(Instant::now())?;
            self.connection.check_rights()?;
            let paused_until = self.paused_until();
            let is_read = paused_until.is_none() && self.may_read(&kept);
            self.liveness.set_read(is_read);
            if is_read {
                self.unread.end();
            }
            // Whose socket takes nothing now has no use for a place.
            let is_bulk = written == Turn::Over && self.connection.context().output.unsent() > 0;
            if turn == Turn::Over || (written == Turn::Over && !is_bulk) {
                self.read_meanwhile(is_read).await?;
                tokio::task::yield_now().await;
                continue;
            }
            self.watch_unread(is_read, paused_until.is_some(), &kept)?;
            // An idle connection has none, and keeps no room for it.
            let deadline = self.deadline(paused_until);
            let mut pause = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            let pause = poll_fn(|context| match &mut pause {
                Some(pause) => pause.as_mut().poll(context),
                None => Poll::Pending,
            });
            let next = async {
                match is_bulk {
                    // Most connections never are, and keep no room for it.
                    true => Box::pin(self.bulk_turn(is_read)).await,
                    false => self.next_event(is_read, false).await,
                }
            };
            let event = tokio::select! {
                biased;
                event = next => event?,
                () = pause => continue,
            };
            match event {
                Event::Liveness => {
                    let bytes = self.input.incomplete_bytes();
                    self.liveness.check(bytes, Instant::now())?;
                }
                Event::BackPressure => self.update_drain_timeout(),
                Event::BulkTurn => continue,
                Event::Read | Event::Mailbox | Event::Replay | Event::Writable => {}
            }
            if is_bulk {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Counts what this connection keeps.
    fn account(&mut self) -> Result<Memory, Ended> {
        let memory = self.connection.memory();
        let context = self.connection.context();
        let held = self.input.bytes() + self.stream.held_bytes();
        let all = memory.all + held;
        context.mailbox.keep(all);
        self.charge.set(memory.owned + held);
        if all >= context.broker.settings.outbox.connection_bytes {
            return Err(End::ConnectionMemory.into());
        }
        Ok(Memory { all, ..memory })
    }

    /// Waits for the socket, the mailbox or a timer. What arrives is read and handled here. Who `waits_for_turn` to
    /// write does not wait for the socket to take more.
    async fn next_event(&mut self, is_read: bool, waits_for_turn: bool) -> Result<Event, Ended> {
        let unsent = self.connection.context().output.unsent();
        let takes_more = unsent == 0 && self.held_back_until().is_none();
        poll_fn(|context| {
            let mailbox = &self.connection.context().mailbox;
            mailbox.register(context.waker());
            let takes = mailbox.is_filled() && (takes_more || mailbox.is_ending());
            // Something may be sent that a rate has held back.
            let goes_on = takes_more && self.was_held_back();
            if takes || goes_on || mailbox.is_asked_for_hand_over() || mailbox.take_offer() {
                return Poll::Ready(Ok(Event::Mailbox));
            }
            if takes_more && self.connection.wants_replay() {
                // One page per turn: the thread's other connections come in between.
                self.has_yielded = !self.has_yielded;
                match self.has_yielded {
                    true => context.waker().wake_by_ref(),
                    false => return Poll::Ready(Ok(Event::Replay)),
                }
            }
            let state = mailbox.state();
            if self.drain_timeout.poll(context, state).is_ready() {
                return Poll::Ready(Ok(Event::BackPressure));
            }
            if !waits_for_turn
                && (unsent > 0 || self.stream.is_unsent())
                && let Poll::Ready(ready) = self.stream.poll_write_ready(context)
            {
                let writable = ready.map(|()| Event::Writable);
                return Poll::Ready(writable.map_err(|_| Ended::network()));
            }
            if is_read && let Poll::Ready(handled) = self.poll_read(context) {
                return Poll::Ready(handled.map(|()| Event::Read));
            }
            if self.liveness.poll(context).is_ready() {
                return Poll::Ready(Ok(Event::Liveness));
            }
            Poll::Pending
        })
        .await
    }

    /// Reads once and handles the packets. A read that does not fill the buffer has emptied the socket, which
    /// `poll_read` takes into account: it does not ask the kernel again before there is more.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let read = ready!(self.stream.poll_read(context, &mut buffer));
            let bytes = buffer.filled();
            if read.is_err() {
                return Poll::Ready(Err(Ended::of_stream(self.stream.end())));
            }
            if bytes.is_empty() {
                return Poll::Ready(self.input.close(self.stream.end()));
            }
            Poll::Ready(self.handle(bytes))
        })
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.count_received(bytes.len());
        busy(Phase::Packets, || {
            self.input.receive(&mut self.connection, bytes)
        })?;
        self.note_arrival(Instant::now());
        Ok(())
    }

    /// Tells how far the client's packets have arrived.
    fn note_arrival(&mut self, now: Instant) {
        let bytes = self.input.incomplete_bytes();
        self.liveness.arrived(self.input.packets(), bytes, now);
    }

    fn update_drain_timeout(&mut self) {
        let read = self.connection.read_bytes();
        let context = self.connection.context_mut();
        let progress = Progress {
            drained: context.mailbox.drained(),
            read,
        };
        self.drain_timeout.update(
            &context.options.client_id,
            &context.mailbox,
            progress,
            &context.broker.settings.outbox,
            &mut context.wake,
        );
    }

    /// Takes what is in the mailbox.
    fn drain(&mut self) -> Result<(), Ended> {
        let drained = CONTENTS.with_borrow_mut(|contents| {
            let drain = || self.connection.drain_mailbox(contents);
            let drained = busy(Phase::Mailbox, drain);
            if drained.is_err() {
                // What is left is this client's, and must not reach another.
                *contents = Contents::default();
            }
            drained
        });
        self.connection.context_mut().wake.wake();
        drained
    }

    /// Tells the mailbox how much this client has got, and thereby those who publish to it.
    fn report_progress(&mut self) {
        let unsent = self.connection.unsent_bytes();
        let context = self.connection.context_mut();
        context.mailbox.progress(unsent, &mut context.wake);
    }

    /// Reads what has come, without waiting: who is sent much and takes it is read all the same, and must be heard of.
    async fn read_meanwhile(&mut self, is_read: bool) -> Result<(), Ended> {
        let is_due = poll_fn(|context| {
            if is_read && let Poll::Ready(handled) = self.poll_read(context) {
                handled?;
            }
            Poll::Ready(Ok::<_, Ended>(self.liveness.poll(context).is_ready()))
        });
        if is_due.await? {
            let bytes = self.input.incomplete_bytes();
            self.liveness.check(bytes, Instant::now())?;
        }
        Ok(())
    }

    /// Waits until it is this connection's turn among those that send much, and does so. Whatever else happens comes
    /// first; then it queues up again.
    async fn bulk_turn(&mut self, is_read: bool) -> Result<Event, Ended> {
        let broker = self.connection.context().broker.clone();
        let _place = tokio::select! {
            biased;
            // Nobody closes it.
            place = broker.settings.bulk_turns.acquire() => place,
            event = self.next_event(is_read, true) => return event,
            // It goes on as slowly as anybody.
            () = tokio::time::sleep(limits::BULK_TURN_WITHIN) => return Ok(Event::BulkTurn),
        };
        self.exchange(limits::BULK_WRITTEN_BYTES)?;
        self.read_meanwhile(is_read).await?;
        // Others come in between before the next one has its place.
        tokio::task::yield_now().await;
        Ok(Event::BulkTurn)
    }

    /// Takes what is in the mailbox and sends what the socket takes, up to `most` bytes.
    fn exchange(&mut self, most: usize) -> Result<Turn, Ended> {
        if self.stream.is_unsent() {
            match self.stream.flush() {
                Err(error) if !is_transient(&error) => return Err(Ended::network()),
                _ => {}
            }
        }
        let is_held_back = self.is_held_back();
        if !is_held_back {
            CONTENTS.with_borrow_mut(|contents| self.connection.replay(contents));
        }
        let (mut bytes, mut has_drained) = (0, false);
        loop {
            if self.connection.context().output.unsent() == 0 {
                if has_drained && self.connection.has_due() {
                    return Ok(Turn::Over);
                }
                has_drained = true;
                if !is_held_back || self.connection.context().mailbox.is_ending() {
                    self.drain()?;
                } else {
                    // Acknowledgements wait for their answers, and not for messages.
                    self.connection.send_acknowledgements();
                }
                if self.connection.context().output.unsent() == 0 {
                    self.report_progress();
                    self.connection.context_mut().wake.wake();
                    self.shrink_buffers();
                    // Not all of what is due has brought something to be sent.
                    return Ok(match !is_held_back && self.connection.has_due() {
                        true => Turn::Over,
                        false => Turn::Done,
                    });
                }
            }
            if bytes >= most {
                return Ok(Turn::Over);
            }
            let context = self.connection.context_mut();
            match context.output.write_to(&mut self.stream, most - bytes) {
                Ok(written) => {
                    bytes += written;
                    context.broker.metrics.bytes_sent.add(written as u64);
                    if let Some(rate) = self.rates.as_mut().and_then(|rates| rates.sent.as_mut()) {
                        let now = Instant::now().into_std();
                        rate.passed(context.rights.sent, written as u64, now);
                    }
                    self.report_progress();
                }
                Err(error) if is_transient(&error) => {
                    self.report_progress();
                    self.connection.context_mut().wake.wake();
                    if self.connection.context().mailbox.is_ending() {
                        // The item that says so is behind messages that this client does not read.
                        self.drain()?;
                    }
                    return Ok(Turn::Done);
                }
                Err(_) => return Err(Ended::network()),
            }
        }
    }

    /// An idle connection keeps small buffers only.
    fn shrink_buffers(&mut self) {
        self.connection.context_mut().output.shrink();
        self.input.shrink();
    }
}

#[cfg(test)]
#[path = "closing_tests.rs"]
mod closing_tests;
