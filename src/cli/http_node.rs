//! The flags of every command that speaks HTTP with a node: where it is, and how to prove who asks.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use zeroize::Zeroizing;

use super::client::TlsOptions;
use super::exit::Failure;
use super::servers::Servers;
use crate::config::{Address, SettingError, secret_file};

/// Where a node speaks HTTP: `host:port`, or `http://` or `https://` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAddress {
    /// Host and port.
    pub address: Address,
    /// Whether it speaks TLS; `None`: if there is something to judge it by, or to show it.
    pub(super) tls: Option<bool>,
}

impl FromStr for HttpAddress {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<HttpAddress, SettingError> {
        let (tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (Some(true), rest),
            Some(("http", rest)) => (Some(false), rest),
            _ => (None, text),
        };
        let address = rest.strip_suffix('/').unwrap_or(rest).parse()?;
        Ok(HttpAddress { address, tls })
    }
}

/// The node that is asked, and the token of who asks.
#[derive(Args, Clone)]
pub struct HttpPlace {
    /// HTTP port of any node with /v1; https:// may go first.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "QUORUMQ_HTTP",
        default_value = "127.0.0.1:8080",
        global = true
    )]
    http: HttpAddress,

    /// File whose first line is the token to show; the environment variable QUORUMQ_TOKEN may have it instead.
    #[arg(long, value_name = "FILE", env = "QUORUMQ_TOKEN_FILE", global = true)]
    token_file: Option<PathBuf>,
}

/// The node that is asked, and who asks.
#[derive(Args, Clone)]
pub struct HttpNode {
    #[command(flatten)]
    place: HttpPlace,

    /// PEM file of the CAs that the node's certificate comes from; then it is asked over TLS.
    #[arg(long, value_name = "FILE", env = "QUORUMQ_CA_FILE", global = true)]
    ca_file: Option<PathBuf>,

    /// PEM file of a client certificate to show.
    #[arg(
        long,
        value_name = "FILE",
        env = "QUORUMQ_CERTIFICATE",
        global = true,
        requires = "certificate_key"
    )]
    certificate: Option<PathBuf>,

    /// PEM file of its key.
    #[arg(
        id = "certificate_key",
        long = "key",
        value_name = "FILE",
        env = "QUORUMQ_KEY",
        global = true,
        requires = "certificate"
    )]
    key: Option<PathBuf>,
}

/// Least length of a token, characters.
const LEAST_TOKEN_LENGTH: usize = 16;

impl HttpNode {
    /// A node that is asked beside MQTT servers, by the same who shows the same certificate.
    pub fn beside(place: &HttpPlace, servers: &Servers) -> HttpNode {
        HttpNode {
            place: place.clone(),
            ca_file: servers.ca_file.clone(),
            certificate: servers.certificate.clone(),
            key: servers.key.clone(),
        }
    }

    /// Host and port.
    pub fn address(&self) -> &Address {
        &self.place.http.address
    }

    /// The token to show, if there is one.
    ///
    /// # Errors
    /// The file can't be used.
    pub fn token(&self) -> Result<Option<Zeroizing<String>>, Failure> {
        if let Some(path) = &self.place.token_file {
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
        let has_files = self.ca_file.is_some() || self.certificate.is_some();
        if !self.place.http.tls.unwrap_or(has_files) {
            return Ok(None);
        }
        let options = TlsOptions {
            ca_file: self.ca_file.clone(),
            certificate: self.certificate.clone().zip(self.key.clone()),
        };
        Ok(Some(options.config()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_says_whether_it_is_tls() {
        for (text, tls) in [
            ("node:8080", None),
            ("http://node:8080", Some(false)),
            ("https://node:8080/", Some(true)),
        ] {
            let parsed: HttpAddress = text.parse().expect("an address");
            assert_eq!(
                (parsed.address.to_string().as_str(), parsed.tls),
                ("node:8080", tls)
            );
        }
        for wrong in ["ftp://node:8080", "https://node", "https://node:1/path"] {
            assert!(wrong.parse::<HttpAddress>().is_err(), "{wrong}");
        }
    }
}
