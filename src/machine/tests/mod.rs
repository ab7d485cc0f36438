//! The machine over a map: what a batch does, that it does it once, and that memory is only derived.

mod agreement;
mod cost;
mod cost_events;
mod cost_groups;
mod cost_kinds;
mod cost_look_ups;
mod cost_queues;
mod cost_weighed;
mod damaged;
mod directory;
mod directory_golden;
mod events;
mod events_clients;
mod events_hub;
mod events_letters;
mod events_numbers;
mod events_outbox;
mod events_property;
mod events_subscriptions;
mod fan_out;
mod fan_out_order;
mod golden;
mod golden_commands;
mod golden_outputs;
mod groups;
mod hub;
mod hub_connections;
mod hub_cost;
mod hub_history;
mod hub_reported;
mod hub_twins;
mod idle;
mod limits;
mod listing;
mod proposals;
mod queues;
mod retained_limits;
mod retained_replay;
mod sessions;
mod state_hash;
mod store;
mod store_metadata;
mod version;

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;

use super::Machine;
use super::batch::Budget;
use super::effect::{Output, Reply};
use super::store::{RequestIdentity, to_command};
use super::tables::{Change, Tables};
use crate::base::hlc::{Hlc, NodeName};
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::store::fingerprint::Fingerprint;
use crate::store::{Condition, Quota, Reply as StoreReply, Write, WriteAction};

const NODE: NodeId = NodeId(1);
const INCARNATION: Incarnation = Incarnation(7);

struct Replica {
    machine: Machine,
    stored: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    sequence: u64,
    now: u64,
    /// Of the leader.
    term: u64,
    /// Row operations of the last batch.
    operations: u64,
    /// What stands for the product's budget, restarts included.
    budget: Budget,
}

impl Replica {
    fn new() -> Replica {
        let machine = Machine::new(NODE, Arc::default(), 1 << 20);
        let mut replica = Replica {
            machine,
            stored: BTreeMap::new(),
            index: 0,
            sequence: 0,
            now: 1_000_000,
            term: 1,
            operations: 0,
            budget: Budget::default(),
        };
        replica.run(Vec::new());
        replica
    }

    /// Applies a batch as it is, and writes its changes.
    fn apply(&mut self, proposals: Vec<command::Proposal>) -> Vec<Output> {
        self.index += 1;
        let entry = command::Batch {
            stamp_ms: self.now,
            proposals,
            term: self.term,
        }
        .encode_to_vec();
        let mut tables = Tables::new(&self.stored);
        self.machine
            .apply(LogIndex(self.index), entry.into(), &mut tables)
            .expect("a batch");
        self.operations = tables.operations();
        for (key, change) in tables.into_changes() {
            if matches!(change, Change::New(_)) {
                assert!(!self.stored.contains_key(&key), "{key:?} is not new");
            }
            match change.value() {
                Some(value) => self.stored.insert(key, value.to_vec()),
                None => self.stored.remove(&key),
            };
        }
        self.machine.take_outputs()
    }

    /// Applies commands as this node's next proposal.
    fn run(&mut self, kinds: Vec<Kind>) -> Vec<Output> {
        self.sequence += 1;
        self.apply(vec![proposal(NODE, INCARNATION, self.sequence, kinds)])
    }

    fn reply(&mut self, kind: Kind) -> Reply {
        let outputs = self.run(vec![kind]);
        let reply = outputs.into_iter().find_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        });
        reply.expect("one reply per command")
    }

    fn store(&mut self, write: command::StoreWrite) -> StoreReply {
        match self.reply(Kind::StoreWrite(write)) {
            Reply::Store(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn present(&mut self, command: command::OpenSession) -> bool {
        match self.reply(Kind::OpenSession(command)) {
            Reply::Opened { present, .. } => present,
            other => panic!("{other:?}"),
        }
    }

    /// Time passes, and the leader notices what is due.
    fn pass(&mut self, ms: u64) -> Vec<Output> {
        self.now += ms;
        self.apply(Vec::new())
    }

    /// Time stands still until nothing is due any more.
    fn settle(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        let mut batches = 0;
        while self.machine.next_due().0 <= self.now + 1 {
            outputs.extend(self.pass(1));
            batches += 1;
            assert!(batches < 100_000, "there is no end");
        }
        outputs
    }

    /// Batches do as much work as this allows.
    fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
        self.machine.shared.budget = budget;
    }

    /// A client of another node that is sent every will.
    fn watch_wills(&mut self) {
        let watcher = command::OpenSession {
            expiry_interval_s: 0,
            ..open("watcher", 1)
        };
        let subscribe = command::Subscribe {
            client_id: "watcher".to_owned(),
            connection: 1,
            subscriptions: vec![command::Subscription {
                filter: "will".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let kinds = vec![Kind::OpenSession(watcher), Kind::Subscribe(subscribe)];
        self.apply(vec![proposal(NodeId(2), INCARNATION, 1, kinds)]);
    }

    /// Everything in memory is thrown away and derived from what is stored.
    fn restart(&mut self) {
        self.machine = Machine::new(NODE, Arc::default(), 1 << 20);
        self.machine.restore(&self.stored);
        self.machine.shared.budget = self.budget;
    }
}

fn proposal(
    node: NodeId,
    incarnation: Incarnation,
    sequence: u64,
    kinds: Vec<Kind>,
) -> command::Proposal {
    let mut commands = Vec::new();
    for kind in kinds {
        let command = command::Command { kind: Some(kind) };
        command
            .encode_length_delimited(&mut commands)
            .expect("a Vec grows");
    }
    command::Proposal {
        node: node.0,
        incarnation: incarnation.0,
        sequence,
        commands: commands.into(),
        refused: false,
    }
}

fn open(client_id: &str, connection: u64) -> command::OpenSession {
    command::OpenSession {
        client_id: client_id.to_owned(),
        connection,
        expiry_interval_s: 100,
        protocol_level: 5,
        ..Default::default()
    }
}

fn close(client_id: &str, connection: u64) -> Kind {
    Kind::CloseSession(command::CloseSession {
        client_id: client_id.to_owned(),
        connection,
        ..Default::default()
    })
}

fn with_will(mut open: command::OpenSession, delay_s: u32) -> command::OpenSession {
    let message = command::PublishedMessage {
        topic: "will".to_owned(),
        ..Default::default()
    };
    open.will = Some(command::Will {
        message: Some(message),
        delay_s,
        ..Default::default()
    });
    open
}

fn set(
    key: &[u8],
    value: &[u8],
    condition: Condition,
    expire_ms: Option<u64>,
    correlation: &[u8],
) -> command::StoreWrite {
    let node = NodeName::new("client").expect("a name");
    let write = Write {
        key,
        action: WriteAction::Set {
            value,
            condition,
            expire_ms,
        },
        timestamp: Some(Hlc {
            wall_ms: 1_000,
            counter: 0,
            node,
        }),
        fencing_token: None,
    };
    let identity = RequestIdentity {
        correlation_data: correlation,
        remember_s: 60,
        fingerprint: Fingerprint {
            stable: [1; 16],
            legacy: 1,
        },
    };
    to_command(&write, "client", &identity, Quota::UNLIMITED)
}

fn wills(outputs: &[Output]) -> usize {
    outputs
        .iter()
        .filter(|output| matches!(output, Output::Publish { .. }))
        .count()
}
