//! Proposals: applied once and in order, refused, and the same on all replicas.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use super::{INCARNATION, NODE, Replica, close, open, proposal, set, with_will};
use crate::base::ids::{CLUSTER, Incarnation, LogIndex};
use crate::base::proto::command::{self, command::Kind};
use crate::machine::ApplyError;
use crate::machine::effect::{Output, Reply, Skipped};
use crate::machine::schema::{self, Table as _};
use crate::machine::tables::Tables;
use crate::store::Condition;

#[test]
fn a_proposal_is_applied_once_and_in_order() {
    let mut replica = Replica::new();
    let second = |correlation: &[u8]| {
        proposal(
            NODE,
            INCARNATION,
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
    let outputs = replica.apply(vec![proposal(NODE, INCARNATION, 4, Vec::new())]);
    assert!(
        matches!(outputs[..], [Output::ProposalGap { expected: 3, .. }]),
        "{outputs:?}"
    );
    let outputs = replica.apply(vec![proposal(NODE, Incarnation(6), 1, Vec::new())]);
    assert!(
        matches!(
            outputs[..],
            [Output::IncarnationRefused {
                known: INCARNATION,
                ..
            }]
        ),
        "{outputs:?}"
    );
}

#[test]
fn an_unknown_command_stops_the_replica() {
    let mut replica = Replica::new();
    let unknown = command::Proposal {
        // Field 999 with an empty message.
        commands: vec![3u8, 0xba, 0x3e, 0].into(),
        ..proposal(NODE, INCARNATION, 2, Vec::new())
    };
    let entry = command::Batch {
        stamp_ms: 1,
        proposals: vec![unknown],
        term: 1,
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
fn what_cannot_be_decoded_does_nothing_and_is_answered() {
    let mut replica = Replica::new();
    let set = |key: &[u8]| Kind::StoreWrite(set(key, b"v", Condition::None, None, key));
    let mut damaged = proposal(NODE, INCARNATION, 2, vec![set(b"a")]);
    // No kind, another type of field, then a command that is whole, and a length that is none.
    let whole = proposal(NODE, INCARNATION, 2, vec![set(b"b")]).commands;
    let parts: [&[u8]; 4] = [&damaged.commands, &[0, 2, 0x08, 0], &whole, &[9, 1]];
    damaged.commands = parts.concat().into();
    let outputs = replica.apply(vec![damaged]);
    let replies = outputs.iter().filter_map(|output| match output {
        Output::Reply { reply, .. } => Some(matches!(reply, Reply::Undecodable)),
        _ => None,
    });
    assert_eq!(
        replies.collect::<Vec<_>>(),
        [false, true, true, false, true],
        "{outputs:?}"
    );
    let skipped = outputs.iter().filter(|output| {
        let expected = Skipped::Command { node: NODE };
        matches!(output, Output::Skipped { what, .. } if *what == expected)
    });
    assert_eq!(skipped.count(), 3);
    assert!(
        matches!(
            outputs[outputs.len() - 2..],
            [
                Output::ProposalRefused { sequence: 2, .. },
                Output::ProposalApplied { sequence: 2, .. }
            ]
        ),
        "its sequence is used up: {outputs:?}"
    );
    // What the leader has refused.
    let refused = command::Proposal {
        refused: true,
        ..proposal(NODE, INCARNATION, 3, Vec::new())
    };
    let outputs = replica.apply(vec![refused]);
    assert!(
        matches!(
            outputs[..],
            [
                Output::ProposalRefused { sequence: 3, .. },
                Output::ProposalApplied { sequence: 3, .. }
            ]
        ),
        "{outputs:?}"
    );
}

/// A proposal's commands are decoded in groups, and the keys of a group's writes are looked up together, whatever
/// stands between them: each is carried out as if it had come alone.
#[test]
fn a_command_does_the_same_in_a_long_proposal_and_alone() {
    let write = |number: u32, condition, key: u32| {
        let (key, value) = (key.to_be_bytes(), number.to_be_bytes());
        Kind::StoreWrite(set(
            &key,
            &value,
            condition,
            None,
            &(number / 2).to_be_bytes(),
        ))
    };
    let bytes = |kind| proposal(NODE, INCARNATION, 0, vec![kind]).commands;
    // Of the writes some are sent again, and some replace what a write right before has written. A large one ends its
    // group.
    let commands: Vec<Bytes> = (0..1_000_u32)
        .map(|number| match number % 7 {
            0 => Bytes::from_static(&[2, 0x08, 0]),
            1 => bytes(Kind::Nothing(command::Nothing {})),
            2 if number % 70 == 2 => {
                let value = vec![7; 70_000];
                let key = number.to_be_bytes();
                let large = set(&key, &value, Condition::None, None, &key);
                bytes(Kind::StoreWrite(large))
            }
            3 => bytes(write(number, Condition::Nx, number % 40)),
            _ => bytes(write(number, Condition::None, number % 30)),
        })
        .collect();
    let replies = |outputs: Vec<Output>| {
        let replies = outputs.into_iter().filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(format!("{reply:?}")),
            _ => None,
        });
        replies.collect::<Vec<_>>()
    };
    let (mut together, mut alone) = (Replica::new(), Replica::new());
    let of = |sequence, commands: Bytes| command::Proposal {
        commands,
        ..proposal(NODE, INCARNATION, sequence, Vec::new())
    };
    let all: Vec<u8> = commands.iter().flatten().copied().collect();
    let of_all = replies(together.apply(vec![of(2, all.into())]));
    let each = (2..).zip(commands).map(|(sequence, one)| of(sequence, one));
    // In one entry, too: versions are made of its time.
    let of_each = replies(alone.apply(each.collect()));
    assert_eq!(of_all.len(), 1_000);
    assert_eq!(of_all, of_each);
    let records = |replica: &Replica| {
        let rows = replica.stored.clone().into_iter();
        rows.filter(|(key, _)| key[0] == schema::Record::ORDINAL)
            .collect::<BTreeMap<_, _>>()
    };
    assert!(records(&together).len() > 40);
    assert_eq!(records(&together), records(&alone));
}

#[test]
fn an_entry_that_is_no_batch_does_nothing() {
    let mut replica = Replica::new();
    let mut tables = Tables::new(&replica.stored);
    let entry = b"no batch".to_vec().into();
    let applied = replica.machine.apply(LogIndex(9), entry, &mut tables);
    assert!(applied.is_ok() && tables.into_changes().is_empty());
    let outputs = replica.machine.take_outputs();
    assert!(
        matches!(
            outputs[..],
            [Output::Skipped {
                index: LogIndex(9),
                what: Skipped::Entry
            }]
        ),
        "{outputs:?}"
    );
}

#[test]
fn a_node_that_is_declared_dead_loses_its_connections_and_its_incarnation() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    let down = Kind::NodeDown(command::NodeDown {
        node: NODE.0,
        incarnation: INCARNATION.0,
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
                incarnation: INCARNATION
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
                    ..Default::default()
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

#[test]
fn a_node_says_that_its_disk_is_low_and_a_new_incarnation_says_it_again() {
    let mut replica = Replica::new();
    let low = |low| Kind::NodeDisk(command::NodeDisk { low });
    let outputs = replica.run(vec![low(true)]);
    let tells = |output: &Output| matches!(output, Output::NodesChanged);
    assert!(outputs.iter().any(tells), "{outputs:?}");
    replica.run(Vec::new());
    replica.restart();
    assert_eq!(replica.machine.low_disks().collect::<Vec<_>>(), [NODE]);
    replica.apply(vec![proposal(NODE, Incarnation(8), 1, Vec::new())]);
    assert_eq!(replica.machine.low_disks().count(), 0);
    replica.apply(vec![proposal(NODE, Incarnation(8), 2, vec![low(true)])]);
    replica.apply(vec![proposal(NODE, Incarnation(8), 3, vec![low(false)])]);
    assert_eq!(replica.machine.low_disks().count(), 0);
}
