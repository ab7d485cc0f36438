//! The state store's part of the machine: writes, expiry, tombstones, KEYNOTIFY. What a request means is decided in
//! [`crate::store`]; here rows, timers and observers follow from it.

mod command;
mod metadata;
mod watch_counts;
mod watchers;

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;

use super::batch::Batch;
use super::effect::{Change, Output};
use super::entry::Decoded;
use super::keyed_digest::KeyedDigest;
use super::replies::{Replies, Request};
use super::schema;
use super::schema::timer::Kind;
use super::tables::Backing;
use super::timers;
use crate::base::ids::Owner;
use crate::base::proto;
use crate::base::proto::command::command::Kind as CommandKind;
use crate::base::time::Millis;
use crate::store::{self, KeyRow, Outcome, Quota, Reply, RowChange, StoreError, Tombstone, Write};
pub use command::{RequestIdentity, to_command};
use metadata::{CacheKey, Cached, MetadataCache};
pub use watch_counts::WatchCounts;
use watchers::{MostWatched, Watchers};

/// What a write is found by in the two tables that it is looked up in.
#[derive(Clone, Copy)]
pub(super) struct WriteKeys {
    request: KeyedDigest,
    metadata: CacheKey,
}

/// The keys of the state store and who watches them. In memory there are the watchers, and a cache of metadata.
pub(super) struct Store {
    watchers: Watchers,
    metadata: MetadataCache,
}

impl Store {
    /// An empty store, whose cache of metadata takes so many bytes.
    pub fn new(metadata_bytes: usize) -> Store {
        Store {
            watchers: Watchers::default(),
            metadata: MetadataCache::new(metadata_bytes),
        }
    }

