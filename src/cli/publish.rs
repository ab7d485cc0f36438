//! `quorumq pub`: publishes one message, or one per line of standard input.

use std::io::Read;

use clap::Args;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::client::{Client, Outgoing};
use super::exit::{Failure, Outcome};
use super::servers::Servers;
use crate::codec::{QoS, ReasonCode};

/// Publish messages.
#[derive(Args)]
pub struct Pub {
    #[command(flatten)]
    servers: Servers,

    /// Topic.
    #[arg(short, long)]
    topic: String,

    /// The message; "-" reads one from standard input.
    #[arg(short, long, required_unless_present = "lines")]
    message: Option<String>,

    /// Publish every line of standard input as a message of its own.
    #[arg(short, long, conflicts_with = "message")]
    lines: bool,

    /// Quality of service.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,

    /// Let the server keep it for later subscribers.
    #[arg(short, long)]
    retain: bool,

    /// Seconds after which it need not be delivered any more.
    #[arg(long, value_name = "SECONDS")]
    expiry: Option<u32>,

    /// User property, repeatable.
    #[arg(short = 'D', long = "property", value_name = "NAME=VALUE", value_parser = pair)]
    properties: Vec<(String, String)>,
}

/// Text that is not a user property.
#[derive(Debug, thiserror::Error)]
#[error("expected NAME=VALUE")]
struct NotAProperty;

fn pair(text: &str) -> Result<(String, String), NotAProperty> {
    let (name, value) = text.split_once('=').ok_or(NotAProperty)?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Pub {
    fn outgoing<'a>(&'a self, payload: &'a [u8]) -> Outgoing<'a> {
        Outgoing {
            topic: &self.topic,
            qos: QoS::from_bits(self.qos).unwrap_or_default(),
            retain: self.retain,
            payload,
            message_expiry_s: self.expiry,
            user_properties: self
                .properties
                .iter()
                .map(|(name, value)| (name.as_str(), value.clone()))
                .collect(),
            ..Outgoing::default()
        }
    }
}

/// Runs the command.
pub async fn run(arguments: Pub) -> Outcome {
    let mut client = Client::connect(&arguments.servers.options("pub")?, 0).await?;
    if arguments.lines {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await? {
            send(&mut client, &arguments, line.as_bytes()).await?;
        }
    } else {
        let message = arguments.message.clone().unwrap_or_default();
        let mut payload = message.into_bytes();
        if payload == b"-" {
            payload.clear();
            std::io::stdin().lock().read_to_end(&mut payload)?;
        }
        send(&mut client, &arguments, &payload).await?;
    }
    Ok(client.disconnect().await?)
}

async fn send(client: &mut Client, arguments: &Pub, payload: &[u8]) -> Outcome {
    let outgoing = arguments.outgoing(payload);
    let limit = arguments.servers.limit();
    let reason = tokio::time::timeout(limit, client.publish(&outgoing))
        .await
        .map_err(|_| Failure::from(super::client::ClientError::TimedOut(limit.as_secs())))??;
    if reason == ReasonCode::NoMatchingSubscribers {
        eprintln!("quorumq: nobody subscribes to {}", arguments.topic);
    }
    Ok(())
}
