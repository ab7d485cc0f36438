//! Reported properties: whose they are, what a patch of them does, and that one which is sent again is carried out
//! once.

use serde_json::json;

use super::hub::{create, delete, report};
use super::hub_connections::hub_open;
use super::{Replica, open};
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::Reply;
use crate::machine::hub::{HubReply, Reported};
use crate::registry::IfMatch;

impl Replica {
    fn reported(&mut self, patch: command::PatchReported) -> Reported {
        match self.hub(Kind::PatchReported(patch)) {
            HubReply::Reported(reported) => reported,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn reported_properties_are_the_owners_alone() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m")]);
    replica.present(hub_open("d", 1, 1, 1));
    replica.present(open("x", 2));
    for stranger in [
        report("d", 2, &json!({"a": 1})),
        report("d/m", 1, &json!({"a": 1})),
        report("x", 2, &json!({"a": 1})),
    ] {
        let before = replica.without_meta();
        let reply = replica.reply(Kind::PatchReported(stranger));
        assert!(matches!(reply, Reply::NotOwner), "{reply:?}");
        assert_eq!(before, replica.without_meta());
    }
    assert_eq!(
        replica.reported(report("d", 1, &json!({"a": 1}))),
        Reported::Patched(2)
    );
    assert_eq!(
        replica.reported(report("d", 1, &json!({}))),
        Reported::Patched(3)
    );
    assert_eq!(
        replica.versions("d"),
        [4, 1, 1, 3],
        "the etag does not move"
    );
    let expecting = |version| command::PatchReported {
        expected_version: Some(version),
        ..report("d", 1, &json!({"b": version}))
    };
    assert_eq!(replica.reported(expecting(2)), Reported::Precondition);
    assert_eq!(replica.reported(expecting(3)), Reported::Patched(4));
    let invalid = command::PatchReported {
        patch: vec![2, 9].into(),
        ..report("d", 1, &json!({}))
    };
    assert_eq!(replica.reported(invalid), Reported::Invalid);
    let large = report("d", 1, &json!({"": vec!["x".repeat(4096); 9]}));
    assert!(matches!(replica.reported(large), Reported::TooLarge(_)));
    assert_eq!(replica.versions("d"), [5, 1, 1, 4]);
    let active = replica.read_twin("d").expect("a twin").presence();
    assert_eq!(active.expect("sections").active.0, replica.now);
}

/// A patch with QoS 1, whose fingerprint is this number.
fn sent(dup: bool, fingerprint: u64, connection: u64) -> command::PatchReported {
    command::PatchReported {
        fingerprint: fingerprint.to_be_bytes().repeat(2).into(),
        remember: true,
        dup,
        ..report("d", connection, &json!({"a": 1}))
    }
}

#[test]
fn a_patch_that_is_sent_again_is_answered_as_the_first_time() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    assert_eq!(replica.reported(sent(false, 1, 1)), Reported::Patched(2));
    assert_eq!(replica.reported(sent(true, 1, 1)), Reported::Patched(2));
    let new = replica.reported(sent(false, 1, 1));
    assert_eq!(new, Reported::Patched(3), "a new request");
    let last = replica.reported(sent(true, 1, 1));
    assert_eq!(last, Reported::Patched(3), "the last one's");
    let unknown = replica.reported(sent(true, 2, 1));
    assert_eq!(unknown, Reported::Patched(4), "never seen");
    // On another connection, after a restart, in the same batch.
    replica.restart();
    replica.present(hub_open("d", 2, 1, 1));
    assert_eq!(replica.reported(sent(true, 1, 2)), Reported::Patched(3));
    let refused = command::PatchReported {
        expected_version: Some(1),
        ..sent(false, 3, 2)
    };
    assert_eq!(replica.reported(refused.clone()), Reported::Precondition);
    let again = command::PatchReported {
        dup: true,
        ..refused
    };
    assert_eq!(replica.reported(again), Reported::Precondition);
    let both = vec![sent(false, 4, 2), sent(true, 4, 2)];
    replica.run(both.into_iter().map(Kind::PatchReported).collect());
    assert_eq!(replica.versions("d")[3], 5, "once");
    // It is another identity's request.
    replica.run(vec![delete("d", IfMatch::Any), create("d")]);
    replica.present(hub_open("d", 3, 2, 1));
    assert_eq!(replica.reported(sent(true, 1, 3)), Reported::Patched(2));
}

/// A cluster without power has no clock. When it is back, log time goes on by all that has passed, and clients send
/// what was not answered.
#[test]
fn an_answer_is_known_however_long_it_takes_to_come_back() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    assert_eq!(replica.reported(sent(false, 1, 1)), Reported::Patched(2));
    replica.restart();
    // All nodes were without power: some node has been elected.
    replica.term += 1;
    replica.pass(30 * 24 * 3_600_000);
    replica.settle();
    replica.present(hub_open("d", 2, 1, 1));
    assert_eq!(replica.reported(sent(true, 1, 2)), Reported::Patched(2));
}

/// A device that begins alike with each run loses its first patch of today with its connection, and sends it again:
/// that it looks like one of its last run, which was answered, says nothing.
#[test]
fn an_answer_to_a_former_run_is_not_given_again() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    assert_eq!(replica.reported(sent(false, 1, 1)), Reported::Patched(2));
    assert_eq!(replica.reported(sent(false, 2, 1)), Reported::Patched(3));
    // Others go on meanwhile.
    for minute in 0..60 {
        replica.pass(60_000);
        if minute == 58 {
            replica.present(hub_open("d", 2, 1, 1));
        }
    }
    replica.present(hub_open("d", 3, 1, 1));
    assert_eq!(replica.reported(sent(true, 1, 3)), Reported::Patched(4));
    assert_eq!(replica.reported(sent(true, 1, 3)), Reported::Patched(4));
    // It sleeps for an hour, and nobody else does anything.
    replica.pass(3_600_000);
    replica.present(hub_open("d", 4, 1, 1));
    assert_eq!(replica.reported(sent(true, 1, 4)), Reported::Patched(5));
}

/// Clients that number their requests anew with each run may make one that looks like an old one.
#[test]
fn an_answer_is_forgotten_when_many_others_were_given() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    for number in 0..=64 {
        replica.reported(sent(false, number, 1));
    }
    // The connection's own messages are not counted, and what is sent with QoS 0 is not either.
    replica.reported(report("d", 1, &json!({"a": 1})));
    assert_eq!(replica.reported(sent(true, 1, 1)), Reported::Patched(3));
    assert_eq!(replica.reported(sent(true, 0, 1)), Reported::Patched(68));
    let rows = replica.stored.values().map(Vec::len).max();
    assert!(rows.is_some_and(|bytes| bytes < 2_000), "they are bounded");
}

#[test]
fn what_is_not_to_be_remembered_is_not() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    let unremembered = |dup| command::PatchReported {
        remember: false,
        ..sent(dup, 1, 1)
    };
    assert_eq!(replica.reported(unremembered(false)), Reported::Patched(2));
    assert_eq!(replica.reported(unremembered(true)), Reported::Patched(3));
}
