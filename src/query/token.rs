//! Continuations: where the next page of a query begins.
//!
//! Invariant: [`Cursor::read`] accepts only what [`Cursor::write`] has made for the same text of a query. A token is no
//! secret and no permission: it says nothing that its owner could not ask for.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::error::QueryError;
use super::parsed::{Collection, Query};

/// First byte of a token; its numbers are for ever.
const FORMAT: u8 = 1;

/// Bytes of a token before its key: format, fingerprint, TOP.
const HEAD: usize = 1 + 16 + 8;

/// Bytes of the checksum behind the key.
const CHECKSUM: usize = 8;

/// Longest text that may be a token: two ids of 128 bytes, or a group's key, with what is around them.
const LONGEST: usize = 1024;

/// The row after which a page begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The device.
    pub device: String,
    /// The module; empty in the collection of devices.
    pub module: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.module {
            "" => write!(f, "{}", self.device),
            module => write!(f, "{}/{module}", self.device),
        }
    }
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The key of the last row, or of the last group; `None`: at the beginning.
    pub(super) after: Option<Vec<u8>>,
    /// Rows that `TOP` leaves; `None`: all.
    pub(super) left: Option<u64>,
}

impl Cursor {
    /// Where the page begins that a token asks for; without one, the first page.
    ///
    /// # Errors
    /// [`QueryError::Continuation`] when the token was not made for this query.
    pub fn read(query: &Query, token: Option<&str>) -> Result<Cursor, QueryError> {
        let Some(token) = token else {
            return Ok(Cursor {
                after: None,
                left: query.top,
            });
        };
        let cursor = Cursor::decode(query, token).ok_or(QueryError::Continuation)?;
        // A key that cannot be one of this query's.
        if !query.is_aggregate() && cursor.key(query).is_none() {
            return Err(QueryError::Continuation);
        }
        Ok(cursor)
    }

    fn decode(query: &Query, token: &str) -> Option<Cursor> {
        if token.len() > LONGEST {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let end = bytes
            .len()
            .checked_sub(CHECKSUM)
            .filter(|end| *end >= HEAD)?;
        let (content, sum) = bytes.split_at(end);
        let (head, key) = content.split_at(HEAD);
        if sum != checksum(content) || head[0] != FORMAT || head[1..17] != query.fingerprint {
            return None;
        }
        let left = u64::from_be_bytes(head[17..].try_into().ok()?);
        Some(Cursor {
            after: Some(key.to_vec()),
            left: query.top.map(|_| left),
        })
    }

    /// The token of a page that begins here.
    pub(super) fn write(&self, query: &Query) -> String {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&query.fingerprint);
        bytes.extend_from_slice(&self.left.unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(self.after.as_deref().unwrap_or_default());
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The row after which the page begins; `None` also at the beginning.
    pub fn key(&self, query: &Query) -> Option<Key> {
        let bytes = self.after.as_deref()?;
        let text = std::str::from_utf8(bytes).ok()?;
        let (device, module) = match query.collection {
            Collection::Devices => (text, ""),
            Collection::Modules => text.split_once('\0')?,
        };
        Some(Key {
            device: device.to_owned(),
            module: module.to_owned(),
        })
    }

    /// A cursor behind a row.
    pub(super) fn behind(query: &Query, key: &Key, left: Option<u64>) -> Cursor {
        let mut bytes = key.device.clone().into_bytes();
        if query.collection == Collection::Modules {
            bytes.push(0);
            bytes.extend_from_slice(key.module.as_bytes());
        }
        Cursor {
            after: Some(bytes),
            left,
        }
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM] {
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&Sha256::digest(content)[..CHECKSUM]);
    sum
}
