//! The state store's part of the machine: writes, expiry, tombstones, KEYNOTIFY. What a request means is decided in
//! [`crate::store`]; here rows, timers and observers follow from it.

use std::collections::BTreeSet;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::effect::{Change, Output, Reply};
use super::schema::timer::Kind;
use super::tables::Backing;
use super::{Context, Machine, schema};
use crate::base::hlc::{Hlc, NodeName};
use crate::base::ids::Owner;
use crate::base::proto::command;
use crate::base::time::Millis;
use crate::store::{
    self, Condition, KeyRow, Quota, Reply as StoreReply, RowChange, StoreError, Tombstone, Usage,
    Write, WriteAction,
};

/// Who watches which key; the rows of [`schema::watch`] by key.
#[derive(Default)]
pub(super) struct Watchers(FxHashMap<Bytes, BTreeSet<Owner>>);

impl Watchers {
    /// Builds the index anew from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.0.clear();
        let (from, to) = schema::watch::all();
        backing.scan(&from, &to, &mut |row_key, _| {
            let (owner, store_key) =
                schema::watch::decode(row_key).expect("this machine wrote the key");
            self.add(store_key, owner);
            true
        });
    }

    fn add(&mut self, store_key: &[u8], owner: Owner) -> bool {
        match self.0.get_mut(store_key) {
            Some(owners) => owners.insert(owner),
            None => {
                self.0
                    .insert(Bytes::copy_from_slice(store_key), BTreeSet::from([owner]));
                true
            }
        }
    }

    fn remove(&mut self, store_key: &[u8], owner: Owner) -> bool {
        let Some(owners) = self.0.get_mut(store_key) else {
            return false;
        };
        let removed = owners.remove(&owner);
        if owners.is_empty() {
            self.0.remove(store_key);
        }
        removed
    }

    fn of(&self, store_key: &[u8]) -> impl Iterator<Item = &Owner> {
        self.0.get(store_key).into_iter().flatten()
    }

    /// Number of watched keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl From<&Hlc> for command::Hlc {
    fn from(hlc: &Hlc) -> Self {
        command::Hlc {
            wall_ms: hlc.wall_ms,
            counter: hlc.counter,
            node: hlc.node.as_str().to_owned(),
        }
    }
}

fn hlc(hlc: &command::Hlc) -> Result<Hlc, StoreError> {
    let node = NodeName::new(&hlc.node).map_err(|_| StoreError::MalformedTimestamp)?;
    Ok(Hlc {
        wall_ms: hlc.wall_ms,
        counter: hlc.counter,
        node,
    })
}

/// The verbs of `command.StoreWrite`.
mod verb {
    pub const SET: u32 = 0;
    pub const DEL: u32 = 1;
    pub const VDEL: u32 = 2;
}

fn quota_of(command: &command::StoreWrite) -> Quota {
    let bound = |most| if most == 0 { u64::MAX } else { most };
    Quota {
        max_keys: bound(command.max_keys),
        max_bytes: bound(command.max_bytes),
    }
}

/// A request as the log holds it.
pub fn to_command(
    write: &Write<'_>,
    client_id: &str,
    request: &RequestIdentity<'_>,
    quota: Quota,
) -> command::StoreWrite {
    let mut command = command::StoreWrite {
        client_id: client_id.to_owned(),
        correlation_data: Bytes::copy_from_slice(request.correlation_data),
        remember_s: request.remember_s,
        fingerprint: request.fingerprint,
        key: Bytes::copy_from_slice(write.key),
        timestamp: write.timestamp.as_ref().map(Into::into),
        fencing_token: write.fencing_token.as_ref().map(Into::into),
        ..Default::default()
    };
    match write.action {
        WriteAction::Set {
            value,
            condition,
            expire_ms,
        } => {
            command.verb = verb::SET;
            command.value = Bytes::copy_from_slice(value);
            command.condition = match condition {
                Condition::None => 0,
                Condition::Nx => 1,
                Condition::Nex => 2,
            };
            command.expire_ms = expire_ms.unwrap_or(0);
            command.max_keys = quota.max_keys;
            command.max_bytes = quota.max_bytes;
        }
        WriteAction::Del => command.verb = verb::DEL,
        WriteAction::VDel { value } => {
            command.verb = verb::VDEL;
            command.value = Bytes::copy_from_slice(value);
        }
    }
    command
}

/// What makes a request the same request when it is sent again.
#[derive(Clone, Copy, Debug)]
pub struct RequestIdentity<'a> {
    /// Its correlation data.
    pub correlation_data: &'a [u8],
    /// How long its reply is remembered, seconds.
    pub remember_s: u32,
    /// Fingerprint of payload, `__ts` and `__ft`.
    pub fingerprint: u64,
}

fn from_command(command: &command::StoreWrite) -> Result<Write<'_>, StoreError> {
    let action = match (command.verb, command.condition) {
        (verb::SET, condition @ 0..=2) => WriteAction::Set {
            value: &command.value,
            condition: match condition {
                0 => Condition::None,
                1 => Condition::Nx,
                _ => Condition::Nex,
            },
            expire_ms: (command.expire_ms != 0).then_some(command.expire_ms),
        },
        (verb::DEL, _) => WriteAction::Del,
        (verb::VDEL, _) => WriteAction::VDel {
            value: &command.value,
        },
        _ => return Err(StoreError::UnknownCommand),
    };
    Ok(Write {
        key: &command.key,
        action,
        timestamp: command.timestamp.as_ref().map(hlc).transpose()?,
        fencing_token: command.fencing_token.as_ref().map(hlc).transpose()?,
    })
}

impl Machine {
    /// Keys of the state store that hold a value, and their bytes.
    pub fn usage(&self) -> Usage {
        Usage {
            keys: self.meta.store_keys,
            bytes: self.meta.store_bytes,
        }
    }

