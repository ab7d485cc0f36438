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
    pub(super) metrics: Arc<Metrics>,
}

/// What a listener offers over TLS, if it does.
///
/// # Errors
/// Its files can't be used.
pub(crate) fn tls_of(config: &config::Listener) -> Result<Option<Arc<ServerTls>>, TlsError> {
    if !config.transport.is_tls() {
        return Ok(None);
    }
    let protocols: &[&str] = match config.transport.is_websocket() {
        true => &["http/1.1"],
        false => &["mqtt"],
    };
    ServerTls::load(Files::from(config), protocols).map(Some)
}
