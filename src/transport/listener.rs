//! What holds for the connections of one listener.

use std::sync::Arc;

use super::tls::{Files, ServerTls, TlsError};
use crate::config;
use crate::telemetry::metrics::Metrics;

/// What holds for the connections of one listener.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// What the operator configured.
    pub(crate) config: config::Listener,
    /// What it offers, if it is TLS.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Devices and modules of a hub connect here, too: over WebSocket at a path of their own, and with certificates
    /// that no authority need have signed.
    pub(super) serves_hub: bool,
    pub(crate) metrics: Arc<Metrics>,
}

#[cfg(test)]
impl Listener {
    /// One with default settings that offers this.
    pub(crate) fn for_tests(tls: Option<Arc<ServerTls>>) -> Listener {
        Listener {
            tls,
            ..Listener::default()
        }
    }
}

/// What a listener offers over TLS, if it does. One that `serves_hub` asks every client for a certificate.
///
/// # Errors
/// Its files can't be used.
pub(crate) fn tls_of(
    config: &config::Listener,
    serves_hub: bool,
) -> Result<Option<Arc<ServerTls>>, TlsError> {
    if !config.transport.is_tls() {
        return Ok(None);
    }
    let protocols: &[&str] = match config.transport.is_websocket() {
        true => &["http/1.1"],
        false => &["mqtt"],
    };
    let files = Files {
        asks_everybody: serves_hub,
        ..Files::from(config)
    };
    ServerTls::load(files, protocols).map(Some)
}
