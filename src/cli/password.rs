//! `quorumq password`: makes a line of `auth.scram_file` from a password on standard input.

use std::io::{self, BufRead, IsTerminal};

use clap::Args;
use zeroize::Zeroizing;

use super::exit::{Failure, Outcome};
use super::output;
use crate::auth::scram::{
    Algorithm, DEFAULT_ITERATIONS, LEAST_ITERATIONS, MOST_ITERATIONS, SALT_BYTES, Verifier, prepare,
};
use crate::base::wiped;

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
pub(super) fn first_line() -> Result<Zeroizing<String>, Failure> {
    if io::stdin().is_terminal() {
        return Ok(Zeroizing::new(rpassword::prompt_password("Password: ")?));
    }
    one_line(io::stdin().lock())
}

/// The first line without its end.
pub(super) fn one_line(mut input: impl BufRead) -> Result<Zeroizing<String>, Failure> {
    let mut line = Zeroizing::new(Vec::new());
    loop {
        let bytes = input.fill_buf()?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(bytes.len());
        let is_whole = end.is_some() || bytes.is_empty();
        wiped::append(&mut line, &bytes[..taken]);
        input.consume(taken);
        if is_whole {
            break;
        }
    }
    let text = std::str::from_utf8(&line).map_err(|_| Failure::failed("the line is no text"))?;
    Ok(Zeroizing::new(text.trim_end_matches('\r').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    #[test]
    fn the_first_line_is_read_without_its_end() {
        for (text, expected) in [
            ("pencil\r\nmore\n", "pencil"),
            ("päßwörter\n", "päßwörter"),
            ("no end", "no end"),
            ("\n", ""),
            ("", ""),
        ] {
            let input = BufReader::with_capacity(3, text.as_bytes());
            let line = one_line(input).unwrap_or_else(|failure| panic!("{}", failure.message));
            assert_eq!(*line, expected, "{text:?}");
        }
        assert!(one_line(&b"p\xff\n"[..]).is_err());
    }
}
