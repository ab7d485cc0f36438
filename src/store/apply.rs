//! What a write does to its key: the state store's semantics as one pure function.
//!
//! The caller knows the key's row, has fired every expiry due at the store's clock ([`expire`]), and writes
//! what comes out. The store's clock is the log's time, never a replica's own (docs/spec/state-store.md, Expiry).

use bytes::Bytes;

use crate::base::hlc::{Hlc, next_version};
use crate::base::time::Millis;

use super::error::StoreError;
use super::record::{KeyRecord, KeyRow, Length, Tombstone, ValueLength};
use super::reply::Reply;
use super::request::{Condition, Write, WriteAction};

/// What the store may hold; a SET that grows it past either limit is refused (docs/spec/state-store.md, Quota).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The most keys.
    pub max_keys: u64,
    /// The most bytes, counted as [`Usage::bytes`].
    pub max_bytes: u64,
}

impl Quota {
    /// No limit.
    pub const UNLIMITED: Quota = Quota {
        max_keys: u64::MAX,
        max_bytes: u64::MAX,
    };
}

/// What the store holds. Tombstones are not counted: they are gone within a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys that are there.
    pub keys: u64,
    /// Bytes of their keys, values and foreign fencing tokens' node ids.
    pub bytes: u64,
}

impl Usage {
    /// What one key takes.
    pub fn of<V: Length>(key: &[u8], record: &KeyRecord<V>) -> Self {
        let node = record
            .fencing_token
            .as_ref()
            .filter(|token| !token.node.is_store())
            .map_or(0, |token| token.node.as_str().len());
        let bytes = key.len() + record.value.length() + node;
        Usage {
            keys: 1,
            // No platform has a usize above 64 bits.
            bytes: bytes as u64,
        }
    }

    fn plus(self, other: Usage) -> Usage {
        Usage {
            keys: self.keys.saturating_add(other.keys),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Usage) -> Usage {
        Usage {
            keys: self.keys.saturating_sub(other.keys),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// What becomes of the key's row. A change of the row is what KEYNOTIFY reports, and nothing else is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange<'a> {
    /// The row stays as it is.
    Unchanged,
    /// The row is replaced; observers get SET with the value and version.
    Put(KeyRecord<&'a [u8]>),
    /// The row becomes a tombstone; observers get DELETE with its version.
    Tombstone(Tombstone),
}

/// What a write comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The change of the row.
    pub row: RowChange<'a>,
    /// The answer.
    pub reply: Reply,
    /// What the store holds afterwards.
    pub usage: Usage,
}

/// Applies `write` to a key whose row is `current` (`None` when there is none).
///
/// The checks run in the order of docs/spec/state-store.md, Order of checks: timestamps, fencing, NX, NEX or VDEL
/// value; the quota comes last, when the request would otherwise succeed. A failed check changes nothing.
pub fn apply<'w, V: AsRef<[u8]>>(
    write: &Write<'w>,
    current: Option<&KeyRow<V>>,
    store_clock: Millis,
    usage: Usage,
    quota: &Quota,
) -> Outcome<'w> {
    let there = current.and_then(KeyRow::record);
    let is_same = match (write.compared(), there) {
        (Some(value), Some(record)) => record.value.as_ref() == value,
        _ => false,
    };
    apply_compared(write, current, is_same, store_clock, usage, quota)
}

/// [`apply`] for a write that [compares no value](Write::compared), or that there is none to compare with: it asks only
/// how long the stored one is.
pub fn apply_unread<'w>(
    write: &Write<'w>,
    current: Option<&KeyRow<ValueLength>>,
    store_clock: Millis,
    usage: Usage,
    quota: &Quota,
) -> Outcome<'w> {
    debug_assert!(
        write.compared().is_none() || current.is_none(),
        "the value decides"
    );
    apply_compared(write, current, false, store_clock, usage, quota)
}

/// `is_same`: whether the stored value is the one that the write compares it with.
fn apply_compared<'w, V: Length>(
    write: &Write<'w>,
    current: Option<&KeyRow<V>>,
    is_same: bool,
    store_clock: Millis,
    usage: Usage,
    quota: &Quota,
) -> Outcome<'w> {
    let there = current.and_then(KeyRow::record);
    debug_assert!(
        there.is_none_or(|record| !record.is_expired(store_clock)),
        "due expiries fire before writes"
    );
    let (row, reply) = check_clocks(write, store_clock)
        .and_then(|()| check_fencing(write, there))
        .map_or_else(
            |error| (RowChange::Unchanged, Reply::Error(error)),
            |()| act(write, current, is_same, store_clock),
        );
    let after = usage_after(write.key, there, &row, usage);
    let exceeded = (after.keys > usage.keys && after.keys > quota.max_keys)
        || (after.bytes > usage.bytes && after.bytes > quota.max_bytes);
    if exceeded {
        return Outcome {
            row: RowChange::Unchanged,
            reply: Reply::Error(StoreError::QuotaExceeded),
            usage,
        };
    }
    Outcome {
        row,
        reply,
        usage: after,
    }
}

