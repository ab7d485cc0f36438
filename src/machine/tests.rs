//! The machine over a map: what a batch does, that it does it once, and that memory is only derived.

use std::collections::BTreeMap;

use prost::Message as _;

use super::effect::{self, EndReason};
use super::store::{RequestIdentity, to_command};
use super::tables::Change;
use super::*;
use crate::base::hlc::{Hlc, NodeName};
use crate::base::proto::command::command::Kind;
use crate::store::{Condition, Quota, Reply as StoreReply, Write, WriteAction};

pub(super) const NODE: NodeId = NodeId(1);
pub(super) const LIFE: Incarnation = Incarnation(7);

pub(super) struct Replica {
    pub(super) machine: Machine,
    pub(super) stored: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    sequence: u64,
    now: u64,
}

impl Replica {
    pub(super) fn new() -> Replica {
        let machine = Machine::new(NODE, Arc::default());
        let mut replica = Replica {
            machine,
            stored: BTreeMap::new(),
            index: 0,
            sequence: 0,
            now: 1_000_000,
        };
        replica.run(Vec::new());
        replica
    }

    /// Applies a batch as it is, and writes its changes.
    pub(super) fn apply(&mut self, proposals: Vec<command::Proposal>) -> Vec<Output> {
        self.index += 1;
        let entry = command::Batch {
            stamp_ms: self.now,
            proposals,
        }
        .encode_to_vec();
        let mut tables = Tables::new(&self.stored);
        self.machine
            .apply(LogIndex(self.index), entry.into(), &mut tables)
            .expect("a batch");
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
    pub(super) fn run(&mut self, kinds: Vec<Kind>) -> Vec<Output> {
        self.sequence += 1;
        self.apply(vec![proposal(NODE, LIFE, self.sequence, kinds)])
    }

    pub(super) fn reply(&mut self, kind: Kind) -> Reply {
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

    pub(super) fn present(&mut self, command: command::OpenSession) -> bool {
        match self.reply(Kind::OpenSession(command)) {
            Reply::Opened { present, .. } => present,
            other => panic!("{other:?}"),
        }
    }

    /// Time passes, and the leader notices what is due.
    pub(super) fn pass(&mut self, ms: u64) -> Vec<Output> {
        self.now += ms;
        self.apply(Vec::new())
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
        };
        let kinds = vec![Kind::OpenSession(watcher), Kind::Subscribe(subscribe)];
        self.apply(vec![proposal(NodeId(2), LIFE, 1, kinds)]);
    }

    /// Everything in memory is thrown away and derived from what is stored.
    pub(super) fn restart(&mut self) {
        self.machine = Machine::new(NODE, Arc::default());
        self.machine.restore(&self.stored);
    }
}

pub(super) fn proposal(
    node: NodeId,
    life: Incarnation,
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
        incarnation: life.0,
        sequence,
        commands: commands.into(),
    }
}

pub(super) fn open(client_id: &str, connection: u64) -> command::OpenSession {
    command::OpenSession {
        client_id: client_id.to_owned(),
        connection,
        expiry_interval_s: 100,
        protocol_level: 5,
        ..Default::default()
    }
}

pub(super) fn close(client_id: &str, connection: u64) -> Kind {
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
        fingerprint: 1,
    };
    to_command(&write, "client", &identity, Quota::UNLIMITED)
}

fn wills(outputs: &[Output]) -> usize {
    outputs
        .iter()
        .filter(|output| matches!(output, Output::Publish { .. }))
        .count()
}

#[test]
fn a_proposal_is_applied_once_and_in_order() {
    let mut replica = Replica::new();
    let second = |correlation: &[u8]| {
        proposal(
            NODE,
            LIFE,
            2,
            vec![Kind::StoreWrite(set(
                b"k",
                b"v",
                Condition::Nx,
                None,
                correlation,
            ))],
        )
    };
    let outputs = replica.apply(vec![second(b"1"), second(b"2")]);
    let replies = outputs
        .iter()
        .filter(|output| matches!(output, Output::Reply { .. }))
        .count();
    assert_eq!(replies, 1, "the copy is passed over: {outputs:?}");
    let outputs = replica.apply(vec![proposal(NODE, LIFE, 4, Vec::new())]);
    assert!(
        matches!(outputs[..], [Output::ProposalGap { expected: 3, .. }]),
        "{outputs:?}"
    );
    let outputs = replica.apply(vec![proposal(NODE, Incarnation(6), 1, Vec::new())]);
    assert!(
        matches!(
            outputs[..],
            [Output::IncarnationRefused { known: LIFE, .. }]
        ),
        "{outputs:?}"
    );
}

