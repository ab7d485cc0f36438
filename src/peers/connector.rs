//! Connections to other nodes: opened for a gRPC channel, and proved before it uses them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::transport::Uri;

use super::counters::Counters;
use super::stream::PeerStream;
use super::trust::Trust;
use crate::base::ids::NodeId;

/// Longest wait for a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the connections of one channel.
#[derive(Clone)]
pub struct Connector {
    trust: Trust,
    wanted: Option<NodeId>,
    /// Whether the last attempt has failed. It is logged when that changes.
    fails: Arc<AtomicBool>,
}

impl Connector {
    /// To `wanted`, whatever its address is; `None`: to any node of the cluster.
    pub fn new(trust: Trust, wanted: Option<NodeId>) -> Connector {
        Connector {
            trust,
            wanted,
            fails: Arc::default(),
        }
    }

    /// Opens a connection to `host` and has both sides prove who they are.
    ///
    /// # Errors
    /// When nobody answers, or another than who is wanted, or when no node can be there.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<PeerStream> {
        let connected = self.try_to(host, port).await;
        let failed = self.fails.swap(connected.is_err(), Relaxed);
        match &connected {
            Ok(_) if failed => tracing::info!(host, port, "a node can be reached again"),
            // A node that looks for a cluster asks addresses in turn, again and again.
            Err(error) if !failed && self.wanted.is_some() => {
                tracing::warn!(host, port, %error, "a node can't be reached")
            }
            Ok(_) | Err(_) => {}
        }
        connected
    }

    async fn try_to(&self, host: &str, port: u16) -> io::Result<PeerStream> {
        let connecting = async {
            let resolved = self.trust.reach().resolve(host, port).await;
            let found = resolved.map_err(io::Error::other)?;
            io::Result::Ok((TcpStream::connect(&*found).await?, found))
        };
        let (stream, found) = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await??;
        stream.set_nodelay(true)?;
        let proved = self.trust.connect(stream, self.wanted).await;
        let proved = proved.inspect_err(|error| {
            Counters::count(&self.trust.counters().handshakes_failed);
            tracing::debug!(host, port, %error, "a peer was not believed");
        })?;
        self.trust.reach().remember(host, port, &found);
        Ok(proved)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<PeerStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<PeerStream>>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let nowhere = || io::Error::new(io::ErrorKind::InvalidInput, "no host and port");
            let host = uri.host().ok_or_else(nowhere)?;
            // An IPv6 address has brackets in a URI.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = uri.port_u16().ok_or_else(nowhere)?;
            let stream = connector.connect(host, port).await?;
            Ok(TokioIo::new(stream))
        })
    }
}
