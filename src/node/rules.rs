//! The rules of this node follow the directory.
//!
//! Invariant: rules are in force before the change that has written them is answered. Clients are judged by them from
//! then on, the routes of messages are looked up anew, and every connection looks at what it may still do.

use std::sync::Arc;

use bytes::Bytes;

use super::status::NodeStatus;
use crate::acl::{RuleBook, Rules};
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::forward::directory::{Change, DirectoryError, Expected, Version};
use crate::http::{AdminError, AdminFuture, RulesAdmin, StoredRules, Written};
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::replica::directory::DirectoryObserver;
use crate::router::Router;

/// The name of the entry that has the rules.
const NAME: &str = "rules";

/// Keeps the rules of a node as the directory has them.
pub(super) struct RulesObserver {
    pub(super) book: Arc<RuleBook>,
    pub(super) router: Arc<Router>,
}

impl RulesObserver {
    fn set(&self, entry: Option<&DirectoryEntry>) {
        let rules = match entry {
            None => Rules::open(),
            Some(entry) => Rules::stored(&entry.value, entry.version).unwrap_or_else(|error| {
                // Nothing is written that this version can't read.
                tracing::error!(%error, "the rules can't be read, so nobody may do anything");
                Rules::closed(entry.version)
            }),
        };
        tracing::info!(version = rules.version(), "the rules have changed");
        self.book.set(rules);
        self.router.subscriptions().outdate();
        self.router.offer_again_to_all();
    }
}

impl DirectoryObserver for RulesObserver {
    fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>) {
        if kind == Kind::Rules && name == NAME {
            self.set(entry);
        }
    }

    fn reset(&self, backing: &dyn Backing) {
        let entry = read::directory_entry(backing, Kind::Rules, NAME);
        let version = entry.as_ref().map_or(0, |entry| entry.version);
        if version != self.book.rules().version() {
            self.set(entry.as_ref());
        }
    }
}

impl RulesAdmin for NodeStatus {
    fn rules(&self) -> AdminFuture<'_, Option<StoredRules>> {
        Box::pin(self.read(|backing| {
            let entry = read::directory_entry(backing, Kind::Rules, NAME)?;
            Some(StoredRules {
                version: entry.version,
                text: entry.value,
            })
        }))
    }

    fn set_rules(&self, text: Bytes, expected: Option<u64>) -> AdminFuture<'_, Written> {
        Box::pin(async move {
            if let Err(error) = Rules::parse(&text, 0) {
                return Err(AdminError::Invalid(error.to_string()));
            }
            let expected = match expected {
                None => Expected::Anything,
                Some(0) => Expected::Absent,
                Some(version) => Expected::Version(Version(version)),
            };
            let change = Change::put(Kind::Rules, NAME, expected, text.to_vec());
            match self.broker.services.directory.write(vec![change]).await {
                Ok(version) => Ok(Written::Version(version.0)),
                Err(DirectoryError::Conflict { version, .. }) => {
                    Ok(Written::Conflict(version.map_or(0, |version| version.0)))
                }
                Err(DirectoryError::NotCommitted(error)) => Err(error.into()),
                Err(error) => Err(AdminError::Invalid(error.to_string())),
            }
        })
    }
}
