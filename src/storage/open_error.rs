//! Why a data directory, or what is in it, can't be used.

use std::io;
use std::path::{Path, PathBuf};

/// The data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses it.
    #[error("{} is in use by another process{}", .path.display(), in_parentheses(.pid.as_deref()))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Its process id, when it wrote one.
        pid: Option<String>,
    },
    /// Everybody may write it.
    #[error("every user of this machine may write {}: chmod 700", .path.display())]
    Writable {
        /// The directory.
        path: PathBuf,
    },
    /// It belongs to another node.
    #[error("{} belongs to node {stored}, not to node {given}; give each node its own directory", .path.display())]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// The node that it belongs to.
        stored: u64,
        /// The node that wants it.
        given: u64,
    },
    /// It belongs to another cluster.
    #[error("{} belongs to cluster {stored}, not to cluster {given}", .path.display())]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// The cluster that it belongs to.
        stored: String,
        /// The cluster that is configured.
        given: String,
    },
    /// The log is gone, and with it the vote.
    #[error(
        "{} has lost its log/, and with it what this node voted for and has acknowledged; put log/ back as it was, or \
         run `quorumq cluster leave {node}` and join under a new id with an empty directory",
        .path.display()
    )]
    LogLost {
        /// The directory.
        path: PathBuf,
        /// The node that it belongs to.
        node: u64,
    },
    /// Its state is not what the other replicas have.
    #[error(
        "{} must not be used any more: {why}; run `quorumq cluster leave {node}` and join under a new id with an empty \
         directory",
        .path.display()
    )]
    StateDiffers {
        /// The directory.
        path: PathBuf,
        /// What differs.
        why: String,
        /// The node that it belongs to.
        node: u64,
    },
    /// It was written by a release with another format.
    #[error("{} has format {stored}; this release reads format {read}", .path.display())]
    Format {
        /// The directory.
        path: PathBuf,
        /// Its format.
        stored: u32,
        /// The format of this release.
        read: u32,
    },
    /// `meta` is missing beside data, or unreadable.
    #[error("{}: {reason}", .path.display())]
    Damaged {
        /// The file or directory.
        path: PathBuf,
        /// In which way.
        reason: String,
    },
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason it gave.
        source: io::Error,
    },
    /// RocksDB refused.
    #[error("{}: {reason}", .path.display())]
    Database {
        /// The database's directory.
        path: PathBuf,
        /// The reason it gave.
        reason: String,
    },
}

fn in_parentheses(pid: Option<&str>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

impl OpenError {
    pub fn io(path: &Path, source: io::Error) -> Self {
        OpenError::Io {
            path: path.to_owned(),
            source,
        }
    }

    pub fn database(path: &Path, error: &dyn std::fmt::Display) -> Self {
        OpenError::Database {
            path: path.to_owned(),
            reason: error.to_string(),
        }
    }

    pub fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        OpenError::Damaged {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}
