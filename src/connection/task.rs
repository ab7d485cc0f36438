//! A connection's task: the socket, the mailbox and the clock, around [`Connection`].
//!
//! One buffer per thread takes what is read; only the beginning of an unfinished packet is kept per connection. So an
//! idle connection holds no buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::Connection;
use super::Flow;
use super::connect::Refusal;
use super::end::Ended;
use super::handshake;
use crate::base::limits;
use crate::codec::frame;
use crate::connection::broker::Broker;
use crate::mailbox::Contents;
use crate::mailbox::back_pressure::BackPressureState;
use crate::telemetry::labels::DisconnectReason;

/// How long a goodbye may take to leave.
const GOODBYE: Duration = Duration::from_secs(2);

/// Before a packet that could not be taken is offered again.
const STALL: Duration = Duration::from_millis(5);

thread_local! {
    /// What is read from any socket of this thread.
    pub(super) static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; limits::READ_BUFFER_BYTES]);
    /// What is taken from any mailbox of this thread.
    static CONTENTS: RefCell<Contents> = RefCell::default();
}

/// What a connection waits for.
enum Event {
    Read,
    Writable,
    Mailbox,
    /// Publishers wait for this client, or do not any more.
    Pressure,
    Timer,
}

/// How long publishers have been waiting for this client.
struct Patience {
    over: Pin<Box<Sleep>>,
    /// What it had got when that began.
    drained: u64,
}

/// Serves one client until its connection ends. What the beginning needs is given back when it is over: most connections
/// are idle most of the time, and there are many.
pub async fn serve(broker: &Arc<Broker>, stream: TcpStream, address: SocketAddr) {
    match Box::pin(begin(broker, stream)).await {
        Ok(mut task) => task.run(address).await,
        Err(refused) => Box::pin(refuse(broker, refused, address)).await,
    }
}

/// Tells a client why its connection can't be.
async fn refuse(broker: &Broker, refused: Box<(TcpStream, Refusal)>, address: SocketAddr) {
    let (stream, refusal) = &*refused;
    send_last(stream, &refusal.packet).await;
    ended(broker, &refusal.ended, address, "");
}

/// CONNECT, authentication, and the session's opening.
async fn begin(
    broker: &Arc<Broker>,
    stream: TcpStream,
) -> Result<Box<Task>, Box<(TcpStream, Refusal)>> {
    let mut unfinished = Vec::new();
    let timeout = Duration::from_secs(broker.config.connect_timeout_s.into());
    let open = handshake::open(broker, &stream, &mut unfinished);
    let opening = match tokio::time::timeout(timeout, open).await {
        Ok(opening) => opening,
        Err(_) => {
            let text = "no CONNECT, or not all of its authentication, came in time";
            Err(Refusal {
                packet: Vec::new(),
                ended: Ended::silent(DisconnectReason::ConnectTimeout, text),
            })
        }
    };
    let connection = match opening {
        Ok(opening) => opening.finish(broker).await,
        Err(refusal) => Err(refusal),
    };
    match connection {
        Ok(connection) => Ok(Box::new(Task {
            connection,
            stream,
            unfinished,
            written: 0,
            patience: None,
        })),
        Err(refusal) => Err(Box::new((stream, refusal))),
    }
}

fn ended(broker: &Broker, ended: &Ended, address: SocketAddr, client_id: &str) {
    broker.metrics.disconnects.of(ended.cause).increment();
    tracing::debug!(client_id, %address, cause = ?ended.cause, reason = ended.text, "connection closed");
}

pub(super) const fn network() -> Ended {
    Ended::silent(
        DisconnectReason::Network,
        "the client or the network closed the connection",
    )
}

pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Sends what is left to say, within a bound of time; the connection ends whether it arrives or not.
async fn send_last(stream: &TcpStream, mut bytes: &[u8]) {
    let send = async {
        while !bytes.is_empty() {
            if stream.writable().await.is_err() {
                return;
            }
            match stream.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if is_transient(&error) => {}
                Err(_) => return,
            }
        }
    };
    // A client that does not read its goodbye loses it.
    let _ = tokio::time::timeout(GOODBYE, send).await;
    let _ = socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write);
}

struct Task {
    connection: Connection,
    stream: TcpStream,
    /// The beginning of a packet that has not arrived whole, or packets that wait because the node is overloaded.
    unfinished: Vec<u8>,
    /// How much of the connection's `out` is sent.
    written: usize,
    patience: Option<Patience>,
}

