//! The state store's cache of metadata is seen in nothing but speed, and on which node a connection is that watches a
//! key in nothing but who is told.

use std::sync::Arc;

use proptest::prelude::*;

use super::{NODE, Replica, close, open};
use crate::base::hlc::{Hlc, NodeName};
use crate::base::ids::NodeId;
use crate::base::proto::command::KeyNotify;
use crate::base::proto::command::command::Kind;
use crate::machine::Machine;
use crate::machine::batch::Budget;
use crate::machine::store::{RequestIdentity, to_command};
use crate::store::fingerprint::Fingerprint;
use crate::store::{Condition, Quota, Write, WriteAction};

#[derive(Clone, Debug)]
enum Request {
    /// Key and value; condition 0 to 2; expiry; fencing token's counter.
    Set(u8, u8, u8, Option<u16>, Option<u32>),
    Delete(u8, Option<u32>),
    /// Key and value.
    DeleteValue(u8, u8),
    /// Connection and key; whether it ends.
    Watch(u8, u8, bool),
    /// A connection ends with all that it watches.
    Close(u8),
}

#[derive(Clone, Debug)]
enum Turn {
    /// In one batch.
    Requests(Vec<Request>),
    Pass(u16),
    /// Of one of the replicas.
    Restart,
    /// Another one gets no log from now on.
    FallBehind,
    /// It gets a snapshot.
    CatchUp,
}

/// So small that most of what is due is carried out in later batches.
const LATE: Budget = Budget {
    row_operations: 8,
    items_at_least: 1,
    overdraft: 0,
    queues_at_least: 1,
    looked_up_anew: 1_000,
};

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let key = || 0u8..4;
    let token = || prop::option::weighted(0.1, 0u32..3);
    let expiry = prop::option::weighted(0.3, 1u16..2_000);
    let request = prop_oneof![
        8 => (key(), 0u8..3, 0u8..3, expiry, token()).prop_map(
            |(key, value, condition, expiry, token)| Request::Set(key, value, condition, expiry, token)
        ),
        2 => (key(), token()).prop_map(|(key, token)| Request::Delete(key, token)),
        1 => (key(), 0u8..3).prop_map(|(key, value)| Request::DeleteValue(key, value)),
        2 => (1u8..4, key(), prop::bool::weighted(0.2))
            .prop_map(|(connection, key, stop)| Request::Watch(connection, key, stop)),
        1 => (1u8..4).prop_map(Request::Close),
    ];
    let turn = prop_oneof![
        12 => prop::collection::vec(request, 1..4).prop_map(Turn::Requests),
        3 => (0u16..2_000).prop_map(Turn::Pass),
        // Longer than tombstones stay.
        1 => Just(Turn::Pass(u16::MAX)),
        1 => Just(Turn::Restart),
        1 => Just(Turn::FallBehind),
        1 => Just(Turn::CatchUp),
    ];
    prop::collection::vec(turn, 0..60)
}

/// The `number`th request: in no other is the correlation data the same.
fn store_write(number: usize, key: u8, action: WriteAction<'_>, token: Option<u32>) -> Kind {
    let hlc = |wall_ms, counter| Hlc {
        wall_ms,
        counter,
        node: NodeName::new("client").expect("a name"),
    };
    let write = Write {
        key: &[key],
        action,
        timestamp: Some(hlc(1_000, 0)),
        fencing_token: token.map(|counter| hlc(500, counter)),
    };
    let identity = RequestIdentity {
        correlation_data: &number.to_be_bytes(),
        remember_s: 60,
        fingerprint: Fingerprint {
            stable: [1; 16],
            legacy: 1,
        },
    };
    // Some values and no more.
    let quota = Quota {
        max_keys: 3,
        max_bytes: 30,
    };
    Kind::StoreWrite(to_command(&write, "client", &identity, quota))
}

fn command(number: usize, request: &Request) -> Kind {
    let value = |value: u8| vec![value; usize::from(value) * 4];
    match *request {
        Request::Set(key, of, condition, expiry, token) => {
            let action = WriteAction::Set {
                value: &value(of),
                condition: [Condition::None, Condition::Nx, Condition::Nex][usize::from(condition)],
                expire_ms: expiry.map(u64::from),
            };
            store_write(number, key, action, token)
        }
        Request::Delete(key, token) => store_write(number, key, WriteAction::Del, token),
        Request::DeleteValue(key, of) => {
            let action = WriteAction::VDel { value: &value(of) };
            store_write(number, key, action, None)
        }
        Request::Watch(connection, key, stop) => Kind::KeyNotify(KeyNotify {
            client_id: connection.to_string(),
            connection: connection.into(),
            key: vec![key].into(),
            stop,
            ..Default::default()
        }),
        Request::Close(connection) => close(&connection.to_string(), connection.into()),
    }
}

