//! The port of the hub's HTTPS API: its socket, its TLS, and its end.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::RunError;
use super::listen::bind;
use super::shutdown::http_ends;
use super::status::NodeStatus;
use crate::config::{ClientCertificates, Config};
use crate::http::TlsSource;
use crate::hub_http::{Hub, Port, serve};
use crate::telemetry::metrics::Metrics;
use crate::transport;
use crate::transport::tls::{Files, ServerTls};

/// The open port.
pub(super) struct HubPort {
    socket: TcpListener,
    tls: Option<Arc<ServerTls>>,
}

impl HubPort {
    /// Opens it, if there is one.
    pub(super) async fn open(config: &Config) -> Result<Option<HubPort>, RunError> {
        let Some(address) = &config.hub.https_listen else {
            return Ok(None);
        };
        Ok(Some(HubPort {
            socket: bind("hub.https_listen", address).await?,
            tls: load_tls(config)?,
        }))
    }

    /// Serves it until the sender is dropped or says so; `stopped` is there until it has ended. Without a hub there is
    /// nothing to serve.
    pub(super) fn serve(
        self,
        status: &NodeStatus,
        metrics: &Arc<Metrics>,
        stopped: watch::Receiver<Option<Instant>>,
    ) {
        let broker = &status.broker;
        let Some(hub) = &broker.services.hub else {
            return;
        };
        if let Some(tls) = &self.tls {
            let watched = transport::tls::watch(tls.clone(), metrics.clone(), || ());
            tokio::spawn(watched);
        }
        let credentials = hub.credentials.clone();
        let max_devices = status.config.hub.max_devices;
        let hub = Hub::new(
            broker.clone(),
            status.raft.clone(),
            credentials,
            max_devices,
        );
        let tls = self
            .tls
            .map(|tls| Arc::new(move || tls.loaded().config.clone()) as TlsSource);
        let port = Port {
            listener: self.socket,
            tls,
        };
        let until_end = stopped.clone();
        let served = serve(port, Arc::new(hub), http_ends(stopped));
        tokio::spawn(async move {
            served.await;
            drop(until_end);
        });
    }
}

/// The TLS that is configured; the files must be good at the start.
pub(super) fn load_tls(config: &Config) -> Result<Option<Arc<ServerTls>>, RunError> {
    let certificates = &config.hub.https_certificates;
    if certificates.is_empty() {
        return Ok(None);
    }
    let files = Files {
        certificates: certificates.clone(),
        client_certificates: ClientCertificates::Off,
        client_ca_file: None,
        crl_files: Vec::new(),
        asks_everybody: false,
    };
    let loaded = ServerTls::load(files, &["http/1.1"]);
    loaded
        .map(Some)
        .map_err(|error| RunError::HubTls(error.to_string()))
}
