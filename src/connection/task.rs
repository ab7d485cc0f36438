//! A connection's task: the socket, the mailbox and the clock, around [`Connection`].
//!
//! One buffer per thread takes what is read; a connection keeps only the beginning of an unfinished packet, so an idle
//! connection holds no buffer.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::Read as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::broker::Broker;
use super::context::Flow;
use super::coordinator::Connection;
use super::drain_timeout::DrainTimeout;
use super::end::Ended;
use super::handshake;
use super::refusal::Refusal;
use super::socket::{READ_BUFFER, is_transient, write_all};
use crate::base::limits;
use crate::base::pulse::{Phase, busy};
use crate::codec::{ReasonCode, frame};
use crate::mailbox::Contents;
use crate::telemetry::labels::DisconnectReason;

/// How long the last packets, with DISCONNECT or CONNACK, may take to leave.
const LAST_PACKETS_TIMEOUT: Duration = Duration::from_secs(2);

/// Before a packet that could not be taken is offered again.
const RETRY_AFTER: Duration = Duration::from_millis(5);

/// Capacity for unfinished packets that an idle connection may keep, bytes.
const KEPT_BYTES: usize = 1024;

thread_local! {
    /// What is taken from any mailbox of this thread.
    static CONTENTS: RefCell<Contents> = RefCell::default();
}

/// What a connection waits for.
enum Event {
    Read,
    Writable,
    Mailbox,
    /// Publishers have begun to wait for this client, wait no longer, or have waited long enough.
    BackPressure,
    KeepAlive,
}

/// Serves one client until its connection ends. What the beginning needs is given back when it is over: most
/// connections are idle most of the time, and there are many.
pub(super) async fn serve(broker: &Arc<Broker>, stream: TcpStream, address: SocketAddr) {
    match Box::pin(begin(broker, stream)).await {
        Ok(mut task) => task.run(address).await,
        Err(refused) => Box::pin(refuse(broker, refused, address)).await,
    }
}

/// Tells a client why it is refused.
async fn refuse(broker: &Broker, refused: Box<(TcpStream, Refusal)>, address: SocketAddr) {
    let (stream, refusal) = &*refused;
    write_last(stream, &refusal.packet).await;
    end_stream(stream);
    report_end(broker, &refusal.ended, address, "");
}

/// CONNECT, authentication, and the session's opening.
async fn begin(
    broker: &Arc<Broker>,
    stream: TcpStream,
) -> Result<Box<Task>, Box<(TcpStream, Refusal)>> {
    let mut unfinished = Vec::new();
    let timeout = Duration::from_secs(broker.settings.mqtt.connect_timeout_s.into());
    let open = handshake::open(broker, &stream, &mut unfinished);
    let opening = match tokio::time::timeout(timeout, open).await {
        Ok(opening) => opening,
        Err(_) => {
            let text = "no CONNECT, or not all of its authentication, came in time";
            let ended = Ended::close(DisconnectReason::ConnectTimeout, text);
            Err(Refusal::silent(ended))
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
            drain_timeout: DrainTimeout::default(),
        })),
        Err(refusal) => Err(Box::new((stream, refusal))),
    }
}

fn report_end(broker: &Broker, ended: &Ended, address: SocketAddr, client_id: &str) {
    broker.metrics.disconnects.of(ended.cause).increment();
    tracing::debug!(client_id, %address, cause = ?ended.cause, reason = ended.text, "connection closed");
}

/// Sends the last packets, within a bound of time; the connection ends whether they arrive or not.
async fn write_last(stream: &TcpStream, bytes: &[u8]) {
    // A client that does not read its last packets loses them.
    let _ = tokio::time::timeout(LAST_PACKETS_TIMEOUT, write_all(stream, bytes)).await;
}

/// Tells the client that nothing more comes.
fn end_stream(stream: &TcpStream) {
    // It fails when the client has closed the connection.
    let _ = socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write);
}

struct Task {
    connection: Connection,
    stream: TcpStream,
    /// The beginning of a packet that has not arrived whole, or packets that wait because the node is overloaded.
    unfinished: Vec<u8>,
    drain_timeout: DrainTimeout,
}

impl Task {
    async fn run(&mut self, address: SocketAddr) {
        let Err(ended) = self.serve().await;
        Box::pin(self.close(ended, address)).await;
    }

