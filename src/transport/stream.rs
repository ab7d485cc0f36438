//! A stream of bytes in both directions, whatever carries it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::layered::Layered;
use super::socket::Socket;
use super::stream_end::StreamEnd;

/// The bytes of MQTT of one connection.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The socket's bytes are MQTT's.
    Plain(Socket),
    /// They are inside of TLS or WebSocket, or both.
    Layered(Box<Layered>),
}

impl Stream {
    /// How the other end has ended its half.
    pub(crate) fn end(&self) -> StreamEnd {
        match self {
            Stream::Plain(_) => StreamEnd::Lost,
            Stream::Layered(layered) => layered.end(),
        }
    }

    /// Reads once when there is something to read.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_read(context, buffer),
            Stream::Layered(layered) => layered.poll_read(context, buffer),
        }
    }

    /// Ready when more can be written.
    pub(crate) fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_write_ready(context),
            Stream::Layered(layered) => layered.socket().poll_write_ready(context),
        }
    }

    /// Whether the other end has closed its half of the socket, or the socket is broken, as far as the runtime has
    /// noticed; there may be something to read before that.
    pub(crate) fn is_read_closed(&self) -> bool {
        match self {
            Stream::Plain(socket) => socket.is_read_closed(),
            Stream::Layered(layered) => layered.socket().is_read_closed(),
        }
    }

    /// Waits until there may be something to read.
    pub(crate) async fn readable(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.readable().await,
            Stream::Layered(layered) => layered.readable().await,
        }
    }

    /// Waits until more may be written.
    pub(crate) async fn writable(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.writable().await,
            Stream::Layered(layered) => layered.socket().writable().await,
        }
    }

    /// Reads what is there. 0 is the end.
    pub(crate) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_read(buffer),
            Stream::Layered(layered) => layered.try_read(buffer),
        }
    }

    /// The same, and asks the kernel even if the runtime has not noticed yet that there is something. The socket is
    /// read `reads` times at most, from which those are taken off.
    pub(crate) fn read_now(&mut self, buffer: &mut [u8], reads: &mut usize) -> io::Result<usize> {
        match self {
            _ if *reads == 0 => Err(io::ErrorKind::WouldBlock.into()),
            Stream::Plain(socket) => {
                *reads -= 1;
                socket.read_now(buffer)
            }
            Stream::Layered(layered) => layered.read_now(buffer, reads),
        }
    }

    /// Writes as much as is taken now.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_write(bytes),
            Stream::Layered(layered) => layered.try_write(&[IoSlice::new(bytes)]),
        }
    }

    /// The same for several slices, one after the other.
    pub(crate) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_write_vectored(slices),
            Stream::Layered(layered) => layered.try_write(slices),
        }
    }

    /// Whether bytes that were taken have not all reached the socket: [`Stream::flush`] is to be called when it is
    /// writable.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Layered(layered) => layered.is_unsent(),
        }
    }

    /// Gives the socket what it takes of the bytes that were taken before.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Layered(layered) => layered.flush(),
        }
    }

    /// Has the kernel take the last bytes although the client is slow: nobody asks any more how far it has read.
    pub(crate) fn take_at_once(&mut self) {
        match self {
            Stream::Plain(socket) => socket.take_at_once(),
            Stream::Layered(layered) => layered.socket().take_at_once(),
        }
    }

    /// Bytes of memory that this stream holds beside the socket's.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Stream::Plain(_) => 0,
            Stream::Layered(layered) => layered.held_bytes(),
        }
    }

    /// Says in each layer that nothing more comes: a close frame, a close_notify. They are sent as all else.
    pub(crate) fn close(&mut self) {
        match self {
            Stream::Plain(_) => {}
            Stream::Layered(layered) => layered.close(),
        }
    }

    /// Closes this side's half of the socket.
    pub(crate) fn shutdown(&mut self) {
        match self {
            Stream::Plain(socket) => socket.shutdown_write(),
            Stream::Layered(layered) => layered.socket().shutdown_write(),
        }
    }
}

#[cfg(test)]
impl Stream {
    /// The stream of a TCP connection.
    pub(crate) fn of_tcp(stream: tokio::net::TcpStream) -> Stream {
        Stream::Plain(Socket::Tcp(stream))
    }
}
