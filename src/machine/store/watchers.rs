//! KEYNOTIFY: which connection watches which key of the state store.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use crate::base::ids::Owner;
use crate::machine::batch::Batch;
use crate::machine::schema::timer::Kind;
use crate::machine::schema::{ClientId, Range, Watch, watch};
use crate::machine::tables::Backing;

/// Row operations that the end of a registration takes.
const WATCH_COST: usize = 2;

/// Who watches which key; the rows of [`Watch`] by key. Clients choose keys, so they are hashed with a random seed;
/// nothing visits them in the order of the table.
#[derive(Default)]
pub(in crate::machine) struct Watchers(HashMap<Bytes, BTreeSet<Owner>>);

impl Watchers {
    /// Builds the index anew from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.0.clear();
        backing.rows::<Watch>(&Range::all(), |(owner, store_key), _| {
            self.insert(store_key, owner);
            true
        });
    }

    fn insert(&mut self, store_key: &[u8], owner: Owner) -> bool {
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

    pub fn of(&self, store_key: &[u8]) -> impl Iterator<Item = &Owner> {
        self.0.get(store_key).into_iter().flatten()
    }

    /// Number of watched keys.
    pub fn len(&self) -> usize {
        self.0.len()
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
        if self.0.is_empty() {
            return;
        }
        let most = batch.allowance(WATCH_COST);
        let mut watched = Vec::new();
        batch
            .tables
            .scan(&Watch::of_connection(owner), |(_, store_key), _| {
                watched.push(store_key.to_vec());
                watched.len() < most
            });
        batch.spend(watched.len() * WATCH_COST);
        for store_key in &watched {
            self.remove(store_key, owner);
            batch.tables.delete::<Watch>((owner, store_key));
        }
        if watched.len() == most {
            let soon = batch.now.plus(1);
            batch.set_timer(soon, Kind::EndWatches, &watch::subject(owner));
        }
    }
}