    async fn close(&mut self, ended: Ended, address: SocketAddr) {
        // The log is told first: the client's last packets may take their time.
        let is_known = self.connection.close(&ended);
        self.unfinished = Vec::new();
        let context = self.connection.context_mut();
        let client_id = context.options.client_id.clone();
        // No publisher waits for the last packets.
        context.mailbox.close(&mut context.wake);
        context.wake.wake();
        if let Some(reason) = ended.reason {
            // Acknowledgements may be left of what is done.
            self.connection.disconnect(reason, ended.text);
            write_last(&self.stream, self.connection.context().output.unsent()).await;
        }
        let context = self.connection.context_mut();
        context.output.clear();
        let broker = &context.broker;
        let router = &broker.services.router;
        router.unregister(context.mailbox.connection);
        // The client may connect to another node as soon as it sees the end of the stream: by then the log knows.
        // Without a quorum it won't in time, and no node opens a session.
        if broker.state.is_serving() {
            let _ = tokio::time::timeout(limits::END_COMMIT_TIMEOUT, is_known).await;
        }
        end_stream(&self.stream);
        report_end(broker, &ended, address, &client_id);
    }

    async fn serve(&mut self) -> Result<Infallible, Ended> {
        let keep_alive = u64::from(self.connection.context().options.keep_alive);
        let keep_alive = Duration::from_millis(keep_alive * 1500);
        let mut last_packet = Instant::now();
        let mut timer: Option<Pin<Box<Sleep>>> =
            (!keep_alive.is_zero()).then(|| Box::pin(sleep_until(last_packet + keep_alive)));
        // Packets may have come with the CONNECT.
        let mut must_retry = !self.unfinished.is_empty();
        loop {
            self.exchange()?;
            if must_retry {
                must_retry = self.retry()?;
                self.exchange()?;
            }
            self.connection.check_authentication(Instant::now())?;
            let deadline = match must_retry {
                true => Some(Instant::now() + RETRY_AFTER),
                false => self.connection.authentication_deadline(),
            };
            // An idle connection has none, and keeps no room for it.
            let mut pause = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            let pause = poll_fn(|context| match &mut pause {
                Some(pause) => pause.as_mut().poll(context),
                None => Poll::Pending,
            });
            let event = tokio::select! {
                biased;
                event = self.next_event(must_retry, timer.as_mut()) => event?,
                () = pause => continue,
            };
            match event {
                // [MQTT-3.1.2-22]: only what arrives counts.
                Event::Read => last_packet = Instant::now(),
                Event::KeepAlive => {
                    let deadline = last_packet + keep_alive;
                    if Instant::now() >= deadline {
                        return Err(Ended::disconnect(
                            DisconnectReason::KeepAlive,
                            ReasonCode::KeepAliveTimeout,
                            "nothing arrived for one and a half times the keep-alive",
                        ));
                    }
                    if let Some(timer) = &mut timer {
                        timer.as_mut().reset(deadline);
                    }
                }
                Event::BackPressure => self.update_drain_timeout(),
                Event::Mailbox | Event::Writable => {}
            }
            must_retry |= self.has_whole_packet();
        }
    }

    /// Whether a packet was not taken: then it is left over as a whole.
    fn has_whole_packet(&self) -> bool {
        matches!(frame::header(&self.unfinished, u32::MAX), Ok(Some(header)) if self.unfinished.len() >= header.total())
    }

