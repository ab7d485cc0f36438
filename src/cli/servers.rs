//! The flags of every command that is an MQTT client: its servers and its log-in.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::client::{Options, Server, TlsOptions};
use super::exit::Failure;
use super::password::one_line;

/// Where to connect and as whom.
#[derive(Args, Clone)]
pub struct Servers {
    /// MQTT servers to try in this order, comma separated or repeated; mqtt://, mqtts://, ws:// or wss:// may go first.
    #[arg(
        global = true,
        short,
        long = "server",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        env = "QUORUMQ_SERVER",
        default_value = "127.0.0.1:1883"
    )]
    pub servers: Vec<Server>,

    /// Client identifier; a random one when absent.
    #[arg(global = true, short = 'i', long, value_name = "ID")]
    pub client_id: Option<String>,

    /// User name.
    #[arg(
        global = true,
        short,
        long,
        value_name = "NAME",
        env = "QUORUMQ_USERNAME",
        hide_env_values = true
    )]
    pub username: Option<String>,

    /// Password. Prefer the environment: arguments are visible to every user of the machine.
    #[arg(
        global = true,
        long,
        value_name = "TEXT",
        env = "QUORUMQ_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<String>,

    /// File whose first line is the password.
    #[arg(
        global = true,
        long,
        value_name = "FILE",
        env = "QUORUMQ_PASSWORD_FILE",
        conflicts_with = "password"
    )]
    pub password_file: Option<PathBuf>,

    /// Prove the password instead of sending it: the server must ask for SCRAM-SHA-256, too.
    #[arg(global = true, long, env = "QUORUMQ_SCRAM")]
    pub scram: bool,

    /// PEM file of the CAs that servers are judged by; those of the system when absent.
    #[arg(global = true, long, value_name = "FILE", env = "QUORUMQ_CA_FILE")]
    pub ca_file: Option<PathBuf>,

    /// PEM file of this client's certificate.
    #[arg(
        global = true,
        long,
        value_name = "FILE",
        env = "QUORUMQ_CERTIFICATE",
        requires = "certificate_key"
    )]
    pub certificate: Option<PathBuf>,

    /// PEM file of its key.
    #[arg(
        id = "certificate_key",
        global = true,
        long = "key",
        value_name = "FILE",
        env = "QUORUMQ_KEY",
        requires = "certificate"
    )]
    pub key: Option<PathBuf>,

    /// Longest time for a command, in seconds.
    #[arg(global = true, long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

impl Servers {
    /// The time-out as a duration.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The client's options; `role` goes into a random client identifier.
    ///
    /// # Errors
    /// A password file that cannot be read; SCRAM without a user name or without a password.
    pub fn options(&self, role: &str) -> Result<Options, Failure> {
        let random = || {
            format!(
                "quorumq-{role}-{}",
                &Uuid::new_v4().simple().to_string()[..12]
            )
        };
        let client_id = self.client_id.clone().unwrap_or_else(random);
        let password = match &self.password_file {
            Some(path) => Some(first_line(path)?.to_string()),
            None => self.password.clone(),
        };
        if self.scram && (self.username.is_none() || password.is_none()) {
            let text = "--scram needs --username and --password-file or QUORUMQ_PASSWORD";
            return Err(Failure::failed(text));
        }
        Ok(Options {
            username: self.username.clone(),
            password,
            scram: self.scram,
            tls: TlsOptions {
                ca_file: self.ca_file.clone(),
                certificate: self.certificate.clone().zip(self.key.clone()),
            },
            connect_timeout: self.limit().min(Duration::from_secs(3)),
            ..Options::new(self.servers.clone(), client_id)
        })
    }
}

fn first_line(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let explain = |error| Failure::failed(format!("{}: {error}", path.display()));
    one_line(BufReader::new(File::open(path).map_err(explain)?))
        .map_err(|failure| Failure::failed(format!("{}: {}", path.display(), failure.message)))
}
