//! Listening sockets.

use std::sync::Arc;

use tokio::net::TcpListener;

use super::error::RunError;
use crate::config::{Address, Config, DEFAULT_LISTENER};
use crate::telemetry::metrics::Metrics;
use crate::transport::{Listening, listen};

/// Listens on the first address of a name that can be listened on.
pub(super) async fn bind(what: &'static str, address: &Address) -> Result<TcpListener, RunError> {
    let bound = listen(address).await;
    bound.map_err(|error| RunError::Listen {
        what,
        address: address.to_string(),
        error: error.to_string(),
    })
}

/// Opens the listeners for clients.
pub(super) async fn open(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<Vec<Listening>, RunError> {
    let mut open = Vec::new();
    for listener in config.listeners() {
        let address = listener.address.to_string();
        let what = match listener.name == DEFAULT_LISTENER {
            true => "mqtt.listen",
            false => "listeners",
        };
        let listening = Listening::open(listener, metrics.clone()).await;
        open.push(listening.map_err(|error| RunError::Listen {
            what,
            address,
            error: error.to_string(),
        })?);
    }
    Ok(open)
}
