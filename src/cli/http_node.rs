//! The flags of every command that speaks HTTP with a node: where it is, and how to prove who asks.

use std::path::PathBuf;

use clap::Args;
use zeroize::Zeroizing;

use super::exit::Failure;
use super::http_tls;
use crate::config::{Address, secret_file};

/// The node that is asked, and who asks.
#[derive(Args, Clone)]
pub struct HttpNode {
    /// HTTP port of any node.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "QUORUMQ_HTTP",
        default_value = "127.0.0.1:8080",
        global = true
    )]
    pub http: Address,

    /// File whose first line is the token to show; the environment variable QUORUMQ_TOKEN may have it instead.
    #[arg(
        long = "token-file",
        id = "http_token_file",
        value_name = "FILE",
        env = "QUORUMQ_TOKEN_FILE",
        global = true
    )]
    token_file: Option<PathBuf>,

    /// Speak TLS; without --ca-file the node's certificate must come from a CA that this machine trusts.
    #[arg(long = "https", id = "http_tls", env = "QUORUMQ_HTTPS", global = true)]
    tls: bool,

    /// PEM file of the CAs that the node's certificate comes from; implies --https.
    #[arg(
        long = "ca-file",
        id = "http_ca_file",
        value_name = "FILE",
        env = "QUORUMQ_CA_FILE",
        global = true
    )]
    ca_file: Option<PathBuf>,

    /// PEM file of a client certificate to show.
    #[arg(
        long = "certificate",
        id = "http_certificate",
        value_name = "FILE",
        env = "QUORUMQ_CERTIFICATE",
        global = true,
        requires = "http_key"
    )]
    certificate: Option<PathBuf>,

    /// PEM file of the key of that certificate.
    #[arg(
        long = "key",
        id = "http_key",
        value_name = "FILE",
        env = "QUORUMQ_KEY",
        global = true,
        requires = "http_certificate"
    )]
    key: Option<PathBuf>,
}

/// Least length of a token, characters.
const LEAST_TOKEN_LENGTH: usize = 16;

impl HttpNode {
    /// The token to show, if there is one.
    ///
    /// # Errors
    /// The file can't be used.
    pub fn token(&self) -> Result<Option<Zeroizing<String>>, Failure> {
        if let Some(path) = &self.token_file {
            let token = secret_file::first_line(path, LEAST_TOKEN_LENGTH);
            return token.map(Some).map_err(Failure::failed);
        }
        let token = std::env::var("QUORUMQ_TOKEN").map(Zeroizing::new).ok();
        Ok(token.filter(|token| !token.is_empty()))
    }

    /// What to speak TLS with; `None`: plain HTTP.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn tls(&self) -> Result<Option<rustls::ClientConfig>, Failure> {
        if !self.tls && self.ca_file.is_none() && self.certificate.is_none() {
            return Ok(None);
        }
        let identity = self.certificate.as_deref().zip(self.key.as_deref());
        http_tls::client(self.ca_file.as_deref(), identity).map(Some)
    }
}
