//! Twins as back ends write them: versions and etags, what is judged and in which order, all or nothing.

use serde_json::{Value, json};

use super::Replica;
use super::hub::{create, desired, patch, shown, update};
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{Output, Reply};
use crate::machine::hub::{HubReply, Refusal};
use crate::registry::IfMatch;
use crate::twin::Measure;

#[test]
fn every_write_moves_what_it_is_to_move() {
    let mut replica = Replica::new();
    replica.identity(create("d"));
    replica.identity(create("d/m"));
    assert_eq!(replica.versions("d/m"), [2, 1, 1, 1]);
    let twin = |replica: &mut Replica, kind| {
        let twin = replica.twin(kind);
        assert_eq!(
            replica.read_twin("d/m"),
            Some(twin),
            "the answer is as of this write"
        );
        replica.versions("d/m")
    };
    let tags = json!({"tags": {"site": {"building": "43", "floor": "1"}}});
    assert_eq!(twin(&mut replica, patch("d/m", &tags)), [3, 2, 1, 1]);
    let both = json!({"tags": {}, "properties": {"desired": {"a": 1}}});
    assert_eq!(twin(&mut replica, patch("d/m", &both)), [4, 3, 2, 1]);
    let neither = json!({"properties": {"reported": {"a": 1}}, "etag": "x"});
    assert_eq!(twin(&mut replica, patch("d/m", &neither)), [4, 3, 2, 1]);
    // Equal values and empty sections count as written.
    assert_eq!(twin(&mut replica, patch("d/m", &both)), [5, 4, 3, 1]);
    let empty = json!({"properties": {"desired": {}}});
    assert_eq!(twin(&mut replica, patch("d/m", &empty)), [6, 5, 4, 1]);
    let replace = |body| update("d/m", IfMatch::Absent, true, body);
    assert_eq!(twin(&mut replica, replace(&both)), [7, 6, 5, 1]);
    assert_eq!(twin(&mut replica, replace(&json!({}))), [7, 6, 5, 1]);
    let document = shown(&replica.read_twin("d/m").expect("a twin"));
    assert_eq!(document.get("tags"), None, "empty tags are left out");
    assert_eq!(replica.versions("d"), [2, 1, 1, 1], "the device's own twin");
    assert_eq!(replica.refused(patch("d/x", &both)), Refusal::NoDevice);
    assert_eq!(replica.refused(patch("x", &both)), Refusal::NoDevice);
}

#[test]
fn of_writes_with_one_etag_one_is_accepted() {
    let mut replica = Replica::new();
    replica.identity(create("d"));
    let write = |etag: u64, value: u64| {
        update(
            "d",
            IfMatch::OneOf(vec![etag]),
            false,
            &json!({"tags": {"a": value}}),
        )
    };
    let outputs = replica.run((0..5).map(|value| write(1, value)).collect());
    let accepted = outputs.iter().filter(|output| {
        let Output::Reply { reply, .. } = output else {
            return false;
        };
        matches!(reply, Reply::Hub(HubReply::Twin(_)))
    });
    assert_eq!(accepted.count(), 1);
    assert_eq!(replica.versions("d"), [3, 2, 1, 1]);
    assert_eq!(replica.refused(write(1, 9)), Refusal::Precondition);
    assert_eq!(replica.refused(write(3, 9)), Refusal::Precondition);
    replica.twin(write(2, 9));
    // What is missing is said before the etag, the etag before the size.
    let large = json!({"tags": {"a": ["x".repeat(4000), "x".repeat(4000), "x".repeat(4000)]}});
    let wrong = IfMatch::OneOf(vec![99]);
    assert_eq!(
        replica.refused(update("x", wrong.clone(), false, &large)),
        Refusal::NoDevice
    );
    assert_eq!(
        replica.refused(update("d", wrong, false, &large)),
        Refusal::Precondition
    );
    assert!(matches!(
        replica.refused(patch("d", &large)),
        Refusal::TooLarge(_)
    ));
}

#[test]
fn a_section_that_is_too_large_refuses_the_other_too() {
    let mut replica = Replica::new();
    replica.identity(create("d"));
    let values = |count| vec!["x".repeat(4096); count];
    let desired = |count| json!({"tags": {"t": 1}, "properties": {"desired": {"": values(count)}}});
    replica.twin(patch("d", &desired(8)));
    assert!(matches!(
        replica.refused(patch("d", &desired(9))),
        Refusal::TooLarge(_)
    ));
    let tags = |count| json!({"tags": {"": values(count)}, "properties": {"desired": {"a": 1}}});
    assert!(matches!(
        replica.refused(patch("d", &tags(2))),
        Refusal::TooLarge(_)
    ));
    let alone = json!({"tags": {"": values(2), "t": null}});
    assert_eq!(replica.twin(patch("d", &alone)).head.version, 4);
}

#[test]
fn what_has_no_size_is_bounded_by_its_bytes() {
    let mut replica = Replica::new();
    replica.identity(create("d"));
    let sizeless = json!(vec!["\u{1}".repeat(4096); 15]);
    for key in ["a", "b", "c"] {
        replica.twin(desired("d", json!({ key: sizeless })));
    }
    let refusal = replica.refused(desired("d", json!({ "d": sizeless })));
    assert!(
        matches!(refusal, Refusal::TooLarge(error) if error.measure == Measure::TextBytes),
        "{refusal:?}"
    );
    let mut nested = json!("");
    for _ in 0..9 {
        nested = json!({ "": nested });
    }
    replica.identity(create("e"));
    let mut accepted = 0;
    let refusal = loop {
        let members = (0..256).map(|key| (format!("{:02x}", key), nested.clone()));
        let body = json!({ format!("{accepted}"): Value::Object(members.collect()) });
        match replica.hub(desired("e", body)) {
            HubReply::Twin(_) => accepted += 1,
            HubReply::Refused(refusal) => break refusal,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refusal, Refusal::TooLarge(error) if error.measure == Measure::Values));
    assert_eq!(accepted, 3, "2,561 values each");
}

#[test]
fn commands_that_no_node_proposes_are_refused() {
    let mut replica = Replica::new();
    replica.identity(create("d"));
    let invalid = [
        Kind::PutIdentity(command::PutIdentity {
            device: "a\0b".to_owned(),
            fields: Some(Default::default()),
            ..Default::default()
        }),
        Kind::PutIdentity(command::PutIdentity {
            device: "a".to_owned(),
            ..Default::default()
        }),
        Kind::DeleteIdentity(command::DeleteIdentity {
            device: "a/b".to_owned(),
            ..Default::default()
        }),
        Kind::UpdateTwin(command::UpdateTwin::default()),
        Kind::UpdateTwin(command::UpdateTwin {
            device: "d".to_owned(),
            tags: Some(vec![9].into()),
            ..Default::default()
        }),
    ];
    for kind in invalid {
        assert_eq!(replica.refused(kind), Refusal::Invalid);
    }
}
