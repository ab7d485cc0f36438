//! The tokens of the HTTP port, as the directory has them.

use std::sync::Arc;

use super::status::NodeStatus;
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::base::time::wall_now;
use crate::config::Scope;
use crate::forward::directory::{Change, DirectoryError, Expected};
use crate::http::{
    AdminError, AdminFuture, MadeToken, TokenRecord, TokenStatus, TokenTable, Tokens,
};
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::replica::directory::DirectoryObserver;

/// Tokens of a cluster: one per person and program that administers; all of them are in memory.
const MOST_TOKENS: usize = 1_000;

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

fn refused(error: DirectoryError) -> AdminError {
    let text = error.to_string();
    match error {
        DirectoryError::Conflict { .. } => {
            AdminError::Conflict("there is a token of this name: remove it first".to_owned())
        }
        DirectoryError::NoQuorum => AdminError::NoLeader(text),
        DirectoryError::Full => AdminError::Conflict(text),
        DirectoryError::TooLarge => AdminError::Invalid(text),
    }
}

impl Tokens for NodeStatus {
    fn list(&self) -> AdminFuture<'_, Vec<TokenStatus>> {
        Box::pin(async move {
            self.catch_up().await?;
            Ok(self.gate.tokens().list(wall_now()))
        })
    }

    fn add(
        &self,
        name: String,
        scope: Scope,
        expires_in_s: Option<u64>,
    ) -> AdminFuture<'_, MadeToken> {
        Box::pin(async move {
            self.catch_up().await?;
            let (now, tokens) = (wall_now(), self.gate.tokens());
            let administers = self.gate.has_own_admin() || tokens.has_admin("", now);
            if scope != Scope::Admin && !administers {
                let text = "nobody could administer: the first token needs the scope admin";
                return Err(AdminError::Conflict(text.to_owned()));
            }
            if tokens.count() >= MOST_TOKENS {
                let text = format!("there are {MOST_TOKENS} tokens already");
                return Err(AdminError::Conflict(text));
            }
            let end = expires_in_s.map(|life| now.plus(life.saturating_mul(1_000)).0);
            let (token, record) = TokenRecord::make(&name, scope, now, end)
                .map_err(|error| AdminError::Internal(error.to_string()))?;
            let change = Change::put(Kind::Token, &*name, Expected::Absent, record.encode());
            let directory = &self.broker.services.directory;
            directory.write(vec![change]).await.map_err(refused)?;
            let token = token.to_string();
            Ok(MadeToken { name, token })
        })
    }

    fn remove(&self, name: String) -> AdminFuture<'_, bool> {
        Box::pin(async move {
            self.catch_up().await?;
            let (now, tokens) = (wall_now(), self.gate.tokens());
            if !tokens.has(&name) {
                return Ok(false);
            }
            let administers = self.gate.has_own_admin() || tokens.has_admin(&name, now);
            if tokens.has_other(&name) && !administers {
                let text = "nobody could administer: this is the last token with the scope admin; \
                            remove the others first, or make another one";
                return Err(AdminError::Conflict(text.to_owned()));
            }
            let change = Change::delete(Kind::Token, name, Expected::Anything);
            let directory = &self.broker.services.directory;
            directory.write(vec![change]).await.map_err(refused)?;
            Ok(true)
        })
    }
}
