//! The HTTP ports of a node: their sockets, who may ask, and their end.
//!
//! Invariant: they have threads of their own. Probes, metrics and operators are answered when those of clients wait for
//! a lock, or have more to do than they can.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::error::RunError;
use super::hub_port::HubPort;
use super::listen::bind;
use super::process::on;
use super::shutdown::{StopHttp, http_ends};
use crate::config::{Config, HttpAuthentication, HttpConfig};
use crate::http::{self, Endpoints, Gate, Hosts, Part, Port, TlsSource};
use crate::transport;
use crate::transport::tls::{Files, ServerTls};

/// The open ports, and the gate before administration.
pub(super) struct HttpPorts {
    sockets: Vec<(TcpListener, Part)>,
    /// Of the port with administration.
    tls: Option<Arc<ServerTls>>,
    pub(super) gate: Arc<Gate>,
    /// That of back ends.
    pub(super) hub: Option<HubPort>,
    /// Drives them, but that of back ends.
    runtime: Handle,
}

async fn sockets(http: &HttpConfig) -> Result<Vec<(TcpListener, Part)>, RunError> {
    let mut sockets = Vec::new();
    if let Some(address) = &http.listen {
        let part = match http.admin_listen {
            Some(_) => Part::Probes,
            None => Part::Everything,
        };
        sockets.push((bind("http.listen", address).await?, part));
    }
    if let Some(address) = &http.admin_listen {
        let socket = bind("http.admin_listen", address).await?;
        sockets.push((socket, Part::State));
    }
    Ok(sockets)
}

impl HttpPorts {
    /// Opens them.
    pub(super) async fn open(
        config: &Arc<Config>,
        runtime: &Handle,
    ) -> Result<HttpPorts, RunError> {
        let gate = Gate::new(&config.http, Arc::default(), Arc::default())?;
        let opened = config.clone();
        Ok(HttpPorts {
            sockets: on(runtime, async move { sockets(&opened.http).await }).await?,
            tls: load_tls(&config.http)?,
            gate: Arc::new(gate),
            hub: HubPort::open(config).await?,
            runtime: runtime.clone(),
        })
    }

    /// Serves them until the sender is dropped or says so. It is closed when they have ended.
    pub(super) fn serve(self, config: &Config, endpoints: &Endpoints) -> StopHttp {
        if let Some(tls) = &self.tls {
            self.runtime.spawn(transport::tls::watch(
                tls.clone(),
                endpoints.metrics.clone(),
                || (),
            ));
        }
        let names = config.http.hosts.iter().map(String::as_str);
        let members = config.cluster.members.iter();
        let hosts = Hosts::new(names.chain(members.map(|member| member.address.host())));
        let (stop, stopped) = watch::channel(None);
        for (listener, part) in self.sockets {
            let tls = self.tls.clone().filter(|_| part != Part::Probes);
            let tls = tls.map(|tls| Arc::new(move || tls.loaded().config.clone()) as TlsSource);
            let port = Port {
                listener,
                tls,
                part,
            };
            let until_end = stopped.clone();
            let served = http::serve(
                port,
                endpoints.clone(),
                hosts.clone(),
                self.gate.clone(),
                http_ends(stopped.clone()),
            );
            self.runtime.spawn(async move {
                served.await;
                drop(until_end);
            });
        }
        stop
    }
}

/// The TLS that is configured; the files must be good at the start.
pub(super) fn load_tls(http: &HttpConfig) -> Result<Option<Arc<ServerTls>>, RunError> {
    if http.certificates.is_empty() {
        return Ok(None);
    }
    let files = Files {
        certificates: http.certificates.clone(),
        client_certificates: http.client_certificates,
        client_ca_file: http.client_ca_file.clone(),
        crl_files: http.crl_files.clone(),
        asks_everybody: false,
    };
    let loaded = ServerTls::load(files, &["http/1.1"]);
    loaded
        .map(Some)
        .map_err(|error| RunError::HttpTls(error.to_string()))
}

/// Says what stands open.
pub(super) fn announce(config: &Config) {
    let http = &config.http;
    let address = http.admin_listen.as_ref().or(http.listen.as_ref());
    let Some(address) = address else {
        return;
    };
    if http.authentication == HttpAuthentication::Off {
        tracing::warn!(
            %address,
            "http.authentication is off: whoever reaches this port administers the cluster"
        );
    }
    if !address.is_loopback() && http.certificates.is_empty() {
        tracing::warn!(
            %address,
            "administration is not on loopback and has no TLS: tokens can be read on the way; see http.certificates"
        );
    }
}
