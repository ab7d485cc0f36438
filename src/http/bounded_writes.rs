//! A stream whose other end must read what is written to it.
//!
//! An answer stays in memory until its client has read it. A client that reads a byte now and then is alive for TCP, so
//! time is what bounds it: from the first write that has to wait to the end of what is being written, whether there is
//! progress or not.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes, up to the next flush, take a bounded time together.
pub(super) struct BoundedWrites<S> {
    stream: S,
    limit: Duration,
    /// Set while something waits to be written.
    late: Option<Pin<Box<Sleep>>>,
}

impl<S> BoundedWrites<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        BoundedWrites {
            stream,
            limit,
            late: None,
        }
    }

    /// What came of a write, unless it is late.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_pending() && self.late.is_none() {
            self.late = Some(Box::pin(sleep(self.limit)));
        }
        if let Some(late) = &mut self.late
            && late.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Whoever writes flushes when everything is written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.late = None;
        }
        self.bounded(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_little_is_late() {
        const LIMIT: Duration = Duration::from_millis(200);
        for reads in [false, true] {
            let (stream, mut client) = tokio::io::duplex(64);
            let mut stream = BoundedWrites::new(stream, LIMIT);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    if reads && client.read_u8().await.is_err() {
                        return;
                    }
                }
            });
            let started = Instant::now();
            let late = stream.write_all(&[0; 1_000_000]).await.expect_err("late");
            assert_eq!(late.kind(), io::ErrorKind::TimedOut);
            assert!(started.elapsed() >= LIMIT);
        }
    }

    #[tokio::test]
    async fn each_answer_has_its_time() {
        const LIMIT: Duration = Duration::from_secs(1);
        let (stream, mut client) = tokio::io::duplex(64);
        let mut stream = BoundedWrites::new(stream, LIMIT);
        tokio::spawn(async move {
            let mut bytes = [0; 64];
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if client.read_exact(&mut bytes).await.is_err() {
                    return;
                }
            }
        });
        let started = Instant::now();
        while started.elapsed() < 2 * LIMIT {
            stream.write_all(&[0; 128]).await.expect("in time");
            stream.flush().await.expect("in time");
        }
    }
}
