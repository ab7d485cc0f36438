//! A replica whose state is not what a majority has stops, and nobody else does.

use std::collections::BTreeMap;

use prost::Message as _;

use super::*;
use crate::base::ids::ConnectionId;
use crate::base::proto::command::{self, command::Kind};
use crate::codec::Version;
use crate::forward::outbox::Outboxes;
use crate::machine::hub::DesiredChanged;
use crate::machine::state_hash::hash_tables;
use crate::machine::tables::Change;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Mailbox};

const INCARNATION: Incarnation = Incarnation(4);

/// A node, and what it has stored.
struct Node {
    applier: Applier,
    proposer: Arc<Proposer>,
    metrics: Arc<Metrics>,
    stored: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn new(node: u64, stored: BTreeMap<Vec<u8>, Vec<u8>>) -> Node {
        let local = NodeId(node);
        let proposer = Arc::new(Proposer::default());
        let metrics = Arc::new(Metrics::default());
        let (mut applier, _, _) = Applier::new(
            local,
            Machine::new(local, Arc::default(), 1 << 20),
            proposer.clone(),
            Router::new(local, Arc::default(), Arc::new(Outboxes::default())),
            Arc::default(),
            Arc::new(Clock::new(local)),
            metrics.clone(),
        );
        applier.restored(&stored, LogIndex(0));
        proposer.begin(INCARNATION);
        Node {
            applier,
            proposer,
            metrics,
            stored,
        }
    }

    /// Applies an entry; whether its state is to be hashed.
    fn apply(&mut self, index: u64, entry: &Bytes) -> bool {
        let mut tables = Tables::new(&self.stored);
        self.applier
            .apply(LogIndex(index), entry.clone(), &mut tables);
        let is_looked_at = self.applier.look().is_some();
        for (key, change) in tables.into_changes() {
            match change {
                Change::Put(value) | Change::New(value) => self.stored.insert(key, value.to_vec()),
                Change::Delete => self.stored.remove(&key),
            };
        }
        self.applier.committed(LogIndex(index));
        is_looked_at
    }

    fn hash(&self) -> Bytes {
        hash_tables(&self.stored, &mut |_| true).expect("nobody ends it")
    }
}

/// An entry with one proposal.
fn entry(node: u64, sequence: u64, kind: Kind) -> Bytes {
    let command = command::Command { kind: Some(kind) };
    let proposal = command::Proposal {
        node,
        incarnation: INCARNATION.0,
        sequence,
        commands: command.encode_length_delimited_to_vec().into(),
        refused: false,
    };
    let batch = command::Batch {
        stamp_ms: 1_000,
        proposals: vec![proposal],
        term: 1,
    };
    batch.encode_to_vec().into()
}

/// What three nodes, the second of which has a row of its own, have stored when a round begins, and the entries of the
/// round.
fn round() -> (Vec<Node>, Vec<Bytes>) {
    let tampered = BTreeMap::from([(vec![0x17, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1], Vec::new())]);
    let stored = [BTreeMap::new(), tampered, BTreeMap::new()];
    let mut nodes: Vec<Node> = (1..)
        .zip(stored)
        .map(|(id, rows)| Node::new(id, rows))
        .collect();
    let begin = command::HashState {
        voters: vec![1, 2, 3],
    };
    let mut entries = vec![entry(1, 1, Kind::HashState(begin))];
    for node in &mut nodes {
        assert!(node.apply(1, &entries[0]), "the state is hashed");
    }
    for (sequence, id) in [(2, 1), (1, 2), (1, 3)] {
        let found = command::StateHash {
            index: 1,
            tables: nodes[id - 1].hash(),
        };
        entries.push(entry(id as u64, sequence, Kind::StateHash(found)));
    }
    (nodes, entries)
}

#[test]
fn the_one_that_differs_stops() {
    let (mut nodes, entries) = round();
    for (index, entry) in (2..).zip(&entries[1..]) {
        for node in &mut nodes {
            assert_eq!(node.applier.diverged(), None, "not yet");
            assert!(!node.apply(index, entry));
        }
    }
    for (id, node) in (1..).zip(&mut nodes) {
        let why = node.applier.diverged();
        assert_eq!(why.is_some(), id == 2, "node {id}: {why:?}");
        let tables = why.unwrap_or_else(|| "0x17".to_owned());
        assert!(tables.contains("0x17"), "{tables}");
        assert_eq!(node.metrics.state_differences.get(), 1);
        assert_eq!(node.metrics.state_disputed.get(), 0);
    }
}

/// A node that starts anew finds in the log what its former process has said.
#[test]
fn what_a_former_process_has_said_stops_nobody() {
    let (mut nodes, entries) = round();
    nodes[1].proposer.begin(Incarnation(INCARNATION.0 + 1));
    for (index, entry) in (2..).zip(&entries[1..]) {
        nodes[1].apply(index, entry);
    }
    assert_eq!(nodes[1].applier.diverged(), None);
}

/// Whoever goes by what it is told must not be told of what follows a gap.
#[test]
fn after_a_snapshot_connections_hear_of_nothing_but_their_end() {
    let mut node = Node::new(1, BTreeMap::new());
    let limits = OutboxLimits::of(1_000);
    let mailbox = Mailbox::new(ConnectionId(7), Version::V5, u32::MAX, 0, limits);
    let router = node.applier.router.clone();
    router.register(mailbox.clone());
    node.applier.restored(&node.stored, LogIndex(9));
    let change = DesiredChanged {
        connection: mailbox.connection,
        version: 2,
        body: "{}".into(),
        before: Default::default(),
        after: Default::default(),
    };
    router.notify_desired(change, &mut WakeList::default());
    router.post(
        mailbox.connection,
        Item::SubscriptionEffective(1),
        &mut WakeList::default(),
    );
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    assert!(contents.desired.is_empty());
    let items = contents.take_items();
    assert!(
        matches!(items[..], [Item::End(End::Unavailable)]),
        "{items:?}"
    );
}