#[test]
fn an_unknown_command_stops_the_replica() {
    let mut replica = Replica::new();
    let unknown = command::Proposal {
        commands: vec![0u8].into(),
        ..proposal(NODE, LIFE, 2, Vec::new())
    };
    let entry = command::Batch {
        stamp_ms: 1,
        proposals: vec![unknown],
    }
    .encode_to_vec();
    let applied = replica.machine.apply(
        LogIndex(9),
        entry.into(),
        &mut Tables::new(&BTreeMap::new()),
    );
    assert!(matches!(
        applied,
        Err(ApplyError::UnknownCommand(LogIndex(9)))
    ));
}

#[test]
fn a_session_is_found_again_until_its_expiry() {
    let mut replica = Replica::new();
    assert!(!replica.present(open("a", 1)));
    replica.run(vec![close("a", 1)]);
    replica.pass(99_999);
    replica.restart();
    assert!(
        replica.present(open("a", 2)),
        "expiry counts from the end of the connection"
    );
    replica.pass(1_000_000);
    replica.run(vec![close("a", 2)]);
    replica.pass(100_000);
    assert!(!replica.present(open("a", 3)), "expired");
    assert!(!replica.present(command::OpenSession {
        clean_start: true,
        ..open("a", 4)
    }));
}

#[test]
fn a_second_connection_takes_the_session_over() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    let outputs = replica.run(vec![Kind::OpenSession(open("a", 2))]);
    let ended = Output::End {
        connection: ConnectionId(1),
        reason: EndReason::TakenOver,
    };
    assert!(
        outputs
            .iter()
            .any(|output| format!("{output:?}") == format!("{ended:?}")),
        "{outputs:?}"
    );
    let late = replica.reply(close("a", 1));
    assert!(
        matches!(late, Reply::NotOwner),
        "the old connection has nothing to say any more"
    );
    assert!(replica.present(open("a", 3)));
}

#[test]
fn subscriptions_outlive_memory_and_end_with_their_session() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    let subscription = command::Subscription {
        filter: "x/+".to_owned(),
        qos: 1,
        ..Default::default()
    };
    let subscribe = |connection| {
        Kind::Subscribe(command::Subscribe {
            client_id: "a".to_owned(),
            connection,
            subscriptions: vec![subscription.clone()],
        })
    };
    assert!(
        matches!(&replica.reply(subscribe(1)), Reply::Subscribed { new, .. } if new == &[true])
    );
    assert!(
        matches!(&replica.reply(subscribe(1)), Reply::Subscribed { new, .. } if new == &[false])
    );
    assert!(matches!(replica.reply(subscribe(9)), Reply::NotOwner));
    replica.restart();
    let matches = |replica: &Replica| {
        let mut count = 0;
        replica
            .machine
            .subscriptions
            .for_each_match("x/y", |_, _| count += 1);
        count
    };
    assert_eq!(matches(&replica), 1);
    replica.run(vec![close("a", 1)]);
    replica.pass(100_000);
    assert_eq!(matches(&replica), 0);
}

#[test]
fn a_key_expires_when_its_time_is_over_and_watchers_are_told() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    replica.store(set(b"k", b"v", Condition::None, Some(500), b"1"));
    let watch = command::KeyNotify {
        client_id: "a".to_owned(),
        connection: 1,
        key: "k".into(),
        stop: false,
    };
    assert!(matches!(
        replica.reply(Kind::KeyNotify(watch)),
        Reply::Store(StoreReply::Notify)
    ));
    replica.restart();
    assert!(replica.pass(499).is_empty());
    let outputs = replica.pass(1);
    assert!(
        matches!(
            &outputs[..],
            [Output::Notify {
                connection: ConnectionId(1),
                change: effect::Change::Delete { .. },
                ..
            }]
        ),
        "{outputs:?}"
    );
    assert!(matches!(
        replica.store(set(b"k", b"w", Condition::Nx, None, b"2")),
        StoreReply::Set { .. }
    ));
    replica.run(vec![close("a", 1)]);
    let outputs = replica.run(vec![Kind::StoreWrite(set(
        b"k",
        b"x",
        Condition::None,
        None,
        b"3",
    ))]);
    assert!(
        !outputs
            .iter()
            .any(|output| matches!(output, Output::Notify { .. })),
        "watching ends with the connection"
    );
}

#[test]
fn a_request_that_comes_again_is_answered_as_the_first_time() {
    let mut replica = Replica::new();
    let request = || set(b"k", b"v", Condition::Nx, None, b"same");
    let first = replica.store(request());
    assert!(matches!(first, StoreReply::Set { .. }));
    replica.restart();
    assert_eq!(replica.store(request()), first);
    let other = command::StoreWrite {
        fingerprint: 2,
        ..request()
    };
    assert!(
        matches!(replica.store(other), StoreReply::NotSet { .. }),
        "another request with the same correlation data"
    );
    let mut batch = vec![Kind::StoreWrite(set(b"l", b"v", Condition::Nx, None, b"twice")); 2];
    batch.push(Kind::Nothing(command::Nothing {}));
    let outputs = replica.run(batch);
    let answered = |output: &&Output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::Store(StoreReply::Set { .. }),
                ..
            }
        )
    };
    assert_eq!(
        outputs.iter().filter(answered).count(),
        2,
        "also within one batch: {outputs:?}"
    );
    replica.pass(60_000);
    assert_eq!(replica.machine.remembered_replies(), 0);
    assert!(
        matches!(replica.store(request()), StoreReply::NotSet { .. }),
        "forgotten after its time"
    );
}

