//! The state store's cache of metadata is seen in nothing but speed.

use std::sync::Arc;

use proptest::prelude::*;

use super::{NODE, Replica};
use crate::base::hlc::{Hlc, NodeName};
use crate::base::proto::command::command::Kind;
use crate::machine::Machine;
use crate::machine::store::{RequestIdentity, to_command};
use crate::store::fingerprint::Fingerprint;
use crate::store::{Condition, Quota, Write, WriteAction};

#[derive(Clone, Debug)]
enum Step {
    /// Key and value; condition 0 to 2; expiry; fencing token's counter.
    Set(u8, u8, u8, Option<u16>, Option<u32>),
    Delete(u8, Option<u32>),
    /// Key and value.
    DeleteValue(u8, u8),
    Pass(u16),
    /// Of one of the replicas.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0u8..4;
    let token = || prop::option::weighted(0.1, 0u32..3);
    let expiry = prop::option::weighted(0.3, 1u16..2_000);
    let step = prop_oneof![
        8 => (key(), 0u8..3, 0u8..3, expiry, token())
            .prop_map(|(key, value, condition, expiry, token)| Step::Set(key, value, condition, expiry, token)),
        2 => (key(), token()).prop_map(|(key, token)| Step::Delete(key, token)),
        1 => (key(), 0u8..3).prop_map(|(key, value)| Step::DeleteValue(key, value)),
        2 => (0u16..2_000).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

/// The `number`th request: in no other is the correlation data the same.
fn request(number: usize, key: u8, action: WriteAction<'_>, token: Option<u32>) -> Kind {
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

fn commands(number: usize, step: &Step) -> Vec<Kind> {
    let value = |value: u8| vec![value; usize::from(value) * 4];
    match *step {
        Step::Set(key, of, condition, expiry, token) => {
            let action = WriteAction::Set {
                value: &value(of),
                condition: [Condition::None, Condition::Nx, Condition::Nex][usize::from(condition)],
                expire_ms: expiry.map(u64::from),
            };
            vec![request(number, key, action, token)]
        }
        Step::Delete(key, token) => vec![request(number, key, WriteAction::Del, token)],
        Step::DeleteValue(key, of) => {
            let action = WriteAction::VDel { value: &value(of) };
            vec![request(number, key, action, None)]
        }
        Step::Pass(_) | Step::Restart => Vec::new(),
    }
}

/// A replica whose cache has so many bytes.
fn replica(bytes: usize) -> Replica {
    let mut replica = Replica::new();
    replica.machine = Machine::new(NODE, Arc::default(), bytes);
    replica.machine.restore(&replica.stored);
    replica
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// One has no cache, one throws it away now and then, and one keeps it.
    #[test]
    fn replies_and_rows_are_the_same_with_and_without(steps in steps()) {
        let mut replicas = [replica(0), replica(1 << 20), replica(1 << 20)];
        for (number, step) in steps.iter().enumerate() {
            if let Step::Restart = step {
                replicas[1].restart();
            }
            let replies = replicas.each_mut().map(|replica| {
                if let Step::Pass(ms) = step {
                    replica.now += u64::from(*ms);
                }
                format!("{:?}", replica.run(commands(number, step)))
            });
            let [without, others @ ..] = &replicas;
            for (other, reply) in others.iter().zip(&replies[1..]) {
                prop_assert_eq!(&replies[0], reply);
                prop_assert_eq!(&without.stored, &other.stored);
            }
        }
    }
}

#[test]
fn a_key_that_was_written_lately_is_not_read_to_be_written_again() {
    let reads = |bytes| {
        let mut replica = replica(bytes);
        let set = || WriteAction::Set {
            value: b"v",
            condition: Condition::None,
            expire_ms: None,
        };
        replica.run(vec![request(1, 1, set(), None)]);
        replica.run(vec![request(2, 1, set(), None)]);
        replica.operations
    };
    assert_eq!(reads(0) - reads(1 << 20), 1);
}
