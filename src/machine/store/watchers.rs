//! KEYNOTIFY: which connection watches which key of the state store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::watch_counts::WatchCounts;
use crate::base::ids::Owner;
use crate::machine::batch::Batch;
use crate::machine::schema::timer::Kind;
use crate::machine::schema::{ClientId, Range, Watch, watch};
use crate::machine::tables::Backing;

/// Row operations that the end of a registration takes.
const WATCH_COST: usize = 2;

/// Keys that a connection may watch although all together watch as much as they may, as they [count](weight): few
/// clients can't take KEYNOTIFY from all others, and what these take is bounded by the number of connections.
const ALWAYS_WATCHED: u64 = 4;

static NOBODY: &BTreeSet<Owner> = &BTreeSet::new();

/// Bytes of a key that count as one watched key.
const KEY_BYTES: usize = 256;

/// What a connection that watches a key takes in memory beside the key, about.
const WATCH_BYTES: u64 = 640;

/// What may be watched; 0: no bound.
#[derive(Clone, Copy)]
pub(in crate::machine) struct MostWatched {
    /// Keys of one connection, as they [count](weight).
    pub of_connection: u64,
    /// Bytes of all.
    pub bytes: u64,
}

/// Who watches which key: the rows of [`Watch`].
#[derive(Default)]
pub(in crate::machine) struct Watchers {
    /// Clients choose keys, so they are hashed with a random seed; nothing visits them in the order of the table.
    by_key: HashMap<Bytes, BTreeSet<Owner>>,
    /// Invariant: none is empty.
    by_owner: BTreeMap<Owner, Watched>,
    /// What all of them count in memory.
    bytes: u64,
    counts: Arc<WatchCounts>,
}

/// What a connection watches, in the order of the rows.
#[derive(Default)]
struct Watched {
    keys: BTreeSet<Bytes>,
    weight: u64,
}

/// What a watched key counts against the most that a connection may watch.
fn weight(store_key: &[u8]) -> u64 {
    store_key.len().div_ceil(KEY_BYTES).max(1) as u64
}

/// What it counts in memory.
fn bytes(store_key: &[u8]) -> u64 {
    store_key.len() as u64 + WATCH_BYTES
}

impl Watchers {
    /// Builds the index anew from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        let counts = self.counts.clone();
        counts.clear();
        *self = Watchers {
            counts,
            ..Watchers::default()
        };
        backing.rows::<Watch>(&Range::all(), |(owner, store_key), _| {
            self.insert(store_key, owner);
            true
        });
    }

    fn insert(&mut self, store_key: &[u8], owner: Owner) -> bool {
        // Both have one copy of the key.
        let known = self.by_key.get_key_value(store_key);
        let store_key = match known {
            Some((known, _)) => known.clone(),
            None => Bytes::copy_from_slice(store_key),
        };
        let watched = self.by_owner.entry(owner).or_default();
        if !watched.keys.insert(store_key.clone()) {
            return false;
        }
        watched.weight += weight(&store_key);
        self.bytes += bytes(&store_key);
        let owners = self.by_key.entry(store_key.clone()).or_default();
        let is_new = owners.insert(owner);
        self.counts.set(&store_key, owners.len());
        is_new
    }

    fn remove(&mut self, store_key: &[u8], owner: Owner) -> bool {
        let Some(watched) = self.by_owner.get_mut(&owner) else {
            return false;
        };
        if !watched.keys.remove(store_key) {
            return false;
        }
        watched.weight -= weight(store_key);
        self.bytes -= bytes(store_key);
        if watched.keys.is_empty() {
            self.by_owner.remove(&owner);
        }
        let known = self.by_key.get_key_value(store_key);
        let store_key = known.map(|(store_key, _)| store_key.clone());
        if let Some(store_key) = store_key
            && let Some(owners) = self.by_key.get_mut(&store_key)
        {
            owners.remove(&owner);
            self.counts.set(&store_key, owners.len());
            if owners.is_empty() {
                self.by_key.remove(&store_key);
            }
        }
        true
    }

    /// Whether a connection would watch more than it may, or all together more than they may, with a key that it does
    /// not watch yet.
    pub fn exceeds(&self, owner: Owner, store_key: &[u8], most: MostWatched) -> bool {
        let exceeds = |sum: u64, most: u64| most != 0 && sum > most;
        let watched = self.by_owner.get(&owner);
        if watched.is_some_and(|watched| watched.keys.contains(store_key)) {
            return false;
        }
        let own = watched.map_or(0, |watched| watched.weight);
        let own = own + weight(store_key);
        exceeds(own, most.of_connection)
            || own > ALWAYS_WATCHED && exceeds(self.bytes + bytes(store_key), most.bytes)
    }

    /// The connections that watch a key.
    pub fn of(&self, store_key: &[u8]) -> impl ExactSizeIterator<Item = &Owner> {
        self.by_key.get(store_key).unwrap_or(NOBODY).iter()
    }

    /// How many they are, for other threads.
    pub fn counts(&self) -> Arc<WatchCounts> {
        self.counts.clone()
    }

    /// Number of watched keys.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// A connection watches a key from now on.
    pub fn add(
        &mut self,
        batch: &mut Batch<'_, '_>,
        owner: Owner,
        store_key: &[u8],
        client_id: String,
    ) {
        if self.insert(store_key, owner) {
            let client_id = ClientId(client_id);
            batch.tables.put::<Watch>((owner, store_key), &client_id);
        }
    }

    /// A connection no longer watches a key; tells whether it did.
    pub fn end(&mut self, batch: &mut Batch<'_, '_>, owner: Owner, store_key: &[u8]) -> bool {
        let was_there = self.remove(store_key, owner);
        if was_there {
            batch.tables.delete::<Watch>((owner, store_key));
        }
        was_there
    }

    /// What a connection watches ends with it, as much at once as the batch's budget allows. Until the rest has gone,
    /// what is for the connection is for nobody.
    pub fn end_connection(&mut self, batch: &mut Batch<'_, '_>, owner: Owner) {
        let Some(watched) = self.by_owner.get(&owner) else {
            return;
        };
        let most = batch.allowance(WATCH_COST);
        let watched: Vec<Bytes> = watched.keys.iter().take(most).cloned().collect();
        batch.spend(watched.len() * WATCH_COST);
        for store_key in &watched {
            self.remove(store_key, owner);
            batch.tables.delete::<Watch>((owner, store_key));
        }
        if self.by_owner.contains_key(&owner) {
            let soon = batch.now.plus(1);
            batch.set_timer(soon, Kind::EndWatches, &watch::subject(owner));
        }
    }
}
