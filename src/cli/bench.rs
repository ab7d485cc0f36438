//! `quorumq bench`: hands over to the load generator, which is an executable of its own (`bench/`), so that the broker
//! carries neither its code nor its event loop.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process;

use clap::Args;

use super::exit::{Failure, Outcome};
use super::output::Format;

/// The load generator's executable.
const EXECUTABLE: &str = "quorumq-bench";

/// Generate load and measure it; also drives other MQTT brokers.
#[derive(Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Bench {
    /// What to measure, and its options: see `quorumq bench --help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by the load generator.
pub fn run(bench: Bench, format: Format) -> Outcome {
    let program = program(std::env::current_exe().ok());
    let mut command = process::Command::new(&program);
    if format == Format::Json {
        // `--output` before the first argument of the load generator was parsed as this executable's.
        command.args(["--output", "json"]);
    }
    let error = command.args(bench.arguments).exec();
    Err(Failure::failed(match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "the load generator {EXECUTABLE} is neither beside this executable nor on PATH; `make build` builds both"
        ),
        _ => format!("{}: {error}", program.display()),
    }))
}

/// The load generator beside this executable; where there is none, its name, to be looked up on PATH.
fn program(this: Option<PathBuf>) -> OsString {
    let beside = this.map(|path| path.with_file_name(EXECUTABLE));
    match beside.filter(|path| path.is_file()) {
        Some(path) => path.into(),
        None => EXECUTABLE.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    #[test]
    fn every_argument_is_handed_over() {
        let given = [
            "-s", "a:1", "kv-set", "-C", "1", "--help", "-o", "json", "-V",
        ];
        let line = ["quorumq", "bench"].into_iter().chain(given);
        let cli = Cli::try_parse_from(line).expect("anything may follow `bench`");
        assert!(matches!(cli.command, Command::Bench(bench) if bench.arguments == given));
    }

    #[test]
    fn help_and_version_are_the_load_generators() {
        for flag in ["--help", "--version"] {
            let cli = Cli::try_parse_from(["quorumq", "bench", flag]).expect("handed over");
            assert!(matches!(cli.command, Command::Bench(bench) if bench.arguments == [flag]));
        }
    }

    #[test]
    fn the_format_may_stand_before_the_mode() {
        for line in [
            ["quorumq", "-o", "json", "bench", "connect"],
            ["quorumq", "bench", "-o", "json", "connect"],
        ] {
            let cli = Cli::try_parse_from(line).expect("handed over");
            assert_eq!(cli.output, Format::Json);
            assert!(matches!(cli.command, Command::Bench(bench) if bench.arguments == ["connect"]));
        }
    }

    #[test]
    fn the_executable_beside_this_one_comes_before_path() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let this = directory.path().join("quorumq");
        assert_eq!(program(Some(this.clone())), EXECUTABLE);
        let beside = directory.path().join(EXECUTABLE);
        std::fs::write(&beside, "").expect("a writable directory");
        assert_eq!(program(Some(this)), beside.as_os_str());
        assert_eq!(program(None), EXECUTABLE);
    }
}
