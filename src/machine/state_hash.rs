//! Whether the replicas have the same rows. Each hashes its tables as they are after the same log entry, and says in
//! the log what came out.
//!
//! `HashState` begins a *hash round*, which is named by its log entry; each node answers it with `StateHash`. What a
//! majority of the voters has is right, and a replica that has something else is *odd*. Here nothing is hashed while a
//! batch is applied: [`hash_tables`] is called beside apply, over a view of the state at that entry.
//!
//! Invariant: all of the machine's rows count, and nothing else does. There is no row in which replicas may differ.
//! Invariant: a new round takes the place of the former one, finished or not. What comes for another round than the
//! present one is passed over.

use std::collections::BTreeMap;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::batch::Batch;
use super::effect::{Output, Reply};
use super::schema;
use super::tables::Backing;
use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::command;
pub use crate::base::proto::state::HashRound;
use crate::base::proto::state::NodeHash;

/// Bytes of a table's hash: the first 128 bits of SHA-256.
const HASH_BYTES: usize = 16;

/// Bytes that a table takes in what a node says: its ordinal and its hash.
const TABLE_BYTES: usize = 1 + HASH_BYTES;

/// Tables that there may be.
const MOST_TABLES: usize = u8::MAX as usize;

/// Bytes of rows after which whoever hashes them is asked whether to go on.
const STEP_BYTES: usize = 64 << 10;

/// The hash of each table that has rows, as `command.StateHash` holds it. Per row: the lengths of key and value as
/// eight bytes each, big-endian, key, value; in the order of the keys.
///
/// Asks now and then whether to go on, with the number of bytes since the last time; `None` when it is told not to.
pub fn hash_tables(rows: &dyn Backing, goes_on: &mut dyn FnMut(usize) -> bool) -> Option<Bytes> {
    let mut tables: BTreeMap<u8, Sha256> = BTreeMap::new();
    let mut present: Option<(u8, Sha256)> = None;
    let mut bytes = 0;
    let mut is_whole = true;
    // The first byte of a key is its table's ordinal; 0 is the storage layer's own.
    rows.scan(&[1], &[u8::MAX], &mut |key, value| {
        let table = key.first().copied().unwrap_or_default();
        if present.as_ref().is_none_or(|(known, _)| *known != table) {
            tables.extend(present.take());
            present = Some((table, Sha256::new()));
        }
        if let Some((_, hash)) = &mut present {
            hash.update((key.len() as u64).to_be_bytes());
            hash.update((value.len() as u64).to_be_bytes());
            hash.update(key);
            hash.update(value);
        }
        bytes += key.len() + value.len();
        if bytes >= STEP_BYTES {
            is_whole = goes_on(std::mem::take(&mut bytes));
        }
        is_whole
    });
    tables.extend(present);
    if !is_whole || !goes_on(bytes) {
        return None;
    }
    let mut said = Vec::with_capacity(tables.len() * TABLE_BYTES);
    for (table, hash) in tables {
        said.push(table);
        said.extend_from_slice(&hash.finalize()[..HASH_BYTES]);
    }
    Some(said.into())
}

/// What is known of the replicas' states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Nodes whose states are the same as those of a majority of the voters.
    pub right: Vec<NodeId>,
    /// Nodes whose states differ from those.
    pub odd: Vec<Odd>,
    /// Tables in which nodes differ while no majority of the voters has the same.
    pub disputed: Vec<u8>,
}

/// A replica that differs from a majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odd {
    /// The node.
    pub node: NodeId,
    /// The incarnation in which it has said so.
    pub incarnation: Incarnation,
    /// The ordinals of the tables in which it differs.
    pub tables: Vec<u8>,
}

/// What the answers of a round come to.
pub fn verdict(round: &HashRound) -> Verdict {
    let has_majority = |tables: &Bytes| {
        let voters = round.nodes.iter().filter(|said| {
            let votes = round.voters.contains(&said.node);
            votes && said.tables == *tables
        });
        voters.count() * 2 > round.voters.len()
    };
    let right = round.nodes.iter().map(|said| &said.tables);
    let Some(right) = right.clone().find(|tables| has_majority(tables)) else {
        let disputed = match round.nodes.split_first() {
            Some((first, others)) => others
                .iter()
                .flat_map(|other| differing(&first.tables, &other.tables))
                .collect(),
            None => Vec::new(),
        };
        return Verdict {
            disputed: sorted(disputed),
            ..Verdict::default()
        };
    };
    let (same, others): (Vec<_>, Vec<_>) =
        round.nodes.iter().partition(|said| said.tables == *right);
    let odd = others.into_iter().map(|said| Odd {
        node: NodeId(said.node),
        incarnation: Incarnation(said.incarnation),
        tables: differing(right, &said.tables),
    });
    Verdict {
        right: same.into_iter().map(|said| NodeId(said.node)).collect(),
        odd: odd.collect(),
        disputed: Vec::new(),
    }
}

fn sorted(mut tables: Vec<u8>) -> Vec<u8> {
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// The tables of which two nodes say different things.
fn differing(one: &[u8], other: &[u8]) -> Vec<u8> {
    let tables = |said: &[u8]| -> BTreeMap<u8, Vec<u8>> {
        let tables = said.chunks_exact(TABLE_BYTES);
        tables
            .map(|table| (table[0], table[1..].to_vec()))
            .collect()
    };
    let (one, other) = (tables(one), tables(other));
    let all = one.keys().chain(other.keys()).copied();
    sorted(
        all.filter(|table| one.get(table) != other.get(table))
            .collect(),
    )
}

/// The row, and nothing else.
#[derive(Default)]
pub(super) struct StateHashes {
    last: Option<HashRound>,
}

impl StateHashes {
    /// Reads the row again.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.last = backing.row::<schema::HashRound>(());
    }

    /// The last round.
    pub fn last(&self) -> Option<&HashRound> {
        self.last.as_ref()
    }

    /// Begins a round after this log entry.
    pub fn begin(&mut self, batch: &mut Batch<'_, '_>, command: command::HashState) -> Reply {
        let round = HashRound {
            index: batch.index.0,
            started_ms: batch.now.0,
            voters: command.voters,
            nodes: Vec::new(),
        };
        self.store(batch, round);
        Reply::HashesState(batch.index)
    }

    /// Notes what a node has found.
    pub fn note(&mut self, batch: &mut Batch<'_, '_>, command: command::StateHash) {
        let tables = command.tables;
        let is_well_formed =
            tables.len().is_multiple_of(TABLE_BYTES) && tables.len() / TABLE_BYTES <= MOST_TABLES;
        let round = self.last.take_if(|last| last.index == command.index);
        let Some(mut round) = round else {
            return;
        };
        if is_well_formed {
            round.nodes.retain(|said| said.node != batch.node.0);
            round.nodes.push(NodeHash {
                node: batch.node.0,
                incarnation: batch.incarnation.0,
                tables,
            });
        }
        self.store(batch, round);
    }

    fn store(&mut self, batch: &mut Batch<'_, '_>, round: HashRound) {
        batch.tables.put::<schema::HashRound>((), &round);
        let told = Box::new(round.clone());
        self.last = Some(round);
        batch.outputs.push(Output::HashRoundChanged(told));
    }
}
