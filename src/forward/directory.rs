//! Changing the directory, so that every node goes by it when the change is answered.

use std::sync::Arc;

use bytes::Bytes;

use super::outbox::Outboxes;
use crate::base::directory::Kind;
use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind as Command};
use crate::machine::effect::{DirectoryReply, Reply};
use crate::replica::applier::View;
use crate::replica::proposer::Proposer;

/// The version of an entry, which no other state of it has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

/// What an entry must be for a change of it to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Whatever it is.
    Anything,
    /// There is none.
    Absent,
    /// It has this version.
    Version(Version),
}

/// What becomes of an entry.
#[derive(Clone, PartialEq, Eq)]
pub enum Action {
    /// It gets this value.
    Put {
        /// The value.
        value: Bytes,
        /// Log time at which it is deleted, milliseconds since the Unix epoch.
        expires_at_ms: Option<u64>,
        /// It says the same in another way: what rests on the entry goes on.
        keeps_version: bool,
    },
    /// It is removed.
    Delete,
}

/// A change of an entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// What the entry is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// What it must be.
    pub expected: Expected,
    /// What becomes of it.
    pub action: Action,
}

impl Change {
    /// The entry gets this value.
    pub fn put(kind: Kind, name: impl Into<String>, expected: Expected, value: Vec<u8>) -> Change {
        Change {
            kind,
            name: name.into(),
            expected,
            action: Action::Put {
                value: value.into(),
                expires_at_ms: None,
                keeps_version: false,
            },
        }
    }

    /// The entry is removed.
    pub fn delete(kind: Kind, name: impl Into<String>, expected: Expected) -> Change {
        Change {
            kind,
            name: name.into(),
            expected,
            action: Action::Delete,
        }
    }

    fn into_command(self) -> command::DirectoryChange {
        let mut change = command::DirectoryChange {
            kind: self.kind as u32,
            name: self.name,
            expected_version: match self.expected {
                Expected::Anything => None,
                Expected::Absent => Some(0),
                Expected::Version(version) => Some(version.0),
            },
            ..Default::default()
        };
        if let Action::Put {
            value,
            expires_at_ms,
            keeps_version,
        } = self.action
        {
            change.value = Some(value);
            change.expires_at_ms = expires_at_ms.unwrap_or(0);
            change.keeps_version = keeps_version;
        }
        change
    }
}

/// Why the directory was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// An entry is not what it was to be; somebody else has changed it.
    #[error("{} {name:?} has {}", .kind.name(), version_text(.version))]
    Conflict {
        /// What the entry is.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its version; `None` when there is no such entry.
        version: Option<Version>,
    },
    /// The directory holds as much as it may.
    #[error("the directory is full")]
    Full,
    /// A name or a value is longer than it may be, or there are too many changes.
    #[error(
        "a name, a value or the number of changes is larger than the directory takes: {} and {} bytes, {}",
        limits::DIRECTORY_NAME_BYTES,
        limits::DIRECTORY_VALUE_BYTES,
        limits::DIRECTORY_CHANGES
    )]
    TooLarge,
    /// Nobody knows whether it was changed, because this node lost contact with the majority.
    #[error("this node has no contact with the cluster's majority")]
    NoQuorum,
}

fn version_text(version: &Option<Version>) -> String {
    match version {
        Some(version) => format!("version {}", version.0),
        None => "no entry".to_owned(),
    }
}

/// The way to change the directory.
pub struct Directory {
    local: NodeId,
    proposer: Arc<Proposer>,
    view: Arc<View>,
    outboxes: Arc<Outboxes>,
}

impl Directory {
    /// The directory as the node `local` changes it.
    pub fn new(
        local: NodeId,
        proposer: Arc<Proposer>,
        view: Arc<View>,
        outboxes: Arc<Outboxes>,
    ) -> Directory {
        Directory {
            local,
            proposer,
            view,
            outboxes,
        }
    }

    /// Carries out all changes, or none. They are effective on every node then: each live one has applied them, or has
    /// been silent for so long that it serves nobody until it has
    /// (docs/adr/0009-suback-does-not-wait-for-silent-nodes.md).
    ///
    /// # Errors
    /// Nothing was changed, except after [`DirectoryError::NoQuorum`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Version, DirectoryError> {
        let named: Vec<(Kind, String)> = changes
            .iter()
            .map(|change| (change.kind, change.name.clone()))
            .collect();
        let write = command::WriteDirectory {
            changes: changes.into_iter().map(Change::into_command).collect(),
            max_entries: limits::DIRECTORY_ENTRIES,
            max_bytes: limits::DIRECTORY_BYTES,
        };
        let reply = self.proposer.propose(Command::WriteDirectory(write)).await;
        let index = match reply {
            Some(Reply::Directory(DirectoryReply::Written(index))) => index,
            Some(Reply::Directory(DirectoryReply::Full)) => return Err(DirectoryError::Full),
            Some(Reply::Directory(DirectoryReply::Conflict { at, version })) => {
                let Some((kind, name)) = named.into_iter().nth(at) else {
                    return Err(DirectoryError::NoQuorum);
                };
                let version = (version != 0).then_some(Version(version));
                return Err(DirectoryError::Conflict {
                    kind,
                    name,
                    version,
                });
            }
            Some(_) => return Err(DirectoryError::TooLarge),
            None => return Err(DirectoryError::NoQuorum),
        };
        let live = self.view.live_nodes().into_iter().map(|(node, _)| node);
        let others: Vec<NodeId> = live.filter(|node| *node != self.local).collect();
        self.outboxes.applied_by(&others, index).await;
        Ok(Version(index.0))
    }
}
