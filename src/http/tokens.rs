//! Tokens: how they are made, what is kept of them, and who holds one.
//!
//! A token is `quorumq.NAME.SECRET`, the secret 256 random bits. The cluster keeps the SHA-256 of the whole text under
//! the name: a secret that nobody can guess needs no slow hash.
//!
//! Invariant: the text of a token exists only in the answer to who made it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::RwLock;
use prost::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::base::proto::state;
use crate::base::time::Millis;
use crate::config::Scope;

/// What a token begins with, so that tools that look for lost secrets can find it.
const PREFIX: &str = "quorumq";

/// Random bytes of a token.
const SECRET_BYTES: usize = 32;

/// Longest name of a token, bytes.
const LONGEST_NAME_BYTES: usize = 64;

/// SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// The SHA-256 of a token's text.
pub(super) fn digest(token: &str) -> Digest {
    Sha256::digest(token.as_bytes()).into()
}

/// Whether a token can have this name.
pub fn is_token_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=LONGEST_NAME_BYTES).contains(&name.len()) && name.chars().all(fits)
}

/// What the cluster keeps of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    digest: Digest,
    /// What its holder may do.
    pub scope: Scope,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// When it ends, milliseconds since the Unix epoch; `None`: never.
    pub expires_at_ms: Option<u64>,
}

impl TokenRecord {
    /// Makes a token: its text, and what is kept of it.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn make(
        name: &str,
        scope: Scope,
        now: Millis,
        expires_at_ms: Option<u64>,
    ) -> Result<(Zeroizing<String>, TokenRecord), getrandom::Error> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        getrandom::fill(&mut *secret)?;
        let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(*secret));
        let text = Zeroizing::new(format!("{PREFIX}.{name}.{}", *encoded));
        let record = TokenRecord {
            digest: digest(&text),
            scope,
            created_at_ms: now.0,
            expires_at_ms,
        };
        Ok((text, record))
    }

    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let scope = match self.scope {
            Scope::Read => 1,
            Scope::Operate => 2,
            Scope::Admin => 3,
        };
        let row = state::Token {
            sha256: self.digest.to_vec().into(),
            scope,
            created_at_ms: self.created_at_ms,
            expires_at_ms: self.expires_at_ms.unwrap_or(0),
        };
        row.encode_to_vec()
    }

    /// Reads what was stored; `None` when this release can't.
    pub fn decode(bytes: &[u8]) -> Option<TokenRecord> {
        let row = state::Token::decode(bytes).ok()?;
        let scope = match row.scope {
            1 => Scope::Read,
            2 => Scope::Operate,
            3 => Scope::Admin,
            _ => return None,
        };
        Some(TokenRecord {
            digest: row.sha256.as_ref().try_into().ok()?,
            scope,
            created_at_ms: row.created_at_ms,
            expires_at_ms: (row.expires_at_ms != 0).then_some(row.expires_at_ms),
        })
    }

    /// Whether it has ended.
    pub fn has_expired(&self, now: Millis) -> bool {
        self.expires_at_ms.is_some_and(|end| end <= now.0)
    }
}

/// One token, without its secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStatus {
    /// Its name.
    pub name: String,
    /// `read`, `operate` or `admin`.
    pub scope: String,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// When it ends, milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
    /// Whether it has ended.
    pub expired: bool,
}

/// The tokens of the cluster as this node has applied them.
///
/// Invariant: one that can't be read holds its place without opening anything, so that a port never asks nobody because
/// a newer release wrote its tokens.
#[derive(Debug, Default)]
pub struct TokenTable(RwLock<BTreeMap<String, Option<TokenRecord>>>);

impl TokenTable {
    /// A token was written (its stored form), or removed.
    pub fn set(&self, name: &str, stored: Option<&[u8]>) {
        let mut tokens = self.0.write();
        match stored {
            Some(bytes) => tokens.insert(name.to_owned(), TokenRecord::decode(bytes)),
            None => tokens.remove(name),
        };
    }

    /// All tokens, anew.
    pub fn replace(&self, all: Vec<(String, Vec<u8>)>) {
        let all = all.into_iter();
        let all = all.map(|(name, bytes)| (name, TokenRecord::decode(&bytes)));
        *self.0.write() = all.collect();
    }