    /// Waits for the socket, the mailbox or a timer. What arrives is read and handled here.
    async fn next_event(
        &mut self,
        must_retry: bool,
        mut keep_alive: Option<&mut Pin<Box<Sleep>>>,
    ) -> Result<Event, Ended> {
        let context = self.connection.context();
        let unsent = context.output.unsent().len();
        // A client that does not take its answers is not read either.
        let read = !must_retry && unsent < context.broker.settings.mqtt.outbox_max_bytes;
        poll_fn(|context| {
            let mailbox = &self.connection.context().mailbox;
            mailbox.register(context.waker());
            if mailbox.is_filled() && (unsent == 0 || mailbox.is_ending()) {
                return Poll::Ready(Ok(Event::Mailbox));
            }
            let state = mailbox.state();
            if self.drain_timeout.poll(context, state).is_ready() {
                return Poll::Ready(Ok(Event::BackPressure));
            }
            if unsent > 0
                && let Poll::Ready(ready) = self.stream.poll_write_ready(context)
            {
                let writable = ready.map(|()| Event::Writable);
                return Poll::Ready(writable.map_err(|_| Ended::network()));
            }
            if read && let Poll::Ready(handled) = self.poll_read(context) {
                return Poll::Ready(handled.map(|()| Event::Read));
            }
            if let Some(timer) = &mut keep_alive
                && timer.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Ok(Event::KeepAlive));
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
        self.connection.context_mut().wake.wake();
        Ok(flow? == Flow::Retry)
    }

    /// Reads once and handles the packets. A read that does not fill the buffer has emptied the socket, which
    /// `poll_read` takes into account: it does not ask the kernel again before there is more.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            let bytes = buffer.filled();
            if read.is_err() || bytes.is_empty() {
                return Poll::Ready(Err(Ended::network()));
            }
            let metrics = &self.connection.context().broker.metrics;
            metrics.bytes_received.add(bytes.len() as u64);
            Poll::Ready(self.handle(bytes))
        })
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        busy(Phase::Packets, || self.handle_bytes(bytes))
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), Ended> {
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
        self.connection.context_mut().wake.wake();
        flow.map(|_| ())
    }

    fn update_drain_timeout(&mut self) {
        let context = self.connection.context_mut();
        self.drain_timeout.update(
            &context.options.client_id,
            &context.mailbox,
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
        drained?;
        if self.connection.is_handing_over() {
            self.read_for_hand_over()?;
            self.connection.hand_over();
        }
        Ok(())
    }

    /// Handles what the socket has, without waiting for more, whatever keeps the client from being read otherwise.
    fn read_for_hand_over(&mut self) -> Result<(), Ended> {
        let mut taken = 0;
        while taken < limits::HAND_OVER_BYTES {
            let read = READ_BUFFER.with_borrow_mut(|buffer| {
                // The kernel is asked: the runtime may not have noticed yet that there is something.
                let read = match (&*socket2::SockRef::from(&self.stream)).read(buffer) {
                    Ok(0) => return Err(Ended::network()),
                    Ok(read) => read,
                    Err(error) if is_transient(&error) => return Ok(0),
                    Err(_) => return Err(Ended::network()),
                };
                let metrics = &self.connection.context().broker.metrics;
                metrics.bytes_received.add(read as u64);
                self.handle(&buffer[..read]).map(|()| read)
            })?;
            if read == 0 {
                break;
            }
            taken += read;
        }
        Ok(())
    }

    /// Tells the mailbox how much this client has got, and thereby those who publish to it.
    fn report_progress(&mut self) {
        let unsent = self.connection.unsent_bytes();
        let context = self.connection.context_mut();
        context.mailbox.progress(unsent, &mut context.wake);
    }

    /// Takes what is in the mailbox and sends what the socket takes.
    fn exchange(&mut self) -> Result<(), Ended> {
        loop {
            if self.connection.context().output.unsent().is_empty() {
                self.drain()?;
                if self.connection.context().output.unsent().is_empty() {
                    self.report_progress();
                    self.connection.context_mut().wake.wake();
                    self.shrink_buffers();
                    return Ok(());
                }
            }
            let context = self.connection.context_mut();
            match self.stream.try_write(context.output.unsent()) {
                Ok(written) => {
                    context.broker.metrics.bytes_sent.add(written as u64);
                    context.output.advance(written);
                    self.report_progress();
                }
                Err(error) if is_transient(&error) => {
                    self.report_progress();
                    self.connection.context_mut().wake.wake();
                    if self.connection.context().mailbox.is_ending() {
                        // The item that says so is behind messages that this client does not read.
                        self.drain()?;
                    }
                    return Ok(());
                }
                Err(_) => return Err(Ended::network()),
            }
        }
    }

    /// An idle connection keeps small buffers only.
    fn shrink_buffers(&mut self) {
        self.connection.context_mut().output.shrink();
        if self.unfinished.is_empty() && self.unfinished.capacity() > KEPT_BYTES {
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

#[cfg(test)]
#[path = "closing_tests.rs"]
mod closing_tests;