impl Task {
    async fn run(&mut self, address: SocketAddr) {
        let end = self.serve().await;
        let client_id = self.connection.terms.client_id.clone();
        // Nobody has to wait for its goodbye.
        self.connection.mailbox.close(&mut self.connection.wake);
        self.connection.wake.wake();
        // What was left in the mailbox may hold acknowledgements of what is done.
        if end.tell.is_some() {
            self.connection.out.append(&mut self.connection.acks);
            self.connection.say_goodbye(&end);
            let rest = &self.connection.out[self.written..];
            Box::pin(send_last(&self.stream, rest)).await;
        }
        self.connection.close(&end);
        ended(&self.connection.broker, &end, address, &client_id);
    }

    async fn serve(&mut self) -> Ended {
        let keep_alive = Duration::from_millis(u64::from(self.connection.terms.keep_alive) * 1500);
        let mut last_packet = Instant::now();
        let mut timer: Option<Pin<Box<Sleep>>> =
            (!keep_alive.is_zero()).then(|| Box::pin(sleep_until(last_packet + keep_alive)));
        // Packets may have come with the CONNECT.
        let mut stalled = !self.unfinished.is_empty();
        loop {
            if let Err(end) = self.exchange() {
                return end;
            }
            if stalled {
                stalled = match self.retry() {
                    Ok(stalled) => stalled,
                    Err(end) => return end,
                };
                if let Err(end) = self.exchange() {
                    return end;
                }
            }
            if let Err(end) = self.connection.check_renewal(Instant::now()) {
                return end;
            }
            let deadline = match stalled {
                true => Some(Instant::now() + STALL),
                false => self.connection.renewal_deadline(),
            };
            // An idle connection has none, and keeps no room for it.
            let mut pause = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            let pause = poll_fn(|context| match &mut pause {
                Some(pause) => pause.as_mut().poll(context),
                None => Poll::Pending,
            });
            let event = tokio::select! {
                biased;
                event = self.next_event(stalled, timer.as_mut()) => event,
                () = pause => continue,
            };
            match event {
                // [MQTT-3.1.2-22]: only what arrives counts.
                Ok(Event::Read) => last_packet = Instant::now(),
                Ok(Event::Timer) => {
                    let deadline = last_packet + keep_alive;
                    if Instant::now() >= deadline {
                        return Ended::told(
                            DisconnectReason::KeepAlive,
                            crate::codec::ReasonCode::KeepAliveTimeout,
                            "nothing arrived for one and a half times the keep-alive",
                        );
                    }
                    if let Some(timer) = &mut timer {
                        timer.as_mut().reset(deadline);
                    }
                }
                Ok(Event::Pressure) => self.look_at_pressure(),
                Ok(Event::Mailbox | Event::Writable) => {}
                Err(end) => return end,
            }
            stalled |= self.connection_stalled();
        }
    }

    fn connection_stalled(&self) -> bool {
        // Set by `read` when a packet was not taken: whole packets are left over then.
        matches!(frame::header(&self.unfinished, u32::MAX), Ok(Some(header)) if self.unfinished.len() >= header.total())
    }

