//! Random histories of one key against a model.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Move {
    Wait(u64),
    Write {
        kind: u8,
        value: u8,
        skew: i64,
        counter: u32,
        token: Option<u64>,
        expire_ms: Option<u64>,
    },
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => (0u64..70_000).prop_map(Move::Wait),
        2 => Just(Move::Wait(1)),
        6 => (
            0u8..5,
            0u8..3,
            prop_oneof![Just(0i64), -70_000i64..61_000],
            prop_oneof![0u32..3, Just(crate::base::hlc::MAX_COUNTER)],
            prop::option::weighted(0.4, 0u64..5),
            prop::option::weighted(0.3, 1u64..50_000),
        )
            .prop_map(|(kind, value, skew, counter, token, expire_ms)| Move::Write {
                kind, value, skew, counter, token, expire_ms,
            }),
    ]
}

/// What the store says of one key, kept in the simplest way: value, token and deadline.
type Model = Option<(u8, Option<u64>, Option<u64>)>;

/// What the rules say a write must be answered with, and what the key is afterwards.
fn expected(
    model: Model,
    write: &Write<'_>,
    kind: u8,
    value: u8,
    token: Option<u64>,
    clock: Millis,
) -> (&'static str, Model) {
    if write
        .timestamp
        .as_ref()
        .is_some_and(|ts| ts.wall_ms > clock.0 + 60_000)
    {
        return ("-ERR the request timestamp", model);
    }
    if let Some((_, Some(stored), _)) = model {
        match token {
            None => return ("-ERR a fencing token", model),
            Some(sent) if sent < stored => return ("-ERR the request fencing", model),
            Some(_) => {}
        }
    }
    let deadline = match write.action {
        WriteAction::Set { expire_ms, .. } => expire_ms.map(|ms| clock.0 + ms),
        _ => None,
    };
    let written = Some((value, token, deadline));
    match (kind, model) {
        (1, Some(_)) => (":-1", model),
        (2, Some((there, ..))) if there != value => (":-1", model),
        (0..=2, _) => ("+OK", written),
        (_, None) => (":0", model),
        (4, Some((there, ..))) if there != value => (":-1", model),
        (_, Some(_)) => (":1", None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn histories_of_a_key_follow_the_rules(moves in prop::collection::vec(any_move(), 1..60)) {
        let mut key = Key::absent();
        let mut model: Model = None;
        let mut last_version: Option<Hlc> = None;
        for step in moves {
            // The machine drops a tombstone as soon as it may: versions must rise all the same.
            if let Some(KeyRow::Tombstone(tombstone)) = &key.row
                && tombstone.purge_at() <= key.clock
            {
                key.row = None;
            }
            let Move::Write { kind, value, skew, counter, token, expire_ms } = step else {
                let Move::Wait(ms) = step else {
                    unreachable!("the other kind of move")
                };
                key.clock = key.clock.plus(ms);
                let due = model.is_some_and(|(_, _, deadline)| deadline.is_some_and(|at| at <= key.clock.0));
                let seen = key.expire();
                prop_assert_eq!(seen.is_some(), due);
                if due {
                    model = None;
                    prop_assert!(seen > last_version);
                    last_version = seen;
                }
                continue;
            };
            let bytes = [value];
            let action = match kind {
                0..=2 => WriteAction::Set {
                    value: &bytes,
                    condition: [Condition::None, Condition::Nx, Condition::Nex][usize::from(kind)],
                    expire_ms,
                },
                3 => WriteAction::Del,
                _ => WriteAction::VDel { value: &bytes },
            };
            let write = Write {
                key: b"key",
                action,
                timestamp: Some(Hlc { wall_ms: key.clock.0.saturating_add_signed(skew), counter, ..hlc("0:0:c") }),
                fencing_token: token.map(|wall_ms| Hlc { wall_ms, ..hlc("0:0:c") }),
            };
            let (answer, after) = expected(model, &write, kind, value, token, key.clock);
            let before = key.row.clone();
            let reply = key.apply(&write);
            let mut payload = Vec::new();
            reply.write_payload(&mut payload);
            prop_assert!(payload.starts_with(answer.as_bytes()), "{:?} is not {answer}", reply);
            model = after;
            let there = key.row.as_ref().and_then(KeyRow::record);
            prop_assert_eq!(
                there.map(|there| (
                    there.value[0],
                    there.fencing_token.as_ref().map(|token| token.wall_ms),
                    there.expires_at.map(|at| at.0),
                )),
                model
            );
            prop_assert_eq!(key.usage.keys, u64::from(model.is_some()));
            prop_assert_eq!(key.usage.bytes, model.map_or(0, |(_, token, _)| 4 + u64::from(token.is_some())));
            if key.row == before {
                let changed = matches!(reply, Reply::Set { .. } | Reply::Deleted { .. });
                prop_assert!(!changed, "{:?} changed nothing", reply);
            } else {
                let version = key.version();
                prop_assert!(Some(&version) > last_version.as_ref(), "{version} after {last_version:?}");
                prop_assert!(Some(&version) > write.timestamp.as_ref());
                prop_assert!(version.wall_ms <= key.clock.0 + 61_000);
                last_version = Some(version);
            }
        }
    }
}
