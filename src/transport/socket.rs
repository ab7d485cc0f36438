//! A socket of the system: TCP or Unix.

use std::io::{self, IoSlice, Read as _};
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// Probes of an idle connection that are not answered before it counts as gone.
const PROBES: u32 = 4;

/// Bytes that the kernel takes before it has sent them. It would take megabytes for a client that reads slowly, and
/// tell only every few seconds that the client goes on, which looks like a client that stands still for
/// `mqtt.outbox_stall_s`.
const NOT_SENT_BYTES: u32 = 128 << 10;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls the same method of either.
macro_rules! either {
    ($socket:expr, $inner:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($inner) => $call,
            Socket::Unix($inner) => $call,
        }
    };
}

impl Socket {
    /// Sees that small packets leave at once, and that a dead client is noticed after `timeout`; zero: never.
    ///
    /// # Errors
    /// When the system knows no such option.
    pub(crate) fn prepare(&self, timeout: Duration) -> io::Result<()> {
        let Socket::Tcp(stream) = self else {
            // The other end is a process of this machine: its death closes the socket.
            return Ok(());
        };
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        // A system that does not know it serves its clients all the same.
        let _ = socket.set_tcp_notsent_lowat(NOT_SENT_BYTES);
        if timeout.is_zero() {
            return Ok(());
        }
        // The system counts in seconds.
        let half = (timeout.as_secs() / 2).max(1);
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(half))
            .with_interval(Duration::from_secs((half / u64::from(PROBES)).max(1)))
            .with_retries(PROBES);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(timeout))
    }

    /// The kernel takes what is written from here on, as far as it has memory, however much it has not sent.
    pub(super) fn take_at_once(&self) {
        if let Socket::Tcp(stream) = self {
            // A system that does not know it has no such bound either.
            let _ = SockRef::from(stream).set_tcp_notsent_lowat(u32::MAX);
        }
    }

    /// Ready when there is something to read. Reads once. A read that does not fill the buffer has emptied the socket,
    /// which is taken into account: the kernel is not asked again before there is more.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }

    pub(super) fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(context))
    }

    /// Whether the other end has closed its half, or the socket is broken, as far as the runtime has noticed.
    pub(super) fn is_read_closed(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let ready = either!(self, stream => {
            let ready = pin!(stream.ready(Interest::READABLE));
            ready.poll(&mut context)
        });
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        either!(self, stream => stream.writable().await)
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(buffer))
    }

    /// Asks the kernel, even if the runtime has not noticed yet that there is something.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => (&*SockRef::from(stream)).read(buffer))
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => stream.try_write_vectored(slices))
    }

    /// Closes this side's half.
    pub(super) fn shutdown_write(&self) {
        // It fails when the client has closed the connection.
        let _ = either!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write));
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_stream_is_seen_although_nobody_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.expect("it connects");
        let (client, socket) = (client.expect("listening"), Socket::Tcp(stream));
        client.try_write(b"unread").expect("there is room");
        socket.readable().await.expect("it is open");
        assert!(!socket.is_read_closed());
        drop(client);
        let seen = async {
            while !socket.is_read_closed() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let within = Duration::from_secs(10);
        tokio::time::timeout(within, seen)
            .await
            .expect("it is seen");
    }

    #[tokio::test]
    async fn a_dead_client_is_noticed_without_keep_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("listening");
        let socket = Socket::Tcp(stream);
        let prepared = socket.prepare(Duration::from_secs(120));
        prepared.expect("the options exist");
        let Socket::Tcp(stream) = &socket else {
            panic!("it is TCP");
        };
        let socket = SockRef::from(stream);
        assert!(socket.keepalive().expect("readable"));
        assert_eq!(
            socket.tcp_keepalive_time().ok(),
            Some(Duration::from_secs(60))
        );
        assert_eq!(
            socket.tcp_keepalive_interval().ok(),
            Some(Duration::from_secs(15))
        );
        let timeout = socket.tcp_user_timeout().expect("readable");
        assert_eq!(timeout, Some(Duration::from_secs(120)));
    }
}
