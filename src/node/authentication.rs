//! The users of this node's clients, read from the file that the configuration names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::auth::scram::{Credentials, Server};
use crate::auth::{Authenticator, Mechanism};
use crate::config::AuthConfig;
use crate::config::bounds::LARGEST_USERS_FILE_BYTES;

/// What is wrong with a file of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsersProblem {
    /// The file as the configuration names it.
    pub path: PathBuf,
    /// The line, counted from 1; `None` when the file can't be read at all.
    pub line: Option<usize>,
    /// What is wrong, in half a sentence.
    pub message: String,
}

impl std::fmt::Display for UsersProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// What clients must show, as it is configured.
///
/// # Errors
/// Everything that is wrong with the files.
pub fn authenticator(config: &AuthConfig) -> Result<Authenticator, Vec<UsersProblem>> {
    let mut mechanisms: Vec<Box<dyn Mechanism>> = Vec::new();
    if let Some(path) = &config.scram_file {
        mechanisms.push(Box::new(Server::new(users(path)?)));
    }
    Ok(Authenticator::new(mechanisms))
}

fn users(path: &Path) -> Result<Credentials, Vec<UsersProblem>> {
    let problem = |line, message| UsersProblem {
        path: path.to_owned(),
        line,
        message,
    };
    let text = read(path).map_err(|message| vec![problem(None, message)])?;
    Credentials::parse(&text).map_err(|lines| {
        let lines = lines.into_iter();
        lines
            .map(|wrong| problem(Some(wrong.line), wrong.message))
            .collect()
    })
}

fn read(path: &Path) -> Result<String, String> {
    let explain = |error: std::io::Error| format!("can't be read: {error}");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(explain)?;
    file.take(LARGEST_USERS_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(explain)?;
    if bytes.len() as u64 > LARGEST_USERS_FILE_BYTES {
        return Err(format!("is larger than {LARGEST_USERS_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}

/// Tells the operator who may connect, and of a file that everybody on the machine can read.
pub fn announce(config: &AuthConfig) {
    use std::os::unix::fs::PermissionsExt;
    let Some(path) = &config.scram_file else {
        return;
    };
    tracing::info!(file = %path.display(), "clients must log in with SCRAM-SHA-256");
    let mode = std::fs::metadata(path).map(|data| data.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o004 != 0) {
        tracing::warn!(
            file = %path.display(),
            "every user of this machine can read the file of users and try passwords against it"
        );
    }
}
