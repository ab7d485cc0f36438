//! One long random history, always the same: the changes of every batch and what it asks of the outside are what they
//! were when the constants below were recorded.
//!
//! Invariant: replicas of different versions apply the same log during a rolling upgrade, so whoever makes a constant
//! change has made replicas differ. A constant may be recorded anew only when the history itself was changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::golden_commands::Random;
use super::golden_outputs::put_output;
use super::proposal;
use crate::base::ids::{CLUSTER, Incarnation, LogIndex, NodeId};
use crate::base::proto::command::{self, command::Kind};
use crate::machine::Machine;
use crate::machine::retained::replay::Budget;
use crate::machine::tables::{Change, Tables};

/// Changes of all batches, in order.
const CHANGES: &str = "2da256a41e2b42c8";

/// Outputs of all batches on two nodes, in order.
const OUTPUTS: &str = "514691d7b2ca955a";

/// What is stored in the end: the number of rows of each table and a hash of them.
const TABLES: &[(u8, usize, &str)] = &[
    (1, 1, "e5c2cdf283e64ee6"),
    (2, 2, "f3bf5cf04b0e32d7"),
    (16, 3, "00e5f3ed709bace0"),
    (24, 3, "6d2f1a32eddb684c"),
    (32, 4, "51c20b417e636beb"),
    (34, 30, "37968c32136cdea0"),
    (48, 32, "0e987bee21f0f2a7"),
];

const STEPS: u64 = 12_000;
pub(super) const NODES: u64 = 2;

pub(super) struct History {
    pub(super) random: Random,
    pub(super) stored: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) machines: Vec<Machine>,
    pub(super) index: u64,
    pub(super) now: u64,
    /// Incarnation and last sequence of each node.
    pub(super) nodes: BTreeMap<u64, (u64, u64)>,
    pub(super) connections: BTreeMap<String, (u64, u64)>,
    pub(super) next_connection: u64,
    changes: Sha256,
    outputs: Sha256,
    /// Tables that have held rows, and kinds of outputs there have been.
    seen: (BTreeSet<u8>, BTreeSet<u8>),
}

impl History {
    pub(super) fn new() -> History {
        History {
            random: Random(8),
            stored: BTreeMap::new(),
            machines: (1..=NODES).map(|node| machine(NodeId(node))).collect(),
            index: 0,
            now: 1_700_000_000_000,
            nodes: (1..=NODES).map(|node| (node, (1, 0))).collect(),
            connections: BTreeMap::new(),
            next_connection: 0,
            changes: Sha256::new(),
            outputs: Sha256::new(),
            seen: Default::default(),
        }
    }

    fn apply(&mut self, proposals: Vec<command::Proposal>) {
        self.index += 1;
        let entry = command::Batch {
            stamp_ms: self.now,
            proposals,
            term: 1,
        }
        .encode_to_vec();
        let mut first = None;
        for machine in &mut self.machines {
            let mut tables = Tables::new(&self.stored);
            machine
                .apply(LogIndex(self.index), entry.clone().into(), &mut tables)
                .expect("a batch");
            let changes = tables.into_changes();
            match &first {
                None => first = Some(changes),
                Some(first) => assert_eq!(*first, changes, "replicas agree"),
            }
            for output in machine.take_outputs() {
                let mut bytes = Vec::new();
                put_output(&mut bytes, &output);
                self.seen.1.insert(bytes[0]);
                self.outputs.update((bytes.len() as u64).to_be_bytes());
                self.outputs.update(bytes);
            }
        }
        for (key, change) in first.unwrap_or_default() {
            let kind = match &change {
                Change::Put(_) => 0,
                Change::New(_) => 1,
                Change::Delete => 2,
            };
            self.seen.0.insert(key[0]);
            self.changes.update([kind]);
            self.changes.update((key.len() as u64).to_be_bytes());
            self.changes.update(&key);
            match change.value() {
                Some(value) => {
                    self.changes.update((value.len() as u64).to_be_bytes());
                    self.changes.update(value);
                    self.stored.insert(key, value.to_vec());
                }
                None => {
                    self.stored.remove(&key);
                }
            }
        }
        self.changes.update(self.index.to_be_bytes());
    }

