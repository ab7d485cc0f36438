//! `quorumq health`: one probe for container health checks and scripts, so that an image needs no HTTP client.

use std::time::Duration;

use clap::Args;

use super::exit::{Failure, Outcome};
use super::http_client;
use super::http_node::HttpNode;
use super::output;

/// Ask a node whether it is ready for clients.
#[derive(Args)]
pub struct Health {
    #[command(flatten)]
    node: HttpNode,

    /// Ask only whether the process answers: a node without a majority does, but is not ready.
    #[arg(long)]
    live: bool,

    /// Longest time to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

/// Runs the command.
pub async fn run(health: Health) -> Outcome {
    let path = match health.live {
        true => "/livez",
        false => "/readyz?verbose",
    };
    let limit = Duration::from_secs(health.timeout);
    let (status, body) = http_client::get_text(&health.node, path, limit).await?;
    let text = body.trim_end();
    if status.is_success() {
        return Ok(output::line(text)?);
    }
    Err(Failure::failed(text))
}
