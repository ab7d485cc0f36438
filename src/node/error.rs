//! Why a node could not run.

use super::authentication::UsersProblem;
use crate::config::secret_file::SecretFileError;
use crate::peers::TrustError;
use crate::raft;
use crate::storage::OpenError;

/// Why a node could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runtime's threads could not be started.
    #[error("the threads could not be started: {0}")]
    Runtime(std::io::Error),
    /// The file of users can't be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Users(Vec<UsersProblem>),
    /// The audit log can't be written.
    #[error("audit.file: {}: {error}", path.display())]
    Audit {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The token of the HTTP port can't be used.
    #[error("http.token_file: {0}")]
    HttpToken(#[from] SecretFileError),
    /// The HTTP port can't speak TLS.
    #[error("http.certificates: {0}")]
    HttpTls(String),
    /// The hub's HTTPS API can't speak TLS.
    #[error("hub.https_certificates: {0}")]
    HubTls(String),
    /// This node can't prove to the others who it is.
    #[error("{0}")]
    Trust(#[from] TrustError),
    /// The data directory can't be used.
    #[error("{0}")]
    Storage(#[from] OpenError),
    /// The replica could not start.
    #[error("{0}")]
    Raft(#[from] raft::StartError),
    /// The disk is full.
    #[error(
        "the disk of node.data_dir is full, {0} bytes are free: this node stops, and nothing acknowledged is lost \
         while a majority of nodes lives; make room on the volume, or start it with disk.reserve_percent = 0, which \
         turns the disk guard off, let clients delete what they can spare, and restart it without"
    )]
    DiskFull(u64),
    /// A listener could not be opened.
    #[error("{what} can't listen on {address}: {error}")]
    Listen {
        /// The configuration key.
        what: &'static str,
        /// The address it names.
        address: String,
        /// Why.
        error: String,
    },
}