    /// Waits for the socket, the mailbox or the timer. What arrives is read and handled here.
    async fn next_event(
        &mut self,
        stalled: bool,
        mut timer: Option<&mut Pin<Box<Sleep>>>,
    ) -> Result<Event, Ended> {
        let unsent = self.written < self.connection.out.len();
        // A client that does not take its answers is not read either.
        let read = !stalled
            && self.connection.out.len() - self.written
                < self.connection.broker.config.outbox_max_bytes;
        poll_fn(|context| {
            self.connection.mailbox.register(context.waker());
            let mailbox = &self.connection.mailbox;
            if mailbox.is_filled() && (!unsent || mailbox.is_ending()) {
                return Poll::Ready(Ok(Event::Mailbox));
            }
            let is_waited_for = matches!(
                mailbox.state(),
                BackPressureState::Throttled | BackPressureState::Full
            );
            if is_waited_for != self.patience.is_some() {
                return Poll::Ready(Ok(Event::Pressure));
            }
            if let Some(patience) = &mut self.patience
                && patience.over.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Ok(Event::Pressure));
            }
            if unsent && let Poll::Ready(ready) = self.stream.poll_write_ready(context) {
                return Poll::Ready(ready.map(|()| Event::Writable).map_err(|_| network()));
            }
            if read && let Poll::Ready(handled) = self.poll_read(context) {
                return Poll::Ready(handled.map(|()| Event::Read));
            }
            if let Some(timer) = &mut timer
                && timer.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Ok(Event::Timer));
            }
            Poll::Pending
        })
        .await
    }

    /// Offers packets again that could not be taken; tells whether some are still left.
    fn retry(&mut self) -> Result<bool, Ended> {
        let bytes = std::mem::take(&mut self.unfinished);
        let (taken, flow) = self.connection.handle_bytes(&bytes);
        self.unfinished.extend_from_slice(&bytes[taken..]);
        self.connection.wake.wake();
        Ok(flow? == Flow::Stall)
    }

    /// Reads once and handles the packets. A read that does not fill the buffer has emptied the socket, which `poll_read`
    /// takes into account: it does not ask the kernel again before there is more.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            let bytes = buffer.filled();
            if read.is_err() || bytes.is_empty() {
                return Poll::Ready(Err(network()));
            }
            let metrics = &self.connection.broker.metrics;
            metrics.bytes_received.add(bytes.len() as u64);
            Poll::Ready(self.handle(bytes))
        })
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let flow = if self.unfinished.is_empty() {
            let (taken, flow) = self.connection.handle_bytes(bytes);
            self.unfinished.extend_from_slice(&bytes[taken..]);
            flow
        } else {
            // The beginning of a packet is kept already.
            self.unfinished.extend_from_slice(bytes);
            let bytes = std::mem::take(&mut self.unfinished);
            let (taken, flow) = self.connection.handle_bytes(&bytes);
            self.unfinished = if taken == 0 {
                bytes
            } else {
                bytes[taken..].to_vec()
            };
            flow
        };
        self.connection.wake.wake();
        flow.map(|_| ())
    }

    /// Publishers have begun to wait for this client, or have waited long enough, or need not any more.
    fn look_at_pressure(&mut self) {
        let bounds = &self.connection.broker.outbox;
        let mailbox = &self.connection.mailbox;
        let drained = mailbox.drained();
        let now = Instant::now();
        match &mut self.patience {
            None => {
                let over = Box::pin(sleep_until(now + bounds.stall));
                self.patience = Some(Patience { over, drained });
            }
            Some(patience)
                if matches!(
                    mailbox.state(),
                    BackPressureState::Normal | BackPressureState::Stalled
                ) =>
            {
                self.patience = None;
            }
            Some(patience)
                if drained.saturating_sub(patience.drained) < bounds.minimum_drain_rate() =>
            {
                tracing::info!(
                    client_id = &*self.connection.terms.client_id,
                    "the client hardly reads: publishers do not wait for it any more"
                );
                bounds.metrics.subscribers_stalled.increment();
                mailbox.stall(&mut self.connection.wake);
                self.connection.wake.wake();
                self.patience = None;
            }
            Some(patience) => {
                patience.drained = drained;
                patience.over.as_mut().reset(now + bounds.stall);
            }
        }
    }

    /// Takes what is in the mailbox.
    fn drain(&mut self) -> Result<(), Ended> {
        let drained = CONTENTS.with_borrow_mut(|contents| {
            let drained = self.connection.drain_mailbox(contents);
            if drained.is_err() {
                // What is left is this client's, and must not reach another.
                *contents = Contents::default();
            }
            drained
        });
        self.connection.wake.wake();
        drained
    }

    /// Tells those who publish to this client how much of it is sent.
    fn report(&mut self) {
        let unsent =
            self.connection.out.len() - self.written + self.connection.outbound.held_bytes();
        let mailbox = &self.connection.mailbox;
        mailbox.progress(unsent, &mut self.connection.wake);
    }

    /// Takes what is in the mailbox and sends what the socket takes.
    fn exchange(&mut self) -> Result<(), Ended> {
        loop {
            if self.written == self.connection.out.len() {
                self.written = 0;
                self.connection.out.clear();
                self.drain()?;
                if self.connection.out.is_empty() {
                    self.report();
                    self.connection.wake.wake();
                    self.release_buffers();
                    return Ok(());
                }
            }
            match self.stream.try_write(&self.connection.out[self.written..]) {
                Ok(written) => {
                    self.connection
                        .broker
                        .metrics
                        .bytes_sent
                        .add(written as u64);
                    self.written += written;
                    self.report();
                }
                Err(error) if is_transient(&error) => {
                    self.report();
                    self.connection.wake.wake();
                    if self.connection.mailbox.is_ending() {
                        // What says so is in the mailbox, behind what this client does not read.
                        self.drain()?;
                    }
                    return Ok(());
                }
                Err(_) => return Err(network()),
            }
        }
    }

    /// An idle connection keeps small buffers only.
    fn release_buffers(&mut self) {
        const KEPT: usize = 1024;
        if self.connection.out.capacity() > KEPT {
            self.connection.out = Vec::new();
        }
        if self.connection.acks.capacity() > KEPT {
            self.connection.acks = Vec::new();
        }
        if self.unfinished.is_empty() && self.unfinished.capacity() > KEPT {
            self.unfinished = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F: Future>(
        _: impl Fn(&'static Arc<Broker>, TcpStream, SocketAddr) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Nodes have many connections, nearly all of them idle.
    #[test]
    fn what_an_idle_connection_keeps_is_small() {
        assert!(size_of::<Task>() <= 768, "{}", size_of::<Task>());
        let future = size_of_future(serve);
        assert!(future <= 448, "{future}");
    }
}
