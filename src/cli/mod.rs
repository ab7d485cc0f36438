//! The command line: one definition from which parsing, help, man pages and completions come.
//!
//! Invariant: data goes to standard output, everything else to standard error; exit codes are in [`exit`]. Commands
//! reach the cluster as any client does, over MQTT and HTTP; only `serve` starts a node. The load generator (`bench/`)
//! uses [`exit`], [`output`] and what signs the hub's tokens, so that both executables speak alike.

mod acl;
mod bench;
mod certificates;
mod check;
mod client;
mod cluster;
mod event_tail;
mod events;
pub mod exit;
mod health;
mod hint;
mod http_client;
mod http_node;
mod hub;
mod kv;
pub mod output;
mod password;
mod publish;
mod reference;
mod serve;
mod servers;
mod sessions;
mod settings;
mod subscribe;
mod token;
mod users;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use exit::{Failure, Outcome};
use output::Format;

pub use crate::registry::sas::key_from_base64;
pub use crate::registry::sign::sign;
pub use hub::key_of_file;

/// An MQTT broker cluster whose acknowledgements are commits.
#[derive(Parser)]
#[command(
    name = "quorumq",
    version,
    max_term_width = 110,
    propagate_version = true
)]
#[command(after_help = "\
Exit codes: 0 ok, 1 failed or key absent, 2 usage, 69 unreachable, 75 no leader or stopping, 78 bad configuration.")]
pub struct Cli {
    /// How results are written.
    #[arg(short, long, value_enum, global = true, default_value_t)]
    output: Format,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node.
    Serve(serve::Serve),
    /// Check a configuration and report every problem with its line.
    Check(check::Check),
    /// Make a small CA, and certificates of nodes and clients.
    Certificates(certificates::Certificates),
    /// Make a line of auth.scram_file from a password.
    Password(password::Password),
    /// Use the replicated state store.
    Kv(kv::Kv),
    /// Look at the rules for what principals may do, check and change them.
    Acl(acl::Acl),
    /// Look at the cluster and change its members.
    Cluster(cluster::Cluster),
    /// Make, list and remove the tokens that the HTTP port asks for.
    Token(token::Token),
    /// Look at connected clients and disconnect them.
    Client(sessions::ClientCommand),
    /// Look at sessions and end them.
    Session(sessions::SessionCommand),
    /// Look at retained messages, set and delete them.
    Retained(sessions::RetainedCommand),
    /// Keep the users of the cluster, who log in with a password or by SCRAM.
    User(users::UserCommand),
    /// Keep a client id, a user or a network from connecting for a time.
    Ban(users::BanCommand),
    /// Make, look at and change the devices of the hub.
    Device(hub::DeviceCommand),
    /// Make, look at and change the modules of devices.
    Module(hub::ModuleCommand),
    /// Look at the twins of devices and modules, change and query them.
    Twin(hub::TwinCommand),
    /// Send the events of clients' connections to endpoints, or read them.
    Events(events::Events),
    /// Ask a node whether it is ready for clients.
    Health(health::Health),
    /// Publish messages.
    Pub(publish::Pub),
    /// Subscribe and print what arrives.
    Sub(subscribe::Sub),
    /// Generate load and measure it; also drives other MQTT brokers.
    Bench(bench::Bench),
    /// Print a completion script for a shell.
    Completions {
        /// Shell that the script is for.
        shell: clap_complete::Shell,
    },
    /// Write man pages into a directory, or the main one to standard output.
    Man {
        /// Directory for one page per command.
        directory: Option<std::path::PathBuf>,
    },
    /// Print a page of the reference, as it is kept under docs/.
    #[command(hide = true)]
    Reference {
        /// Page to print.
        page: reference::Page,
    },
}

/// Parses the process's arguments, runs the command, and returns the exit code.
pub fn main() -> ExitCode {
    exit::finish(run(Cli::parse()))
}

fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Serve(serve) => serve::run(serve),
        Command::Check(check) => check::run(check, cli.output),
        Command::Certificates(arguments) => certificates::run(arguments),
        Command::Password(arguments) => password::run(&arguments),
        Command::Kv(kv) => block_on(kv::run(kv, cli.output)),
        Command::Acl(acl) => block_on(acl::run(acl, cli.output)),
        Command::Cluster(cluster) => block_on(cluster::run(cluster, cli.output)),
        Command::Token(token) => block_on(token::run(token, cli.output)),
        Command::Client(arguments) => block_on(sessions::client(arguments, cli.output)),
        Command::Session(arguments) => block_on(sessions::session(arguments, cli.output)),
        Command::Retained(arguments) => block_on(sessions::retained(arguments, cli.output)),
        Command::User(arguments) => block_on(users::user(arguments, cli.output)),
        Command::Ban(arguments) => block_on(users::ban(arguments, cli.output)),
        Command::Device(arguments) => block_on(hub::device(arguments, cli.output)),
        Command::Module(arguments) => block_on(hub::module(arguments, cli.output)),
        Command::Twin(arguments) => block_on(hub::twin(arguments, cli.output)),
        Command::Events(arguments) => block_on(events::run(arguments, cli.output)),
        Command::Health(health) => block_on(health::run(health)),
        Command::Pub(arguments) => block_on(publish::run(arguments)),
        Command::Sub(arguments) => block_on(subscribe::run(arguments, cli.output)),
        Command::Bench(bench) => bench::run(bench, cli.output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "quorumq", &mut script);
            Ok(output::raw(&script)?)
        }
        Command::Man { directory } => reference::man(Cli::command(), directory.as_deref()),
        Command::Reference { page } => Ok(output::raw(reference::page(page).as_bytes())?),
    }
}

/// Runs a client command on this thread.
fn block_on(work: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?
        .block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_help() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{path} {} has no help",
                    argument.get_id()
                );
            }
            command.get_subcommands().for_each(|sub| walk(sub, &path));
        }
        walk(&Cli::command(), "");
    }
}
