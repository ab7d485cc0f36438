//! Exit codes, and the error that carries one.

use std::fmt;
use std::io;
use std::process::ExitCode;

use super::client::ClientError;
use crate::config::Problems;

/// The process's exit code. The numbers are part of the command line's contract. clap exits with 2 when the arguments
/// make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The reader of standard output has closed it: there is no more to do, and nothing went wrong.
    Done = 0,
    /// The command failed, or the key is absent.
    Failed = 1,
    /// No server could be reached.
    Unreachable = 69,
    /// A server was reached, but the cluster has no leader, or the server stops.
    NoLeader = 75,
    /// The configuration has problems.
    BadConfiguration = 78,
}

/// Why a command ended without success. With an empty message nothing is printed, only the exit code is set.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// Printed to standard error.
    pub message: String,
}

impl Failure {
    /// A failure with an exit code and a message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure {
            exit,
            message: message.to_string(),
        }
    }

    /// An ordinary failure, exit code 1.
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Failed, message)
    }
}

/// What a command returns: success is exit code 0.
pub type Outcome = Result<(), Failure>;

/// Turns an outcome into the process's exit code and prints the message.
pub fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("quorumq: {}", failure.message);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::new(Exit::Done, "");
        }
        Failure::failed(error)
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        let message = format!("the configuration has problems\n{problems}");
        Failure::new(Exit::BadConfiguration, message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let exit = match &error {
            ClientError::Unreachable(_) | ClientError::Closed(_) => Exit::Unreachable,
            ClientError::NoLeader(_) | ClientError::TimedOut(_) => Exit::NoLeader,
            ClientError::Refused { .. }
            | ClientError::Protocol(_)
            | ClientError::Encode(_)
            | ClientError::Tls(_)
            | ClientError::LogIn(_)
            | ClientError::Answer(_) => Exit::Failed,
        };
        Failure::new(exit, error)
    }
}