    /// Builds the index of watched keys anew. What is cached is of another state.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.watchers.restore(backing);
        let mut has_rows = false;
        backing.rows::<schema::Record>(&schema::Range::all(), |_, _| {
            has_rows = true;
            false
        });
        self.metadata.clear(has_rows);
    }

    /// Whether a cache forgets soon or not is seen in nothing but speed.
    #[cfg(test)]
    pub fn forget_soon(&mut self) {
        self.metadata = MetadataCache::small();
    }

    /// Number of watched keys.
    pub fn watched_keys(&self) -> usize {
        self.watchers.len()
    }

    /// How many connections watch a key, for other threads.
    pub fn watch_counts(&self) -> Arc<WatchCounts> {
        self.watchers.counts()
    }

    /// What each of these commands is found by that is a write. Where there are several commands, the keys are looked
    /// up here, one right after the other, so that the processor waits for memory once for several of them: the tables
    /// are far larger than its caches (group prefetching: Chen et al., Improving Hash Join Performance through
    /// Prefetching, ICDE 2004).
    pub fn look_ahead(&self, replies: &Replies, commands: &[Decoded]) -> Vec<Option<WriteKeys>> {
        let keys = commands.iter().map(|command| match command {
            Decoded::Known(CommandKind::StoreWrite(write)) => Some(self.keys(replies, write)),
            _ => None,
        });
        let keys: Vec<Option<WriteKeys>> = keys.collect();
        if keys.len() > 1 {
            for keys in keys.iter().flatten() {
                black_box(self.metadata.contains(keys.metadata));
                black_box(replies.contains(&keys.request));
            }
        }
        keys
    }

    fn keys(&self, replies: &Replies, write: &proto::command::StoreWrite) -> WriteKeys {
        WriteKeys {
            request: replies.key(write),
            metadata: self.metadata.key(&write.key),
        }
    }

    /// SET, DEL or VDEL; a request that was carried out before is answered as it was then.
    pub fn write(
        &mut self,
        batch: &mut Batch<'_, '_>,
        replies: &mut Replies,
        command: proto::command::StoreWrite,
        keys: Option<WriteKeys>,
    ) -> Reply {
        let keys = keys.unwrap_or_else(|| self.keys(replies, &command));
        let request = Request::of(&command, keys.request);
        if let Some(reply) = replies.find(batch, &request)
            && let Ok(reply) = Reply::decode(reply)
        {
            return reply;
        }
        let reply = match command::from_command(&command) {
            Ok(write) => {
                let quota = command::quota_of(&command);
                self.write_key(batch, &write, keys.metadata, &quota)
            }
            Err(error) => Reply::Error(error),
        };
        let mut bytes = Vec::with_capacity(32);
        reply.encode(&mut bytes);
        let remembered = proto::state::RememberedReply {
            client_id: command.client_id,
            correlation_data: command.correlation_data,
            legacy_fingerprint: command.legacy_fingerprint,
            reply: bytes.into(),
            fingerprint: command.fingerprint,
        };
        replies.remember(batch, keys.request, remembered, command.remember_s);
        reply
    }

    fn write_key(
        &mut self,
        batch: &mut Batch<'_, '_>,
        write: &Write<'_>,
        key: CacheKey,
        quota: &Quota,
    ) -> Reply {
        let unread = match self.metadata.get(key, batch.now) {
            Cached::Nothing => Some(None),
            Cached::Row(row) if write.compared().is_none() => Some(Some(row)),
            Cached::Row(_) | Cached::Unknown => None,
        };
        if let Some(row) = unread {
            let (row, usage) = (row.as_ref(), batch.meta.store_usage());
            let outcome = store::apply_unread(write, row, batch.now, usage, quota);
            if !matches!(outcome.row, RowChange::Unchanged) {
                clear_timer(batch, write.key, row);
            }
            return self.carry_out(batch, write.key, key, outcome);
        }
        let current = self.current(batch, write.key);
        let usage = batch.meta.store_usage();
        let outcome = store::apply(write, current.as_ref(), batch.now, usage, quota);
        if !matches!(outcome.row, RowChange::Unchanged) {
            clear_timer(batch, write.key, current.as_ref());
        }
        self.carry_out(batch, write.key, key, outcome)
    }

    /// Writes what a request comes to. The caller has taken back the timer of the row that is replaced.
    fn carry_out(
        &mut self,
        batch: &mut Batch<'_, '_>,
        store_key: &[u8],
        key: CacheKey,
        outcome: Outcome<'_>,
    ) -> Reply {
        batch.meta.set_store_usage(outcome.usage);
        match outcome.row {
            RowChange::Unchanged => {}
            RowChange::Put(record) => {
                if let Some(deadline) = record.expires_at {
                    batch.set_timer(deadline, Kind::KeyExpiry, store_key);
                }
                self.notify(batch, store_key, || Change::Set {
                    value: Bytes::copy_from_slice(record.value),
                    version: record.version.clone(),
                });
                self.metadata.set(key, &record);
                let mut row = Vec::with_capacity(record.value.len() + 32);
                KeyRow::Value(record).encode(&mut row);
                batch.tables.put_encoded::<schema::Record>(store_key, row);
            }
            RowChange::Tombstone(tombstone) => {
                self.write_tombstone(batch, store_key, key, tombstone);
            }
        }
        outcome.reply
    }

    /// The row of a key. One that has expired expires now, where its timer has not come to it yet.
    fn current(&mut self, batch: &mut Batch<'_, '_>, store_key: &[u8]) -> Option<KeyRow> {
        let row = batch.tables.get::<schema::Record>(store_key)?;
        let expired = row.record().is_some_and(|row| row.is_expired(batch.now));
        if !expired {
            return Some(row);
        }
        clear_timer(batch, store_key, Some(&row));
        self.expire(batch, store_key);
        batch.tables.get::<schema::Record>(store_key)
    }

    fn write_tombstone(
        &mut self,
        batch: &mut Batch<'_, '_>,
        store_key: &[u8],
        key: CacheKey,
        tombstone: Tombstone,
    ) {
        self.metadata.forget(key);
        let deadline = timers::whole_second(tombstone.purge_at());
        batch.set_timer(deadline, Kind::Tombstone, store_key);
        self.notify(batch, store_key, || Change::Delete {
            version: tombstone.version.clone(),
        });
        let row = KeyRow::Tombstone(tombstone);
        batch.tables.put::<schema::Record>(store_key, &row);
    }

    /// A key's timer is due: it expires, if it still has the deadline.
    pub fn expire(&mut self, batch: &mut Batch<'_, '_>, store_key: &[u8]) {
        let usage = batch.meta.store_usage();
        if let Some(row) = batch.tables.get::<schema::Record>(store_key)
            && let Some((tombstone, usage)) = store::expire(store_key, &row, batch.now, usage)
        {
            batch.meta.set_store_usage(usage);
            let key = self.metadata.key(store_key);
            self.write_tombstone(batch, store_key, key, tombstone);
        }
    }

    /// Tells this node's connections that watch the key. That they are told counts like row operations: what expires at
    /// the same moment does so in later batches where many watch it.
    fn notify(&self, batch: &mut Batch<'_, '_>, store_key: &[u8], change: impl Fn() -> Change) {
        let mut told = None;
        let watchers = self.watchers.of(store_key);
        batch.spend(watchers.len());
        for owner in watchers {
            if !batch.outputs.has_connection(*owner) {
                continue;
            }
            // All of them share one copy.
            let (key, change) = told
                .get_or_insert_with(|| (Bytes::copy_from_slice(store_key), change()))
                .clone();
            let connection = owner.connection;
            batch.outputs.push(Output::Notify {
                connection,
                key,
                change,
            });
        }
    }

    /// KEYNOTIFY of a connection.
    pub fn key_notify(
        &mut self,
        batch: &mut Batch<'_, '_>,
        owner: Owner,
        command: proto::command::KeyNotify,
    ) -> Reply {
        if !command.stop {
            let most = MostWatched {
                of_connection: command.max_watches,
                bytes: command.max_total_bytes,
            };
            if self.watchers.exceeds(owner, &command.key, most) {
                return Reply::Error(StoreError::QuotaExceeded);
            }
            self.watchers
                .add(batch, owner, &command.key, command.client_id);
            return Reply::Notify;
        }
        match self.watchers.end(batch, owner, &command.key) {
            true => Reply::Notify,
            false => Reply::NotWatched,
        }
    }

    /// What a connection watches ends with it.
    pub fn end_connection(&mut self, batch: &mut Batch<'_, '_>, owner: Owner) {
        self.watchers.end_connection(batch, owner);
    }

    /// A timer asks to go on with what an ended connection watched.
    pub fn go_on_ending(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        if let Some(owner) = schema::watch::of_subject(subject) {
            self.watchers.end_connection(batch, owner);
        }
    }
}

/// Takes back the timer of a row that is about to be replaced.
fn clear_timer<V>(batch: &mut Batch<'_, '_>, store_key: &[u8], row: Option<&KeyRow<V>>) {
    match row {
        Some(KeyRow::Value(record)) => {
            if let Some(deadline) = record.expires_at {
                batch.clear_timer(deadline, Kind::KeyExpiry, store_key);
            }
        }
        Some(KeyRow::Tombstone(tombstone)) => {
            let deadline = timers::whole_second(tombstone.purge_at());
            batch.clear_timer(deadline, Kind::Tombstone, store_key);
        }
        None => {}
    }
}

/// A tombstone's timer is due: it goes, unless another one has taken its place.
pub(super) fn drop_tombstone(batch: &mut Batch<'_, '_>, store_key: &[u8], deadline: Millis) {
    if let Some(KeyRow::Tombstone(tombstone)) = batch.tables.get::<schema::Record>(store_key)
        // Former versions set timers to the millisecond.
        && [timers::whole_second(tombstone.purge_at()), tombstone.purge_at()].contains(&deadline)
    {
        batch.tables.delete::<schema::Record>(store_key);
    }
}
