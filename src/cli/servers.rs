//! The flags that say which servers to use and who we are, shared by every command that is an MQTT client.

use std::time::Duration;

use clap::Args;
use uuid::Uuid;

use super::client::Options;
use crate::config::Address;

/// Where to connect and as whom.
#[derive(Args, Clone)]
pub struct Servers {
    /// MQTT servers to try in this order, comma separated or repeated.
    #[arg(
        global = true,
        short,
        long = "server",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        env = "QUORUMQ_SERVER",
        default_value = "127.0.0.1:1883"
    )]
    pub servers: Vec<Address>,

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

    /// Longest time for a command, in seconds.
    #[arg(global = true, long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

impl Servers {
    /// The time-out as a duration.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// How to connect: a fresh session, no longer than one command.
    pub fn options(&self, role: &str) -> Options {
        let random = || {
            format!(
                "quorumq-{role}-{}",
                &Uuid::new_v4().simple().to_string()[..12]
            )
        };
        let client_id = self.client_id.clone().unwrap_or_else(random);
        Options {
            username: self.username.clone(),
            password: self.password.clone(),
            connect_timeout: self.limit().min(Duration::from_secs(3)),
            ..Options::new(self.servers.clone(), client_id)
        }
    }
}
