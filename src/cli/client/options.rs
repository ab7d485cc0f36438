//! How the client connects.

use std::time::Duration;

use super::server::Server;
use super::transport::TlsOptions;

/// Where to connect and as whom. Every connection begins a fresh MQTT 5 session that ends with it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers to try, in this order; a reconnect starts with the one after the last.
    pub servers: Vec<Server>,
    /// Client identifier.
    pub client_id: String,
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Log in with SCRAM-SHA-256: the password is proved, not sent.
    pub scram: bool,
    /// What is proved and asked over TLS.
    pub tls: TlsOptions,
    /// Longest time for one server to accept TCP and CONNECT.
    pub connect_timeout: Duration,
}

impl Options {
    /// Options without a log-in.
    pub fn new(servers: Vec<Server>, client_id: String) -> Options {
        Options {
            servers,
            client_id,
            username: None,
            password: None,
            scram: false,
            tls: TlsOptions::default(),
            connect_timeout: Duration::from_secs(3),
        }
    }
}
