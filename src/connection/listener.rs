//! Accepts connections and gives each its task.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::broker::Broker;
use super::task;
use crate::telemetry::labels::DisconnectReason;

/// Between two attempts, when the system has no descriptors or memory for a connection.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Accepts until the task is ended.
pub(crate) async fn run(listener: TcpListener, broker: Arc<Broker>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => accept(&broker, stream, address),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

fn accept(broker: &Arc<Broker>, stream: TcpStream, address: std::net::SocketAddr) {
    let metrics = &broker.metrics;
    metrics.connections_opened.increment();
    let open = metrics.connections.get();
    if open >= i64::try_from(broker.settings.mqtt.max_connections).unwrap_or(i64::MAX)
        || broker.state.is_draining()
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
        task::serve(&broker, stream, address).await;
        broker.metrics.connections.decrement();
    });
}
