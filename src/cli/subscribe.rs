//! `quorumq sub`: prints what arrives on topic filters until Ctrl-C.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use super::client::{Client, Message};
use super::exit::Outcome;
use super::output::{self, Format, printable};
use super::servers::Servers;
use crate::codec::{QoS, SubscriptionOptions};

/// Pause before a new round over all servers.
const RETRY: Duration = Duration::from_millis(500);

/// Subscribe and print what arrives.
#[derive(Args)]
pub struct Sub {
    #[command(flatten)]
    servers: Servers,

    /// Topic filter; repeatable.
    #[arg(short, long = "topic", value_name = "FILTER", required = true)]
    topics: Vec<String>,

    /// Quality of service.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,

    /// End after this many messages.
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,

    /// Print only the payloads.
    #[arg(long)]
    payload_only: bool,
}

/// Runs the command.
pub async fn run(arguments: Sub, format: Format) -> Outcome {
    tokio::select! {
        outcome = receive(&arguments, format) => outcome,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Receives until the count is reached. After the first connection worked, a lost one is replaced.
async fn receive(arguments: &Sub, format: Format) -> Outcome {
    let options = arguments.servers.options("sub")?;
    let filters: Vec<_> = arguments.topics.iter().map(String::as_str).collect();
    let subscription = SubscriptionOptions {
        qos: QoS::from_bits(arguments.qos).unwrap_or_default(),
        ..SubscriptionOptions::default()
    };
    let mut seen = 0;
    let mut connected_once = false;
    for server in 0.. {
        let mut client = match Client::connect(&options, server).await {
            Ok(client) => client,
            Err(error) if connected_once && error.is_transient() => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        client.subscribe(&filters, subscription).await?;
        if connected_once {
            eprintln!("quorumq: connected again; messages in between may be missing");
        }
        connected_once = true;
        loop {
            if arguments.count.is_some_and(|count| seen >= count) {
                return Ok(client.disconnect().await?);
            }
            match client.next().await {
                Ok(message) => print(arguments, &message, format)?,
                Err(error) if error.is_transient() => {
                    eprintln!("quorumq: {error}");
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            seen += 1;
        }
    }
    Ok(())
}

fn print(arguments: &Sub, message: &Message, format: Format) -> Outcome {
    match format {
        Format::Table if arguments.payload_only => output::line(&message.payload)?,
        Format::Table => {
            output::line(format!("{} {}", message.topic, printable(&message.payload)))?
        }
        Format::Json => {
            let properties: Map<_, _> = message
                .user_properties
                .iter()
                .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
                .collect();
            output::json(&json!({
                "topic": message.topic,
                "payload": printable(&message.payload),
                "qos": message.qos as u8,
                "retain": message.retain,
                "user_properties": properties,
            }))?;
        }
    }
    Ok(())
}
