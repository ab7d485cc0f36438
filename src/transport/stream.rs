//! A stream of bytes in both directions, whatever carries it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::socket::Socket;

/// The bytes of MQTT of one connection.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The socket's bytes are MQTT's.
    Plain(Socket),
}

impl Stream {
    /// Reads once when there is something to read.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_read(context, buffer),
        }
    }

    /// Ready when more can be written.
    pub(crate) fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_write_ready(context),
        }
    }

    /// Waits until there may be something to read.
    pub(crate) async fn readable(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.readable().await,
        }
    }

    /// Waits until more may be written.
    pub(crate) async fn writable(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.writable().await,
        }
    }

    /// Reads what is there. 0 is the end.
    pub(crate) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_read(buffer),
        }
    }

    /// The same, and asks the kernel even if the runtime has not noticed yet that there is something.
    pub(crate) fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read_now(buffer),
        }
    }

    /// Writes as much as is taken now.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_write(bytes),
        }
    }

    /// The same for several slices, one after the other.
    pub(crate) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_write_vectored(slices),
        }
    }

    /// Whether bytes that were taken have not all reached the socket: [`Stream::flush`] is to be called when it is
    /// writable.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
        }
    }

    /// Gives the socket what it takes of the bytes that were taken before.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
        }
    }

    /// Bytes of memory that this stream holds beside the socket's.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Stream::Plain(_) => 0,
        }
    }

    /// Tells the other end that nothing more comes.
    pub(crate) fn shutdown(&mut self) {
        match self {
            Stream::Plain(socket) => socket.shutdown_write(),
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