    pub(super) fn restart(&mut self, machine_at: usize) {
        let node = NodeId(machine_at as u64 + 1);
        self.machines[machine_at] = machine(node);
        self.machines[machine_at].restore(&self.stored);
    }

    pub(super) fn step(&mut self) {
        match self.random.below(200) {
            0 => {
                let node = 1 + self.random.below(NODES);
                let incarnation = self.nodes[&node].0;
                let down = command::NodeDown { node, incarnation };
                let down = proposal(CLUSTER, Incarnation(0), 0, vec![Kind::NodeDown(down)]);
                self.apply(vec![down]);
                self.nodes.insert(node, (incarnation + 1, 0));
            }
            // A new incarnation registers, with or without the former one declared dead.
            1 => {
                let node = 1 + self.random.below(NODES);
                let incarnation = self.nodes[&node].0;
                self.nodes.insert(node, (incarnation + 1, 0));
            }
            // A proposal that is refused, one that is missing its predecessor, and one that came before.
            2 => {
                let refused = proposal(NodeId(1), Incarnation(0), 1, Vec::new());
                let (incarnation, sequence) = self.nodes[&2];
                let early = proposal(
                    NodeId(2),
                    Incarnation(incarnation),
                    sequence + 5,
                    Vec::new(),
                );
                let again = proposal(NodeId(2), Incarnation(incarnation), sequence, Vec::new());
                self.apply(vec![refused, early, again]);
            }
            3 => {
                let machine_at = self.random.below(NODES) as usize;
                self.restart(machine_at);
            }
            4..30 => {
                self.now += self.random.of(&[1, 1, 1, 400, 2_500, 9_000]);
                self.apply(Vec::new());
            }
            _ => {
                let count = 1 + self.random.below(4);
                let mut proposals = Vec::new();
                for _ in 0..count {
                    let (node, kind) = self.command();
                    proposals.push(self.proposal(node, vec![kind]));
                }
                self.apply(proposals);
            }
        }
    }

    fn tables(&self) -> Vec<(u8, usize, String)> {
        let mut tables: BTreeMap<u8, (usize, Sha256)> = BTreeMap::new();
        for (key, row) in &self.stored {
            let (count, hash) = tables.entry(key[0]).or_default();
            *count += 1;
            hash.update((key.len() as u64).to_be_bytes());
            hash.update(key);
            hash.update((row.len() as u64).to_be_bytes());
            hash.update(row);
        }
        tables
            .into_iter()
            .map(|(table, (count, hash))| (table, count, short(hash)))
            .collect()
    }
}

fn machine(node: NodeId) -> Machine {
    let mut machine = Machine::new(node, Arc::default(), 1 << 20);
    machine.parts.messaging.set_replay_budget(Budget {
        rows: 3,
        bytes: 300,
        waiting: 4,
    });
    machine
}

fn short(hash: Sha256) -> String {
    hash.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn rows_on_disk_and_outputs_are_what_they_were() {
    let mut history = History::new();
    for _ in 0..STEPS {
        history.step();
    }
    assert_eq!(
        history.seen.0.len(),
        20,
        "every table: {:x?}",
        history.seen.0
    );
    assert_eq!(
        history.seen.1.len(),
        13,
        "every output: {:?}",
        history.seen.1
    );
    let tables = history.tables();
    let tables: Vec<_> = tables
        .iter()
        .map(|(table, count, hash)| (*table, *count, hash.as_str()))
        .collect();
    let (changes, outputs) = (short(history.changes), short(history.outputs));
    assert_eq!(
        (tables.as_slice(), changes.as_str(), outputs.as_str()),
        (TABLES, CHANGES, OUTPUTS)
    );
}