    fn set_usage(&mut self, usage: Usage) {
        self.meta.store_keys = usage.keys;
        self.meta.store_bytes = usage.bytes;
    }

    pub(super) fn store_write(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::StoreWrite,
    ) -> StoreReply {
        if let Some(reply) = self.remembered(context, &command) {
            return reply;
        }
        let reply = match from_command(&command) {
            Ok(write) => self.write_key(context, &write, &quota_of(&command)),
            Err(error) => StoreReply::Error(error),
        };
        self.remember(context, command, &reply);
        reply
    }

    fn write_key(
        &mut self,
        context: &mut Context<'_, '_>,
        write: &Write<'_>,
        quota: &Quota,
    ) -> StoreReply {
        let row_key = schema::record::encode(write.key);
        let current = context.tables.get(&row_key).map(decode_row);
        let outcome = store::apply(write, current.as_ref(), context.now, self.usage(), quota);
        if !matches!(outcome.row, RowChange::Unchanged) {
            self.clear_row_timer(context, write.key, current.as_ref());
        }
        self.set_usage(outcome.usage);
        match outcome.row {
            RowChange::Unchanged => {}
            RowChange::Put(record) => {
                if let Some(deadline) = record.expires_at {
                    self.set_timer(context, deadline, Kind::KeyExpiry, write.key);
                }
                self.notify(write.key, || Change::Set {
                    value: Bytes::copy_from_slice(record.value),
                    version: record.version.clone(),
                });
                let mut row = Vec::with_capacity(record.value.len() + 32);
                KeyRow::Value(record).encode(&mut row);
                context.tables.put(row_key, row);
            }
            RowChange::Bury(tombstone) => self.bury(context, row_key, write.key, tombstone),
        }
        outcome.reply
    }

    fn bury(
        &mut self,
        context: &mut Context<'_, '_>,
        row_key: Vec<u8>,
        store_key: &[u8],
        tombstone: Tombstone,
    ) {
        self.set_timer(context, tombstone.purge_at(), Kind::Tombstone, store_key);
        self.notify(store_key, || Change::Delete {
            version: tombstone.version.clone(),
        });
        let mut row = Vec::with_capacity(24);
        KeyRow::<&[u8]>::Tombstone(tombstone).encode(&mut row);
        context.tables.put(row_key, row);
    }

    /// Takes back the timer of a row that is about to be replaced.
    fn clear_row_timer(
        &mut self,
        context: &mut Context<'_, '_>,
        store_key: &[u8],
        row: Option<&KeyRow>,
    ) {
        match row {
            Some(KeyRow::Value(record)) => {
                if let Some(deadline) = record.expires_at {
                    self.clear_timer(context, deadline, Kind::KeyExpiry, store_key);
                }
            }
            Some(KeyRow::Tombstone(tombstone)) => {
                self.clear_timer(context, tombstone.purge_at(), Kind::Tombstone, store_key);
            }
            None => {}
        }
    }

    pub(super) fn expire_key(&mut self, context: &mut Context<'_, '_>, store_key: &[u8]) {
        let row_key = schema::record::encode(store_key);
        if let Some(row) = context.tables.get(&row_key).map(decode_row)
            && let Some((tombstone, usage)) =
                store::expire(store_key, &row, context.now, self.usage())
        {
            self.set_usage(usage);
            self.bury(context, row_key, store_key, tombstone);
        }
    }

    pub(super) fn drop_tombstone(
        &mut self,
        context: &mut Context<'_, '_>,
        store_key: &[u8],
        deadline: Millis,
    ) {
        let row_key = schema::record::encode(store_key);
        if let Some(KeyRow::Tombstone(tombstone)) = context.tables.get(&row_key).map(decode_row)
            && tombstone.purge_at() == deadline
        {
            context.tables.delete(row_key);
        }
    }

    /// Tells this node's connections that watch the key.
    fn notify(&mut self, store_key: &[u8], change: impl Fn() -> Change) {
        for owner in self.watchers.of(store_key) {
            if owner.node == self.local {
                self.outputs.push(Output::Notify {
                    connection: owner.connection,
                    key: Bytes::copy_from_slice(store_key),
                    change: change(),
                });
            }
        }
    }

    pub(super) fn key_notify(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::KeyNotify,
    ) -> Reply {
        let Some((_, owner)) = self.owned(context, &command.client_id, command.connection) else {
            return Reply::NotOwner;
        };
        let row_key = schema::watch::encode(owner, &command.key);
        Reply::Store(if command.stop {
            if self.watchers.remove(&command.key, owner) {
                context.tables.delete(row_key);
                StoreReply::Notify
            } else {
                StoreReply::NotWatched
            }
        } else {
            if self.watchers.add(&command.key, owner) {
                context.tables.put(row_key, command.client_id.into_bytes());
            }
            StoreReply::Notify
        })
    }

    /// Registrations end with the connection.
    pub(super) fn drop_watches(&mut self, context: &mut Context<'_, '_>, owner: Owner) {
        if self.watchers.len() == 0 {
            return;
        }
        let (from, to) = schema::watch::of_connection(owner);
        let mut rows = Vec::new();
        context.tables.scan(&from, &to, |row_key, _| {
            rows.push(row_key.to_vec());
            true
        });
        for row_key in rows {
            if let Some((_, store_key)) = schema::watch::decode(&row_key) {
                self.watchers.remove(store_key, owner);
            }
            context.tables.delete(row_key);
        }
    }
}

/// Reads a row of the state store.
pub(super) fn decode_row(row: Bytes) -> KeyRow {
    KeyRow::decode(row).expect("this machine wrote the row")
}
