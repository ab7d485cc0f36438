//! `quorumq password`: makes a line of `auth.scram_file` from a password on standard input.

use std::io::{self, BufRead, IsTerminal};

use clap::Args;

use super::exit::{Failure, Outcome};
use super::output;
use crate::auth::scram::{
    Algorithm, DEFAULT_ITERATIONS, LEAST_ITERATIONS, MOST_ITERATIONS, SALT_BYTES, Verifier, prepare,
};

/// Make a line of auth.scram_file from a password, which is the first line of standard input.
#[derive(Args)]
pub struct Password {
    /// The user's name.
    user: String,

    /// Rounds of hashing. More make a stolen file harder to use, and every log-in slower for the client.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERATIONS,
        value_parser = clap::value_parser!(u32).range(i64::from(LEAST_ITERATIONS)..=i64::from(MOST_ITERATIONS)))]
    iterations: u32,
}

/// Runs the command.
pub fn run(arguments: &Password) -> Outcome {
    let refused = |what: &str| {
        Failure::failed(format!(
            "the {what} is empty or has characters that SASLprep (RFC 4013) refuses"
        ))
    };
    let user = prepare(&arguments.user)
        .filter(|user| !user.starts_with('#'))
        .ok_or_else(|| refused("user name"))?;
    let password = first_line()?;
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt).map_err(Failure::failed)?;
    let algorithm = Algorithm::Sha256;
    let verifier = Verifier::of_password(algorithm, &password, &salt, arguments.iterations)
        .ok_or_else(|| refused("password"))?;
    Ok(output::line(verifier.line(&user))?)
}

/// The first line of standard input without its end. A person is asked for it, and the terminal does not show it.
pub(super) fn first_line() -> Result<String, Failure> {
    if io::stdin().is_terminal() {
        return Ok(rpassword::prompt_password("Password: ")?);
    }
    one_line(io::stdin().lock())
}

/// The first line without its end.
pub(super) fn one_line(mut input: impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let end = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(end);
    Ok(line)
}