    /// Whether there is none, expired ones included.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    /// Every token, in the order of their names.
    pub fn list(&self, now: Millis) -> Vec<TokenStatus> {
        let tokens = self.0.read();
        let status = |(name, record): (&String, &Option<TokenRecord>)| match record {
            Some(record) => TokenStatus {
                name: name.clone(),
                scope: record.scope.to_string(),
                created_at_ms: record.created_at_ms,
                expires_at_ms: record.expires_at_ms,
                expired: record.has_expired(now),
            },
            None => TokenStatus {
                name: name.clone(),
                scope: "unknown".to_owned(),
                expired: true,
                ..TokenStatus::default()
            },
        };
        tokens.iter().map(status).collect()
    }

    /// Name and scope of who holds a token; `shown` is its digest. Compared in constant time, with something else where
    /// there is no such name.
    pub(super) fn holder(
        &self,
        token: &str,
        shown: &Digest,
        now: Millis,
    ) -> Option<(String, Scope)> {
        let mut parts = token.split('.');
        let (prefix, name, secret) = (parts.next()?, parts.next()?, parts.next()?);
        if prefix != PREFIX || secret.is_empty() || parts.next().is_some() {
            return None;
        }
        let tokens = self.0.read();
        let record = tokens.get(name).and_then(Option::as_ref);
        let known = record.map_or([0; 32], |record| record.digest);
        let is_it = bool::from(known.ct_eq(shown));
        let record = record.filter(|record| is_it && !record.has_expired(now))?;
        Some((name.to_owned(), record.scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_000);

    fn made(table: &TokenTable, name: &str, scope: Scope, end: Option<u64>) -> String {
        let (text, record) = TokenRecord::make(name, scope, NOW, end).expect("random numbers");
        table.set(name, Some(&record.encode()));
        text.to_string()
    }

    fn holder(table: &TokenTable, token: &str, now: Millis) -> Option<(String, Scope)> {
        table.holder(token, &digest(token), now)
    }

    #[test]
    fn who_holds_a_token_is_known_until_it_ends_or_is_removed() {
        let table = TokenTable::default();
        let ops = made(&table, "ops", Scope::Admin, None);
        let short = made(&table, "short", Scope::Read, Some(2_000));
        assert_eq!(
            holder(&table, &ops, NOW),
            Some(("ops".into(), Scope::Admin))
        );
        assert_eq!(
            holder(&table, &short, Millis(1_999)),
            Some(("short".into(), Scope::Read))
        );
        assert_eq!(holder(&table, &short, Millis(2_000)), None);
        table.set("ops", None);
        assert_eq!(holder(&table, &ops, NOW), None);
        assert!(!table.is_empty(), "an expired token holds its place");
    }

    #[test]
    fn nothing_else_is_a_token() {
        let table = TokenTable::default();
        let ops = made(&table, "ops", Scope::Admin, None);
        let other = made(&TokenTable::default(), "ops", Scope::Admin, None);
        table.set("newer", Some(b"\xff"));
        let renamed = ops.replace(".ops.", ".newer.");
        let long = format!("{ops}.x");
        let short = &ops[..ops.len() - 1];
        for wrong in [
            "",
            "quorumq..",
            "quorumq.ops.",
            &other,
            &renamed,
            &long,
            short,
        ] {
            assert_eq!(holder(&table, wrong, NOW), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_kept_is_read_back_and_is_not_the_token() {
        let (text, record) =
            TokenRecord::make("a", Scope::Operate, NOW, Some(5)).expect("random numbers");
        let stored = record.encode();
        assert_eq!(TokenRecord::decode(&stored), Some(record));
        let secret = text.rsplit('.').next().expect("three parts").as_bytes();
        assert!(secret.len() == 43 && !stored.windows(8).any(|part| part == &secret[..8]));
        assert_eq!(TokenRecord::decode(b""), None);
    }

    #[test]
    fn names_are_words() {
        for (name, is_name) in [("ops-1_B", true), ("", false), ("a.b", false), ("ü", false)] {
            assert_eq!(is_token_name(name), is_name, "{name}");
        }
        assert!(!is_token_name(&"a".repeat(LONGEST_NAME_BYTES + 1)));
    }

    #[test]
    fn expired_tokens_are_listed() {
        let table = TokenTable::default();
        made(&table, "old", Scope::Admin, Some(1));
        made(&table, "read", Scope::Read, None);
        made(&table, "ops", Scope::Admin, None);
        let listed = table.list(NOW);
        let names: Vec<_> = listed
            .iter()
            .map(|token| (token.name.as_str(), token.expired))
            .collect();
        assert_eq!(names, [("old", true), ("ops", false), ("read", false)]);
    }
}