#[test]
fn a_node_that_is_declared_dead_loses_its_connections_and_its_life() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    let down = Kind::NodeDown(command::NodeDown {
        node: NODE.0,
        incarnation: LIFE.0,
    });
    let outputs = replica.apply(vec![proposal(
        CLUSTER,
        Incarnation(0),
        0,
        vec![down.clone()],
    )]);
    assert!(
        matches!(
            outputs[..],
            [Output::NodeEnded {
                node: NODE,
                incarnation: LIFE
            }]
        ),
        "{outputs:?}"
    );
    assert!(
        replica
            .apply(vec![proposal(CLUSTER, Incarnation(0), 0, vec![down])])
            .is_empty(),
        "once"
    );
    let outputs = replica.run(Vec::new());
    assert!(
        matches!(outputs[..], [Output::IncarnationRefused { .. }]),
        "{outputs:?}"
    );
    assert_eq!(replica.machine.live_nodes().count(), 0);
    replica.apply(vec![proposal(
        NODE,
        Incarnation(8),
        1,
        vec![Kind::OpenSession(open("a", 1))],
    )]);
    assert_eq!(
        replica.machine.live_nodes().collect::<Vec<_>>(),
        [(NODE, Incarnation(8))]
    );
}

#[test]
fn a_will_goes_out_once_after_an_abnormal_end() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.present(with_will(open("a", 1), 0));
    assert_eq!(wills(&replica.run(vec![close("a", 1)])), 1);
    assert_eq!(wills(&replica.pass(200_000)), 0);
    replica.present(with_will(open("a", 2), 0));
    let graceful = command::CloseSession {
        client_id: "a".to_owned(),
        connection: 2,
        discard_will: true,
        ..Default::default()
    };
    assert_eq!(
        wills(&replica.run(vec![Kind::CloseSession(graceful)])),
        0,
        "[MQTT-3.14.4-3]"
    );
    assert_eq!(wills(&replica.pass(200_000)), 0);
}

#[test]
fn a_delayed_will_waits_and_is_cancelled_by_a_resume() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.present(with_will(open("a", 1), 10));
    assert_eq!(wills(&replica.run(vec![close("a", 1)])), 0);
    replica.restart();
    assert_eq!(wills(&replica.pass(9_999)), 0);
    assert!(
        replica.present(with_will(open("a", 2), 10)),
        "[MQTT-3.1.3-9]"
    );
    assert_eq!(wills(&replica.pass(10_000)), 0);
    replica.run(vec![close("a", 2)]);
    assert_eq!(wills(&replica.pass(10_000)), 1);
}

#[test]
fn a_delayed_will_goes_out_when_its_session_ends_first() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.present(with_will(open("a", 1), 1_000));
    replica.run(vec![close("a", 1)]);
    assert_eq!(
        wills(&replica.pass(100_000)),
        1,
        "the session expires after 100 s"
    );
    assert_eq!(wills(&replica.pass(1_000_000)), 0);
    replica.present(with_will(open("b", 2), 1_000));
    let clean = command::OpenSession {
        clean_start: true,
        ..open("b", 3)
    };
    assert_eq!(wills(&replica.run(vec![Kind::OpenSession(clean)])), 1);
}

#[test]
fn replicas_agree_byte_for_byte_wherever_they_were_restarted() {
    let run = |restart_at: Option<u64>| {
        let mut replica = Replica::new();
        for step in 0..40 {
            if restart_at == Some(step) {
                replica.restart();
            }
            let client = format!("c{}", step % 3);
            let key = [b'k', (step % 5) as u8];
            replica.run(vec![
                Kind::OpenSession(with_will(open(&client, step + 1), (step % 2) as u32)),
                Kind::StoreWrite(set(
                    &key,
                    b"v",
                    Condition::Nex,
                    Some(step * 37 + 1),
                    &step.to_be_bytes(),
                )),
                Kind::KeyNotify(command::KeyNotify {
                    client_id: client.clone(),
                    connection: step + 1,
                    key: key.to_vec().into(),
                    stop: false,
                }),
            ]);
            if step % 4 == 0 {
                replica.run(vec![close(&client, step + 1)]);
            }
            replica.pass(step * 11);
        }
        replica.stored
    };
    let whole = run(None);
    for step in 0..40 {
        assert_eq!(run(Some(step)), whole, "restarted before step {step}");
    }
}
