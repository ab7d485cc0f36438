//! The tokens of the HTTP port, as the directory has them.

use std::sync::Arc;
use std::time::Duration;

use super::status::NodeStatus;
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::base::time::{Millis, elapsed_now};
use crate::config::Scope;
use crate::forward::directory::{Change, DirectoryError, Expected, Version};
use crate::http::{
    AdminError, AdminFuture, Currency, MadeToken, TokenRecord, TokenStatus, TokenTable, Tokens,
};
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::raft::ReadError;
use crate::replica::directory::DirectoryObserver;

/// Tokens of a cluster: one per person and program that administers; all of them are in memory.
const MOST_TOKENS: usize = 1_000;

/// Before a node without a lease, and without a leader, tries again to find out what was answered before.
const RETRY: Duration = Duration::from_millis(50);

/// Keeps the table of tokens as the directory has them.
pub(super) struct TokenObserver(pub(super) Arc<TokenTable>);

impl DirectoryObserver for TokenObserver {
    fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>) {
        if kind == Kind::Token {
            self.0.set(name, entry.map(|entry| &*entry.value));
        }
    }

    fn reset(&self, backing: &dyn Backing) {
        let mut all = Vec::new();
        read::directory_all(backing, Kind::Token, |name, entry| {
            all.push((name.to_owned(), entry.value.to_vec()));
        });
        self.0.replace(all);
    }
}

/// `added` names the token that was to be new.
fn refused(error: DirectoryError, added: Option<String>) -> AdminError {
    let text = error.to_string();
    match error {
        DirectoryError::Conflict { ref name, .. } if Some(name) == added.as_ref() => {
            AdminError::Conflict("there is a token of this name: remove it first".to_owned())
        }
        DirectoryError::Conflict { .. } => AdminError::Conflict(
            "somebody has changed tokens at the same time: try again".to_owned(),
        ),
        DirectoryError::NotCommitted(error) => error.into(),
        DirectoryError::Full => AdminError::Conflict(text),
        DirectoryError::TooLarge => AdminError::Invalid(text),
    }
}

impl Currency for NodeStatus {
    fn be_current(&self) -> AdminFuture<'_, ()> {
        Box::pin(async move {
            // While there is a lease, whoever has changed tokens has waited for this node. Without a leader there may
            // be one soon; whoever asks has a deadline.
            let lease = self.broker.state.routing_lease();
            while !lease.is_valid_at(elapsed_now()) {
                match self.raft.read_barrier().await {
                    Ok(_) => return Ok(()),
                    Err(error @ (ReadError::Refused(_) | ReadError::Stopped)) => {
                        return Err(AdminError::NoLeader(error.to_string()));
                    }
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
            Ok(())
        })
    }
}

impl Tokens for NodeStatus {
    fn list(&self) -> AdminFuture<'_, Vec<TokenStatus>> {
        Box::pin(async move {
            self.catch_up().await?;
            Ok(self.gate.tokens().list(self.now()))
        })
    }

    fn add(
        &self,
        name: String,
        scope: Scope,
        expires_in_s: Option<u64>,
    ) -> AdminFuture<'_, MadeToken> {
        Box::pin(async move {
            let (now, known) = (self.now(), self.stored_tokens().await?);
            if known.len() >= MOST_TOKENS {
                let text = format!("there are {MOST_TOKENS} tokens already");
                return Err(AdminError::Conflict(text));
            }
            let end = expires_in_s.map(|life| now.plus(life.saturating_mul(1_000)).0);
            let (token, record) = TokenRecord::make(&name, scope, now, end)
                .map_err(|error| AdminError::Internal(error.to_string()))?;
            let change = Change::put(Kind::Token, &*name, Expected::Absent, record.encode());
            let mut changes = vec![change];
            if scope != Scope::Admin && !self.gate.has_own_admin() {
                let nobody = "nobody could administer: the first token needs the scope admin";
                changes.push(kept_admin(&known, &name, now, nobody)?);
            }
            self.write_tokens(changes).await?;
            let token = token.to_string();
            Ok(MadeToken { name, token })
        })
    }

    fn remove(&self, name: String) -> AdminFuture<'_, bool> {
        Box::pin(async move {
            let (now, known) = (self.now(), self.stored_tokens().await?);
            match removal(&known, &name, now, self.gate.has_own_admin())? {
                None => Ok(false),
                Some(changes) => self.write_tokens(changes).await.map(|()| true),
            }
        })
    }
}

/// A token as the directory has it.
struct Stored {
    name: String,
    version: Version,
    value: Vec<u8>,
    /// `None` when this release can't read it.
    record: Option<TokenRecord>,
}

impl Stored {
    fn administers(&self, now: Millis) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.scope == Scope::Admin && !record.has_expired(now))
    }
}

/// What removes a token; `None` when there is none of this name. Somebody can administer afterwards, or there is no
/// token at all, whatever other nodes write meanwhile: the version of what that rests on is a condition.
fn removal(
    known: &[Stored],
    name: &str,
    now: Millis,
    has_own_admin: bool,
) -> Result<Option<Vec<Change>>, AdminError> {
    let Some(token) = known.iter().find(|token| token.name == name) else {
        return Ok(None);
    };
    let expected = Expected::Version(token.version);
    let mut changes = vec![Change::delete(Kind::Token, name, expected)];
    if known.len() > 1 && !has_own_admin {
        let nobody = "nobody could administer: this is the last token with the scope admin; remove the others first, \
                      or make another one";
        changes.push(kept_admin(known, name, now, nobody)?);
    }
    Ok(Some(changes))
}

