//! Who may connect: the users in the file that the configuration names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::auth::scram::{Credentials, Server};
use crate::auth::{Chain, Method, chain::Extended};
use crate::config::AuthConfig;
use crate::config::bounds::LARGEST_USERS_FILE_BYTES;
use crate::connection::broker::Chains;

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

/// What the listeners ask of their clients.
///
/// # Errors
/// With everything that is wrong with the files.
pub(crate) fn chains(config: &AuthConfig) -> Result<Chains, Vec<UsersProblem>> {
    let chain = match &config.scram_file {
        Some(path) => {
            let server = Server::new(users(path)?);
            Chain::new(vec![Arc::new(Extended::new(Method::Scram, server))])
        }
        None => Chain::default(),
    };
    Ok(Chains::new(BTreeMap::new(), Arc::new(chain)))
}

/// Checks the files that the configuration names.
///
/// # Errors
/// With everything that is wrong with them.
pub fn check(config: &AuthConfig) -> Result<(), Vec<UsersProblem>> {
    chains(config).map(|_| ())
}

fn users(path: &Path) -> Result<Credentials, Vec<UsersProblem>> {
    let problem = |line, message| UsersProblem {
        path: path.to_owned(),
        line,
        message,
    };
    let text = read(path).map_err(|error| vec![problem(None, error.to_string())])?;
    Credentials::parse(&text).map_err(|lines| {
        let lines = lines.into_iter();
        lines
            .map(|wrong| problem(Some(wrong.line), wrong.message))
            .collect()
    })
}

/// Why a file of users can't be used at all.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("can't be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is larger than {LARGEST_USERS_FILE_BYTES} bytes")]
    TooLarge,
    #[error("is not UTF-8 text")]
    NotUtf8,
}

fn read(path: &Path) -> Result<String, ReadError> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(LARGEST_USERS_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_USERS_FILE_BYTES {
        return Err(ReadError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| ReadError::NotUtf8)
}

/// Logs who may connect, and warns of a file that every user of the machine can read.
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