/// A replica whose cache has so many bytes.
fn replica(bytes: usize) -> Replica {
    replica_of(NODE, bytes)
}

fn replica_of(node: NodeId, bytes: usize) -> Replica {
    let mut replica = Replica::new();
    replica.machine = Machine::new(node, Arc::default(), bytes);
    replica.machine.restore(&replica.stored);
    replica
}

/// The running machine of `replica` gets the state of another one.
fn install(replica: &mut Replica, of: &Replica) {
    replica.stored = of.stored.clone();
    replica.machine.restore(&replica.stored);
    (replica.index, replica.sequence) = (of.index, of.sequence);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// One has no cache, one keeps everything, one forgets soon; one is started again now and then, and one falls
    /// behind and gets snapshots.
    #[test]
    fn replies_and_rows_are_the_same_whatever_is_cached(turns in turns(), is_late in any::<bool>()) {
        let mut replicas = [0, 1 << 20, 0, 1 << 20, 1 << 20].map(replica);
        replicas[2].machine.parts.store.forget_soon();
        let mut elsewhere = replica_of(NodeId(NODE.0 + 1), 0);
        if is_late {
            replicas.iter_mut().for_each(|replica| replica.set_budget(LATE));
            elsewhere.set_budget(LATE);
        }
        // The connections that watch keys.
        for connection in 1..4 {
            let open = || vec![Kind::OpenSession(open(&connection.to_string(), connection))];
            replicas.iter_mut().for_each(|replica| drop(replica.run(open())));
            elsewhere.run(open());
        }
        let mut number = 0;
        let mut is_behind = false;
        for turn in &turns {
            let mut requests = &[][..];
            match turn {
                Turn::Requests(of_turn) => requests = of_turn,
                Turn::Pass(ms) => {
                    let all = replicas.iter_mut().chain([&mut elsewhere]);
                    all.for_each(|replica| replica.now += u64::from(*ms));
                }
                Turn::Restart => replicas[3].restart(),
                Turn::FallBehind => is_behind = true,
                Turn::CatchUp => {
                    let [from, .., behind] = &mut replicas;
                    install(behind, from);
                    is_behind = false;
                }
            }
            let up_to_date = replicas.len() - usize::from(is_behind);
            let outputs = replicas[..up_to_date].iter_mut().map(|replica| {
                let numbered = (number..).zip(requests);
                let commands = numbered.map(|(number, request)| command(number, request));
                format!("{:?}", replica.run(commands.collect()))
            });
            let outputs: Vec<_> = outputs.collect();
            let numbered = (number..).zip(requests);
            let commands = numbered.map(|(number, request)| command(number, request));
            elsewhere.run(commands.collect());
            prop_assert_eq!(&elsewhere.stored, &replicas[0].stored);
            number += requests.len();
            for (output, replica) in outputs.iter().zip(&replicas) {
                prop_assert_eq!(output, &outputs[0]);
                prop_assert_eq!(&replica.stored, &replicas[0].stored);
            }
        }
    }
}

#[test]
fn a_key_that_was_written_lately_is_not_read_to_be_written_again() {
    let reads = |bytes| {
        let mut replica = replica(bytes);
        let request = Request::Set(1, 1, 0, None, None);
        replica.run(vec![command(1, &request)]);
        replica.run(vec![command(2, &request)]);
        replica.operations
    };
    assert_eq!(reads(0) - reads(1 << 20), 1);
}

/// No client gets it so far, but a peer does; a row that can't be read would end every replica.
#[test]
fn a_token_that_no_row_can_hold_is_refused() {
    let mut replica = replica(1 << 20);
    for number in 0..2 {
        let request = Request::Set(1, 1, 0, None, Some(1 << 31));
        let outputs = format!("{:?}", replica.run(vec![command(number, &request)]));
        assert!(outputs.contains("MalformedTimestamp"), "{outputs}");
    }
}
