//! `quorumq-bench`, which `quorumq bench` runs: a closed-loop load generator. It shares the machine with what it
//! measures and therefore spends as little as it can: one thread, an event loop, no task per request.
//!
//! It speaks plain MQTT and therefore drives other brokers as well (`mqtt`, `connect`, `idle`). What it asks over HTTP
//! (`twin`, `fleet`, `events`) it asks without TLS.

mod arguments;
mod backlog;
mod bystanders;
mod connect;
mod engine;
mod error;
mod event_runs;
mod events;
mod fleet;
mod flow;
mod http;
mod kv;
mod latency;
mod link;
mod pings;
mod process;
mod report;
mod run;
mod runs;
mod socket;
mod twin;
mod values;
mod websocket;
mod wildcards;

use std::process::ExitCode;

use clap::Parser;
use quorumq::cli::exit;

/// The allocator of the broker: buffers of many connections.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let bench = arguments::Bench::parse();
    let format = bench.output;
    exit::finish(runs::run(bench).and_then(|reports| report::write(&reports, format)))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        arguments::Bench::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_help() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(argument.get_help().is_some(), "{path} {id} has no help");
            }
            command.get_subcommands().for_each(|sub| walk(sub, &path));
        }
        walk(&arguments::Bench::command(), "");
    }
}