/// Ends a key whose time is over: its tombstone, and what the store holds afterwards. `None` when it is not due.
/// Observers get DELETE with the tombstone's version.
pub fn expire<V: Length>(
    key: &[u8],
    row: &KeyRow<V>,
    store_clock: Millis,
    usage: Usage,
) -> Option<(Tombstone, Usage)> {
    let record = row.record()?;
    if !record.is_expired(store_clock) {
        return None;
    }
    let version = next_version(Some(&record.version), None, store_clock);
    Some((Tombstone { version }, usage.minus(Usage::of(key, record))))
}

/// Answers a GET. The caller has seen to it that an expiry due at the time of the read is applied.
pub fn get(row: Option<&KeyRow<Bytes>>) -> Reply {
    match row.and_then(KeyRow::record) {
        Some(record) => Reply::Value {
            value: record.value.clone(),
            version: record.version.clone(),
        },
        None => Reply::NoValue,
    }
}

fn check_clocks(write: &Write<'_>, store_clock: Millis) -> Result<(), StoreError> {
    let too_far = |hlc: &Option<Hlc>| {
        hlc.as_ref()
            .is_some_and(|hlc| hlc.is_too_far_ahead_of(store_clock))
    };
    if too_far(&write.timestamp) {
        Err(StoreError::TimestampTooFarAhead)
    } else if too_far(&write.fencing_token) {
        Err(StoreError::FencingTokenTooFarAhead)
    } else {
        Ok(())
    }
}

/// The same for SET, DEL and VDEL: docs/spec/state-store.md, Fencing.
fn check_fencing<V>(write: &Write<'_>, there: Option<&KeyRecord<V>>) -> Result<(), StoreError> {
    let stored = there.and_then(|record| record.fencing_token.as_ref());
    match (stored, write.fencing_token.as_ref()) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(StoreError::FencingTokenRequired),
        (Some(stored), Some(sent)) if sent < stored => Err(StoreError::FencingTokenLower),
        (Some(_), Some(_)) => Ok(()),
    }
}

fn act<'w, V>(
    write: &Write<'w>,
    current: Option<&KeyRow<V>>,
    is_same: bool,
    store_clock: Millis,
) -> (RowChange<'w>, Reply) {
    let there = current.and_then(KeyRow::record);
    let version = || {
        next_version(
            current.map(KeyRow::version),
            write.timestamp.as_ref(),
            store_clock,
        )
    };
    match (write.action, there) {
        (WriteAction::Set { condition, .. }, Some(record)) if refuses(condition, is_same) => (
            RowChange::Unchanged,
            Reply::NotSet {
                version: record.version.clone(),
            },
        ),
        (
            WriteAction::Set {
                value, expire_ms, ..
            },
            _,
        ) => {
            let version = version();
            let record = KeyRecord {
                value,
                version: version.clone(),
                // Equal or higher than a stored one, as checked; without either there is none.
                fencing_token: write.fencing_token.clone(),
                // Without PX an earlier expiry is cleared; one past the end of time is none.
                expires_at: expire_ms
                    .map(|ms| store_clock.plus(ms))
                    .filter(|deadline| *deadline != Millis::NEVER),
            };
            (RowChange::Put(record), Reply::Set { version })
        }
        (WriteAction::Del | WriteAction::VDel { .. }, None) => {
            (RowChange::Unchanged, Reply::NothingToDelete)
        }
        (WriteAction::VDel { .. }, Some(_)) if !is_same => {
            (RowChange::Unchanged, Reply::ValueDiffers)
        }
        (WriteAction::Del | WriteAction::VDel { .. }, Some(record)) => (
            RowChange::Tombstone(Tombstone { version: version() }),
            Reply::Deleted {
                version: record.version.clone(),
            },
        ),
    }
}

/// Whether a key that is there keeps its value.
fn refuses(condition: Condition, is_same: bool) -> bool {
    match condition {
        Condition::None => false,
        Condition::Nx => true,
        Condition::Nex => !is_same,
    }
}

fn usage_after<V: Length>(
    key: &[u8],
    there: Option<&KeyRecord<V>>,
    row: &RowChange<'_>,
    usage: Usage,
) -> Usage {
    let before = there.map_or(Usage::default(), |record| Usage::of(key, record));
    match row {
        RowChange::Unchanged => usage,
        RowChange::Put(record) => usage.minus(before).plus(Usage::of(key, record)),
        RowChange::Tombstone(_) => usage.minus(before),
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