/// Writes a token that administers as it is, other than `but`, the one that lasts longest. It gets another version, so
/// that whoever wants to remove it at the same time has to look again.
fn kept_admin(
    known: &[Stored],
    but: &str,
    now: Millis,
    nobody: &str,
) -> Result<Change, AdminError> {
    let admins = known
        .iter()
        .filter(|token| token.name != but && token.administers(now));
    let end = |token: &&Stored| {
        let record = token.record.as_ref();
        record
            .and_then(|record| record.expires_at_ms)
            .unwrap_or(u64::MAX)
    };
    let admin = admins
        .max_by_key(end)
        .ok_or_else(|| AdminError::Conflict(nobody.to_owned()))?;
    let expected = Expected::Version(admin.version);
    let value = admin.value.clone();
    Ok(Change::put(Kind::Token, &*admin.name, expected, value))
}

impl NodeStatus {
    /// Every token, those that were acknowledged before included.
    async fn stored_tokens(&self) -> Result<Vec<Stored>, AdminError> {
        self.read(|backing| {
            let mut all = Vec::new();
            read::directory_all(backing, Kind::Token, |name, entry| {
                all.push(Stored {
                    name: name.to_owned(),
                    version: Version(entry.version),
                    record: TokenRecord::decode(&entry.value),
                    value: entry.value.to_vec(),
                });
            });
            all
        })
        .await
    }

    async fn write_tokens(&self, changes: Vec<Change>) -> Result<(), AdminError> {
        let added = changes
            .first()
            .filter(|change| change.expected == Expected::Absent);
        let added = added.map(|change| change.name.clone());
        let written = self.broker.services.directory.write(changes).await;
        written.map(|_| ()).map_err(|error| refused(error, added))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::forward::directory::Action;

    const NOW: Millis = Millis(1_000);

    type Tokens = BTreeMap<String, (u64, Vec<u8>)>;

    fn known(tokens: &Tokens) -> Vec<Stored> {
        let stored = tokens.iter().map(|(name, (version, value))| Stored {
            name: name.clone(),
            version: Version(*version),
            value: value.clone(),
            record: TokenRecord::decode(value),
        });
        stored.collect()
    }

    /// What the machine makes of changes: all of them, or none.
    fn apply(tokens: &mut Tokens, index: u64, changes: &[Change]) -> bool {
        let holds = |change: &Change| match change.expected {
            Expected::Anything => true,
            Expected::Absent => !tokens.contains_key(&change.name),
            Expected::Version(version) => {
                tokens.get(&change.name).map(|one| one.0) == Some(version.0)
            }
        };
        if !changes.iter().all(holds) {
            return false;
        }
        for change in changes {
            match &change.action {
                Action::Delete => drop(tokens.remove(&change.name)),
                Action::Put { value, .. } => {
                    tokens.insert(change.name.clone(), (index, value.to_vec()));
                }
            }
        }
        true
    }

    fn token(scope: Scope, end: Option<u64>) -> Vec<u8> {
        let made = TokenRecord::make("t", scope, NOW, end);
        made.expect("random numbers").1.encode()
    }

    #[test]
    fn two_nodes_at_once_do_not_remove_the_last_administrators() {
        let mut tokens = Tokens::from([
            ("a".to_owned(), (1, token(Scope::Admin, None))),
            ("b".to_owned(), (2, token(Scope::Admin, None))),
            ("look".to_owned(), (3, token(Scope::Read, None))),
        ]);
        // Both judge by the same state; their changes come into the log one after the other.
        let seen = known(&tokens);
        let removed = |name| {
            removal(&seen, name, NOW, false)
                .ok()
                .flatten()
                .expect("changes")
        };
        let (a, b) = (removed("a"), removed("b"));
        assert!(apply(&mut tokens, 4, &a));
        assert!(!apply(&mut tokens, 5, &b), "nobody would be left");
        assert!(removal(&known(&tokens), "b", NOW, false).is_err());
        assert!(removal(&known(&tokens), "b", NOW, true).is_ok());
        let gone = removal(&known(&tokens), "look", NOW, false).ok().flatten();
        assert!(apply(&mut tokens, 6, &gone.expect("changes")));
        let last = removal(&known(&tokens), "b", NOW, false).ok().flatten();
        assert!(apply(&mut tokens, 7, &last.expect("changes")));
        assert!(tokens.is_empty());
    }

    #[test]
    fn a_token_is_not_added_beside_an_administrator_that_goes() {
        let mut tokens = Tokens::from([("a".to_owned(), (1, token(Scope::Admin, None)))]);
        let seen = known(&tokens);
        let kept = kept_admin(&seen, "look", NOW, "nobody").expect("it administers");
        let added = Change::put(
            Kind::Token,
            "look",
            Expected::Absent,
            token(Scope::Read, None),
        );
        let removed = removal(&seen, "a", NOW, false).ok().flatten();
        assert!(apply(&mut tokens, 2, &[added, kept]));
        assert!(!apply(&mut tokens, 3, &removed.expect("changes")));
    }

    #[test]
    fn an_expired_administrator_is_none() {
        let tokens = Tokens::from([
            ("a".to_owned(), (1, token(Scope::Admin, None))),
            ("b".to_owned(), (2, token(Scope::Admin, Some(NOW.0)))),
        ]);
        assert!(removal(&known(&tokens), "a", NOW, false).is_err());
        assert!(removal(&known(&tokens), "b", NOW, false).is_ok());
    }
}
