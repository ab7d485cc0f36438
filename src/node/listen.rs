//! Listening sockets.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::error::RunError;
use crate::config::{Address, Config, DEFAULT_LISTENER};
use crate::connection::broker::Broker;
use crate::telemetry::metrics::Metrics;
use crate::transport::{Listening, listen};

/// How often it is looked whether the node serves.
const SERVING_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Listens on the first address of a name that can be listened on.
pub(super) async fn bind(what: &'static str, address: &Address) -> Result<TcpListener, RunError> {
    let bound = listen(address).await;
    bound.map_err(|error| RunError::Listen {
        what,
        address: address.to_string(),
        error: error.to_string(),
    })
}

/// Names the listeners at which other machines are let in unasked, and may do everything.
pub(super) async fn announce(config: Arc<Config>, broker: Arc<Broker>) {
    // A node that joins does not know the cluster's users before.
    while !broker.state.is_serving() {
        tokio::time::sleep(SERVING_CHECK_INTERVAL).await;
    }
    if !broker.services.rules.are_open() {
        return;
    }
    for listener in config.listeners_for_everybody() {
        if broker.lets_everybody_in(&listener.name) {
            tracing::warn!(
                listener = listener.name,
                address = %listener.address,
                "whoever reaches this listener is let in and may do everything: add a user, set its `authentication`, \
                 or write rules"
            );
        }
    }
}

/// Opens the listeners for clients.
pub(super) async fn open(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<Vec<Listening>, RunError> {
    let mut open = Vec::new();
    let serves_hub = !config.hub.host_names.is_empty();
    for listener in config.listeners() {
        let address = listener.address.to_string();
        let what = match listener.name == DEFAULT_LISTENER {
            true => "mqtt.listen",
            false => "listeners",
        };
        let listening = Listening::open(listener, serves_hub, metrics.clone()).await;
        open.push(listening.map_err(|error| RunError::Listen {
            what,
            address,
            error: error.to_string(),
        })?);
    }
    Ok(open)
}
