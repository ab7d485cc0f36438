//! Changing the directory, so that every node goes by it when the change is answered.

use std::sync::Arc;

use bytes::Bytes;

use super::outbox::Outboxes;
use crate::base::directory::Kind;
use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind as Command};
use crate::machine::effect::{DirectoryReply, Reply};
use crate::replica::proposer::{ProposeError, Proposer};
use crate::replica::share::Share;
use crate::replica::view::View;

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
        /// Milliseconds of log time after which it is deleted.
        expires_in_ms: Option<u64>,
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
                expires_in_ms: None,
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
            expires_in_ms,
            keeps_version,
        } = self.action
        {
            change.value = Some(value);
            change.expires_in_ms = expires_in_ms.unwrap_or(0);
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
    /// Too much waits to be proposed, and nothing was changed; or this node lost contact with the majority, and nobody
    /// knows whether it was changed.
    #[error(transparent)]
    NotCommitted(#[from] ProposeError),
}

fn version_text(version: &Option<Version>) -> String {
    match version {
        Some(version) => format!("version {}", version.0),
        None => "no entry".to_owned(),
    }
}

/// What a change may use up.
#[derive(Clone, Copy)]
enum Room {
    Usual,
    /// Also what is kept for bans, and for users that are disabled, when the directory is full.
    Reserved,
}

impl Room {
    /// Entries and bytes that the directory may have afterwards.
    fn bounds(self) -> (u64, u64) {
        let (entries, bytes) = match self {
            Room::Usual => (0, 0),
            Room::Reserved => (
                limits::RESERVED_DIRECTORY_ENTRIES,
                limits::RESERVED_DIRECTORY_BYTES,
            ),
        };
        let entries = limits::DIRECTORY_ENTRIES + entries;
        (entries, limits::DIRECTORY_BYTES + bytes)
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
    /// Nothing was changed, except after [`ProposeError::Lost`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Version, DirectoryError> {
        let share = Share::Administration;
        self.write_within(changes, share, Room::Usual).await
    }

    /// As [`Directory::write`], for what takes rights away: there is room of its own for that.
    ///
    /// # Errors
    /// As of [`Directory::write`].
    pub async fn revoke(&self, changes: Vec<Change>) -> Result<Version, DirectoryError> {
        let share = Share::Administration;
        self.write_within(changes, share, Room::Reserved).await
    }

    /// As [`Directory::write`], for what follows from a client's login: it waits among what clients ask for.
    ///
    /// # Errors
    /// As of [`Directory::write`].
    pub async fn write_at_login(&self, changes: Vec<Change>) -> Result<Version, DirectoryError> {
        self.write_within(changes, Share::Common, Room::Usual).await
    }

    async fn write_within(
        &self,
        changes: Vec<Change>,
        share: Share,
        room: Room,
    ) -> Result<Version, DirectoryError> {
        let (max_entries, max_bytes) = room.bounds();
        let named: Vec<(Kind, String)> = changes
            .iter()
            .map(|change| (change.kind, change.name.clone()))
            .collect();
        let write = command::WriteDirectory {
            changes: changes.into_iter().map(Change::into_command).collect(),
            max_entries,
            max_bytes,
        };
        let command = Command::WriteDirectory(write);
        let index = match self.proposer.propose(share, command).await? {
            Reply::Directory(DirectoryReply::Written(index)) => index,
            Reply::Directory(DirectoryReply::Full) => return Err(DirectoryError::Full),
            Reply::Directory(DirectoryReply::Conflict { at, version }) => {
                let Some((kind, name)) = named.into_iter().nth(at) else {
                    return Err(ProposeError::Lost.into());
                };
                let version = (version != 0).then_some(Version(version));
                return Err(DirectoryError::Conflict {
                    kind,
                    name,
                    version,
                });
            }
            _ => return Err(DirectoryError::TooLarge),
        };
        let live = self.view.live_nodes().into_iter().map(|(node, _)| node);
        let others: Vec<NodeId> = live.filter(|node| *node != self.local).collect();
        self.outboxes.applied_by(&others, index).await;
        Ok(Version(index.0))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::replica::proposer::Overloaded;
    use crate::replica::reply_to::ReplyTo;

    /// What operators change is taken however much clients and back ends have waiting, also by what they call urgent,
    /// and what is not taken is told from what may have been carried out.
    #[test]
    fn what_operators_change_waits_for_nobody_else() {
        let proposer: Arc<Proposer> = Arc::default();
        let (view, outboxes) = (Arc::default(), Arc::default());
        let directory = Directory::new(NodeId(1), proposer.clone(), view, outboxes);
        let fill = |share: Share| {
            let kind = || Command::Nothing(command::Nothing {});
            let weight = limits::PROPOSAL_QUEUE_BYTES;
            let filled = proposer.submit_weighing(share, kind(), ReplyTo::Nobody, weight);
            filled.expect("room");
        };
        for share in [
            Share::Common,
            Share::Urgent,
            Share::Devices,
            Share::BackEnds,
            Share::Identities,
        ] {
            fill(share);
        }
        let overloaded = Err(DirectoryError::NotCommitted(Overloaded.into()));
        let change = || vec![Change::delete(Kind::User, "u", Expected::Anything)];
        // It waits for its commit.
        assert_eq!(directory.write(change()).now_or_never(), None);
        assert_eq!(directory.revoke(change()).now_or_never(), None);
        let replaced = directory.write_at_login(change()).now_or_never();
        assert_eq!(replaced, Some(overloaded.clone()), "a client has asked");
        fill(Share::Administration);
        let refused = directory.revoke(change()).now_or_never();
        assert_eq!(refused, Some(overloaded));
    }

    /// Of a ban: its reason and when it began, with the marks of their fields.
    const LARGEST_BAN_BYTES: u64 = 512;

    #[test]
    fn what_is_reserved_holds_as_many_bans_and_a_flag_of_every_user() {
        let (entries, bytes) = Room::Usual.bounds();
        let (all_entries, all_bytes) = Room::Reserved.bounds();
        let (entries, bytes) = (all_entries - entries, all_bytes - bytes);
        let largest_ban = limits::DIRECTORY_NAME_BYTES as u64 + LARGEST_BAN_BYTES;
        let flags = 2 * limits::DIRECTORY_ENTRIES;
        assert!(entries > 0 && entries * largest_ban + flags <= bytes);
    }
}
