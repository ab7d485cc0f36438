//! `quorumq serve`: runs a node in the foreground until SIGTERM or Ctrl-C.

use clap::Args;

use super::exit::{Exit, Failure, Outcome};
use super::settings::Settings;
use crate::config::file;
use crate::node;
use crate::raft;
use crate::telemetry::log;

/// Run a node. Without arguments: a single node on 127.0.0.1:1883 that keeps its data in ./data.
#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    settings: Settings,
}

/// Runs the command.
pub fn run(serve: Serve) -> Outcome {
    file::read_for_node();
    let loaded = serve.settings.load()?;
    let config = &loaded.config;
    log::start(config.node.id, &config.log, raft::LOG_FILTER).map_err(Failure::failed)?;
    loaded.log_effective();
    node::run(loaded.config).map_err(|error| Failure::new(Exit::Failed, error.to_string()))
}
