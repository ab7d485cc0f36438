//! Accepts connections and gives each its task.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::connection;
use crate::connection::broker::Broker;
use crate::telemetry::labels::DisconnectReason;

/// After an accept failed for want of descriptors or memory.
const RETRY: Duration = Duration::from_millis(50);

/// Accepts until the task is ended.
pub async fn run(listener: TcpListener, broker: Arc<Broker>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => accept(&broker, stream, address),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn accept(broker: &Arc<Broker>, stream: TcpStream, address: std::net::SocketAddr) {
    let metrics = &broker.metrics;
    metrics.connections_opened.increment();
    let open = metrics.connections.get();
    if open >= i64::try_from(broker.config.max_connections).unwrap_or(i64::MAX)
        || broker.draining.load(Ordering::Acquire)
    {
        metrics
            .disconnects
            .of(DisconnectReason::TooMany)
            .increment();
        tracing::debug!(%address, open, "refused: too many connections, or shutting down");
        return;
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, %error, "TCP_NODELAY could not be set");
    }
    metrics.connections.increment();
    let broker = broker.clone();
    tokio::spawn(async move {
        connection::task::serve(&broker, stream, address).await;
        broker.metrics.connections.decrement();
    });
}
