//! A connection between nodes, plain or encrypted, whose other end has proved which node it is if it had to.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tonic::transport::server::Connected;

use super::info::PeerInfo;
use super::registry::Registration;
use crate::base::ids::NodeId;

/// What is under the bytes.
pub(super) enum Io {
    Plain(TcpStream),
    // A TLS connection is a kilobyte; the plain one has not to be as large.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// Who is at the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Io::Plain(stream) => stream.peer_addr(),
            Io::Tls(stream) => stream.get_ref().0.peer_addr(),
        }
    }
}

/// A connection between nodes.
pub struct PeerStream {
    io: Io,
    info: PeerInfo,
    registration: Registration,
}

impl PeerStream {
    pub(super) fn new(io: Io, proven: Option<NodeId>, registration: Registration) -> PeerStream {
        PeerStream {
            io,
            info: PeerInfo { proven },
            registration,
        }
    }

    #[cfg(test)]
    pub fn info(&self) -> PeerInfo {
        self.info
    }
}

impl Connected for PeerStream {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.info
    }
}

fn withdrawn() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the connection is not trusted any more, or was replaced",
    )
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.registration.poll_ended(context) {
            return Poll::Ready(Err(withdrawn()));
        }
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(context),
            Io::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
